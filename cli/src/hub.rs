//! Models from the Hugging Face hub, kept in the cache that other programs share.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

use crate::progress::Progress;

/// Files that a model may have beside its weights.
const SMALL_FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    // Of embedding models.
    "modules.json",
    "1_Pooling/config.json",
];
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// A model on the hub: `owner/name`, of GGUF files one by its type, `owner/name:Q4_K_M`, or by its name,
/// `owner/name/file.gguf`; each may have a revision, `owner/name@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    name: String,
    revision: String,
    wanted: Wanted,
}

/// What of a repository is the model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// Its safetensors, or its GGUF file where it has no other.
    Whatever,
    /// The GGUF file of this type.
    Type(String),
    /// This GGUF file.
    File(String),
}

impl ModelId {
    /// The id that `text` is, if it has the form of one.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, rest) = name.split_once('/')?;
        let (model, wanted) = match (rest.split_once('/'), rest.split_once(':')) {
            (Some((model, file)), _) => (model, Wanted::File(file.into())),
            (_, Some((model, kind))) => (model, Wanted::Type(kind.into())),
            _ => (rest, Wanted::Whatever),
        };
        let word = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let wanted_fits = match &wanted {
            Wanted::Whatever => true,
            Wanted::Type(kind) => word(kind),
            Wanted::File(file) => file.ends_with(".gguf") && file.split('/').all(word),
        };
        let revision_fits = !revision.is_empty()
            && !revision.split('/').any(|part| part.is_empty() || part.starts_with('.'));
        (word(owner) && word(model) && wanted_fits && revision_fits).then(|| Self {
            name: format!("{owner}/{model}"),
            revision: revision.into(),
            wanted,
        })
    }

    /// Which of a repository's `files` are the model, all parts of one GGUF; `None` where it lies in
    /// safetensors.
    fn gguf<'f>(&self, files: &[&'f str]) -> Result<Option<Vec<&'f str>>> {
        let mut models: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for file in files.iter().filter(|file| file.ends_with(".gguf") && !is_projector(file)) {
            models.entry(whole(file)).or_default().push(file);
        }
        let list = || models.values().map(|parts| parts[0]).collect::<Vec<_>>().join(", ");
        let found = match &self.wanted {
            Wanted::Whatever if files.contains(&SINGLE) || files.contains(&INDEX) => {
                return Ok(None);
            }
            Wanted::Whatever if models.is_empty() => return Ok(None),
            Wanted::Whatever if models.len() == 1 => models.first_key_value(),
            // As llama.cpp does.
            Wanted::Whatever => models.iter().find(|(name, _)| is_of_type(name, "Q4_K_M")),
            Wanted::Type(kind) => {
                let mut found = models.iter().filter(|(name, _)| is_of_type(name, kind));
                let first = found.next();
                if let (Some((_, a)), Some((_, b))) = (first, found.next()) {
                    bail!(
                        "{}: {} and {} are both {kind}: give one, `{}/{}`",
                        self.name,
                        a[0],
                        b[0],
                        self.name,
                        a[0]
                    );
                }
                first
            }
            Wanted::File(file) => models.get_key_value(&whole(file)),
        };
        match found {
            Some((_, parts)) => {
                let mut parts = parts.clone();
                parts.sort_unstable();
                Ok(Some(parts))
            }
            None if models.is_empty() => bail!("{}: the repository has no GGUF file", self.name),
            None => bail!(
                "{}: which GGUF? Give one by its type (`{}:Q4_K_M`) or its name (`{}/FILE.gguf`) of: {}",
                self.name,
                self.name,
                self.name,
                list()
            ),
        }
    }
}

/// The name of a file without the number of its part: `a-00001-of-00003.gguf` is a part of `a.gguf`.
fn whole(file: &str) -> String {
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let part = stem.rsplit_once("-of-").filter(|(_, count)| digits(count));
    let name = part.and_then(|(rest, _)| rest.rsplit_once('-').filter(|(_, part)| digits(part)));
    format!("{}.gguf", name.map_or(stem, |(name, _)| name))
}

