//! Makes an IREE folder.

use std::fs;
use std::path::{Path, PathBuf};

use iree_src::runtime::{Build, Built, Cuda};
use iree_src::wheel::Wheel;
use iree_src::{
    Cross, Fetched, FileHash, IREE_VERSION, Manifest, OriginKind, compiler_part, host_target, mend,
    prebuilt, sha256,
};

use super::cross;
use super::cuda::{self, Toolkit};
use super::place::{self, Place};
use super::request::{Compiler, Origin, Request};
use super::source::{self, SourceTree};
use super::{Error, Result, tools, wheel};

/// How [`fetch`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The folder was there already and satisfies the request.
    AlreadyThere(Manifest),
    /// The folder was made.
    Made(Manifest),
}

/// Makes the IREE folder that `request` describes, unless it is there.
///
/// The folder appears at once and complete. A second process that wants the same folder waits.
/// An interrupted run leaves the old folder as it was.
///
/// # Errors
///
/// Any [`Error`] of this crate; the old folder, if any, is unchanged then.
pub fn fetch(request: &Request) -> Result<Outcome> {
    check_request(request)?;
    let place = Place::lock(&request.out, request.progress)?;
    let existing = Manifest::load(place.out()).ok();
    if let Some(manifest) = existing.as_ref().filter(|_| !request.force)
        && satisfies(request, manifest)
        && manifest.missing(place.out()).is_empty()
    {
        return Ok(Outcome::AlreadyThere(manifest.clone()));
    }
    let staged = place.stage()?;
    let scratch = staged.join(".build");
    fs::create_dir(&scratch).map_err(Error::io("create", &scratch))?;
    let manifest = make(request, existing.as_ref(), &staged, &scratch)
        .map_err(|error| keep_log(error, place.out()))?;
    place::remove(&scratch)?;
    manifest.save(&staged)?;
    if let Some(missing) = manifest.missing(&staged).first() {
        return Err(Error::request(format!("{} was not made", missing.display())));
    }
    place.commit(&staged)?;
    Ok(Outcome::Made(manifest))
}

fn check_request(request: &Request) -> Result<()> {
    if request.crosses() {
        let known = Cross::to(&request.target).is_some();
        let sources = matches!(request.origin, Some(Origin::Registry | Origin::Source { .. }));
        if !known || !sources || request.compiler == Compiler::Wheel || request.cuda {
            return Err(Error::request(format!(
                "IREE for {} cannot be made on {}; make the folder on such a machine and name it in \
                 {}",
                request.target,
                host_target(),
                iree_src::DIST_VAR
            )));
        }
    }
    if request.cuda && matches!(request.origin, Some(Origin::Dist { .. })) {
        return Err(Error::request(
            "upstream's prebuilt runtime has no CUDA driver; use --from registry with --cuda",
        ));
    }
    if request.vulkan && matches!(request.origin, Some(Origin::Dist { .. })) {
        return Err(Error::request(
            "upstream's prebuilt runtime has a Vulkan driver of its own making or none; use --from registry with \
             --vulkan",
        ));
    }
    if request.vm_trace && matches!(request.origin, Some(Origin::Dist { .. })) {
        return Err(Error::request(
            "upstream's prebuilt runtime cannot write what its VM executes; use --from registry with \
             --vm-trace",
        ));
    }
    if request.sanitizer.is_some() && matches!(request.origin, Some(Origin::Dist { .. })) {
        return Err(Error::request("upstream's prebuilt runtime has no sanitizer in it"));
    }
    Ok(())
}

