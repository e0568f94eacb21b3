//! What to compile for.

use std::fmt;

/// Flags for the compiler.
///
/// The default compiles for `local-task` and `local-sync` on the CPU of this machine.
/// [`fast`](Self::fast) is what serves a model of someone else; what each part of it gains is
/// measured in `docs/from-onnx-or-jax.md` of the repository.
///
/// ```
/// use iree_rt::{CompileOptions, OptLevel};
///
/// let options = CompileOptions::default().fast();
/// assert!(options.flags.contains(&"--iree-opt-level=O3".into()));
/// // A part of it, for any x86-64 with AVX-512, and a flag that has no method.
/// let options = CompileOptions::default()
///     .target_cpu("x86-64-v4")
///     .opt_level(OptLevel::O2)
///     .channels_last()
///     .flag("--iree-llvmcpu-reassociate-fp-reductions=false");
/// assert_eq!(options.flags.len(), 6);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Flags as `iree-compile` takes them, in order.
    pub flags: Vec<String>,
}

impl CompileOptions {
    /// No flags at all: the caller says everything.
    pub fn empty() -> Self {
        Self { flags: Vec::new() }
    }

    /// Flags to compile for this machine's CPU (`local-task`, `local-sync`) or, for the other
    /// drivers, a device of theirs with the compiler's default features.
    pub fn for_device(uri: &str) -> Self {
        let driver = uri.split("://").next().unwrap_or(uri);
        if !driver.starts_with("local-") {
            return Self::empty().flag(format!("--iree-hal-target-device={driver}"));
        }
        Self::empty()
            .flag("--iree-hal-target-device=local")
            .flag("--iree-hal-local-target-device-backends=llvm-cpu")
            .target_cpu("host")
    }

    /// What makes models of images, sound and bytes fast on CPUs: [`OptLevel::O3`],
    /// [`data_tiling`](Self::data_tiling), [`channels_last`](Self::channels_last) and
    /// [`unroll_loops`](Self::unroll_loops). Sums are added in another order, and compiling takes
    /// longer. Transformers may not compile with tiles: `fast().data_tiling(false)`.
    pub fn fast(self) -> Self {
        self.opt_level(OptLevel::O3).data_tiling(true).channels_last().unroll_loops(true)
    }

    /// Compiles for a CPU that LLVM names (`znver4`, `x86-64-v3`, `neoverse-n1`), or for that of
    /// this machine (`host`, the default): a module of a CPU runs on those that have its
    /// instructions.
    pub fn target_cpu(self, name: &str) -> Self {
        self.set("--iree-llvmcpu-target-cpu", name)
    }

    /// How hard the compiler tries.
    pub fn opt_level(self, level: OptLevel) -> Self {
        self.set("--iree-opt-level", level)
    }

    /// What the source is; when nothing is said, the compiler looks.
    pub fn input_type(self, input_type: InputType) -> Self {
        self.set("--iree-input-type", input_type)
    }

    /// Whether matrices of products lie in tiles that fit the CPU's registers. Constants are laid
    /// out at compile time, activations in each call.
    pub fn data_tiling(self, tile: bool) -> Self {
        self.set("--iree-opt-data-tiling", tile)
    }

    /// Moves the channels of images behind height and width, where a vector holds them: ONNX has
    /// them before, and convolutions of each channel by itself are scalar code then.
    pub fn channels_last(self) -> Self {
        self.set(
            "--iree-preprocessing-pass-pipeline",
            "builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))",
        )
    }

    /// Whether LLVM unrolls inner loops, those of small windows above all.
    pub fn unroll_loops(self, unroll: bool) -> Self {
        self.set("--iree-llvmcpu-loop-unrolling", unroll)
    }

    /// Whether the compiler checks its own work after each of its passes, as it does when nothing is
    /// said: a fifth to a third of the time that graphs of transformers take. Without, a mistake of
    /// the compiler may end its process, or make a wrong module, where there would be a diagnostic.
    /// The source is checked as it is read in either case.
    pub fn verify(self, verify: bool) -> Self {
        self.set("--verify", verify)
    }

    /// Whether all dispatches of a module are one executable for each kind of device, as they are when nothing
    /// is said, or each is one by itself. The compiler (3.13) crashes when it makes one of them in a module that
    /// dispatches [`Kernels`](crate::Kernels) too: that takes `false`.
    pub fn link_executables(self, link: bool) -> Self {
        self.set("--iree-hal-link-executables", link)
    }

    /// Has every function wait for a fence and signal one, as
    /// [`Session::call_async`](crate::Session::call_async) wants it: the function itself, but for
    /// ONNX and PyTorch, whose functions `f` have a second form, `f$async`, that does.
    pub fn async_external(self) -> Self {
        self.set("--iree-execution-model", "async-external")
    }

    /// Adds a flag, which the compiler takes once unless it is a list: what a method above said is
    /// said again by that method.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// What [`verify`](Self::verify) said, and the other flags: the library takes it for a call,
    /// where the program takes it for a flag.
    pub(super) fn split_verify(&self) -> (bool, Vec<&str>) {
        let (mut verify, mut others) = (true, Vec::new());
        for flag in &self.flags {
            match flag.as_str() {
                "--verify=true" => verify = true,
                "--verify=false" => verify = false,
                other => others.push(other),
            }
        }
        (verify, others)
    }

    /// Replaces the flag `name`, as the compiler refuses one that is given twice.
    fn set(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.flags.retain(|flag| flag.split('=').next() != Some(name));
        self.flag(format!("{name}={value}"))
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self::for_device("local-task")
    }
}

/// `--iree-opt-level`: what the compiler may do for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OptLevel {
    /// Nothing: IREE's own default.
    O0,
    /// What costs nothing, such as dropping assertions.
    O1,
    /// Sums in another order, and larger fusions.
    O2,
    /// And transposes moved into what reads them.
    O3,
}

impl fmt::Display for OptLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// `--iree-input-type`: the dialect of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InputType {
    /// Whatever the source turns out to be.
    Auto,
    /// IREE's own: `linalg`, `tensor`, `arith` and the like.
    None,
    /// What `iree-import-onnx` writes.
    Onnx,
    /// StableHLO: what JAX and other frameworks of XLA export, CHLO and VHLO included.
    StableHlo,
    /// PyTorch's, as torch-mlir writes it.
    Torch,
    /// TOSA.
    Tosa,
}

impl fmt::Display for InputType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Onnx => "onnx",
            Self::StableHlo => "stablehlo",
            Self::Torch => "torch",
            Self::Tosa => "tosa",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_verify_is_kept_from_the_other_flags() {
        let options = CompileOptions::empty().flag("--a").flag("--verify-b=false");
        assert_eq!(options.split_verify(), (true, vec!["--a", "--verify-b=false"]));
        let options = options.verify(true).verify(false).flag("--c");
        assert_eq!(options.split_verify(), (false, vec!["--a", "--verify-b=false", "--c"]));
    }
}
