//! Ids of models on the hub.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use super::settings::MAIN;
use super::{INDEX, SINGLE};

/// A model on the hub: `owner/name`, of GGUF files one by its type, `owner/name:Q4_K_M`, or by its name,
/// `owner/name/file.gguf`; each may have a revision, `owner/name@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    pub(super) name: String,
    pub(super) revision: String,
    pub(super) wanted: Wanted,
    /// Whether it could be a path.
    bare: bool,
}

/// What of a repository is the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Its safetensors, or its GGUF file where it has no other.
    Whatever,
    /// The GGUF file of this type.
    Type(String),
    /// This GGUF file.
    File(String),
}

impl ModelId {
    /// The same at another revision.
    pub(super) fn at(&self, revision: String) -> Self {
        Self { revision, ..self.clone() }
    }

    /// The id that `text` is, if it has the form of one.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, revision) = text.split_once('@').unwrap_or((text, MAIN));
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
        let bare = !text.contains(['@', ':']);
        let wanted_fits = match &wanted {
            // A file of a folder that is not here.
            Wanted::Whatever => !(bare && model.ends_with(".gguf")),
            Wanted::Type(kind) => word(kind),
            Wanted::File(file) => file.ends_with(".gguf") && file.split('/').all(word),
        };
        let revision_fits = !revision.is_empty()
            && !revision.split('/').any(|part| part.is_empty() || part.starts_with('.'));
        (word(owner) && word(model) && wanted_fits && revision_fits).then(|| Self {
            name: format!("{owner}/{model}"),
            revision: revision.into(),
            wanted,
            bare,
        })
    }

    /// What an error says of an id that may have been meant as a path, else nothing.
    pub fn as_path(&self) -> String {
        let file = match &self.wanted {
            Wanted::File(file) => format!("/{file}"),
            _ => String::new(),
        };
        let path = format!("{}{file}", self.name);
        if !self.bare || Path::new(&path).exists() {
            return String::new();
        }
        let folder = self.name.split('/').next().filter(|owner| Path::new(owner).is_dir());
        match folder {
            Some(folder) => format!("; there is a folder `{folder}` here, but no `{path}`"),
            None => format!("; there is no file or folder `{path}` here"),
        }
    }

    /// Which of a repository's `files` are the model, all parts of one GGUF; `None` where it lies in
    /// safetensors.
    pub fn gguf<'f>(&self, files: &[&'f str]) -> Result<Option<Vec<&'f str>>> {
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
        // Of a folder that is not here, unless it is clear that none is meant.
        assert_eq!(ModelId::parse("models/llama.gguf"), None);
        assert_eq!(ModelId::parse("a/b.gguf@main").unwrap().name, "a/b.gguf");
        for text in ["gpt2", "./a/b", "a/b/c", "a b/c", "a/b@", "a/b@../x", "/a", "a/", "../a"] {
            assert_eq!(ModelId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_id_may_have_been_meant_as_a_path() {
        let said = |id: &str| ModelId::parse(id).unwrap().as_path();
        let file = said("no/such/file.gguf");
        assert!(file.contains("no file or folder `no/such/file.gguf`"), "{file}");
        // Tests run in the folder of the package.
        let folder = said("src/llama");
        assert!(folder.contains("a folder `src` here, but no `src/llama`"), "{folder}");
        assert!(said("src/llama:Q4_0").is_empty() && said("src/llama@main").is_empty());
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
}
