//! Modules that are damaged, foreign, or from a file.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{compile, device, kinds};
use iree_rt::buffer::ALIGNMENT;
use iree_rt::{Code, CompileOptions, Error, Module, Session};

const SMALL: &str = "
module @small {
  func.func @twice(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}";

fn load(bytes: &[u8]) -> Result<Module, Error> {
    // SAFETY: what is refused is not run; what loads came from our compiler.
    unsafe { Module::from_bytes(bytes) }
}

#[test]
fn from_a_mapped_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(kinds()).unwrap();
    // SAFETY: nobody changes the file.
    let module = unsafe { Module::from_file(file.path()) }.unwrap();
    assert_eq!(module.name(), "kinds");
    let mut session = Session::builder(&device("local-sync")).module(module).build().unwrap();
    drop(file);
    let add = session.function("kinds.add").unwrap();
    let x = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
    let sum = session.call(&add, [&x, &x]).unwrap().view(0).unwrap();
    assert_eq!(sum.read::<f32>().unwrap(), [2.; 4]);
}

/// Bytes at a multiple of so many, which count where they go.
struct Owned {
    bytes: Vec<u8>,
    start: usize,
    dropped: Arc<AtomicUsize>,
}

impl Owned {
    fn new(bytes: &[u8], past_aligned: usize, dropped: &Arc<AtomicUsize>) -> Self {
        let mut all = vec![0; bytes.len() + 2 * ALIGNMENT];
        let start = all.as_ptr().align_offset(ALIGNMENT) + past_aligned;
        all[start..start + bytes.len()].copy_from_slice(bytes);
        all.truncate(start + bytes.len());
        Self { bytes: all, start, dropped: dropped.clone() }
    }
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Aligned bytes are used where they are, as long as anything of the module lives; others are copied at once.
#[test]
fn from_bytes_of_an_owner() {
    for (past_aligned, gone_at_once) in [(0, 0), (4, 1)] {
        let dropped = Arc::default();
        // SAFETY: our compiler's, which nobody changes.
        let module =
            unsafe { Module::from_owner(Owned::new(kinds(), past_aligned, &dropped)) }.unwrap();
        let gone = || dropped.load(Ordering::SeqCst);
        assert_eq!(gone(), gone_at_once);
        let mut session = Session::builder(&device("local-sync")).module(module).build().unwrap();
        assert_eq!(gone(), gone_at_once);
        let add = session.function("kinds.add").unwrap();
        let x = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
        let sum = session.call(&add, [&x, &x]).unwrap().view(0).unwrap();
        assert_eq!(sum.read::<f32>().unwrap(), [2.; 4]);
        drop(session);
        drop((add, x, sum));
        assert_eq!(gone(), 1);
    }
    for bytes in [&b""[..], b"module @text {}", &kinds()[..kinds().len() / 2]] {
        let dropped = Arc::default();
        // SAFETY: what is refused is not run.
        let error = unsafe { Module::from_owner(Owned::new(bytes, 0, &dropped)) }.unwrap_err();
        assert!(matches!(error.code(), Code::InvalidArgument | Code::OutOfRange), "{error}");
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn files_that_are_no_modules_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.vmfb");
    let (empty, text) = (folder.path().join("empty.vmfb"), folder.path().join("text.vmfb"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&text, "module @text {} // not compiled yet").unwrap();
    let cases = [
        (&missing, Code::NotFound, "missing.vmfb"),
        (&empty, Code::InvalidArgument, "empty.vmfb: the file is empty"),
        (&text, Code::InvalidArgument, "text.vmfb: not an IREE module"),
        (&folder.path().to_owned(), Code::InvalidArgument, "a folder, not an IREE module (.vmfb)"),
    ];
    for (path, code, expected) in cases {
        // SAFETY: as for `load`.
        let error = unsafe { Module::from_file(path) }.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(expected), "{error}");
    }
}

#[test]
fn truncated_modules_are_refused() {
    let bytes = kinds();
    for length in [0, 1, 7, 8, 15, 16, 64, bytes.len() / 4, bytes.len() / 2, bytes.len() - 5000] {
        let error = load(&bytes[..length]).expect_err(&format!("{length} bytes loaded"));
        assert!(
            matches!(error.code(), Code::InvalidArgument | Code::OutOfRange),
            "{length}: {error:?}"
        );
    }
}

#[test]
fn garbage_is_refused() {
    let mut state = 1u32;
    let garbage: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    })
    .take(4096)
    .collect();
    assert_eq!(load(&garbage).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(load(&[0; 4096]).unwrap_err().code(), Code::InvalidArgument);
    // A good identifier does not make it better.
    let mut disguised = garbage.clone();
    disguised[4..8].copy_from_slice(b"IREE");
    assert!(load(&disguised).is_err());
    disguised[8..12].copy_from_slice(b"IREE");
    assert!(load(&disguised).is_err());
}

/// Every byte of the header zeroed or flipped, one at a time: an error or a module, no crash.
#[test]
fn damaged_headers_do_no_harm() {
    let bytes = compile(SMALL, &CompileOptions::default());
    for at in 0..bytes.len().min(256) {
        for value in [0, !bytes[at]] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            let _ = load(&damaged);
        }
    }
}

