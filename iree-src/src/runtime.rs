//! Builds the runtime's static libraries from a source tree with cmake.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cmake::BuildTools;
use crate::parameters::LIBRARIES;
use crate::{Cross, Error, Result, Sanitizer, headers, prebuilt, process, sources};

const TARGET: &str = "iree_runtime_unified";

/// What writes sources of the runtime, and has to run on this machine.
const WRITER: &str = "iree-flatcc-cli";

const OPTIONS: [&str; 14] = [
    "CMAKE_BUILD_TYPE=Release",
    "IREE_BUILD_COMPILER=OFF",
    "IREE_BUILD_PYTHON_BINDINGS=OFF",
    "IREE_BUILD_TESTS=OFF",
    "IREE_BUILD_BENCHMARKS=OFF",
    "IREE_BUILD_SAMPLES=OFF",
    "IREE_BUILD_BINDINGS_TFLITE=OFF",
    "IREE_BUILD_BINDINGS_TFLITE_JAVA=OFF",
    "IREE_HAL_DRIVER_DEFAULTS=OFF",
    "IREE_HAL_DRIVER_LOCAL_SYNC=ON",
    "IREE_HAL_DRIVER_LOCAL_TASK=ON",
    "IREE_ENABLE_LIBBACKTRACE=OFF",
    // The runtime needs one submodule of many.
    "IREE_ERROR_ON_MISSING_SUBMODULES=OFF",
    "CMAKE_EXPORT_COMPILE_COMMANDS=OFF",
];

/// A build of the runtime: what of, with what, and where.
#[derive(Debug, Clone)]
pub struct Build<'a> {
    /// The source tree.
    pub source: &'a Path,
    /// The IREE version that it must be of.
    pub version: &'a str,
    /// What it is built with.
    pub tools: &'a BuildTools,
    /// How many compilers run at once; `None` leaves it to ninja.
    pub jobs: Option<usize>,
    /// A CUDA toolkit, or as much of one as the CUDA driver is compiled against.
    pub cuda: Option<Cuda<'a>>,
    /// Whether the runtime has the Vulkan driver, which loads the system's Vulkan when a device is asked for.
    pub vulkan: bool,
    /// Whether the runtime is able to write what its VM executes.
    pub vm_trace: bool,
    /// What the C compiler instruments the runtime for.
    pub sanitizer: Option<Sanitizer>,
    /// The machine that it is for; `None` is this one.
    pub cross: Option<Cross>,
    /// The folder for what is only of use while building; it exists.
    pub scratch: &'a Path,
}

/// Where the CUDA driver's needs are.
#[derive(Debug, Clone)]
pub struct Cuda<'a> {
    /// The folder with `include/cuda.h`.
    pub root: &'a Path,
    /// `libdevice.10.bc`.
    pub libdevice: &'a Path,
}

/// What a build leaves in the IREE folder.
#[derive(Debug, Clone)]
pub struct Built {
    /// The drivers in the library.
    pub drivers: Vec<String>,
    /// What to link, as the manifest has it.
    pub link: Vec<String>,
    /// The libraries, relative to the folder.
    pub archives: Vec<PathBuf>,
}

