//! Feature `bundled`: the runtime is built by the build script that needs it.

use std::fs;
use std::path::Path;

use crate::cmake::BuildTools;
use crate::runtime::Build;
use crate::sources::Places;
use crate::{
    Error, IREE_VERSION, Located, Manifest, Origin, OriginKind, Result, host_target,
    install_compiler, mend,
};

/// Builds the runtime for `target` into a folder in `out` (cargo's `OUT_DIR`), unless it is there;
/// `compiler` brings the compiler too, which is all that uses the network. Takes a minute, once.
///
/// # Errors
///
/// Any [`Error`]; what is missing on the machine is named.
pub fn build(out: &Path, target: &str, jobs: Option<usize>, compiler: bool) -> Result<Located> {
    if target != host_target() {
        return Err(Error::Request(format!(
            "IREE for {target} cannot be built on {}: build it there, and name its folder in {}",
            host_target(),
            crate::DIST_VAR
        )));
    }
    let folder = out.join("iree");
    let from = "the feature `bundled`";
    if let Ok(manifest) = Manifest::load(&folder)
        && manifest.iree == IREE_VERSION
        && manifest.mended == mend::names(IREE_VERSION)
        && manifest.missing(&folder).is_empty()
        && (!compiler || manifest.compiler.is_some())
    {
        return Ok(Located { folder, manifest, from });
    }
    let tools = BuildTools::from_env()?;
    let sources = Places::from_env().find()?;
    let scratch = out.join("build");
    for path in [&folder, &scratch] {
        remove(path)?;
        fs::create_dir_all(path).map_err(Error::io("create", path))?;
    }
    let source = mend::copy(&sources.dir, scratch.join("iree"), IREE_VERSION)?;
    let build = Build {
        source: &source,
        version: IREE_VERSION,
        tools: &tools,
        jobs,
        cuda: None,
        vm_trace: false,
        sanitizer: None,
        scratch: &scratch,
    };
    build.configure()?;
    build.compile(|_, _| {})?;
    let built = build.install(&folder)?;
    let compiler = compiler
        .then(|| install_compiler(target, &folder, &scratch))
        .transpose()?
        .unwrap_or_default();
    // 100 MB that nobody needs again.
    remove(&scratch)?;
    let manifest = Manifest {
        schema: 1,
        iree: IREE_VERSION.to_owned(),
        target: target.to_owned(),
        origin: Origin { kind: OriginKind::Registry, detail: sources.detail },
        sanitizer: None,
        mended: mend::names(IREE_VERSION),
        drivers: built.drivers,
        vm_trace: false,
        include: vec!["include".into()],
        lib: "lib".into(),
        link: built.link,
        compiler: compiler.program,
        compiler_library: compiler.library,
        fetched: compiler.fetched,
        files: Vec::new(),
    };
    // Last: a folder without it is made again.
    manifest.save(&folder)?;
    Ok(Located { folder, manifest, from })
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}
