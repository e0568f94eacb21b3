//! How an embedding model makes one vector of the hidden states of a text, as its folder says it in the
//! layout of sentence-transformers: `1_Pooling/config.json` and `modules.json`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xla_session::Pooling;

/// The names that poolings have in flags.
pub const NAMES: [(&str, Pooling); 3] =
    [("last", Pooling::Last), ("mean", Pooling::Mean), ("cls", Pooling::Cls)];

/// What a model's folder says of its vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said {
    pub pooling: Option<Pooling>,
    /// Whether they have the length 1; said where there is a list of modules.
    pub normalized: Option<bool>,
}

impl Said {
    /// Of the model in `folder`; where a pooling is `asked` for, nobody reads what the folder says of it.
    ///
    /// # Errors
    ///
    /// A file that is damaged, a pooling that is not one of those here, or a module that makes other
    /// vectors of pooled ones.
    pub fn read(folder: &Path, asked: Option<Pooling>) -> Result<Self> {
        let normalized = normalized(&folder.join("modules.json"))?;
        let pooling = match asked {
            None => pooling(&folder.join("1_Pooling").join("config.json"))?,
            asked => asked,
        };
        Ok(Self { pooling, normalized })
    }
}

fn pooling(path: &Path) -> Result<Option<Pooling>> {
    const POOLINGS: [(&str, Pooling); 3] = [
        ("pooling_mode_lasttoken", Pooling::Last),
        ("pooling_mode_mean_tokens", Pooling::Mean),
        ("pooling_mode_cls_token", Pooling::Cls),
    ];
    let Some(config) = json(path)? else { return Ok(None) };
    let on = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    let mut chosen = POOLINGS.iter().filter(|(key, _)| on(key));
    match (chosen.next(), chosen.next()) {
        (Some((_, pooling)), None) => Ok(Some(*pooling)),
        _ => bail!(
            "{}: it says no pooling, or several; supported is one of {}: or give --pooling",
            path.display(),
            POOLINGS.map(|(key, _)| key).join(", ")
        ),
    }
}

/// Whether one of the modules that `path` lists normalizes.
fn normalized(path: &Path) -> Result<Option<bool>> {
    let Some(modules) = json(path)? else { return Ok(None) };
    let Some(modules) = modules.as_array() else { return Ok(None) };
    let mut normalized = false;
    for of_type in modules.iter().filter_map(|it| it.get("type")?.as_str()) {
        match of_type.rsplit('.').next() {
            // What drops out does so in training.
            Some("Transformer" | "Pooling" | "Dropout") => {}
            Some("Normalize") => normalized = true,
            _ => bail!(
                "{}: the module {of_type} is not supported: vectors without it are others",
                path.display()
            ),
        }
    }
    Ok(Some(normalized))
}

fn json(path: &Path) -> Result<Option<Value>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{}: not valid JSON", path.display())),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_how() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = Said { pooling: None, normalized: None };
        let read = |asked| Said::read(folder.path(), asked);
        assert_eq!(read(None).unwrap(), nothing);
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write(
            "1_Pooling/config.json",
            r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}"#,
        );
        write("modules.json", r#"[{"type": "sentence_transformers.models.Normalize"}]"#);
        let said = read(None).unwrap();
        assert_eq!(said, Said { pooling: Some(Pooling::Last), normalized: Some(true) });
        write("1_Pooling/config.json", r#"{"pooling_mode_max_tokens": true}"#);
        let error = read(None).unwrap_err().to_string();
        assert!(error.contains("--pooling") && error.contains("1_Pooling"), "{error}");
        // Who chooses hears of the other file all the same.
        let said = read(Some(Pooling::Mean)).unwrap();
        assert_eq!(said, Said { pooling: Some(Pooling::Mean), normalized: Some(true) });
        write("modules.json", r#"[{"type": "sentence_transformers.models.Dense"}]"#);
        let error = read(Some(Pooling::Mean)).unwrap_err().to_string();
        assert!(error.contains("modules.json") && error.contains("models.Dense"), "{error}");
    }
}
