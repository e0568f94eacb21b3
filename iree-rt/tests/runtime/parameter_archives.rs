//! Archives of parameters, whole and damaged, of every format.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::support::BOTH_CPU_DEVICES;
use crate::support::parameters::{
    INTS, W, archives, build, floats, gguf_header, in_memory, ints, irpa,
};
use iree_rt::{Code, ParameterFormat, ParameterIndex};

#[test]
fn every_format_mapped_read_and_in_memory_on_both_devices() {
    let folder = tempfile::tempdir().unwrap();
    for (format, extension, bytes) in archives() {
        let path = folder.path().join(format!("model.{extension}"));
        fs::write(&path, &bytes).unwrap();
        assert_eq!(ParameterFormat::of(&path), Some(format));
        let indexes = [
            // SAFETY: nobody changes the file.
            unsafe { ParameterIndex::from_file(&path) }.unwrap(),
            ParameterIndex::read_file(&path).unwrap(),
            ParameterIndex::from_bytes(format, &bytes).unwrap(),
            ParameterIndex::from_owner(format, bytes.clone()).unwrap(),
        ];
        for (index, uri) in indexes.iter().flat_map(|index| BOTH_CPU_DEVICES.map(|d| (index, d))) {
            let entries = index.entries().unwrap();
            let names: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.length)).collect();
            assert_eq!(names, [("ints", 20), ("w", 12)], "{format:?}");
            assert!(entries.iter().all(|entry| !entry.is_splat));
            let mut session = build(uri, index).unwrap();
            assert_eq!(
                floats(&mut session, "program.scale", Some([1., 2., 0.5])),
                [10., 40., 15.],
                "{format:?} on {uri}"
            );
            assert_eq!(ints(&mut session), INTS, "{format:?} on {uri}");
        }
    }
}

/// Bytes of an owner are those that programs compute with, aligned or not, and the owner goes when they have gone.
#[test]
fn bytes_of_an_owner_are_used_where_they_are() {
    let w = Arc::new(W);
    struct Shared(Arc<[f32; 3]>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            bytemuck::bytes_of(&*self.0)
        }
    }
    for uri in BOTH_CPU_DEVICES {
        let index = ParameterIndex::new().unwrap();
        index.add_owner("w", Shared(w.clone()), b"").unwrap();
        let error = index.add_owner("w", Shared(w.clone()), b"").unwrap_err();
        assert_eq!(error.code(), Code::AlreadyExists);
        index.add("ints", &INTS, b"").unwrap();
        assert_eq!(Arc::strong_count(&w), 2);
        assert_eq!(index.read("w").unwrap(), bytemuck::bytes_of(&W));
        let mut session = build(uri, &index).unwrap();
        drop(index);
        assert_eq!(floats(&mut session, "program.scale", Some([1., 2., 0.5])), [10., 40., 15.]);
        drop(session);
        assert_eq!(Arc::strong_count(&w), 1);
    }
}

#[test]
fn metadata_and_splats_survive_an_archive() {
    let index = in_memory();
    index.add_splat("ones", 1f32, 4096, b"all one").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.irpa");
    index.write_archive(&path).unwrap();
    // Again, over the file that is there.
    index.write_archive(&path).unwrap();
    let read = ParameterIndex::read_file(&path).unwrap();
    assert_eq!(read.len(), 3);
    assert_eq!(read.entry("ints").unwrap().metadata, b"five");
    let ones = read.entry("ones").unwrap();
    assert!(ones.is_splat);
    assert_eq!((ones.length, &ones.metadata[..]), (4096, &b"all one"[..]));
    assert_eq!(read.read("ones").unwrap(), 1f32.to_le_bytes().repeat(1024));
    assert_eq!(read.read("w").unwrap(), index.read("w").unwrap());
    assert_eq!(read.entry("nothing"), None);
    assert_eq!(read.read("nothing").unwrap_err().code(), Code::NotFound);

    let splats = ParameterIndex::new().unwrap();
    splats.add_splat("w", 2f32, 12, b"").unwrap();
    splats.add_splat("ints", 7u8, 20, b"").unwrap();
    let mut session = build("local-task", &splats).unwrap();
    assert_eq!(floats(&mut session, "program.weights", None), [2.; 3]);
    assert_eq!(ints(&mut session), [0x0707_0707; 5]);
}

#[test]
fn types_of_ggml_have_their_lengths() {
    // F16, Q4_0, Q8_0, Q6_K and BF16, as many elements as two blocks of the largest have.
    let expected = [(1, 1024), (2, 288), (8, 544), (14, 420), (30, 1024)];
    let names = ["a", "b", "c", "d", "e"];
    let mut offset = 0;
    let mut tensors = Vec::new();
    for (name, (ty, length)) in names.into_iter().zip(expected) {
        tensors.push((name, 512, ty, offset));
        offset += u64::next_multiple_of(length, 32);
    }
    let mut bytes = gguf_header(&tensors);
    bytes.resize(bytes.len() + offset as usize, 0);
    let index = ParameterIndex::from_bytes(ParameterFormat::Gguf, &bytes).unwrap();
    let lengths: Vec<u64> = index.entries().unwrap().iter().map(|e| e.length).collect();
    assert_eq!(lengths, expected.map(|(_, length)| length));

    let parse = |tensor| ParameterIndex::from_bytes(ParameterFormat::Gguf, &gguf_header(&[tensor]));
    let error = parse(("x", 512, 4, 0)).unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("`x` of GGML type 4"), "{error}");
    let error = parse(("x", 100, 14, 0)).unwrap_err();
    assert!(error.message().contains("whole blocks of 256"), "{error}");
    for (elements, offset) in [(u64::MAX, 0), (8, u64::MAX), (8, 64)] {
        let error = parse(("x", elements, 0, offset)).unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
    }
}

