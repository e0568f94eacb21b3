//! What code for a GPU is compiled for.

use std::fmt;
use std::str::FromStr;

use crate::base::error::{Code, Error, Result};

/// An architecture that `iree-compile` makes code for: the value of its flag `--iree-cuda-target`.
///
/// The code is PTX, which the GPU's driver compiles when it is loaded: for this architecture and
/// for all that came after it. Targets are ordered by age, the oldest first.
///
/// ```
/// # #[cfg(feature = "compiler")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::CompileOptions;
/// use iree_rt::cuda::Target;
///
/// // An H100, which the compiler does not know, runs what was compiled for the one before it.
/// let target = Target::for_gpu((9, 0), (12, 8))?;
/// assert_eq!(target, Target::SM_89);
/// let options = target.flags().fold(CompileOptions::for_device("cuda"), CompileOptions::flag);
/// # Ok(()) }
/// # #[cfg(not(feature = "compiler"))] fn main() {}
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The oldest GPUs that it is for.
    compute_capability: (u32, u32),
    /// The version of PTX.
    ptx: Ptx,
    name: &'static str,
}

impl Target {
    /// GPUs of compute capability 8.0 (A100) and newer.
    pub const SM_80: Self = Self::new((8, 0), "sm_80", Ptx::V7_6);
    /// GPUs of compute capability 8.9 (L4, RTX 40) and newer (H100, B200).
    pub const SM_89: Self = Self::new((8, 9), "sm_89", Ptx::V7_8);

    /// What `iree-compile` 3.13.0 accepts and somebody's GPU needs, the oldest first.
    ///
    /// It refuses `sm_50` to `sm_53`, `sm_88` and `sm_90` to `sm_110`. It accepts `sm_62`, `sm_72`
    /// and `sm_87` too, whose GPUs (Jetson) run the code for the one before.
    pub const ALL: &[Self] = &[
        Self::new((6, 0), "sm_60", Ptx::V7_6),
        Self::new((6, 1), "sm_61", Ptx::V7_6),
        Self::new((7, 0), "sm_70", Ptx::V7_6),
        Self::new((7, 5), "sm_75", Ptx::V7_6),
        Self::SM_80,
        Self::new((8, 6), "sm_86", Ptx::V7_6),
        Self::SM_89,
        Self::new((12, 0), "sm_120", Ptx::V8_7),
        Self::new((12, 1), "sm_121", Ptx::V8_8),
    ];

    const fn new(compute_capability: (u32, u32), name: &'static str, ptx: Ptx) -> Self {
        Self { compute_capability, ptx, name }
    }

    /// The newest target that runs on a GPU of `compute_capability` (major, minor) with a driver for
    /// the CUDA version `driver` (major, minor).
    ///
    /// # Errors
    /// [`Incompatible`](Code::Incompatible) when GPU or driver are too old for any; the message says
    /// what is needed.
    pub fn for_gpu(compute_capability: (u32, u32), driver: (u32, u32)) -> Result<Self> {
        Self::all_for_gpu(compute_capability, driver).map(|fitting| fitting[0])
    }

    /// Every target that runs there, the newest first; at least one.
    ///
    /// # Errors
    /// As [`for_gpu`](Self::for_gpu).
    pub fn all_for_gpu(compute_capability: (u32, u32), driver: (u32, u32)) -> Result<Vec<Self>> {
        let (major, minor) = compute_capability;
        let fitting = || {
            Self::ALL.iter().rev().copied().filter(|it| it.compute_capability <= compute_capability)
        };
        let Some(oldest) = fitting().next_back() else {
            return Err(Error::new(
                Code::Incompatible,
                format!(
                    "the GPU has compute capability {major}.{minor}; IREE {} compiles for {}.{} \
                     and newer",
                    iree_sys::IREE_VERSION,
                    Self::ALL[0].compute_capability.0,
                    Self::ALL[0].compute_capability.1,
                ),
            ));
        };
        let readable: Vec<_> = fitting().filter(|it| it.driver() <= driver).collect();
        if readable.is_empty() {
            let needed = oldest.driver();
            return Err(Error::new(
                Code::Incompatible,
                format!(
                    "the NVIDIA driver is for CUDA {}.{} and cannot read code for {oldest}: \
                     install one for CUDA {}.{} or newer",
                    driver.0, driver.1, needed.0, needed.1,
                ),
            ));
        }
        Ok(readable)
    }

    /// What `iree-compile` is told: the architecture, and a version of PTX that every driver for its
    /// GPUs reads.
    pub fn flags(self) -> impl Iterator<Item = String> {
        let version = self.ptx.asked_for.map(|it| format!("--iree-cuda-target-features=+{it}"));
        [format!("--iree-cuda-target={self}")].into_iter().chain(version)
    }

