//! The files of a model on this machine.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use text::{ChatTemplate, Tokenizer, Vocabulary};
use xla_session::Pooling;

use crate::sentence_transformers::Said;
use crate::{Progress, Ranking, Result, vocabulary};

/// Where a model lies: a folder in Hugging Face layout or with a GGUF file, or such a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    path: PathBuf,
}

impl Files {
    /// Those at `path`, which nobody has looked at.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The model `name`: a path, or its id on the Hugging Face hub (`owner/name`, `owner/name@revision`; of GGUF files
    /// `owner/name:Q4_K_M`, `owner/name/file.gguf`), which is fetched into the cache that Hugging Face's own tools have,
    /// unless it is there.
    ///
    /// # Errors
    ///
    /// There is no such file or folder and it is no id, or it cannot be fetched.
    pub fn find(name: &str, progress: &dyn Progress) -> Result<Self> {
        if let Some(files) = Self::here(Path::new(name))? {
            return Ok(files);
        }
        Self::on_hub(name, progress)
    }

    #[cfg(feature = "hub")]
    fn on_hub(name: &str, progress: &dyn Progress) -> Result<Self> {
        use crate::hub::{Asked, Hub, ModelId};

        let id = ModelId::parse(name).ok_or_else(|| {
            anyhow!("{name}: no such file or folder, and not a Hugging Face id (`owner/name`)")
        })?;
        let asked = Asked { offline: None, refresh: false, weights: true };
        Ok(Self::at(Hub::from_env()?.fetch(&id, asked, progress)?))
    }

    #[cfg(not(feature = "hub"))]
    fn on_hub(name: &str, _: &dyn Progress) -> Result<Self> {
        let message = "no such file or folder (and built without the feature `hub`)";
        Err(anyhow!("{name}: {message}").into())
    }

    /// Those at `path`, if there is something.
    ///
    /// # Errors
    ///
    /// It cannot be looked at, or is neither a folder nor a GGUF file.
    pub fn here(path: &Path) -> Result<Option<Self>> {
        let name = path.display();
        // What may not be looked at is not absent: nobody is asked for it in its place.
        let found = match path.metadata() {
            Ok(found) => Some(found),
            Err(error) if is_absent(&error) => None,
            // In a folder that may not be searched no name is of a file.
            Err(_) if path.is_relative() && Path::new("./.").metadata().is_err() => None,
            Err(error) => return Err(anyhow!(error).context(name.to_string()).into()),
        };
        if found.as_ref().is_some_and(Metadata::is_dir) {
            return Ok(Some(Self::at(path)));
        }
        if !found.is_some_and(|it| it.is_file()) {
            return Ok(None);
        }
        if path.extension().is_some_and(|end| end == "gguf") {
            return Ok(Some(Self::at(path)));
        }
        let what =
            "is a file; give a .gguf file or the model's folder (config.json, *.safetensors, …)";
        Err(anyhow!("{name}: {what}").into())
    }

    /// The folder, or the GGUF file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tokenizer; `None` where it has none.
    ///
    /// # Errors
    ///
    /// It has a damaged one, or one of an unknown kind.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        Ok(match self.vocabulary()? {
            Some(vocabulary) => Some(Tokenizer::from_vocabulary(&vocabulary, &self.path)?),
            None => Tokenizer::from_dir(&self.path)?,
        })
    }

    /// Its chat template; `None` where it has none.
    ///
    /// # Errors
    ///
    /// It has a damaged one.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        Ok(match self.vocabulary()? {
            Some(vocabulary) => ChatTemplate::from_vocabulary(&vocabulary, &self.path)?,
            None => ChatTemplate::from_dir(&self.path)?,
        })
    }

    /// What a GGUF file says of its tokens; `None` of a folder in Hugging Face layout.
    ///
    /// # Errors
    ///
    /// The file is damaged.
    pub fn vocabulary(&self) -> Result<Option<Vocabulary>> {
        Ok(vocabulary::of_model(&self.path)?)
    }

    /// What it says of the vectors that it makes of texts; where a pooling is `asked` for, nobody reads what it says of
    /// that.
    ///
    /// # Errors
    ///
    /// As [`Said::read`].
    pub fn vectors(&self, asked: Option<Pooling>) -> Result<Said> {
        Ok(Said::read(&self.path, asked)?)
    }

    /// How it ranks documents; `None` where it does not.
    ///
    /// # Errors
    ///
    /// As [`Ranking::read`].
    pub fn ranking(&self, tokenizer: &Tokenizer) -> Result<Option<Ranking>> {
        Ok(Ranking::read(&self.path, tokenizer, || Ok(self.chat_template()?))?)
    }
}

/// Whether there is no such file, by what looking for it gave.
pub fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}
