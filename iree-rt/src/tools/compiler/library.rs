//! `libIREECompiler` inside this process, through its C embedding API
//! (`iree/compiler/embedding_api.h`, API version 1).

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::slice;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;

use memmap2::MmapMut;

use super::process::shorten;
use super::{CompileLimits, CompileOptions, Compiled, Source};
use crate::base::error::{Code, Error, Result};

/// The major API version that the signatures below are of.
const API_MAJOR: c_int = 1;

/// `IREE_COMPILER_PIPELINE_STD`: from input dialects to a module.
const PIPELINE_STD: c_int = 0;

/// As much stack as a program's first thread has, bytes.
const COMPILER_STACK: usize = 8 << 20;

/// Held by who compiles. IREE 3.13 makes LLVM's targets known when something is compiled first: a
/// compilation beside that one finds some of them missing, and ends the process.
static COMPILING: Mutex<()> = Mutex::new(());

type Failure = *mut c_void;
type OnDiagnostic =
    unsafe extern "C" fn(severity: c_int, text: *const c_char, size: usize, user_data: *mut c_void);

macro_rules! api {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The entry points, valid for the rest of the process.
        struct Api {
            path: PathBuf,
            version: String,
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Api {
            /// # Safety
            /// The library's symbols have the signatures of the embedding API.
            unsafe fn load(path: &Path, library: &'static libloading::Library) -> Result<Self> {
                Ok(Self {
                    path: path.to_path_buf(),
                    version: String::new(),
                    $($field: {
                        // SAFETY: by the contract of this function.
                        *unsafe { library.get($symbol) }.map_err(|e| foreign(path, &e))?
                    },)*
                })
            }
        }
    };
}

api! {
    api_version = b"ireeCompilerGetAPIVersion\0": fn() -> c_int;
    global_initialize = b"ireeCompilerGlobalInitialize\0": fn();
    revision = b"ireeCompilerGetRevision\0": fn() -> *const c_char;
    error_message = b"ireeCompilerErrorGetMessage\0": fn(Failure) -> *const c_char;
    error_destroy = b"ireeCompilerErrorDestroy\0": fn(Failure);
    session_create = b"ireeCompilerSessionCreate\0": fn() -> *mut c_void;
    session_destroy = b"ireeCompilerSessionDestroy\0": fn(*mut c_void);
    session_set_flags = b"ireeCompilerSessionSetFlags\0":
        fn(*mut c_void, c_int, *const *const c_char) -> Failure;
    invocation_create = b"ireeCompilerInvocationCreate\0": fn(*mut c_void) -> *mut c_void;
    invocation_destroy = b"ireeCompilerInvocationDestroy\0": fn(*mut c_void);
    invocation_diagnostics = b"ireeCompilerInvocationEnableCallbackDiagnostics\0":
        fn(*mut c_void, c_int, OnDiagnostic, *mut c_void);
    invocation_verify = b"ireeCompilerInvocationSetVerifyIR\0": fn(*mut c_void, bool);
    invocation_parse = b"ireeCompilerInvocationParseSource\0":
        fn(*mut c_void, *mut c_void) -> bool;
    invocation_pipeline = b"ireeCompilerInvocationPipeline\0": fn(*mut c_void, c_int) -> bool;
    invocation_output = b"ireeCompilerInvocationOutputVMBytecode\0":
        fn(*mut c_void, *mut c_void) -> Failure;
    source_wrap = b"ireeCompilerSourceWrapBuffer\0":
        fn(*mut c_void, *const c_char, *const c_char, usize, bool, *mut *mut c_void) -> Failure;
    source_open = b"ireeCompilerSourceOpenFile\0":
        fn(*mut c_void, *const c_char, *mut *mut c_void) -> Failure;
    source_destroy = b"ireeCompilerSourceDestroy\0": fn(*mut c_void);
    output_open = b"ireeCompilerOutputOpenMembuffer\0": fn(*mut *mut c_void) -> Failure;
    output_map = b"ireeCompilerOutputMapMemory\0":
        fn(*mut c_void, *mut *mut c_void, *mut u64) -> Failure;
    output_destroy = b"ireeCompilerOutputDestroy\0": fn(*mut c_void);
}

