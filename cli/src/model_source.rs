//! Where a model comes from: a folder, the Hugging Face hub, or this repository.

use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow, bail};
use clap::Args;
use iree_llm::hub::{Asked, Hub, ModelId};
use iree_llm::{Files, Llm};
use text::{ChatTemplate, Tokenizer};
use xla_session::{Batcher, LoadMode};

use crate::progress::Progress;
use crate::registry::SMOLLM2;

/// Which model.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// A folder in Hugging Face layout or with a GGUF file, such a file, `smollm2`, a name in
    /// `models/`, or a Hugging Face id (`owner/name`, `owner/name@revision`; of GGUF files
    /// `owner/name:Q4_K_M`, `owner/name/file.gguf`) [default: smollm2 once `iree-llm pull smollm2`
    /// has brought it, else the small model in `models/`]
    ///
    /// Ids are fetched once into the Hugging Face cache; `iree-llm pull` brings what has changed
    /// since. HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE=1 and
    /// HF_HUB_DOWNLOAD_TIMEOUT mean what they mean elsewhere. With IREE_LLM_OFFLINE=1 nothing is
    /// fetched.
    #[arg(short, long, env = "IREE_LLM_MODEL", value_name = "FOLDER|ID")]
    pub model: Option<String>,
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// What it is called in reports: as it was asked for.
    pub name: String,
    /// Its folder, or its GGUF file.
    pub folder: PathBuf,
}

impl Model {
    /// Its files.
    pub fn files(&self) -> Files {
        Files::at(&self.folder)
    }

    /// Its tokenizer; `None` when it has none.
    ///
    /// # Errors
    ///
    /// It has a damaged one, or one of an unknown kind.
    pub fn find_tokenizer(&self) -> Result<Option<Tokenizer>> {
        Ok(self.files().tokenizer()?)
    }

    /// Its tokenizer.
    ///
    /// # Errors
    ///
    /// As [`find_tokenizer`](Self::find_tokenizer), or it has none.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        self.find_tokenizer()?.ok_or_else(|| {
            let error = text::Error::NoTokenizer { path: self.folder.join("tokenizer.json") };
            anyhow!("{error}, or give token ids with `generate --prompt-tokens`")
        })
    }

    /// Its chat template; `None` when it has none.
    ///
    /// # Errors
    ///
    /// It has a damaged one.
    pub fn find_chat_template(&self) -> Result<Option<ChatTemplate>> {
        self.files().chat_template().map_err(without_template)
    }

    /// Its chat template.
    ///
    /// # Errors
    ///
    /// It has none, or a damaged one.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        self.find_chat_template()?.ok_or_else(|| {
            without_template(text::Error::NoChatTemplate { folder: self.folder.clone() }.into())
        })
    }
}

impl Model {
    /// What answers, run by `batcher`: neither vectors nor ranks are asked for.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub fn llm(
        &self,
        batcher: Batcher,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
    ) -> Result<Llm> {
        let no_vectors = Err(anyhow!("none are asked for").into());
        Ok(Llm::new(&self.name, batcher, tokenizer, template, no_vectors, Ok(None))?)
    }
}

fn without_template(error: iree_llm::Error) -> Error {
    anyhow!("{error}: use `generate --raw`")
}

impl ModelArgs {
    /// Finds the model, fetching it when it is on the hub.
    ///
    /// # Errors
    ///
    /// There is no such folder, name or id, or it cannot be fetched.
    pub fn locate(&self, progress: &Progress) -> Result<Model> {
        self.find(offline(), true, progress)
    }

    /// Finds the model, and fetches no weights of safetensors where they are made up.
    ///
    /// # Errors
    ///
    /// As [`locate`](Self::locate).
    pub fn locate_for(&self, mode: LoadMode, progress: &Progress) -> Result<Model> {
        self.find(offline(), mode != LoadMode::Random, progress)
    }

    /// Finds the model if it is on this machine.
    ///
    /// # Errors
    ///
    /// It is not, or there is none of this name.
    pub fn locate_here(&self) -> Result<Model> {
        self.find(Some("nothing is fetched here"), true, &Progress::new(true))
    }