/// Whether a file's name says that it is of a type: `a-Q4_K_M.gguf` is of Q4_K_M, and not of Q4_K.
fn is_of_type(file: &str, kind: &str) -> bool {
    let stem = file.strip_suffix(".gguf").unwrap_or(file).to_lowercase();
    let kind = kind.to_lowercase();
    stem.strip_suffix(&kind).is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric()))
}

/// Whether a GGUF holds no language model, but what makes images to its tokens.
fn is_projector(file: &str) -> bool {
    file.rsplit('/').next().is_some_and(|name| name.starts_with("mmproj"))
}

/// How the hub is reached and where its files are kept.
pub struct Hub {
    endpoint: String,
    cache: Cache,
    token: Option<String>,
    offline: bool,
}

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH` and
    /// `HF_HUB_OFFLINE`, as Hugging Face's own tools do.
    ///
    /// # Errors
    ///
    /// None of them is set and there is no home folder.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let home = variable("HF_HOME").map(PathBuf::from).or_else(|| {
            let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
            Some(cache.or_else(|| Some(dirs::home_dir()?.join(".cache")))?.join("huggingface"))
        });
        let cache = variable("HF_HUB_CACHE").map(PathBuf::from);
        let cache = cache
            .or_else(|| Some(home.as_ref()?.join("hub")))
            .context("no folder for models from the hub: set HF_HOME to one")?;
        // The hub's library makes links between paths, which needs absolute ones.
        let cache = std::path::absolute(&cache).context(cache.display().to_string())?;
        let token = variable("HF_TOKEN").or_else(|| {
            let path = variable("HF_TOKEN_PATH").map(PathBuf::from);
            fs::read_to_string(path.or_else(|| Some(home.as_ref()?.join("token")))?).ok()
        });
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or("https://huggingface.co".into());
        let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
        });
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Self { endpoint, cache: Cache::new(cache), token, offline })
    }

    /// The folder of `id`'s files, or its GGUF file, fetched unless the cache holds all of it. With a reason to
    /// be `offline` nothing is fetched.
    ///
    /// # Errors
    ///
    /// No such model, no access, no network, no room, or damaged files; offline, the cache lacks some.
    pub fn fetch(
        &self,
        id: &ModelId,
        offline: Option<&str>,
        progress: &Progress,
    ) -> Result<PathBuf> {
        let offline = offline.or(self.offline.then_some("HF_HUB_OFFLINE is set"));
        let repo = Repo::with_revision(id.name.clone(), RepoType::Model, id.revision.clone());
        let cached = self.snapshot(id);
        if let Some(folder) = &cached {
            // Which file of several is meant, the hub's list says.
            if (offline.is_some() || id.wanted != Wanted::Whatever)
                && let Some(file) = cached_gguf(id, folder)
            {
                return Ok(file);
            }
            let whole = offline.is_some() || folder.join("tokenizer.json").exists();
            if id.wanted == Wanted::Whatever && is_runnable(folder) && whole {
                return Ok(folder.clone());
            }
        }
        if let Some(why) = offline {
            bail!(
                "{}: not in the cache {} (or not all of it), and {why}; `iree-llm pull` brings it \
                 where there is a network, or give a folder",
                id.name,
                self.cache.path().display()
            );
        }
        match self.download(id, &repo, progress) {
            Err(Failure { unreachable: true, error }) => {
                let gguf = cached.as_deref().and_then(|folder| cached_gguf(id, folder));
                match gguf.or(cached.filter(|it| is_runnable(it))) {
                    Some(folder) => {
                        progress.say(&format!("{error:#}; going on with the files in the cache"));
                        Ok(folder)
                    }
                    None => Err(error),
                }
            }
            result => result.map_err(|failure| failure.error),
        }
    }

    /// The folder of the commit that the cache has of `id`'s revision.
    fn snapshot(&self, id: &ModelId) -> Option<PathBuf> {
        let folder = self.cache.path().join(format!("models--{}", id.name.replace('/', "--")));
        let commit = fs::read_to_string(folder.join("refs").join(&id.revision)).ok()?;
        Some(folder.join("snapshots").join(commit.trim())).filter(|folder| folder.is_dir())
    }

    fn download(&self, id: &ModelId, repo: &Repo, progress: &Progress) -> Result<PathBuf, Failure> {
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_user_agent("iree-llm", env!("CARGO_PKG_VERSION"))
            .with_retries(2)
            .build()
            .map_err(|error| self.explain(id, "the model", error))?;
        let info = api.repo(repo.clone()).info().map_err(|e| self.explain(id, "the model", e))?;
        // It names folders below.
        if info.sha.is_empty() || !info.sha.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(anyhow!("{}: {} names an odd commit", id.name, self.endpoint).into());
        }
        // Every file from one commit, whatever is pushed meanwhile.
        let pinned = Repo::with_revision(id.name.clone(), RepoType::Model, info.sha.clone());
        let folder = self.cache.repo(pinned.clone()).pointer_path(&info.sha);
        let files: Vec<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        let has = |name: &str| files.contains(&name);
        let transfer = Transfer { hub: self, id, api: &api, pinned: &pinned, folder: &folder };
        let cache = self.cache.repo(repo.clone());
        let refer = || {
            let created = cache.create_ref(&info.sha);
            created.with_context(|| self.cache.path().display().to_string())
        };
        if let Some(parts) = id.gguf(&files)? {
            for part in &parts {
                transfer.file(part, progress)?;
            }
            refer()?;
            return Ok(folder.join(parts[0]));
        }
        if !has("config.json") {
            return Err(anyhow!("{}: the repository has no config.json", id.name).into());
        }
        for name in SMALL_FILES.into_iter().filter(|name| has(name)) {
            transfer.file(name, progress)?;
        }
        if has(SINGLE) {
            transfer.file(SINGLE, progress)?;
        } else if has(INDEX) {
            transfer.file(INDEX, progress)?;
            for shard in shards(&folder.join(INDEX))? {
                transfer.file(&shard, progress)?;
            }
        } else {
            let error = anyhow!("{}: the repository has neither {SINGLE} nor {INDEX}", id.name);
            return Err(error.into());
        }
        refer()?;
        Ok(folder)
    }

    fn explain(&self, id: &ModelId, what: &str, error: ApiError) -> Failure {
        let status = match &error {
            ApiError::RequestError(error) => match **error {
                ureq::Error::StatusCode(status) => Some(status),
                _ => None,
            },
            _ => None,
        };
        let unreachable = matches!(error, ApiError::RequestError(_) | ApiError::TooManyRetries(_))
            && status.is_none_or(|status| status >= 500);
        let (name, revision, endpoint) = (&id.name, &id.revision, &self.endpoint);
        let error = match status {
            Some(404) => anyhow!(
                "{name}: {what} is not on {endpoint} at revision `{revision}`: check the name"
            ),
            Some(401 | 403) if self.token.is_none() => anyhow!(
                "{name}: {endpoint} refuses {what} without a login: the name may be wrong, or the \
                 model needs a token in HF_TOKEN"
            ),
            Some(401 | 403) => anyhow!(
                "{name}: {endpoint} refuses {what} to this token: accept the model's terms on its \
                 page, or check HF_TOKEN"
            ),
            _ if matches!(error, ApiError::LockAcquisition(_)) => anyhow!(
                "{name}: another process is fetching {what} ({error}): wait for it, then try again"
            ),
            _ if unreachable => anyhow!(
                "{name}: cannot fetch {what} from {endpoint}: {error}; set HF_ENDPOINT for a \
                 mirror, or give a folder"
            ),
            _ => anyhow!("{name}: cannot fetch {what} from {endpoint}: {error}"),
        };
        Failure { unreachable, error }
    }
}

/// Why a download failed, and whether files in the cache are better than nothing.
struct Failure {
    unreachable: bool,
    error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { unreachable: false, error: error.into() }
    }
}

struct Transfer<'a> {
    hub: &'a Hub,
    id: &'a ModelId,
    api: &'a Api,
    pinned: &'a Repo,
    folder: &'a Path,
}

impl Transfer<'_> {
    /// Fetches one file, or what is missing of it, and checks it.
    fn file(&self, name: &str, progress: &Progress) -> Result<(), Failure> {
        let path = self.folder.join(name);
        if path.exists() {
            return Ok(());
        }
        let repo = self.api.repo(self.pinned.clone());
        let explain = |error| self.hub.explain(self.id, name, error);
        let metadata = self.api.metadata(&repo.url(name)).map_err(explain)?;
        let blob = self.hub.cache.repo(self.pinned.clone()).blob_path(metadata.etag());
        self.drop_overlong_part(&blob.with_extension("part"), metadata.size() as u64)?;
        let bar = progress.bytes(name.to_owned(), metadata.size() as u64);
        let result = self.transfer(&repo, name, &blob, metadata.size() as u64, &bar);
        bar.finish_and_clear();
        result?;
        Ok(())
    }

    /// A finished or overlong rest of an earlier run cannot be resumed: no byte is left to ask for.
    fn drop_overlong_part(&self, part: &Path, size: u64) -> io::Result<()> {
        match part.metadata() {
            Ok(metadata) if metadata.len() >= size => fs::remove_file(part),
            _ => Ok(()),
        }
    }

    fn transfer(
        &self,
        repo: &ApiRepo,
        name: &str,
        blob: &Path,
        size: u64,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let path = repo
            .download_with_progress(name, Bar(bar.clone()))
            .map_err(|error| self.hub.explain(self.id, name, error))?;
        if let Err(error) = check(blob, size) {
            for damaged in [blob, &path] {
                fs::remove_file(damaged).with_context(|| damaged.display().to_string())?;
            }
            let error = error.context(format!("{}: {name} arrived damaged", self.id.name));
            return Err(error.into());
        }
        Ok(())
    }
}

/// Compares a blob with the size and, for large files, the SHA-256 that it is named after.
fn check(blob: &Path, size: u64) -> Result<()> {
    let found = blob.metadata()?.len();
    ensure!(found == size, "{found} bytes instead of {size}; try again");
    let expected = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if expected.len() != 64 || !expected.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    let mut file = fs::File::open(blob)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            break;
        }
        hash.update(&block[..read]);
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(found == expected, "its SHA-256 is {found} instead of {expected}; try again");
    Ok(())
}

/// The GGUF file in a snapshot that `id` means, or its first part, if all are there.
fn cached_gguf(id: &ModelId, snapshot: &Path) -> Option<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![snapshot.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().ok()?.flatten().map(|entry| entry.path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false => files.push(entry.strip_prefix(snapshot).ok()?.to_str()?.to_owned()),
            }
        }
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let parts = id.gguf(&files).ok()??;
    let count = parts[0]
        .rsplit_once("-of-")
        .map_or(1, |(_, rest)| rest.trim_end_matches(".gguf").parse::<usize>().unwrap_or(1));
    (parts.len() == count).then(|| snapshot.join(parts[0]))
}

/// Whether a snapshot holds a configuration and all weights.
fn is_runnable(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).exists();
    has("config.json")
        && (has(SINGLE)
            || shards(&folder.join(INDEX)).is_ok_and(|names| names.iter().all(|name| has(name))))
}

/// The files that an index names.
fn shards(index: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(index).with_context(|| index.display().to_string())?;
    let value: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{}: not JSON", index.display()))?;
    let Some(map) = value["weight_map"].as_object() else {
        bail!("{}: no weight_map", index.display());
    };
    let mut names: Vec<_> = map.values().filter_map(|it| it.as_str()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    let plain = |name: &String| name.ends_with(".safetensors") && !name.contains(['/', '\\']);
    if let Some(odd) = names.iter().find(|name| !plain(name)) {
        bail!("{}: weight_map names `{odd}`, which is no safetensors file", index.display());
    }
    Ok(names)
}

struct Bar(ProgressBar);

impl hf_hub::api::Progress for Bar {
    fn init(&mut self, size: usize, _: &str) {
        self.0.set_length(size as u64);
        self.0.set_position(0);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_an_owner_and_no_odd_characters() {
        let id = ModelId::parse("meta-llama/Llama-3.2-1B").unwrap();
        assert_eq!((id.name.as_str(), id.revision.as_str()), ("meta-llama/Llama-3.2-1B", "main"));
        let id = ModelId::parse("a/b@refs/pr/3").unwrap();
        assert_eq!(id.revision, "refs/pr/3");
        let id = ModelId::parse("a/b:Q4_K_M@v1").unwrap();
        assert_eq!((id.name.as_str(), id.revision.as_str()), ("a/b", "v1"));
        assert_eq!(id.wanted, Wanted::Type("Q4_K_M".into()));
        let id = ModelId::parse("a/b/sub/c.gguf").unwrap();
        assert_eq!((id.name.as_str(), id.wanted), ("a/b", Wanted::File("sub/c.gguf".into())));
        for text in ["a/b:", "a/b:x y", "a/b/../c.gguf", "a/b//c.gguf", "a/b/c.bin"] {
            assert_eq!(ModelId::parse(text), None, "{text}");
        }
        for text in ["gpt2", "./a/b", "a/b/c", "a b/c", "a/b@", "a/b@../x", "/a", "a/", "../a"] {
            assert_eq!(ModelId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_gguf_is_found_by_its_type_or_its_name() {
        let files = [
            "README.md",
            "mmproj-f16.gguf",
            "m-Q4_K_S.gguf",
            "m-Q4_K_M.gguf",
            "m-q8_0-00002-of-00002.gguf",
            "m-q8_0-00001-of-00002.gguf",
        ];
        let find = |id: &str| ModelId::parse(id).unwrap().gguf(&files);
        assert_eq!(find("a/b").unwrap().unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(find("a/b:q4_k_s").unwrap().unwrap(), ["m-Q4_K_S.gguf"]);
        let both = ["m-q8_0-00001-of-00002.gguf", "m-q8_0-00002-of-00002.gguf"];
        assert_eq!(find("a/b:Q8_0").unwrap().unwrap(), both);
        assert_eq!(find("a/b/m-q8_0-00002-of-00002.gguf").unwrap().unwrap(), both);
        for id in ["a/b:Q4_K", "a/b:8_0", "a/b/other.gguf"] {
            let error = find(id).unwrap_err().to_string();
            assert!(error.contains("m-Q4_K_M.gguf") && error.contains("a/b:Q4_K_M"), "{error}");
        }
        let floats = ["m-Q4_K_M.gguf", SINGLE];
        assert_eq!(ModelId::parse("a/b").unwrap().gguf(&floats).unwrap(), None);
        let error = ModelId::parse("a/b:Q4_0").unwrap().gguf(&[SINGLE]).unwrap_err().to_string();
        assert!(error.contains("no GGUF file"), "{error}");
        let twice = ["m-Q4_0.gguf", "n-Q4_0.gguf"];
        let error = ModelId::parse("a/b:Q4_0").unwrap().gguf(&twice).unwrap_err().to_string();
        assert!(error.contains("m-Q4_0.gguf") && error.contains("n-Q4_0.gguf"), "{error}");
    }

    #[test]
    fn variables_are_those_of_hugging_faces_tools() {
        let hub = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
            Hub::from_variables(find).unwrap()
        };
        let plain = hub(&[("HF_HOME", "/h")]);
        assert_eq!(plain.cache.path(), Path::new("/h/hub"));
        assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", false));
        let set = hub(&[
            ("HF_HUB_CACHE", "/c"),
            ("HF_TOKEN", " t\n"),
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_HUB_OFFLINE", "yes"),
        ]);
        assert_eq!(set.cache.path(), Path::new("/c"));
        assert_eq!((set.token.as_deref(), set.offline), (Some("t"), true));
        assert_eq!(set.endpoint, "http://mirror");
        let cache = hub(&[("XDG_CACHE_HOME", "/x")]).cache;
        assert_eq!(cache.path(), Path::new("/x/huggingface/hub"));
    }

    #[test]
    fn an_index_cannot_point_outside() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join(INDEX);
        fs::write(&index, r#"{"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors"}}"#)
            .unwrap();
        assert_eq!(shards(&index).unwrap(), ["m-1.safetensors", "m-2.safetensors"]);
        fs::write(&index, r#"{"weight_map": {"a": "../x.safetensors"}}"#).unwrap();
        assert!(shards(&index).unwrap_err().to_string().contains("../x.safetensors"));
        fs::write(&index, "{}").unwrap();
        assert!(shards(&index).unwrap_err().to_string().contains("weight_map"));
    }
}