fn satisfies(request: &Request, manifest: &Manifest) -> bool {
    let origin = match &request.origin {
        None => true,
        Some(Origin::Dist { sha256: Some(sum), .. }) => {
            manifest.fetched.iter().any(|f| f.sha256.eq_ignore_ascii_case(sum))
        }
        Some(Origin::Source { dir: Some(dir), .. }) => std::path::absolute(dir).is_ok_and(|dir| {
            manifest.origin.detail == source::checkout_detail(request, &dir)
                && !source::is_changed(request, &dir)
        }),
        Some(Origin::Source { dir: None, git }) => {
            let url = git.as_deref().unwrap_or(source::UPSTREAM);
            manifest.origin.detail.starts_with(&source::clone_detail(url, &request.version))
        }
        Some(_) => true,
    };
    origin
        && request.origin.as_ref().is_none_or(|o| o.kind() == manifest.origin.kind)
        && manifest.iree == request.version
        && manifest.target == request.target
        && manifest.sanitizer == request.sanitizer
        && (!request.cuda || manifest.has_driver("cuda"))
        && (!request.vulkan || manifest.has_driver("vulkan"))
        && (!request.vm_trace || manifest.vm_trace)
        // A folder of an earlier version of this crate is made again; upstream's has what it has.
        && (manifest.origin.kind == OriginKind::Dist || manifest.has_parameters())
        && (manifest.origin.kind != OriginKind::Registry
            || manifest.mended == mend::names(&request.version))
        && has_compiler(request, manifest)
}

fn has_compiler(request: &Request, manifest: &Manifest) -> bool {
    let there = manifest.compiler.as_ref().map(|compiler| request.out.join(compiler));
    match &request.compiler {
        #[cfg(test)]
        Compiler::None => true,
        Compiler::Wheel => there.is_some(),
        // A compiler for another machine is a script beside the user's.
        Compiler::Path(_) if request.crosses() => there.is_some(),
        Compiler::Path(path) => there.is_some_and(|there| {
            let both = there.canonicalize().ok().zip(path.canonicalize().ok());
            both.is_some_and(|(there, path)| there == path)
        }),
    }
}

fn make(
    request: &Request,
    existing: Option<&Manifest>,
    staged: &Path,
    scratch: &Path,
) -> Result<Manifest> {
    let origin = request.origin.as_ref().unwrap_or(&Origin::Registry);
    let tree = match origin {
        Origin::Dist { base_url, sha256 } => {
            let (base_url, sha256) = (base_url.as_deref(), sha256.as_deref());
            return from_dist(request, base_url, sha256, existing, staged);
        }
        Origin::Registry if request.version != IREE_VERSION => {
            return Err(Error::request(format!(
                "the registry's sources are of IREE {IREE_VERSION}: take those of {} with --from source, or \
                 upstream's build with --from dist",
                request.version
            )));
        }
        Origin::Registry => source::registry(request, scratch)?,
        Origin::Source { dir, git } => {
            source::tree(request, dir.as_deref(), git.as_deref(), scratch)?
        }
    };
    let toolkit = request.cuda.then(|| cuda::toolkit(request, scratch)).transpose()?;
    from_source(request, origin, tree, toolkit, staged, scratch)
}

fn from_source(
    request: &Request,
    origin: &Origin,
    tree: SourceTree,
    toolkit: Option<Toolkit>,
    staged: &Path,
    scratch: &Path,
) -> Result<Manifest> {
    let built = build(request, &tree, toolkit.as_ref(), staged, scratch)?;
    let compiler = bring_compiler(request, staged)?;
    let mut fetched = Vec::new();
    fetched.extend(toolkit.into_iter().flat_map(|toolkit| toolkit.fetched));
    fetched.extend(compiler.fetched);
    let hash = |path: &PathBuf| {
        let sha256 = sha256::of_file(&staged.join(path))?;
        Ok(FileHash { path: path.clone(), sha256 })
    };
    let mut files = built.archives.iter().map(hash).collect::<Result<Vec<_>>>()?;
    files.extend(compiler.files);
    Ok(Manifest {
        schema: 1,
        iree: request.version.clone(),
        target: request.target.clone(),
        origin: iree_src::Origin { kind: origin.kind(), detail: tree.detail },
        sanitizer: request.sanitizer,
        mended: if tree.mended { mend::names(&request.version) } else { Vec::new() },
        drivers: built.drivers,
        vm_trace: request.vm_trace,
        include: vec!["include".into()],
        lib: "lib".into(),
        link: built.link,
        compiler: compiler.program,
        compiler_library: compiler.library,
        fetched,
        files,
    })
}

