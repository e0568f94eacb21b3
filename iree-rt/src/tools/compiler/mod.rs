//! The compiler: from MLIR to a module.
//!
//! One interface over two ways to run it: the program `iree-compile`, which can crash without
//! harm, and `libIREECompiler.so` inside this process, which starts faster.

mod diagnostics;
mod library;
mod limits;
mod locate;
mod options;
mod process;
mod source;

use std::path::{Path, PathBuf};

pub use limits::CompileLimits;
pub use options::{CompileOptions, InputType, OptLevel};
pub use source::Source;

use crate::base::error::Result;
use library::Library;
use process::Program;

/// An IREE compiler. Cloning is cheap.
///
/// Any thread may use it at any time; compilations run side by side.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{CompileOptions, Compiler};
///
/// let compiler = Compiler::find()?;
/// let error = compiler.compile("func.func @f() { nonsense }", &CompileOptions::default());
/// assert!(error.unwrap_err().message().contains("nonsense"));
///
/// // The same inside this process:
/// // SAFETY: the library that the IREE folder came with.
/// let compiler = unsafe { Compiler::library(Compiler::find_library()?)? };
/// let vmfb = compiler.compile("func.func @f() { return }", &CompileOptions::default())?;
/// assert!(!vmfb.is_empty());
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Compiler(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Process(Program),
    Library(Library),
}

/// What the compiler made, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compiled {
    /// The bytes of a module (`.vmfb`).
    pub module: Vec<u8>,
    /// Warnings and remarks as the compiler writes them (the first 16 KiB); most often none.
    pub diagnostics: String,
}

impl Compiler {
    /// The `iree-compile` of the IREE folder that this crate was built with, if it was remembered
    /// (debug builds, the features `remember-folder` and `bundled-compiler`), else of the folder that
    /// the variable `IREE_CUDA_HOME` or `IREE_DIST` names now (by an absolute path), else the one
    /// beside the running program, else the one on the `PATH`.
    ///
    /// Its version is not compared with [`IREE_VERSION`](crate::IREE_VERSION): a module of another
    /// version may be refused when it is loaded, or not work. [`version`](Self::version) says which it
    /// is.
    ///
    /// # Errors
    /// [`NotFound`](crate::Code::NotFound), saying where it was looked for; and those of
    /// [`process`](Self::process).
    pub fn find() -> Result<Self> {
        Self::process(locate::program()?)
    }

    /// The compiler program at `path`.
    ///
    /// # Errors
    /// When it cannot be run, or is no IREE compiler.
    pub fn process(path: impl Into<PathBuf>) -> Result<Self> {
        Program::open(path.into()).map(|program| Self(Kind::Process(program)))
    }

    /// The compiler library (`libIREECompiler.so`) at `path`, loaded into this process, where it
    /// stays. It compiles one program at a time; others wait, also for one that was given up.
    ///
    /// # Errors
    /// When it cannot be loaded, or is no IREE compiler of an API that we know.
    ///
    /// # Safety
    /// Loading runs the library's code: the file is what it says, and does not change. A
    /// program loads at most one version of it. A compiler crash takes the process along.
    pub unsafe fn library(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: by the contract of this function.
        unsafe { Library::open(path.as_ref()) }.map(|library| Self(Kind::Library(library)))
    }

    /// Where `libIREECompiler.so` is: in the folders where [`find`](Self::find) looks, and in its
    /// order, but not on the `PATH`.
    ///
    /// # Errors
    /// [`NotFound`](crate::Code::NotFound), saying where it was looked for.
    pub fn find_library() -> Result<PathBuf> {
        locate::library()
    }

    /// What the compiler says of its version, with the revision it was built from: good to tell
    /// one build from another.
    pub fn version(&self) -> &str {
        match &self.0 {
            Kind::Process(program) => program.version(),
            Kind::Library(library) => library.version(),
        }
    }

    /// The file of the program or library.
    pub fn path(&self) -> &Path {
        match &self.0 {
            Kind::Process(program) => program.path(),
            Kind::Library(library) => library.path(),
        }
    }

    /// Compiles MLIR to the bytes of a module (`.vmfb`): text (`&str`), text or bytecode (`&[u8]`),
    /// or a file of either (`&Path`). What the compiler warns of, [`compile_with_diagnostics`] tells.
    ///
    /// [`compile_with_diagnostics`]: Self::compile_with_diagnostics
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) when the compiler refuses the source or a
    /// flag, with its diagnostics; [`Internal`](crate::Code::Internal) when it crashes; those of
    /// reading a file, with its path.
    pub fn compile<'a>(
        &self,
        source: impl Into<Source<'a>>,
        options: &CompileOptions,
    ) -> Result<Vec<u8>> {
        let source = source.into();
        let compiled = match &self.0 {
            Kind::Process(program) => program.compile(&source, options, &CompileLimits::default()),
            Kind::Library(library) => library.compile(&source, options),
        };
        compiled.map(|it| it.module).map_err(|e| diagnostics::explain(e, &source))
    }

    /// As [`compile`](Self::compile), but within `limits`: it gives up when they say so.
    ///
    /// A program is killed (its linker, if it runs just then, ends by itself). IREE's library
    /// cannot be stopped: it goes on in a thread of its own, and what it makes is dropped.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); [`Cancelled`](crate::Code::Cancelled) and
    /// [`DeadlineExceeded`](crate::Code::DeadlineExceeded) when it gives up.
    pub fn compile_within<'a>(
        &self,
        source: impl Into<Source<'a>>,
        options: &CompileOptions,
        limits: &CompileLimits,
    ) -> Result<Vec<u8>> {
        self.compile_with_diagnostics(source, options, limits).map(|it| it.module)
    }

    /// As [`compile_within`](Self::compile_within), with what the compiler says though it succeeds.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileLimits, CompileOptions, Compiler};
    /// // For what CPU is not said.
    /// let options = CompileOptions::empty()
    ///     .flag("--iree-hal-target-device=local")
    ///     .flag("--iree-hal-local-target-device-backends=llvm-cpu");
    /// let source = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
    ///   %0 = stablehlo.add %a, %a : tensor<4xf32>
    ///   return %0 : tensor<4xf32>
    /// }";
    /// let limits = CompileLimits::default();
    /// let compiled = Compiler::find()?.compile_with_diagnostics(source, &options, &limits)?;
    /// assert!(compiled.diagnostics.contains("generic CPU"));
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`compile_within`](Self::compile_within).
    pub fn compile_with_diagnostics<'a>(
        &self,
        source: impl Into<Source<'a>>,
        options: &CompileOptions,
        limits: &CompileLimits,
    ) -> Result<Compiled> {
        let source = source.into();
        match &self.0 {
            Kind::Process(program) => program.compile(&source, options, limits),
            Kind::Library(library) => library.compile_within(&source, options, limits),
        }
        .map_err(|e| diagnostics::explain(e, &source))
    }
}
