//! Models from the Hugging Face hub, kept in the cache that other programs share.

mod cache;
mod client;
mod id;
mod part;
mod roots;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use xla_session::config::ModelConfig;

pub use id::ModelId;
#[doc(hidden)]
pub use roots::roots;

use crate::{Progress, sentence_transformers};
use cache::Repo;
use client::{Client, Error, Info, Metadata};
use id::Wanted;
use part::Part;
use settings::{MAIN, Settings};

/// Files that a model may have beside its weights.
const SMALL_FILES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    // Of embedding models.
    sentence_transformers::MODULES,
    sentence_transformers::POOLING,
    sentence_transformers::PROMPTS,
    sentence_transformers::TRANSFORMER,
];
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// How a model is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Why the hub is not asked, if that is so.
    pub offline: Option<&'a str>,
    /// Whether the hub may have changed what the cache has.
    pub refresh: bool,
    /// Whether more is needed than what safetensors are beside.
    pub weights: bool,
}

/// The hub and its cache.
#[derive(Debug)]
pub struct Hub {
    settings: Settings,
}

impl Hub {
    /// Reads the variables of Hugging Face's own tools.
    ///
    /// # Errors
    ///
    /// None of them names a folder and there is no home folder, or one makes no sense.
    pub fn from_env() -> crate::Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Ok(Self { settings: Settings::read(variable)? })
    }

    /// The folder of `id`'s files, or its GGUF file, fetched unless the cache holds all of it.
    ///
    /// # Errors
    ///
    /// No such model, no access, no network, no room, or damaged files; offline, the cache lacks some.
    pub fn fetch(
        &self,
        id: &ModelId,
        asked: Asked<'_>,
        progress: &dyn Progress,
    ) -> crate::Result<PathBuf> {
        Ok(self.found(id, asked, progress)?)
    }

    fn found(&self, id: &ModelId, asked: Asked<'_>, progress: &dyn Progress) -> Result<PathBuf> {
        let repo = Repo::new(&self.settings.cache, &id.name);
        let named = repo.commit(&id.revision).map(|commit| repo.snapshot(&commit));
        let unsaid = |folder: &Path| {
            if !says_its_modules(folder, &repo) {
                progress.say(&format!(
                    "{}: the cache does not say what makes vectors of it ({} is not there): they may be others than its makers'",
                    id.name,
                    sentence_transformers::MODULES
                ));
            }
        };
        if let Some(why) = asked.offline.or(self.settings.offline) {
            let found = cached(id, &repo, named.as_deref(), asked).inspect(|it| unsaid(it));
            return found.with_context(|| {
                format!(
                    "{}: not in the cache {} (or not all of it), and {why}; bring it where there is a \
                     network (`iree-llm pull`), or give a folder{}",
                    id.name,
                    self.settings.cache.display(),
                    id.as_path()
                )
            });
        }
        if let Some(folder) = named.as_ref().filter(|_| !asked.refresh) {
            // Which file of several is meant, the hub's list says.
            if id.wanted == Wanted::Whatever {
                if is_runnable(folder, asked)
                    && folder.join("tokenizer.json").exists()
                    && says_its_modules(folder, &repo)
                {
                    return Ok(folder.clone());
                }
            } else if let Some(file) = cached_gguf(id, folder) {
                return Ok(file);
            }
        }
        let kept = cached(id, &repo, named.as_deref(), asked);
        // All is there but that list: it is of the same commit, and not worth a failure.
        let list = kept.as_ref().filter(|it| !asked.refresh && !says_its_modules(it, &repo));
        let commit = list.and_then(|it| it.file_name()?.to_str().map(str::to_owned));
        let (lacks_list, pinned) = (commit.is_some(), commit.map(|it| id.at(it)));
        let id = pinned.as_ref().unwrap_or(id);
        match self.download(id, &repo, asked, kept.is_none(), progress) {
            // A newer version that cannot be kept is a failure for who asks for it.
            Err(Failure { unreachable, unkept, error })
                if kept.is_some() && (unreachable || unkept && !asked.refresh || lacks_list) =>
            {
                progress.say(&format!("{error:#}; going on with the files in the cache"));
                kept.inspect(|it| unsaid(it)).context("there are some")
            }
            result => result.map_err(|failure| failure.error),
        }
    }

    fn download(
        &self,
        id: &ModelId,
        repo: &Repo,
        asked: Asked<'_>,
        patience: bool,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Failure> {
        // Nobody has said yet that there is such a model.
        let explain = |error| {
            let Failure { unreachable, unkept, error } = self.explain(id, "the model", error);
            Failure { unreachable, unkept, error: anyhow!("{error}{}", id.as_path()) }
        };
        let client = Client::new(&self.settings, progress).map_err(explain)?;
        let Info { commit, files } =
            client.info(&id.name, &id.revision, patience).map_err(explain)?;
        // Every file from one commit, whatever is pushed meanwhile.
        let mut transfer =
            Transfer { hub: self, id, client, repo, commit: &commit, progress, fetched: 0 };
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let has = |name: &str| files.contains(&name);
        let folder = repo.snapshot(&commit);
        let found = if let Some(parts) = id.gguf(&files)? {
            for part in &parts {
                transfer.file(part)?;
            }
            folder.join(parts[0])
        } else {
            if !has("config.json") {
                return Err(anyhow!("{}: the repository has no config.json", id.name).into());
            }
            for name in SMALL_FILES.into_iter().filter(|name| has(name)) {
                transfer.file(name)?;
            }
            if !has(sentence_transformers::MODULES) {
                // Without the note it is asked for again, no more.
                let _ = repo.note_absent(&commit, sentence_transformers::MODULES);
            }
            for name in sentence_transformers::module_files(&folder)? {
                if has(&name) {
                    transfer.file(&name)?;
                }
            }
            if !asked.weights {
                // They are made up.
            } else if has(SINGLE) {
                transfer.file(SINGLE)?;
            } else if has(INDEX) {
                transfer.file(INDEX)?;
                for shard in shards(&folder.join(INDEX))? {
                    transfer.file(&shard)?;
                }
            } else {
                let error = anyhow!(
                    "{name}: the repository has neither {SINGLE} nor {INDEX}; where its page has a pull request that adds \
                     them, `{name}@refs/pr/NUMBER` is that one",
                    name = id.name
                );
                return Err(error.into());
            }
            folder
        };
        if asked.refresh && transfer.fetched == 0 {
            progress.say(&format!("{}: up to date ({commit:.12})", id.name));
        }
        // A cache that cannot be written goes without.
        if let Err(error) = repo.refer(&id.revision, &commit) {
            progress.say(&format!("{error:#}; the hub is asked again at the next start"));
        }
        Ok(found)
    }

    fn explain(&self, id: &ModelId, what: &str, error: Error) -> Failure {
        let (unreachable, unkept) = (error.is_unreachable(), matches!(error, Error::Local(_)));
        let (name, revision, endpoint) = (&id.name, &id.revision, &self.settings.endpoint);
        let error = match error {
            Error::Status(404, _) => anyhow!(
                "{name}: {what} is not on {endpoint} at revision `{revision}`: check the name"
            ),
            Error::Status(401 | 403, _) if self.settings.token.is_none() => anyhow!(
                "{name}: {endpoint} refuses {what} without a login: the name may be wrong, or the \
                 model needs a token in HF_TOKEN"
            ),
            Error::Status(401 | 403, _) => anyhow!(
                "{name}: {endpoint} refuses {what} to this token: accept the model's terms on its \
                 page, or check HF_TOKEN"
            ),
            Error::Status(429, _) => anyhow!(
                "{name}: {endpoint} has had too many requests from here (429): try again in some \
                 minutes{}",
                if self.settings.token.is_none() { ", or give a token in HF_TOKEN" } else { "" }
            ),
            Error::Status(status, _) => {
                anyhow!("{name}: {endpoint} answers {status} when asked for {what}")
            }
            Error::Network(why) => anyhow!(
                "{name}: cannot fetch {what} from {endpoint}: {why}; set HF_ENDPOINT for a mirror, \
                 or give a folder"
            ),
            Error::Damaged(why) => anyhow!("{name}: {what} arrived damaged: {why}; try again"),
            Error::Odd(why) => anyhow!("{name}: cannot fetch {what}: {why}; check HF_ENDPOINT"),
            Error::Local(error) => error.context(format!(
                "{name}: cannot keep {what} in the cache {} (set HF_HOME to move it)",
                self.settings.cache.display()
            )),
        };
        Failure { unreachable, unkept, error }
    }
}