/// Builds the runtime and puts it into `staged`.
fn build(
    request: &Request,
    tree: &SourceTree,
    toolkit: Option<&Toolkit>,
    staged: &Path,
    scratch: &Path,
) -> Result<Built> {
    let tools = tools::build_tools(request)?;
    let cross = Cross::to(&request.target).filter(|_| request.crosses());
    cross.map_or(Ok(()), |cross| cross.check(&request.machine.path))?;
    let libdevice = toolkit.map(Toolkit::libdevice);
    let cuda = toolkit.zip(libdevice.as_deref());
    let build = Build {
        source: &tree.dir,
        version: &request.version,
        tools: &tools,
        jobs: None,
        cuda: cuda.map(|(toolkit, libdevice)| Cuda { root: &toolkit.root, libdevice }),
        vulkan: request.vulkan,
        vm_trace: request.vm_trace,
        sanitizer: request.sanitizer,
        cross,
        scratch,
    };
    let step = request.progress.spinner("configure the runtime");
    build.configure()?;
    step.done();
    let step = request.progress.pieces("build the runtime", 0);
    build.compile(|done, total| {
        step.set_total(total);
        step.set(done);
    })?;
    step.done();
    Ok(build.install(staged)?)
}

#[cfg(feature = "dist")]
use super::dist::fetch as from_dist;

#[cfg(not(feature = "dist"))]
fn from_dist(
    _: &Request,
    _: Option<&str>,
    _: Option<&str>,
    _: Option<&Manifest>,
    _: &Path,
) -> Result<Manifest> {
    Err(Error::request("built without the feature `dist`"))
}

#[derive(Default)]
struct BroughtCompiler {
    program: Option<PathBuf>,
    library: Option<PathBuf>,
    fetched: Vec<Fetched>,
    files: Vec<FileHash>,
}

fn bring_compiler(request: &Request, staged: &Path) -> Result<BroughtCompiler> {
    match &request.compiler {
        #[cfg(test)]
        Compiler::None => Ok(BroughtCompiler::default()),
        Compiler::Path(path) => link_compiler(request, path, staged),
        Compiler::Wheel => {
            let fix = "give a compiler of this version with --iree-compile";
            let wheel = Wheel::find("iree-base-compiler", &request.target, fix)?;
            if wheel.version != request.version {
                return Err(Error::request(format!(
                    "the pinned compiler is of version {}, not {}; {fix}",
                    wheel.version, request.version
                )));
            }
            let file = wheel::obtain(&wheel, request)?;
            let bin = |path: &str| compiler_part(path).map(|name| Path::new("bin").join(name));
            let files = wheel::unpack(&file, staged, request, bin)?;
            let named = |start: &str| {
                let starts = |file: &&FileHash| file.path.to_string_lossy().starts_with(start);
                files.iter().find(starts).map(|file| file.path.clone())
            };
            Ok(BroughtCompiler {
                program: named("bin/iree-compile"),
                library: named("bin/libIREECompiler."),
                fetched: vec![wheel.fetched()],
                files,
            })
        }
    }
}

/// Links to a compiler that the user has, or makes one of it that compiles for another machine; it stays
/// theirs, so its hash is not recorded.
fn link_compiler(request: &Request, path: &Path, staged: &Path) -> Result<BroughtCompiler> {
    let path = path.canonicalize().map_err(Error::io("find", path))?;
    let found = prebuilt::compiler_version(&path).unwrap_or_else(|| "of no known version".into());
    if prebuilt::release(&found) != request.version {
        return Err(Error::request(format!(
            "{} is {found}, but {} is needed",
            path.display(),
            request.version
        )));
    }
    let bin = staged.join("bin");
    fs::create_dir_all(&bin).map_err(Error::io("create", &bin))?;
    if request.crosses() {
        let program = Some(cross::compiler(&request.target, &path, &bin)?);
        return Ok(BroughtCompiler { program, ..BroughtCompiler::default() });
    }
    let link = |from: &Path, name: &str| -> Result<PathBuf> {
        let to = bin.join(name);
        #[cfg(unix)]
        std::os::unix::fs::symlink(from, &to).map_err(Error::io("link", &to))?;
        #[cfg(not(unix))]
        fs::copy(from, &to).map_err(Error::io("copy", &to))?;
        Ok(Path::new("bin").join(name))
    };
    let program = link(&path, "iree-compile")?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let places = [folder.to_owned(), folder.join("../lib")];
    let names = ["libIREECompiler.so", "libIREECompiler.dylib"];
    let beside = |name: &'static str| places.iter().map(move |p| (p.join(name), name));
    let library = names.into_iter().flat_map(beside).find(|(path, _)| path.exists());
    let library = library.map(|(path, name)| link(&path, name)).transpose()?;
    Ok(BroughtCompiler { program: Some(program), library, ..BroughtCompiler::default() })
}

