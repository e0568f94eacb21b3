//! What to fetch, from where, into which folder.

use std::path::PathBuf;

use iree_src::{IREE_VERSION, OriginKind, Sanitizer, host_target};

use super::progress::Progress;

/// A request for an IREE folder. [`Request::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Request {
    /// The folder to make.
    pub out: PathBuf,
    /// Where it comes from; `None` takes what is already in `out`, else [`Origin::Registry`].
    pub origin: Option<Origin>,
    /// Whether the runtime must hold the CUDA driver.
    pub cuda: bool,
    /// Whether the runtime must hold the Vulkan driver.
    pub vulkan: bool,
    /// Whether the runtime must be able to write what its VM executes, which makes it slower.
    pub vm_trace: bool,
    /// What the C compiler instruments the runtime for; programs that link it then need the same
    /// sanitizer.
    pub sanitizer: Option<Sanitizer>,
    /// Where the compiler of a built folder comes from.
    pub compiler: Compiler,
    /// The IREE version to fetch.
    pub version: String,
    /// The target triple. For another than the host's the runtime is built from sources, and the compiler
    /// is one that runs here.
    pub target: String,
    /// Never touch the network.
    pub offline: bool,
    /// Make the folder again even when a good one is there.
    pub force: bool,
    /// How to report progress.
    pub progress: Progress,
    /// The machine's tools and folders.
    pub machine: Machine,
}

/// Where the runtime of an IREE folder comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built from the IREE sources inside a pinned Cargo package.
    Registry,
    /// Upstream's prebuilt archive.
    Dist {
        /// The URL that `v<version>/<archive>` is appended to; `None` is upstream's releases.
        base_url: Option<String>,
        /// The archive's expected SHA-256; `None` trusts the first download and records it.
        sha256: Option<String>,
    },
    /// Built from a checkout.
    Source {
        /// The checkout; `None` clones the version's tag.
        dir: Option<PathBuf>,
        /// The repository to clone; `None` is upstream's.
        git: Option<String>,
    },
}

impl Origin {
    /// The kind that the manifest records.
    pub fn kind(&self) -> OriginKind {
        match self {
            Origin::Registry => OriginKind::Registry,
            Origin::Dist { .. } => OriginKind::Dist,
            Origin::Source { .. } => OriginKind::Source,
        }
    }
}

/// Where the compiler of a built folder comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compiler {
    /// The pinned Python wheel.
    Wheel,
    /// An `iree-compile` of the same version; its shared library is looked for beside it.
    Path(PathBuf),
    /// No compiler: for tests of the runtime alone.
    #[cfg(test)]
    None,
}

/// What the environment says about the machine. The caller reads the environment.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The Python to run pip with.
    pub python: PathBuf,
    /// Folders to look for programs in, as `PATH`.
    pub path: Vec<PathBuf>,
    /// The folder for downloads and unpacked tools, shared by all IREE folders.
    pub cache: PathBuf,
    /// An installed CUDA toolkit.
    pub cuda_home: Option<PathBuf>,
    /// The C compiler that the user chose.
    pub cc: Option<PathBuf>,
}

/// The environment variable that names an installed CUDA toolkit.
pub const CUDA_TOOLKIT_VAR: &str = "CUDA_HOME";

impl Machine {
    /// Reads `PATH`, `CC` and `CUDA_HOME`; the cache is the user's cache folder.
    pub fn from_env() -> Machine {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = var("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
        let cache = dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("iree-src");
        Machine {
            python: "python3".into(),
            path,
            cache,
            cuda_home: var(CUDA_TOOLKIT_VAR).map(PathBuf::from),
            cc: var("CC").map(PathBuf::from),
        }
    }
}

impl Request {
    /// Whether the folder is for another machine than this one.
    pub fn crosses(&self) -> bool {
        self.target != host_target()
    }

    /// The default request: any good folder in `out`, else one built from the registry's sources,
    /// for this machine, with its compiler.
    pub fn new(out: impl Into<PathBuf>, machine: Machine) -> Request {
        Request {
            out: out.into(),
            origin: None,
            cuda: false,
            vulkan: false,
            vm_trace: false,
            sanitizer: None,
            compiler: Compiler::Wheel,
            version: IREE_VERSION.to_owned(),
            target: host_target(),
            offline: false,
            force: false,
            progress: Progress::detect(),
            machine,
        }
    }
}
