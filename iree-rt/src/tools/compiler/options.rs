//! What to compile for.

/// Flags for the compiler.
///
/// The default compiles for `local-task` and `local-sync` on the CPU of this machine.
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
            .flag("--iree-llvmcpu-target-cpu=host")
    }

    /// Adds a flag.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self::for_device("local-task")
    }
}