    fn find(&self, offline: Option<&str>, weights: bool, progress: &Progress) -> Result<Model> {
        let Some(name) = &self.model else { return default() };
        if name == SMOLLM2.name && !Path::new(name).exists() {
            return Ok(Model { name: name.clone(), folder: SMOLLM2.pull(offline, progress)? });
        }
        match parse(name, &shelves())? {
            Source::Folder(folder) => Ok(Model { name: name.clone(), folder }),
            Source::Hub(id) => {
                let asked = Asked { offline, refresh: false, weights };
                let folder = Hub::from_env()?.fetch(&id, asked, progress)?;
                Ok(Model { name: name.clone(), folder })
            }
        }
    }
}

/// Why nothing may be fetched, if that is so.
pub fn offline() -> Option<&'static str> {
    // What clap takes for a false one, as in `fetch --offline`.
    let value = std::env::var("IREE_LLM_OFFLINE").ok()?.to_lowercase();
    let may = ["", "0", "f", "false", "n", "no", "off"].contains(&value.as_str());
    (!may).then_some("IREE_LLM_OFFLINE is set")
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Folder(PathBuf),
    Hub(ModelId),
}

fn parse(name: &str, shelves: &[PathBuf]) -> Result<Source> {
    if let Some(files) = Files::here(Path::new(name))? {
        return Ok(Source::Folder(files.path().to_owned()));
    }
    let is_word = !name.is_empty() && !name.contains(['/', '\\']) && !name.starts_with('.');
    if is_word && let Some(folder) = shelves.iter().map(|it| it.join(name)).find(|it| it.is_dir()) {
        return Ok(Source::Folder(folder));
    }
    if let Some(id) = ModelId::parse(name) {
        return Ok(Source::Hub(id));
    }
    let known = models(shelves);
    let known: Vec<_> = known.iter().map(|model| model.name.as_str()).collect();
    bail!(
        "{name}: no such file or folder, and not a Hugging Face id (`owner/name`); models in the \
         repository: {}",
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )
}

/// The folders that hold models: beside the program, where a package puts them, and in the repository
/// that it was built from.
fn shelves() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let beside = ["models", "../share/iree-llm/models"];
    let beside = folder.into_iter().flat_map(|folder| beside.map(|it| folder.join(it)));
    beside.chain(repository()).filter(|it| it.is_dir()).collect()
}

#[cfg(feature = "remember-folder")]
fn repository() -> Option<PathBuf> {
    Some(Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join("models"))
}

/// A program that is given away has no business with the folders of whoever built it.
#[cfg(not(feature = "remember-folder"))]
fn repository() -> Option<PathBuf> {
    None
}

/// The models in `shelves`, by name.
fn models(shelves: &[PathBuf]) -> Vec<Model> {
    let folders = shelves.iter().filter_map(|shelf| shelf.read_dir().ok()).flatten().flatten();
    let models = folders.filter(|entry| entry.path().join("config.json").is_file());
    let mut models: Vec<_> = models
        .map(|entry| Model {
            name: entry.file_name().to_string_lossy().into_owned(),
            folder: entry.path(),
        })
        .collect();
    // The sort is stable: of two with one name the first shelf's comes first.
    models.sort_by(|a, b| a.name.cmp(&b.name));
    models.dedup_by(|a, b| a.name == b.name);
    models
}

/// The first by name that can answer a prompt; a configuration alone (as for `bench --load-mode
/// random`) has to be asked for by its name.
fn default_model(shelves: &[PathBuf]) -> Result<Model> {
    let mut passed_over = Vec::new();
    for model in models(shelves) {
        match missing(&model.folder) {
            Some(part) => passed_over.push(format!("{} has no {part}", model.name)),
            None => return Ok(model),
        }
    }
    let why = match passed_over.as_slice() {
        [] => String::new(),
        some => format!(" that is whole ({})", some.join(", ")),
    };
    bail!(
        "no folder `models` holds a model{why}: give one with --model FOLDER or --model OWNER/NAME"
    )
}