#[test]
fn another_bytecode_version_is_incompatible() {
    let bytes = compile(SMALL, &CompileOptions::default());
    // The version (17 << 16) is a u32 field of the module's table.
    let version = (17u32 << 16).to_le_bytes();
    let places: Vec<usize> =
        (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == version).collect();
    let refused = places.iter().any(|&at| {
        let mut other = bytes.clone();
        other[at..at + 4].copy_from_slice(&(16u32 << 16).to_le_bytes());
        load(&other).is_err_and(|error| {
            error.code() == Code::Incompatible
                && error.message().contains("3.13.0")
                && error.message().contains("another version of IREE")
                && error.message().contains("it has bytecode 16.0")
        })
    });
    assert!(refused, "no place of the version among {places:?}");
}

/// What the version is read from is damaged like everything else.
#[test]
fn a_damaged_version_does_no_harm() {
    let bytes = compile(SMALL, &CompileOptions::default());
    let fb = bytes.windows(4).position(|four| four == b"IREE").unwrap() - 4;
    // The root's offset, and that of its table of fields; the lengths that a zip says.
    for at in [fb, fb + 1, fb + 3, fb + 8, fb + 9, fb + 11, 26, 27, 28, 29] {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            for length in [bytes.len(), fb + 12] {
                let _ = load(&damaged[..length]);
            }
        }
    }
}

#[test]
fn names_are_printed_escaped() {
    let session = Session::builder(&device("local-sync"))
        .module(load(&compile(SMALL, &CompileOptions::default())).unwrap())
        .build()
        .unwrap();
    let error = session.function("small.\0tw\u{1b}[2Jice").unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains(r"`small.\0tw\u{1b}[2Jice`"), "{error:?}");
    let error = error.context("what\r\0");
    assert!(error.to_string().starts_with(r"what\r\0: "), "{error:?}");
    // Text of several lines stays so.
    assert_eq!(Error::new(Code::Unknown, "one\n\ttwo").message(), "one\n\ttwo");
}

#[test]
fn one_call_opens_a_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(kinds()).unwrap();
    let device = device("local-sync");
    // SAFETY: nobody changes the file; its functions are safe for all of their arguments.
    let mut session = unsafe { Session::load(&device, file.path()) }.unwrap();
    let add = session.function("kinds.add").unwrap();
    let x = device.buffer_view(&[4], &[1f32; 4]).unwrap();
    let sum = session.call(&add, [&x, &x]).unwrap().view(0).unwrap();
    assert_eq!(sum.read::<f32>().unwrap(), [2.; 4]);
    // SAFETY: there is none.
    let error = unsafe { Session::load(&device, "no/such.vmfb") }.unwrap_err();
    assert!(error.code() == Code::NotFound && error.message().contains("no/such.vmfb"), "{error}");
}

#[test]
fn a_module_for_another_cpu_is_incompatible() {
    let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
    let options = CompileOptions::empty()
        .flag("--iree-hal-target-device=local")
        .flag("--iree-hal-local-target-device-backends=llvm-cpu")
        .flag(format!("--iree-llvmcpu-target-triple={other}-unknown-linux-gnu"));
    let module = load(&compile(SMALL, &options)).unwrap();
    for uri in ["local-task", "local-sync"] {
        let error = Session::builder(&device(uri)).module(module.clone()).build().unwrap_err();
        assert_eq!(error.code(), Code::Incompatible, "{error}");
        assert!(error.message().contains("another CPU"), "{error}");
    }
}

#[test]
fn a_constant_result_outlives_its_session() {
    // Large enough to be used where it lies in the module.
    let numbers: Vec<f32> = (0..20_000).map(|n| n as f32 * 0.5).collect();
    let source = format!(
        "module @fixed {{
           func.func @constant() -> tensor<20000xf32> {{
             %0 = stablehlo.constant dense<{numbers:?}> : tensor<20000xf32>
             return %0 : tensor<20000xf32>
           }}
         }}"
    );
    let bytes = compile(&source, &CompileOptions::default());
    for uri in ["local-sync", "local-task"] {
        let mut session =
            Session::builder(&device(uri)).module(load(&bytes).unwrap()).build().unwrap();
        let constant = session.function("fixed.constant").unwrap();
        let view = session.call(&constant, ()).unwrap().view(0).unwrap();
        drop((session, constant));
        assert_eq!(view.read::<f32>().unwrap(), numbers, "{uri}");
    }
}