/// Why a download failed.
struct Failure {
    /// The hub says nothing of the model.
    unreachable: bool,
    /// What it has cannot be written here.
    unkept: bool,
    error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { unreachable: false, unkept: false, error: error.into() }
    }
}

/// Files of one commit on their way.
struct Transfer<'a> {
    hub: &'a Hub,
    id: &'a ModelId,
    client: Client<'a>,
    repo: &'a Repo,
    commit: &'a str,
    progress: &'a dyn Progress,
    /// How many were not there.
    fetched: usize,
}

impl Transfer<'_> {
    /// Fetches one file, or what is missing of it, and checks it.
    fn file(&mut self, name: &str) -> Result<(), Failure> {
        if self.repo.snapshot(self.commit).join(name).exists() {
            return Ok(());
        }
        self.bring(name).map_err(|error| self.hub.explain(self.id, name, error))
    }

    fn bring(&mut self, name: &str) -> Result<(), Error> {
        let url = self.client.url(&self.id.name, self.commit, name);
        let Metadata { etag, size } = self.client.metadata(&url)?;
        let blob = self.repo.blob(&etag);
        let waits = || self.progress.say(&format!("{name}: another process fetches it; waiting"));
        let _lock = self.repo.lock(&etag, waits).map_err(Error::Local)?;
        // Another revision may have the same file, or another process has brought it meanwhile.
        let there = blob.metadata().is_ok_and(|it| size.is_none_or(|size| it.len() == size));
        if !there {
            let shown = self.progress.transfer(name, size);
            let mut part = Part::open(&blob, |there| shown(there, size)).map_err(Error::Local)?;
            self.client.download(&url, size, &mut part, shown)?;
            // Large files are named after what is in them.
            let is_hash = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
            if is_hash && part.sha256() != etag {
                let found = part.sha256();
                part.clear().map_err(Error::Local)?;
                return Err(Error::Damaged(format!("its SHA-256 is {found} instead of {etag}")));
            }
            part.place(&blob).map_err(Error::Local)?;
            self.fetched += 1;
        }
        self.repo.link(&blob, self.commit, name).map_err(Error::Local)
    }
}

