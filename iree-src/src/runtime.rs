//! Builds the runtime's static libraries from a source tree with cmake and ninja.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cuda::Toolkit;
use crate::parameters::LIBRARIES;
use crate::registry::SourceTree;
use crate::request::Request;
use crate::{Error, FileHash, Result, headers, prebuilt, process, sha256, tools};

const TARGET: &str = "iree_runtime_unified";

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

/// What a build leaves in the IREE folder.
pub(crate) struct Built {
    pub(crate) drivers: Vec<String>,
    pub(crate) link: Vec<String>,
    pub(crate) files: Vec<FileHash>,
}

/// Builds `source` in `scratch` and puts headers and libraries into `staged`.
pub(crate) fn build(
    request: &Request,
    source: &SourceTree,
    cuda: Option<&Toolkit>,
    staged: &Path,
    scratch: &Path,
) -> Result<Built> {
    check_version(request, &source.dir)?;
    let tools = tools::build_tools(request)?;
    let build = scratch.join("runtime");
    let log = scratch.join("build.log");

    let step = request.progress.spinner("configure the runtime");
    let mut configure = Command::new(&tools.cmake);
    configure.arg("-G").arg("Ninja").arg("-S").arg(&source.dir).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", tools.ninja.display()));
    configure.args(OPTIONS.iter().map(|option| format!("-D{option}")));
    // IREE's errors carry source locations: keep this machine's paths out of them.
    let mut flags = format!("-ffile-prefix-map={}/=", source.dir.display());
    if request.vm_trace {
        flags += " -DIREE_VM_EXECUTION_TRACING_ENABLE=1";
    }
    if let Some(sanitizer) = request.sanitizer {
        flags += &format!(" -fsanitize={} -fno-omit-frame-pointer -g1", sanitizer.as_str());
    }
    configure.arg(format!("-DCMAKE_C_FLAGS={flags}")).arg(format!("-DCMAKE_CXX_FLAGS={flags}"));
    if let Some(toolkit) = cuda {
        configure.arg("-DIREE_HAL_DRIVER_CUDA=ON");
        configure.arg(format!("-DIREE_CUDA_LIBDEVICE_PATH={}", toolkit.libdevice().display()));
        configure.env("IREE_CUDA_DEPS_DIR", &toolkit.root);
    }
    process::logged("configuring the IREE runtime with cmake", &mut configure, &log, |_| {})?;
    step.done();

    let step = request.progress.pieces("build the runtime", 0);
    let mut compile = Command::new(&tools.cmake);
    compile.arg("--build").arg(&build).args(["--target", TARGET]);
    compile.args(LIBRARIES.iter().map(|(target, _)| target));
    compile.env("NINJA_STATUS", "[%f/%t] ");
    process::logged("building the IREE runtime", &mut compile, &log, |line| {
        if let Some((done, total)) = process::ninja_status(line) {
            step.set_total(total);
            step.set(done);
        }
    })?;
    step.done();

    headers::copy(&source.dir, &staged.join("include"))?;
    let lib = staged.join("lib");
    fs::create_dir_all(&lib).map_err(Error::io("create", &lib))?;
    let runtime = "runtime/src";
    let archives = LIBRARIES.iter().map(|(name, dir)| (*name, format!("{runtime}/{dir}"))).chain([
        (TARGET, format!("{runtime}/iree/runtime")),
        ("flatcc_parsing", "build_tools/third_party/flatcc".to_owned()),
    ]);
    let mut files = Vec::new();
    let mut link = Vec::new();
    for (name, dir) in archives {
        let file = format!("lib{name}.a");
        let relative = Path::new("lib").join(&file);
        let to = staged.join(&relative);
        fs::copy(build.join(dir).join(file), &to).map_err(Error::io("write", &to))?;
        files.push(FileHash { path: relative, sha256: sha256::of_file(&to)? });
        link.push(format!("static={name}"));
    }
    link.extend(prebuilt::system_libraries());
    let library = lib.join(format!("lib{TARGET}.a"));
    let drivers = prebuilt::drivers(&library).map_err(Error::Request)?;
    if cuda.is_some() && !drivers.iter().any(|driver| driver == "cuda") {
        return Err(Error::Request("the build finished without the CUDA driver in it".into()));
    }
    Ok(Built { drivers, link, files })
}

/// Refuses a tree of another version: the bindings would not match its C types.
fn check_version(request: &Request, source: &Path) -> Result<()> {
    let path = source.join("runtime/version.json");
    let text = fs::read_to_string(&path).map_err(|e| {
        Error::Request(format!("{} is not an IREE source tree: {e}", source.display()))
    })?;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let found = json["package-version"].as_str().unwrap_or("of no known version");
    if prebuilt::release(found) == request.version {
        return Ok(());
    }
    Err(Error::Request(format!(
        "{} is IREE {found}, but {} was asked for; check out the tag v{}, or say --iree-version",
        source.display(),
        request.version,
        request.version
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Machine;

    #[test]
    fn a_tree_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let request = Request::new(dir.path().join("iree"), Machine::from_env());
        let tree = dir.path().join("tree/runtime");
        fs::create_dir_all(&tree).unwrap();
        let check = || check_version(&request, &dir.path().join("tree")).map_err(|e| e.to_string());
        assert!(check().unwrap_err().contains("not an IREE source tree"));
        fs::write(tree.join("version.json"), r#"{"package-version": "3.12.0.dev"}"#).unwrap();
        assert!(check().unwrap_err().contains("3.12.0.dev"));
        fs::write(tree.join("version.json"), r#"{"package-version": "3.13.0.dev"}"#).unwrap();
        check().unwrap();
    }
}