impl Build<'_> {
    /// Prepares the build.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] for a tree of another version, and for folders that IREE cannot be built in;
    /// [`Error::Command`] when cmake fails.
    pub fn configure(&self) -> Result<()> {
        sources::check_version(self.source, self.version)?;
        for folder in [self.source, self.scratch] {
            if folder.to_string_lossy().contains(char::is_whitespace) {
                return Err(Error::Request(format!(
                    "IREE cannot be built in {}: its build scripts take a space for the end of a path; have it \
                     made elsewhere (CARGO_TARGET_DIR, or --out of `cargo xtask fetch-iree`)",
                    folder.display(),
                )));
            }
        }
        let Some(cross) = self.cross else { return self.configure_in(&self.folder(), &[]) };
        let host = self.scratch.join("host");
        self.configure_in(&host, &[])?;
        let mut compile = Command::new(&self.tools.cmake);
        compile.arg("--build").arg(&host).args(["--target", WRITER]);
        process::logged("building what builds IREE", &mut compile, &self.log(), |_| {})?;
        self.configure_in(&self.folder(), &cross.options(&host.join("tools")))
    }

    fn configure_in(&self, folder: &Path, more: &[String]) -> Result<()> {
        let mut configure = Command::new(&self.tools.cmake);
        configure.arg("-S").arg(self.source).arg("-B").arg(folder);
        match &self.tools.ninja {
            Some(ninja) => {
                configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
                configure.args(["-G", "Ninja"]);
            }
            None => {
                configure.args(["-G", "Unix Makefiles"]);
            }
        }
        let options = OPTIONS.iter().copied().chain(more.iter().map(String::as_str));
        configure.args(options.map(|option| format!("-D{option}")));
        // IREE's errors carry source locations: keep this machine's paths out of them. A shell reads the flags.
        let mut flags = format!("\"-ffile-prefix-map={}/=\"", self.source.display());
        if self.vm_trace {
            flags += " -DIREE_VM_EXECUTION_TRACING_ENABLE=1";
        }
        if let Some(sanitizer) = self.sanitizer {
            flags += &format!(" -fsanitize={} -fno-omit-frame-pointer -g1", sanitizer.as_str());
        }
        configure.arg(format!("-DCMAKE_C_FLAGS={flags}"));
        configure.arg(format!("-DCMAKE_CXX_FLAGS={flags}"));
        if let Some(cuda) = &self.cuda {
            configure.arg("-DIREE_HAL_DRIVER_CUDA=ON");
            configure.arg(format!("-DIREE_CUDA_LIBDEVICE_PATH={}", cuda.libdevice.display()));
            configure.env("IREE_CUDA_DEPS_DIR", cuda.root);
        }
        if self.vulkan {
            configure.arg("-DIREE_HAL_DRIVER_VULKAN=ON");
        }
        // They mean cargo's build here, and would be the C compiler's.
        configure.env_remove("TARGET").env_remove("HOST");
        let what = "configuring the IREE runtime with cmake";
        process::logged(what, &mut configure, &self.log(), |_| {})
    }

    /// Compiles what [`configure`](Build::configure) prepared; `progress` is told how many of how
    /// many steps are done, where ninja counts them.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when the compiler fails.
    pub fn compile(&self, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        let mut compile = Command::new(&self.tools.cmake);
        compile.arg("--build").arg(self.folder()).args(["--target", TARGET]);
        compile.args(LIBRARIES.iter().map(|(target, _)| target));
        if let Some(jobs) = self.jobs {
            compile.arg("--parallel").arg(jobs.to_string());
        }
        // A make of our caller's is not ours.
        compile.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        compile.env("NINJA_STATUS", "[%f/%t] ");
        process::logged("building the IREE runtime", &mut compile, &self.log(), |line| {
            if let Some((done, total)) = process::ninja_status(line) {
                progress(done, total);
            }
        })
    }

    /// Puts headers and libraries into the IREE folder `to`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], and [`Error::Request`] when a driver was wanted and is not there.
    pub fn install(&self, to: &Path) -> Result<Built> {
        headers::copy(self.source, &to.join("include"))?;
        let lib = to.join("lib");
        fs::create_dir_all(&lib).map_err(Error::io("create", &lib))?;
        let runtime = "runtime/src";
        let of_parameters = LIBRARIES.iter().map(|(name, dir)| (*name, format!("{runtime}/{dir}")));
        let libraries = of_parameters.chain([
            (TARGET, format!("{runtime}/iree/runtime")),
            ("flatcc_parsing", "build_tools/third_party/flatcc".to_owned()),
        ]);
        let mut archives = Vec::new();
        let mut link = Vec::new();
        for (name, dir) in libraries {
            let file = format!("lib{name}.a");
            let target = lib.join(&file);
            let made = self.folder().join(dir).join(&file);
            fs::copy(made, &target).map_err(Error::io("write", &target))?;
            archives.push(Path::new("lib").join(file));
            link.push(format!("static={name}"));
        }
        link.extend(prebuilt::system_libraries());
        let library = lib.join(format!("lib{TARGET}.a"));
        let drivers = prebuilt::drivers(&library).map_err(Error::Request)?;
        for (wanted, driver) in [(self.cuda.is_some(), "cuda"), (self.vulkan, "vulkan")] {
            if wanted && !drivers.iter().any(|it| it == driver) {
                let what = format!("the build finished without the driver `{driver}` in it");
                return Err(Error::Request(what));
            }
        }
        let license = self.source.join("LICENSE");
        if license.exists() {
            fs::copy(&license, to.join("LICENSE")).map_err(Error::io("copy", &license))?;
        }
        Ok(Built { drivers, link, archives })
    }

    fn folder(&self) -> PathBuf {
        self.scratch.join("runtime")
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("build.log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_a_space_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("my tree");
        fs::create_dir_all(tree.join("runtime")).unwrap();
        let version = format!(r#"{{"package-version": "{}.dev"}}"#, crate::IREE_VERSION);
        fs::write(tree.join("runtime/version.json"), version).unwrap();
        let tools = BuildTools { cmake: "cmake".into(), ninja: None };
        let build = Build {
            source: &tree,
            version: crate::IREE_VERSION,
            tools: &tools,
            jobs: None,
            cuda: None,
            vulkan: false,
            vm_trace: false,
            sanitizer: None,
            cross: None,
            scratch: dir.path(),
        };
        let error = build.configure().unwrap_err().to_string();
        assert!(error.contains("my tree") && error.contains("CARGO_TARGET_DIR"), "{error}");
    }
}
