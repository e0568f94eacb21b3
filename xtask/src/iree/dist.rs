//! The origin `dist`: upstream's prebuilt archive of runtime and compiler.
//!
//! Upstream publishes no hashes, so the user pins one, or the first download is trusted and
//! remembered: in the folder's manifest and beside the cached archive. A later archive of the same
//! name with other bytes is refused.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use iree_src::{Fetched, FileHash, Manifest, Origin, OriginKind, prebuilt};

use super::download::{self, CountingReader};
use super::request::Request;
use super::{Error, Result};

const UPSTREAM: &str = "https://github.com/iree-org/iree/releases/download";

/// Downloads, verifies and unpacks the archive into `staged`.
pub fn fetch(
    request: &Request,
    base_url: Option<&str>,
    sha256: Option<&str>,
    existing: Option<&Manifest>,
    staged: &Path,
) -> Result<Manifest> {
    let name = archive_name(request)?;
    let base = base_url.unwrap_or(UPSTREAM).trim_end_matches('/');
    let url = format!("{base}/v{}/{name}", request.version);
    let cached = Cached::lock(request, &name)?;
    let expected = expected_hash(sha256, existing, &cached, &name)?;
    let found = obtain(request, &url, &cached, expected.as_ref())?;
    unpack(request, &cached.archive, staged).inspect_err(|_| {
        // An archive that cannot be unpacked must not be what the next run finds.
        let _ = fs::remove_file(&cached.archive);
    })?;
    let mut manifest = prebuilt::describe(staged).map_err(|why| Error::Download {
        url: url.clone(),
        why: format!("the archive is not an IREE distribution: {why}"),
    })?;
    if prebuilt::release(&manifest.iree) != request.version {
        return Err(Error::Download {
            url,
            why: format!("it holds IREE {}, not {}", manifest.iree, request.version),
        });
    }
    cached.remember(&found)?;
    if expected.is_none() {
        request.progress.line(&format!(
            "  {name} has sha256 {found}; it is recorded, and another one will be refused"
        ));
    }
    manifest.iree.clone_from(&request.version);
    manifest.origin = Origin { kind: OriginKind::Dist, detail: url };
    manifest.fetched = vec![Fetched { name, sha256: found }];
    manifest.files = hashes(&manifest, staged)?;
    Ok(manifest)
}

fn archive_name(request: &Request) -> Result<String> {
    let arch = request.target.split('-').next().unwrap_or_default();
    if !matches!(arch, "x86_64" | "aarch64") || !request.target.contains("-linux-gnu") {
        return Err(iree_src::Error::Platform {
            name: "prebuilt IREE".into(),
            target: request.target.clone(),
            fix: "use --from registry".into(),
        }
        .into());
    }
    Ok(format!("iree-dist-{}-linux-{arch}.tar.xz", request.version))
}

/// The archive in the cache, locked while this lives.
struct Cached {
    archive: PathBuf,
    known: PathBuf,
    _lock: File,
}

impl Cached {
    fn lock(request: &Request, name: &str) -> Result<Cached> {
        let folder = request.machine.cache.join("dist");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = folder.join(format!("{name}.lock"));
        let lock = File::create(&path).map_err(Error::io("create", &path))?;
        lock.lock().map_err(Error::io("lock", &path))?;
        let known = folder.join(format!("{name}.sha256"));
        Ok(Cached { archive: folder.join(name), known, _lock: lock })
    }

    fn known_hash(&self) -> Option<String> {
        fs::read_to_string(&self.known).ok().map(|text| text.trim().to_owned())
    }

    fn remember(&self, hash: &str) -> Result<()> {
        fs::write(&self.known, format!("{hash}\n")).map_err(Error::io("write", &self.known))
    }
}

/// A hash that the archive must have, and who said so.
struct Expected {
    sha256: String,
    fix: &'static str,
}

fn expected_hash(
    pinned: Option<&str>,
    existing: Option<&Manifest>,
    cached: &Cached,
    name: &str,
) -> Result<Option<Expected>> {
    if let Some(text) = pinned {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            let what = format!("--sha256 takes 64 hexadecimal digits, not {text:?}");
            return Err(Error::request(what));
        }
        let fix = "correct --sha256, or find out why the server's file is another one";
        return Ok(Some(Expected { sha256: text.to_ascii_lowercase(), fix }));
    }
    let recorded = existing.and_then(|m| m.fetched.iter().find(|f| f.name == name));
    let recorded = recorded.map(|f| f.sha256.clone()).or_else(|| cached.known_hash());
    let fix = "the file has changed since it was first fetched; if that is right, give the new \
               hash with --sha256";
    Ok(recorded.map(|sha256| Expected { sha256, fix }))
}

/// Brings the archive into the cache and returns its hash.
fn obtain(
    request: &Request,
    url: &str,
    cached: &Cached,
    expected: Option<&Expected>,
) -> Result<String> {
    let path = &cached.archive;
    if path.exists() {
        let found = iree_src::sha256::of_file(path)?;
        if expected.is_none_or(|expected| expected.sha256 == found) {
            return Ok(found);
        }
        fs::remove_file(path).map_err(Error::io("remove the outdated", path))?;
    }
    if request.offline {
        return Err(Error::Offline { what: url.to_owned() });
    }
    download::to_file(url, path, request.progress)?;
    let found = iree_src::sha256::of_file(path)?;
    match expected {
        Some(expected) if expected.sha256 != found => {
            fs::remove_file(path).map_err(Error::io("remove the wrong", path))?;
            let wrong = iree_src::Error::Hash {
                name: url.to_owned(),
                expected: expected.sha256.clone(),
                found,
                fix: expected.fix.into(),
            };
            Err(wrong.into())
        }
        _ => Ok(found),
    }
}

fn unpack(request: &Request, archive: &Path, staged: &Path) -> Result<()> {
    let file = File::open(archive).map_err(Error::io("read", archive))?;
    let bytes = file.metadata().map_err(Error::io("read", archive))?.len();
    let step = request.progress.bytes("unpack the archive", bytes);
    let counting = CountingReader { inner: BufReader::new(file), step: &step };
    let xz = lzma_rust2::XzReader::new(counting, true);
    let mut archive_reader = tar::Archive::new(xz);
    archive_reader.set_preserve_mtime(false);
    archive_reader.unpack(staged).map_err(Error::io("unpack", archive))?;
    step.done();
    Ok(())
}

fn hashes(manifest: &Manifest, staged: &Path) -> Result<Vec<FileHash>> {
    let tools = manifest.compiler.iter().chain(&manifest.compiler_library).cloned();
    let paths: Vec<PathBuf> = manifest.archives().chain(tools).collect();
    let hash = |path: PathBuf| {
        let sha256 = iree_src::sha256::of_file(&staged.join(&path))?;
        Ok(FileHash { path, sha256 })
    };
    paths.into_iter().map(hash).collect()
}