/// Saves the log that an error points to from the folder that is about to be removed.
fn keep_log(error: Error, out: &Path) -> Error {
    let Error::Iree(iree_src::Error::Command { what, status, tail, log: Some(log) }) = error else {
        return error;
    };
    let kept = out.with_extension("log");
    let log = fs::copy(&log, &kept).ok().map(|_| kept);
    iree_src::Error::Command { what, status, tail, log }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iree::request::Machine;

    fn manifest(kind: OriginKind, detail: &str) -> Manifest {
        // All that programs with parameters link.
        let libraries = [
            "iree_modules_io_parameters_parameters",
            "iree_io_formats_irpa_irpa",
            "iree_io_stream",
            "iree_io_parameter_index_provider",
            "iree_io_parameter_provider",
            "iree_io_parameter_index",
            "iree_hal_utils_file_cache",
        ];
        Manifest {
            origin: iree_src::Origin { kind, detail: detail.into() },
            link: libraries.map(|name| format!("static={name}")).to_vec(),
            compiler: Some("bin/iree-compile".into()),
            ..crate::iree::tests::manifest()
        }
    }

    #[test]
    fn a_clone_is_that_of_its_repository() {
        let mut request = Request::new("/none", Machine::from_env());
        let detail = format!("https://a.example/iree v{} at 0123", request.version);
        let manifest = manifest(OriginKind::Source, &detail);
        assert!(manifest.has_parameters(), "or nothing satisfies anything");
        for (git, expected) in [
            (None, false),
            (Some("https://a.example/iree"), true),
            (Some("https://b.example/iree"), false),
        ] {
            request.origin = Some(Origin::Source { dir: None, git: git.map(Into::into) });
            assert_eq!(satisfies(&request, &manifest), expected, "{git:?}");
        }
    }

    #[test]
    fn a_checkout_is_that_of_its_commit() {
        let dir = tempfile::tempdir().unwrap();
        let mut request = Request::new("/none", Machine::from_env());
        request.origin = Some(Origin::Source { dir: Some(dir.path().to_owned()), git: None });
        let path = dir.path().display().to_string();
        // No repository: it has no commit now.
        for (detail, expected) in
            [(path.clone(), true), (format!("{path} at 0123"), false), ("/other".into(), false)]
        {
            let manifest = manifest(OriginKind::Source, &detail);
            assert_eq!(satisfies(&request, &manifest), expected, "{detail}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_compiler_of_the_users_is_the_one_that_they_name() {
        let dir = tempfile::tempdir().unwrap();
        let [theirs, other] = ["theirs", "other"].map(|name| dir.path().join(name));
        for path in [&theirs, &other] {
            fs::write(path, "").unwrap();
        }
        let out = dir.path().join("iree");
        fs::create_dir_all(out.join("bin")).unwrap();
        std::os::unix::fs::symlink(&theirs, out.join("bin/iree-compile")).unwrap();
        let manifest = manifest(OriginKind::Source, "a checkout");
        let mut request = Request::new(out, Machine::from_env());
        for (compiler, expected) in [
            (Compiler::Wheel, true),
            (Compiler::Path(theirs), true),
            (Compiler::Path(other), false),
            (Compiler::Path("/no/where/iree-compile".into()), false),
        ] {
            request.compiler = compiler;
            assert_eq!(satisfies(&request, &manifest), expected, "{:?}", request.compiler);
        }
    }
}
