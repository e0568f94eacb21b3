//! CPUs that graphs are compiled for ahead of time, where the machine that runs them is not known.

use iree_rt::CompileOptions;

/// A CPU by what it has at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    /// What it is asked for by; for x86-64 the name in the psABI.
    pub name: &'static str,
    triple: &'static str,
    /// LLVM's name.
    cpu: &'static str,
}

const fn x86_64(name: &'static str) -> Level {
    Level { name, triple: "x86_64-unknown-linux-gnu", cpu: name }
}

/// All of them; of one architecture the best first.
pub(super) const ALL: [Level; 5] = [
    x86_64("x86-64-v4"),
    x86_64("x86-64-v3"),
    x86_64("x86-64-v2"),
    x86_64("x86-64"),
    Level { name: "aarch64", triple: "aarch64-unknown-linux-gnu", cpu: "generic" },
];

impl Level {
    /// The one of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        ALL.into_iter().find(|level| level.name == name)
    }

    /// Those whose code this machine runs, the best first.
    pub fn here() -> impl Iterator<Item = Self> {
        ALL.into_iter().filter(|level| level.runs_here())
    }

    /// How graphs are compiled to it.
    pub fn flags(self) -> CompileOptions {
        CompileOptions::default()
            .target_cpu(self.cpu)
            .flag(format!("--iree-llvmcpu-target-triple={}", self.triple))
    }

    fn runs_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        macro_rules! all {
            ($($feature:tt)*) => { true $(&& std::arch::is_x86_feature_detected!($feature))* };
        }
        match self.name {
            #[cfg(target_arch = "x86_64")]
            "x86-64" => true,
            #[cfg(target_arch = "x86_64")]
            "x86-64-v2" => all!("cmpxchg16b" "popcnt" "sse3" "ssse3" "sse4.1" "sse4.2"),
            #[cfg(target_arch = "x86_64")]
            "x86-64-v3" => {
                all!("cmpxchg16b" "popcnt" "sse4.2" "avx" "avx2" "bmi1" "bmi2" "f16c" "fma"
                "lzcnt" "movbe" "xsave")
            }
            #[cfg(target_arch = "x86_64")]
            "x86-64-v4" => {
                all!("cmpxchg16b" "popcnt" "sse4.2" "avx" "avx2" "bmi1" "bmi2" "f16c" "fma"
                "lzcnt" "movbe" "xsave" "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl")
            }
            "aarch64" => cfg!(target_arch = "aarch64"),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_runs_every_level_below_its_own() {
        let here: Vec<_> = Level::here().map(|level| level.name).collect();
        assert!(!here.is_empty());
        let of_the_machine: Vec<_> =
            ALL.iter().filter(|it| it.triple.starts_with(std::env::consts::ARCH)).collect();
        assert_eq!(
            here,
            of_the_machine[of_the_machine.len() - here.len()..]
                .iter()
                .map(|it| it.name)
                .collect::<Vec<_>>()
        );
    }
}