/// What a model's folder lacks for text in and text out.
fn missing(folder: &Path) -> Option<&'static str> {
    let has = |name| folder.join(name).is_file();
    if !has("tokenizer.json") {
        return Some("tokenizer.json");
    }
    let weights = has("model.safetensors") || has("model.safetensors.index.json");
    (!weights).then_some("model.safetensors")
}

/// The model that commands use when none is given: the trained one, once it was pulled, or the first
/// that lies with the program.
///
/// # Errors
///
/// There is none; the message says what was looked at.
fn default() -> Result<Model> {
    match SMOLLM2.pulled() {
        Some(folder) => Ok(Model { name: SMOLLM2.name.into(), folder }),
        None => default_model(&shelves()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(names: &[&str]) -> tempfile::TempDir {
        let shelf = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir(shelf.path().join(name)).unwrap();
            for file in ["config.json", "tokenizer.json", "model.safetensors"] {
                std::fs::write(shelf.path().join(name).join(file), "{}").unwrap();
            }
        }
        shelf
    }

    #[test]
    fn a_folder_a_name_or_an_id() {
        let shelf = shelf(&["tales"]);
        let shelves = [shelf.path().to_owned()];
        let folder = shelf.path().join("tales");
        let found = |name: &str| parse(name, &shelves);
        assert_eq!(found(folder.to_str().unwrap()).unwrap(), Source::Folder(folder.clone()));
        assert_eq!(found("tales").unwrap(), Source::Folder(folder.clone()));
        assert!(matches!(found("owner/name").unwrap(), Source::Hub(_)));
        for wrong in ["tails", "./owner/name", "/no/where", "a/b/c", "", ".."] {
            if let Ok(found) = found(wrong) {
                assert_eq!((wrong, &found), ("..", &Source::Folder("..".into())));
            }
        }
        let error = found("tails").unwrap_err().to_string();
        assert!(error.contains("tails") && error.contains("tales"), "{error}");
        let gguf = folder.join("tales.gguf");
        std::fs::write(&gguf, "").unwrap();
        assert_eq!(found(gguf.to_str().unwrap()).unwrap(), Source::Folder(gguf));
        let error = found(folder.join("config.json").to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("is a file"), "{error}");
    }

    /// Nobody asks a hub for what is here.
    #[cfg(unix)]
    #[test]
    fn what_cannot_be_looked_at_is_not_absent() {
        let shelf = shelf(&[]);
        let circle = shelf.path().join("circle");
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        for name in [circle.clone(), circle.join("model")] {
            let name = name.to_str().unwrap();
            let error = format!("{:#}", parse(name, &[]).unwrap_err());
            assert!(
                error.starts_with(&format!("{name}: ")) && !error.contains("no such"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_default_is_the_first_by_name_and_the_nearest_shelf_wins() {
        let (near, far) = (shelf(&["b"]), shelf(&["b", "c"]));
        std::fs::create_dir(far.path().join("a")).unwrap();
        let shelves = [near.path().to_owned(), far.path().to_owned()];
        let model = default_model(&shelves).unwrap();
        assert_eq!((model.name.as_str(), model.folder), ("b", near.path().join("b")));
        assert!(default_model(&[]).unwrap_err().to_string().contains("--model"));
    }

    #[test]
    fn a_model_that_lacks_a_part_is_no_default() {
        // A bundle's: configurations, beside the program.
        let (near, far) = (shelf(&["a", "b"]), shelf(&["c"]));
        std::fs::remove_file(near.path().join("a/tokenizer.json")).unwrap();
        std::fs::remove_file(near.path().join("b/model.safetensors")).unwrap();
        let (near, far) = (near.path().to_owned(), far.path().to_owned());
        assert_eq!(default_model(&[near.clone(), far]).unwrap().name, "c");
        let error = default_model(std::slice::from_ref(&near)).unwrap_err().to_string();
        for part in ["a has no tokenizer.json", "b has no model.safetensors", "--model FOLDER"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(
            parse("a", std::slice::from_ref(&near)).unwrap(),
            Source::Folder(near.join("a"))
        );
    }
}