    /// `sm_89`: what the compiler calls it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The compute capability (major, minor) of the oldest GPUs that it is for.
    pub fn compute_capability(self) -> (u32, u32) {
        self.compute_capability
    }

    /// The CUDA version (major, minor) of the oldest driver that reads its code.
    pub fn driver(self) -> (u32, u32) {
        self.ptx.driver
    }
}

/// A version of PTX.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ptx {
    /// The CUDA version of the oldest driver that reads it (the PTX ISA's release notes).
    driver: (u32, u32),
    /// As LLVM calls it, where the compiler would write a newer one by itself.
    asked_for: Option<&'static str>,
}

impl Ptx {
    const V7_6: Self = Self { driver: (11, 6), asked_for: None };
    /// The first that knows `sm_89`, and older than any driver that knows an H100.
    const V7_8: Self = Self { driver: (11, 8), asked_for: Some("ptx78") };
    const V8_7: Self = Self { driver: (12, 8), asked_for: None };
    const V8_8: Self = Self { driver: (12, 9), asked_for: None };
}

impl FromStr for Target {
    type Err = Error;

    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for a name that is none; the message lists them.
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.iter().find(|it| it.name == name).copied().ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|it| it.name).collect();
            Error::invalid(format!("no CUDA target `{name}`: there are {}", known.join(", ")))
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_gets_the_newest_target_that_it_runs() {
        for (gpu, driver, name) in [
            ((6, 0), (11, 6), "sm_60"),
            ((6, 2), (12, 0), "sm_61"),
            ((7, 2), (12, 0), "sm_70"),
            ((8, 0), (12, 4), "sm_80"),
            ((8, 6), (13, 0), "sm_86"),
            ((8, 7), (12, 6), "sm_86"),
            ((8, 9), (11, 8), "sm_89"),
            // GPUs that the compiler does not know; the first drivers for an H100 and a B200.
            ((9, 0), (11, 8), "sm_89"),
            ((9, 0), (12, 4), "sm_89"),
            ((10, 0), (12, 8), "sm_89"),
            ((11, 0), (13, 0), "sm_89"),
            ((12, 0), (12, 8), "sm_120"),
            // A driver that cannot read the PTX of the newest.
            ((12, 1), (12, 8), "sm_120"),
            ((12, 1), (13, 0), "sm_121"),
            ((13, 0), (14, 0), "sm_121"),
        ] {
            let target = Target::for_gpu(gpu, driver).unwrap();
            assert_eq!(target.name(), name, "{gpu:?} with a driver for {driver:?}");
        }
    }

    #[test]
    fn a_gpu_runs_every_older_target_too() {
        let names = |gpu, driver| {
            let targets = Target::all_for_gpu(gpu, driver).unwrap();
            targets.into_iter().map(Target::name).collect::<Vec<_>>()
        };
        assert_eq!(names((7, 0), (12, 0)), ["sm_70", "sm_61", "sm_60"]);
        assert_eq!(names((9, 0), (12, 2))[..3], ["sm_89", "sm_86", "sm_80"]);
    }

    #[test]
    fn the_compiler_is_told_the_version_of_ptx_where_it_would_take_a_newer() {
        let flags = |target: Target| target.flags().collect::<Vec<_>>();
        assert_eq!(flags(Target::SM_80), ["--iree-cuda-target=sm_80"]);
        let both = ["--iree-cuda-target=sm_89", "--iree-cuda-target-features=+ptx78"];
        assert_eq!(flags(Target::SM_89), both);
    }

    #[test]
    fn what_is_too_old_is_told_what_is_needed() {
        let error = Target::for_gpu((5, 2), (12, 4)).unwrap_err();
        assert_eq!(error.code(), Code::Incompatible);
        assert!(error.message().contains("5.2") && error.message().contains("6.0"), "{error}");
        let error = Target::for_gpu((9, 0), (11, 4)).unwrap_err();
        assert_eq!(error.code(), Code::Incompatible);
        assert!(error.message().contains("11.4") && error.message().contains("11.6"), "{error}");
    }

    #[test]
    fn names_are_parsed_and_ordered() {
        assert!(Target::ALL.is_sorted());
        for &target in Target::ALL {
            assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
            let (major, minor) = target.compute_capability();
            assert_eq!(target.name(), format!("sm_{major}{minor}"));
            assert_eq!(Target::for_gpu((major, minor), target.driver()).unwrap(), target);
        }
        let error = "sm_90".parse::<Target>().unwrap_err();
        assert!(error.message().contains("sm_89"), "{error}");
    }
}