/// A compiler library, loaded and initialized.
#[derive(Clone, Copy)]
pub(super) struct Library(&'static Api);

impl Library {
    /// # Safety
    /// The file is an IREE compiler library (or none at all, which is an error).
    pub(super) unsafe fn open(path: &Path) -> Result<Self> {
        // Never unloaded: LLVM's globals cannot be initialized twice.
        static LOADED: Mutex<Option<HashMap<PathBuf, Library>>> = Mutex::new(None);
        let path = path
            .canonicalize()
            .map_err(|e| Error::from(e).context(format!("opening {}", path.display())))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        if let Some(library) = loaded.get(&path) {
            return Ok(*library);
        }
        // SAFETY: by the contract of this function.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|e| foreign(&path, &e))?;
        let library = Box::leak(Box::new(library));
        // SAFETY: by the contract of this function; the API version is checked before any call
        // whose signature could differ.
        let api = unsafe {
            let mut api = Api::load(&path, library)?;
            let version = (api.api_version)();
            if version >> 16 != API_MAJOR {
                return Err(Error::new(
                    Code::Incompatible,
                    format!(
                        "{} has compiler API {}, not {API_MAJOR}",
                        path.display(),
                        version >> 16
                    ),
                ));
            }
            (api.global_initialize)();
            let revision = CStr::from_ptr((api.revision)()).to_string_lossy().into_owned();
            api.version = format!("IREE compiler version {revision}");
            api
        };
        let library = Self(Box::leak(Box::new(api)));
        loaded.insert(path, library);
        Ok(library)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    pub(super) fn version(&self) -> &str {
        &self.0.version
    }

    pub(super) fn compile(
        &self,
        source: &Source<'_>,
        options: &CompileOptions,
    ) -> Result<Compiled> {
        let api = self.0;
        // Before the guards, so that it outlives what borrows it.
        let image = aligned(source.bytes())?;
        let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: each object is made from live parents and destroyed once, by its guard, before
        // them (guards drop in reverse order); arguments outlive the calls that borrow them.
        unsafe {
            let session = Guard((api.session_create)(), api.session_destroy);
            let (verify, flags) = options.split_verify();
            let flags = c_strings(&flags)?;
            let pointers: Vec<*const c_char> = flags.iter().map(|flag| flag.as_ptr()).collect();
            let count = c_int::try_from(pointers.len())
                .map_err(|_| Error::invalid("too many compiler flags"))?;
            self.check((api.session_set_flags)(session.0, count, pointers.as_ptr()))?;

            // Kept apart from the guards below, so that it outlives the invocation.
            let mut diagnostics = String::new();
            let diagnostics_ptr = &raw mut diagnostics;
            let invocation = Guard((api.invocation_create)(session.0), api.invocation_destroy);
            (api.invocation_diagnostics)(invocation.0, 0, collect, diagnostics_ptr.cast());
            (api.invocation_verify)(invocation.0, verify);

            let mut wrapped = ptr::null_mut();
            if let Some(file) = source.file()? {
                let file = CString::new(file.as_os_str().as_encoded_bytes())
                    .map_err(|_| Error::invalid(format!("{file:?} holds a zero byte")))?;
                self.check((api.source_open)(session.0, file.as_ptr(), &mut wrapped))?;
            } else {
                self.check((api.source_wrap)(
                    session.0,
                    c"input.mlir".as_ptr(),
                    image.as_ptr().cast(),
                    image.len(),
                    true,
                    &mut wrapped,
                ))?;
            }
            let wrapped = Guard(wrapped, api.source_destroy);
            let compiled = (api.invocation_parse)(invocation.0, wrapped.0)
                && (api.invocation_pipeline)(invocation.0, PIPELINE_STD);
            if !compiled {
                let text = &*diagnostics_ptr;
                return Err(Error::invalid(format!("the compiler failed: {}", shorten(text))));
            }
            let mut output = ptr::null_mut();
            self.check((api.output_open)(&mut output))?;
            let output = Guard(output, api.output_destroy);
            let (mut data, mut size) = (ptr::null_mut(), 0u64);
            self.check((api.invocation_output)(invocation.0, output.0))
                .and_then(|()| self.check((api.output_map)(output.0, &mut data, &mut size)))
                .map_err(|error| match shorten(&*diagnostics_ptr) {
                    "" => error,
                    told => Error::new(error.code(), format!("{}: {told}", error.message())),
                })?;
            let module = slice::from_raw_parts(data.cast::<u8>(), size as usize).to_vec();
            Ok(Compiled { module, diagnostics: shorten(&*diagnostics_ptr).to_owned() })
        }
    }

    /// As `compile`, in another thread, for which this one waits as long as `limits` say.
    pub(super) fn compile_within(
        &self,
        source: &Source<'_>,
        options: &CompileOptions,
        limits: &CompileLimits,
    ) -> Result<Compiled> {
        let mut watch = limits.begin();
        watch.check()?;
        let (library, source, options) = (*self, source.to_owned(), options.clone());
        let (sender, compiled) = mpsc::channel();
        thread::Builder::new()
            .name("iree-compile".into())
            .stack_size(COMPILER_STACK)
            .spawn(move || sender.send(library.compile(&source, &options)))
            .map_err(|e| Error::from(e).context("starting a thread to compile in"))?;
        loop {
            match compiled.recv_timeout(watch.pause()) {
                Ok(compiled) => return compiled,
                Err(RecvTimeoutError::Timeout) => watch.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(Code::Internal, "the compiler's thread ended early"));
                }
            }
        }
    }

    /// Takes ownership of a failure, if it is one.
    ///
    /// # Safety
    /// `failure` is null or comes from this library and is not used again.
    unsafe fn check(&self, failure: Failure) -> Result<()> {
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: by the contract of this function.
        let message = unsafe {
            let text = CStr::from_ptr((self.0.error_message)(failure)).to_string_lossy();
            let message = format!("the compiler failed: {}", shorten(&text));
            (self.0.error_destroy)(failure);
            message
        };
        Err(Error::invalid(message))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({}, {})", self.path().display(), self.version())
    }
}

