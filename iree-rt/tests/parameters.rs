//! Parameters: archives of every format, indexes made in memory, and Rust providers.

mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use iree_rt::{
    Code, CompileOptions, Error, Module, ParameterFormat, ParameterIndex, ParameterProvider,
    Result, Session, Tensor,
};
use support::{compile, device, module};

const BOTH_CPU_DEVICES: [&str; 2] = ["local-sync", "local-task"];

/// Takes `w`, `ints` and a whole matrix from the scope `model`, and `bias` from none.
const PROGRAM: &str = r#"
module @program {
  util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<3xf32>
  util.global private @ints = #flow.parameter.named<"model"::"ints"> : tensor<5xi32>
  util.global private mutable @state = #flow.parameter.named<"model"::"w"> : tensor<3xf32>
  func.func @scale(%a: tensor<3xf32>) -> tensor<3xf32> {
    %w = util.global.load @w : tensor<3xf32>
    %0 = stablehlo.multiply %a, %w : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
  func.func @get_ints() -> tensor<5xi32> {
    %0 = util.global.load @ints : tensor<5xi32>
    return %0 : tensor<5xi32>
  }
  func.func @weights() -> tensor<3xf32> {
    %0 = util.global.load @w : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
  func.func @replace(%a: tensor<1xf32>) -> tensor<3xf32> {
    %old = util.global.load @state : tensor<3xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %new = stablehlo.dynamic_update_slice %old, %a, %zero
        : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    util.global.store %new, @state : tensor<3xf32>
    %out = stablehlo.negate %new : tensor<3xf32>
    return %out : tensor<3xf32>
  }
  func.func @step(%a: tensor<3xf32>) -> tensor<3xf32> {
    %old = util.global.load @state : tensor<3xf32>
    %new = stablehlo.add %old, %a : tensor<3xf32>
    util.global.store %new, @state : tensor<3xf32>
    return %new : tensor<3xf32>
  }
}
"#;

const W: [f32; 3] = [10., 20., 30.];
const INTS: [i32; 5] = [1, -2, 3, -4, 5];

fn program() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-opt-const-eval=false");
    module(BYTES.get_or_init(|| compile(PROGRAM, &options)))
}

fn in_memory() -> ParameterIndex {
    let index = ParameterIndex::new().unwrap();
    index.add("ints", &INTS, b"five").unwrap();
    index.add("w", &W, b"").unwrap();
    index
}

fn irpa() -> Vec<u8> {
    let file = tempfile::Builder::new().suffix(".irpa").tempfile().unwrap();
    in_memory().write_archive(file.path()).unwrap();
    fs::read(file.path()).unwrap()
}

fn safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"who":"me"},"ints":{"dtype":"I32","shape":[5],"data_offsets":[0,20]},"w":{"dtype":"F32","shape":[3],"data_offsets":[20,32]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(INTS.iter().flat_map(|x| x.to_le_bytes()));
    bytes.extend(W.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn gguf() -> Vec<u8> {
    let (i32, f32) = (26, 0);
    let mut bytes = gguf_header(&[("ints", 5, i32, 0), ("w", 3, f32, 32)]);
    bytes.extend(INTS.iter().flat_map(|x| x.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(W.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

/// All before the data of tensors of these names, elements, types and offsets.
fn gguf_header(tensors: &[(&str, u64, u32, u64)]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.bytes());
    };
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    text(&mut bytes, "general.name");
    bytes.extend(8u32.to_le_bytes());
    text(&mut bytes, "test");
    text(&mut bytes, "tokens");
    bytes.extend([9u32, 8].map(u32::to_le_bytes).concat());
    bytes.extend(2u64.to_le_bytes());
    text(&mut bytes, "a");
    text(&mut bytes, "bc");
    text(&mut bytes, "ids");
    bytes.extend([9u32, 5].map(u32::to_le_bytes).concat());
    bytes.extend(2u64.to_le_bytes());
    bytes.extend([7i32, 8].map(i32::to_le_bytes).concat());
    for (name, length, ty, offset) in tensors {
        text(&mut bytes, name);
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(ty.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}

fn archives() -> [(ParameterFormat, &'static str, Vec<u8>); 3] {
    [
        (ParameterFormat::Irpa, "irpa", irpa()),
        (ParameterFormat::Gguf, "gguf", gguf()),
        (ParameterFormat::Safetensors, "safetensors", safetensors()),
    ]
}

fn build(uri: &str, index: &ParameterIndex) -> Result<Session> {
    Session::builder(&device(uri)).parameters("model", index).module(program()).build()
}

fn floats(session: &mut Session, name: &str, argument: Option<[f32; 3]>) -> Vec<f32> {
    let function = session.function(name).unwrap();
    let view = argument.map(|data| session.device().buffer_view(&[3], &data).unwrap().into());
    session.call(&function, view).unwrap().buffer_view(0).unwrap().read().unwrap()
}

fn ints(session: &mut Session) -> Vec<i32> {
    let ints = session.typed::<(), Tensor<i32>>("program.get_ints").unwrap();
    ints.call(session, ()).unwrap().read().unwrap()
}

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
fn aligned_parameters_are_used_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let allocated = |extension: &str, bytes: &[u8]| {
        let path = folder.path().join(format!("x.{extension}"));
        fs::write(&path, bytes).unwrap();
        // SAFETY: nobody changes the file.
        let index = unsafe { ParameterIndex::from_file(&path) }.unwrap();
        let session = build("local-sync", &index).unwrap();
        session.device().memory_statistics().device.allocated
    };
    assert_eq!(allocated("irpa", &irpa()), 0);
    // In the middle of such a file they are not aligned; the state is a copy anyhow.
    assert_eq!(allocated("safetensors", &safetensors()), 12 + 20);
}

#[test]
fn splats_of_wide_values() {
    let source = r#"
    module @wide {
      util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xi64>
      func.func @get() -> tensor<4xi64> {
        %0 = util.global.load @w : tensor<4xi64>
        return %0 : tensor<4xi64>
      }
    }"#;
    let bytes = compile(source, &CompileOptions::default());
    let index = ParameterIndex::new().unwrap();
    index.add_splat("w", 0x0102_0304_0506_0708i64, 32, b"").unwrap();
    for uri in BOTH_CPU_DEVICES {
        let builder = Session::builder(&device(uri)).parameters("model", &index);
        let mut session = builder.module(module(&bytes)).build().unwrap();
        let get = session.typed::<(), Tensor<i64>>("wide.get").unwrap();
        let wide = get.call(&mut session, ()).unwrap().read().unwrap();
        assert_eq!(wide, [0x0102_0304_0506_0708; 4]);
    }
}

#[test]
fn a_program_that_changes_its_state_changes_no_parameter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.irpa");
    in_memory().write_archive(&path).unwrap();
    let before = fs::read(&path).unwrap();
    // SAFETY: nobody changes the file.
    let index = unsafe { ParameterIndex::from_file(&path) }.unwrap();
    for uri in BOTH_CPU_DEVICES {
        let mut session = build(uri, &index).unwrap();
        assert_eq!(floats(&mut session, "program.step", Some([1., 1., 1.])), [11., 21., 31.]);
        assert_eq!(floats(&mut session, "program.step", Some([1., 1., 1.])), [12., 22., 32.]);
        assert_eq!(floats(&mut session, "program.weights", None), W);

        // A part of it, where the program may see no need for a copy.
        let mut session = build(uri, &index).unwrap();
        let replace = session.function("program.replace").unwrap();
        let one = session.device().buffer_view(&[1], &[-1f32]).unwrap();
        let out = session.call(&replace, [one.into()]).unwrap().buffer_view(0).unwrap();
        assert_eq!(out.read::<f32>().unwrap(), [1., -20., -30.]);
        assert_eq!(floats(&mut session, "program.weights", None), W, "{uri}");
        assert_eq!(index.read("w").unwrap(), bytemuck::bytes_of(&W), "{uri}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_parameter_that_is_returned_ends_where_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    for (_, extension, bytes) in archives() {
        let path = folder.path().join(format!("x.{extension}"));
        fs::write(&path, &bytes).unwrap();
        for uri in BOTH_CPU_DEVICES {
            // SAFETY: nobody changes the file.
            let index = unsafe { ParameterIndex::from_file(&path) }.unwrap();
            let mut session = build(uri, &index).unwrap();
            let weights = session.typed::<(), Tensor<f32>>("program.weights").unwrap();
            let view = weights.call(&mut session, ()).unwrap().into_view();
            // It outlives all that it came from.
            drop((session, index));
            let buffer = view.buffer();
            assert!(buffer.len() < 4096 && view.byte_len() == 12, "{buffer:?}");
            let mut all = vec![0; buffer.len()];
            buffer.read_into(0, &mut all).unwrap();
            let mut one = [0];
            assert!(buffer.read_into(buffer.len(), &mut one).is_err());
            // Writing to it changes memory, or is refused; the file stays as it is.
            let _ = view.write(0, &[-1f32]);
        }
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn what_is_missing_is_named() {
    let none = ParameterIndex::new().unwrap();
    let error = build("local-sync", &none).unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let named = ["'w'", "`w`", "'ints'"].iter().any(|name| error.message().contains(name));
    assert!(named, "{error}");

    let builder = Session::builder(&device("local-sync")).parameters("other", &in_memory());
    let error = builder.module(program()).build().unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.message().contains("model"), "{error}");

    let error = Session::builder(&device("local-sync")).module(program()).build().unwrap_err();
    assert!(error.message().contains("the session was given none"), "{error}");

    let short = ParameterIndex::new().unwrap();
    short.add("w", &W[..2], b"").unwrap();
    short.add("ints", &INTS, b"").unwrap();
    let error = build("local-sync", &short).unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
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

#[test]
fn names_are_used_once_and_splats_fit() {
    let index = in_memory();
    assert_eq!(index.add("w", &[1u8], b"").unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(index.add_splat("w", 1u8, 1, b"").unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(index.extend(&in_memory()).unwrap_err().code(), Code::AlreadyExists);
    for (value, length) in [(&[0u8; 17][..], 17), (&[0u8; 0], 4), (&[0u8; 3], 6), (&[0u8; 4], 6)] {
        let error = match value.len() {
            17 => index.add_splat("s", [0u8; 17], length, b""),
            0 => index.add_splat("s", [0u8; 0], length, b""),
            3 => index.add_splat("s", [0u8; 3], length, b""),
            _ => index.add_splat("s", [0u8; 4], length, b""),
        };
        assert_eq!(error.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(index.len(), 2);
    // As the fuzz target `parameters` found: whose bytes would be read?
    let mut twice = gguf_header(&[("w", 3, 0, 0), ("w", 1, 0, 32)]);
    twice.resize(twice.len() + 64, 0);
    let error = ParameterIndex::from_bytes(ParameterFormat::Gguf, &twice).unwrap_err();
    assert!(error.message().contains("two parameters are named `w`"), "{error}");

    // Shards: each its own file, together one scope.
    let shards = ParameterIndex::new().unwrap();
    for (name, data) in [("w", bytemuck::bytes_of(&W)), ("ints", bytemuck::bytes_of(&INTS))] {
        let shard = ParameterIndex::new().unwrap();
        shard.add(name, data, b"").unwrap();
        shards.extend(&shard).unwrap();
    }
    let mut session = build("local-sync", &shards).unwrap();
    assert_eq!(floats(&mut session, "program.weights", None), W);
}

#[test]
fn an_index_serves_sessions_on_several_threads() {
    let index = in_memory();
    thread::scope(|scope| {
        for uri in BOTH_CPU_DEVICES {
            let index = &index;
            scope.spawn(move || {
                for round in 0..5 {
                    let mut session = build(uri, index).unwrap();
                    assert_eq!(floats(&mut session, "program.weights", None), W);
                    index.add(&format!("{uri}{round}"), &[0u8; 100], b"").unwrap();
                }
            });
        }
    });
    assert_eq!(index.len(), 12);
}

/// Makes the parameters of `model`, and counts how often it is asked.
struct Model {
    asked: Arc<AtomicUsize>,
    load: fn(&str) -> Result<Vec<u8>>,
}

impl ParameterProvider for Model {
    fn supports(&self, scope: &str) -> bool {
        scope == "model"
    }

    fn load(&self, scope: &str, name: &str) -> Result<Vec<u8>> {
        assert_eq!(scope, "model");
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.load)(name)
    }
}

fn good(name: &str) -> Result<Vec<u8>> {
    match name {
        "w" => Ok(bytemuck::bytes_of(&W).to_vec()),
        "ints" => Ok(bytemuck::bytes_of(&INTS).to_vec()),
        _ => Err(Error::new(Code::NotFound, "unknown")),
    }
}

fn provided(uri: &str, load: fn(&str) -> Result<Vec<u8>>) -> (Result<Session>, usize) {
    let asked = Arc::new(AtomicUsize::new(0));
    let model = Model { asked: asked.clone(), load };
    let builder = Session::builder(&device(uri)).parameter_provider(model);
    let session = builder.module(program()).build();
    (session, asked.load(Ordering::SeqCst))
}

#[test]
fn a_rust_provider_makes_parameters() {
    for uri in BOTH_CPU_DEVICES {
        let (session, asked) = provided(uri, good);
        let mut session = session.unwrap();
        assert!((2..=3).contains(&asked), "{asked}");
        assert_eq!(floats(&mut session, "program.scale", Some([1., 2., 0.5])), [10., 40., 15.]);
        assert_eq!(floats(&mut session, "program.step", Some([1., 1., 1.])), [11., 21., 31.]);
        assert_eq!(floats(&mut session, "program.weights", None), W);
        assert_eq!(ints(&mut session), INTS);
    }
}

#[test]
fn what_a_provider_does_wrong_fails_the_session() {
    let error_of = |load| provided("local-task", load).0.unwrap_err();
    let error = error_of(|name| Err(Error::new(Code::PermissionDenied, format!("{name} is mine"))));
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.message().contains("is mine"), "{error}");
    assert!(error.message().contains("of scope `model`"), "{error}");
    let error = error_of(|name| panic!("no {name}"));
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("panicked: no "), "{error}");
    let error = error_of(|_| Ok(vec![1; 7]));
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    let error = error_of(|_| Ok(vec![]));
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    // More than the program takes is fine.
    let (session, _) =
        provided("local-task", |_| Ok(bytemuck::cast_slice::<f32, u8>(&[1.; 100]).to_vec()));
    assert_eq!(floats(&mut session.unwrap(), "program.weights", None), [1.; 3]);
}

#[test]
fn the_first_that_knows_a_scope_answers() {
    struct Panics;
    impl ParameterProvider for Panics {
        fn supports(&self, _scope: &str) -> bool {
            panic!("whatever the scope")
        }

        fn load(&self, _scope: &str, _name: &str) -> Result<Vec<u8>> {
            unreachable!()
        }
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let model = Model { asked: asked.clone(), load: good };
    let builder = Session::builder(&device("local-sync"))
        .parameter_provider(Panics)
        .parameters("model", &in_memory())
        .parameter_provider(model);
    let mut session = builder.module(program()).build().unwrap();
    assert_eq!(floats(&mut session, "program.weights", None), W);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn parameters_without_a_scope() {
    let source = r#"
    module @bare {
      util.global private @bias = #flow.parameter.named<"bias"> : tensor<2xf32>
      func.func @bias() -> tensor<2xf32> {
        %0 = util.global.load @bias : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }"#;
    let bytes = compile(&source.replace("@bias()", "@get()"), &CompileOptions::default());
    let index = ParameterIndex::new().unwrap();
    index.add("bias", &[1f32, 2.], b"").unwrap();
    let builder = Session::builder(&device("local-sync")).parameters("", &index);
    let mut session = builder.module(module(&bytes)).build().unwrap();
    assert_eq!(floats(&mut session, "bare.get", None), [1., 2.]);
}