#[test]
fn archives_of_iree_may_be_linked() {
    let (mut first, second) = (irpa(), {
        let file = tempfile::Builder::new().suffix(".irpa").tempfile().unwrap();
        let index = ParameterIndex::new().unwrap();
        index.add("more", &[1u8, 2, 3], b"").unwrap();
        index.write_archive(file.path()).unwrap();
        fs::read(file.path()).unwrap()
    });
    first.resize(first.len().next_multiple_of(16), 0);
    let next = (first.len() as u64).to_le_bytes();
    first[16..24].copy_from_slice(&next);
    first.extend(&second);
    let index = ParameterIndex::from_bytes(ParameterFormat::Irpa, &first).unwrap();
    assert_eq!(index.len(), 3);
    assert_eq!(index.read("more").unwrap(), [1, 2, 3]);
    assert_eq!(index.read("w").unwrap(), bytemuck::bytes_of(&W));
}

#[test]
fn files_that_are_no_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let error = ParameterIndex::read_file(write("x.bin", b"")).unwrap_err();
    assert!(error.message().contains(".safetensors"), "{error}");
    let error = ParameterIndex::read_file(folder.path().join("no.irpa")).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("no.irpa"), "{error}");
    for extension in ["irpa", "gguf", "safetensors"] {
        for (what, bytes) in [("empty", &b""[..]), ("text", b"not an archive, not at all")] {
            let path = write(&format!("{what}.{extension}"), bytes);
            let error = ParameterIndex::read_file(&path).unwrap_err();
            assert!(error.message().contains(&format!("{what}.{extension}")), "{error}");
            // SAFETY: nobody changes the file.
            assert!(unsafe { ParameterIndex::from_file(&path) }.is_err());
        }
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["no/such/folder/x.irpa", "taken.irpa"] {
        let path = folder.path().join(name);
        let _ = fs::create_dir(folder.path().join("taken.irpa"));
        let error = in_memory().write_archive(&path).unwrap_err();
        assert!(error.message().contains(name), "{error}");
        assert!(ParameterIndex::read_file(&path).unwrap_err().message().contains(name));
        // SAFETY: there is no file that could change.
        assert!(unsafe { ParameterIndex::from_file(&path) }.is_err());
    }
}

#[test]
fn an_archive_is_written_over_itself_while_it_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.irpa");
    let large = ParameterIndex::new().unwrap();
    large.add("large", &[7u8; 1 << 16], b"").unwrap();
    large.write_archive(&path).unwrap();
    // SAFETY: writing an archive changes no file that is there.
    let mapped = unsafe { ParameterIndex::from_file(&path) }.unwrap();
    mapped.write_archive(&path).unwrap();
    in_memory().write_archive(&path).unwrap();
    assert_eq!(mapped.read("large").unwrap(), [7; 1 << 16]);
    assert_eq!(
        ParameterIndex::read_file(&path).unwrap().read("w").unwrap(),
        bytemuck::bytes_of(&W)
    );
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(files, [path]);
}

#[test]
fn a_path_with_a_zero_byte_is_no_other_path() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::write(&other, "mine").unwrap();
    let error = in_memory().write_archive(folder.path().join("other\0.irpa")).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
}

/// Every prefix of every archive, and every archive with one byte changed: errors, or parameters
/// that can be read; nothing else.
#[test]
fn damaged_archives_are_errors_or_read_inside_themselves() {
    for (format, _, bytes) in archives() {
        for length in 0..bytes.len() {
            // Without its last bytes of padding, an archive is whole.
            if let Ok(index) = ParameterIndex::from_bytes(format, &bytes[..length]) {
                read_all(&index);
            }
        }
        let cut = ParameterIndex::from_bytes(format, &bytes[..bytes.len() - 64.min(bytes.len())]);
        assert!(cut.is_err() || format == ParameterFormat::Irpa, "{format:?}");
        let header = bytes.len().min(1024);
        for at in 0..header {
            for change in [0x01, 0x80, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                if let Ok(index) = ParameterIndex::from_bytes(format, &damaged) {
                    read_all(&index);
                }
            }
        }
    }
}

fn read_all(index: &ParameterIndex) {
    for entry in index.entries().unwrap() {
        if entry.length < 1 << 20 {
            assert_eq!(
                index.read(&entry.name).map_or(entry.length, |b| b.len() as u64),
                entry.length
            );
        }
    }
}