/// An object of the library, destroyed when dropped.
struct Guard(*mut c_void, unsafe extern "C" fn(*mut c_void));

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed only here.
        unsafe { (self.1)(self.0) };
    }
}

/// Appends a diagnostic to the `String` at `user_data`.
unsafe extern "C" fn collect(
    severity: c_int,
    text: *const c_char,
    size: usize,
    user_data: *mut c_void,
) {
    // SAFETY: the compiler passes `size` bytes, and back the pointer it was given; it calls from
    // one thread at a time.
    let (bytes, diagnostics) = unsafe {
        (slice::from_raw_parts(text.cast::<u8>(), size), &mut *user_data.cast::<String>())
    };
    let kind = ["note", "warning", "error", "remark"].get(severity as usize).unwrap_or(&"note");
    let text = String::from_utf8_lossy(bytes);
    // One line says where and what already; the severity is added when it does not.
    if !text.contains(kind) {
        diagnostics.push_str(kind);
        diagnostics.push_str(": ");
    }
    diagnostics.push_str(text.trim_end());
    diagnostics.push('\n');
}

fn c_strings(flags: &[&str]) -> Result<Vec<CString>> {
    flags
        .iter()
        .map(|&flag| {
            CString::new(flag)
                .map_err(|_| Error::invalid(format!("compiler flag {flag:?} holds a zero byte")))
        })
        .collect()
}

/// A copy of `source` with a zero byte behind it, which the text parser looks for, at the start of
/// a page: bytecode says how its parts are aligned, and is refused where they are not.
fn aligned(source: &[u8]) -> Result<MmapMut> {
    let mut image = MmapMut::map_anon(source.len() + 1)
        .map_err(|e| Error::from(e).context("taking memory for the source"))?;
    image[..source.len()].copy_from_slice(source);
    Ok(image)
}

fn foreign(path: &Path, error: &libloading::Error) -> Error {
    Error::invalid(format!("{} is no IREE compiler library: {error}", path.display()))
}
