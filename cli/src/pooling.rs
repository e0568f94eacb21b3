//! How an embedding model makes one vector of the hidden states of a text, as its folder says it in the
//! layout of sentence-transformers: `1_Pooling/config.json` and `modules.json`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

/// Which hidden states a vector is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pooling {
    /// That of the last token.
    Last,
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
}

/// What a model's folder says of its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    pub pooling: Option<Pooling>,
    /// Whether they have the length 1; said where there is a list of modules.
    pub normalized: Option<bool>,
}

impl Said {
    /// Of the model in `folder`.
    ///
    /// # Errors
    ///
    /// A file that is damaged, or a pooling that is not one of those here.
    pub fn read(folder: &Path) -> Result<Self> {
        const POOLINGS: [(&str, Pooling); 3] = [
            ("pooling_mode_lasttoken", Pooling::Last),
            ("pooling_mode_mean_tokens", Pooling::Mean),
            ("pooling_mode_cls_token", Pooling::Cls),
        ];
        let path = folder.join("1_Pooling").join("config.json");
        let mut pooling = None;
        if let Some(config) = json(&path)? {
            let on = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
            let mut chosen = POOLINGS.iter().filter(|(key, _)| on(key));
            pooling = match (chosen.next(), chosen.next()) {
                (Some((_, pooling)), None) => Some(*pooling),
                _ => bail!(
                    "{}: it says no pooling, or several; supported is one of {}: or give --pooling",
                    path.display(),
                    POOLINGS.map(|(key, _)| key).join(", ")
                ),
            };
        }
        let modules = json(&folder.join("modules.json"))?;
        let normalized = modules.and_then(|modules| {
            let types = modules.as_array()?.iter().filter_map(|it| it.get("type")?.as_str());
            Some(types.into_iter().any(|of_type| of_type.ends_with("Normalize")))
        });
        Ok(Self { pooling, normalized })
    }
}

fn json(path: &Path) -> Result<Option<Value>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{}: not valid JSON", path.display())),
        Err(_) => Ok(None),
    }
}

impl Pooling {
    /// The vector of a text with these hidden states, `[tokens, width]`.
    pub fn pool(self, states: &[f32], width: usize) -> Vec<f32> {
        match self {
            Self::Last => states[states.len() - width..].to_vec(),
            Self::Cls => states[..width].to_vec(),
            Self::Mean => {
                let rows = states.len() / width;
                let of = |column: usize| -> f64 {
                    states.iter().skip(column).step_by(width).map(|&x| f64::from(x)).sum()
                };
                (0..width).map(|column| (of(column) / rows as f64) as f32).collect()
            }
        }
    }
}

/// `vector` of length 1.
pub fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    // As PyTorch's `normalize`: nothing becomes infinite.
    let length = square.sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poolings_are_what_they_are_called() {
        let states = [1.0, 2.0, 3.0, 4.0, 8.0, 12.0];
        assert_eq!(Pooling::Last.pool(&states, 2), [8.0, 12.0]);
        assert_eq!(Pooling::Cls.pool(&states, 2), [1.0, 2.0]);
        assert_eq!(Pooling::Mean.pool(&states, 2), [4.0, 6.0]);
        let mut vector = [3.0, -4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, -0.8]);
        let mut nothing = [0.0; 2];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0; 2]);
    }

    #[test]
    fn a_folder_says_how() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = Said { pooling: None, normalized: None };
        assert_eq!(Said::read(folder.path()).unwrap(), nothing);
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write(
            "1_Pooling/config.json",
            r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}"#,
        );
        write("modules.json", r#"[{"type": "sentence_transformers.models.Normalize"}]"#);
        let said = Said::read(folder.path()).unwrap();
        assert_eq!(said, Said { pooling: Some(Pooling::Last), normalized: Some(true) });
        write("1_Pooling/config.json", r#"{"pooling_mode_max_tokens": true}"#);
        let error = Said::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("--pooling") && error.contains("1_Pooling"), "{error}");
    }
}