/// What `id` means of those files that the cache has: of the snapshot that its revision names, or of any where it names
/// none itself.
fn cached(id: &ModelId, repo: &Repo, named: Option<&Path>, asked: Asked<'_>) -> Option<PathBuf> {
    let others = if id.revision == MAIN { repo.snapshots() } else { Vec::new() };
    let folders = named.map(Path::to_owned).into_iter().chain(others);
    folders.into_iter().find_map(|folder| {
        let runs = id.wanted == Wanted::Whatever && is_runnable(&folder, asked);
        cached_gguf(id, &folder).or_else(|| runs.then_some(folder))
    })
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

/// Whether a snapshot holds a configuration and all weights that are asked for.
fn is_runnable(folder: &Path, asked: Asked<'_>) -> bool {
    let has = |name: &str| folder.join(name).exists();
    has("config.json")
        && (!asked.weights
            || has(SINGLE)
            || shards(&folder.join(INDEX)).is_ok_and(|names| names.iter().all(|name| has(name))))
}

/// Whether an encoder's snapshot has the list of what is behind it, or the hub has none: other programs that share the cache
/// may have left it out, and the same model makes other vectors without it.
fn says_its_modules(folder: &Path, repo: &Repo) -> bool {
    let commit = folder.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    folder.join(sentence_transformers::MODULES).exists()
        || repo.is_absent(commit, sentence_transformers::MODULES)
        || !ModelConfig::from_dir(folder).is_ok_and(|it| it.architecture.is_encoder())
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

/// Whether a text can be the name of a file anywhere.
fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= 128 && !text.is_empty() && !text.starts_with('.') && text.chars().all(plain)
}

/// Whether a file's name leads to a place below the folder that it is joined to.
fn is_plain(name: &str) -> bool {
    let odd = |c: char| c == '\\' || c == ':' || c.is_control();
    !name.contains(odd) && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_hub_cannot_name_places_outside() {
        for word in ["5f-3", "0123456789abcdef", "a.b_c"] {
            assert!(is_word(word), "{word}");
        }
        for odd in ["", "..", "../x", "a/b", "/a", "a b", ".x", "a\\b"] {
            assert!(!is_word(odd), "{odd}");
        }
        for name in ["a.gguf", "sub/a b (1).gguf", ".hidden"] {
            assert!(is_plain(name), "{name}");
        }
        for odd in ["../a.gguf", "/a.gguf", "a//b", "a/./b", "a/../b", "..\\a", "C:a", "a\n", ""] {
            assert!(!is_plain(odd), "{odd}");
        }
    }
}
