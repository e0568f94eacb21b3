//! What Hugging Face's variables say, read as its own tools read them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The revision that is meant where none is given.
pub const MAIN: &str = "main";

/// How the hub is reached and where its files are kept.
#[derive(Debug)]
pub struct Settings {
    /// Without a slash at its end.
    pub endpoint: String,
    /// An absolute folder.
    pub cache: PathBuf,
    pub token: Option<String>,
    /// Why the hub is not asked, if that is so.
    pub offline: Option<&'static str>,
    /// Longest that no byte of a file comes.
    pub download_timeout: Duration,
    /// Longest that an answer takes to begin.
    pub etag_timeout: Duration,
}

impl Settings {
    /// Reads the variables that `variable` knows.
    ///
    /// # Errors
    ///
    /// No folder is named and there is no home folder, or a number is none.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let home = variable("HOME").map(PathBuf::from).or_else(dirs::home_dir);
        let text_of_home = || Some(home.as_ref()?.to_str()?.to_owned());
        let path = |name: &str| {
            let value = variable(name)?;
            let path = shellexpand::full_with_context_no_errors(&value, text_of_home, &variable);
            Some(PathBuf::from(path.into_owned()))
        };
        let folder = path("HF_HOME").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache
            .or_else(|| Some(folder.as_ref()?.join("hub")))
            .context("no folder for models from the hub: set HF_HOME to one")?;
        let cache = std::path::absolute(&cache).context(cache.display().to_string())?;

        let kept = path("HF_TOKEN_PATH").or_else(|| Some(folder.as_ref()?.join("token")));
        let token = variable("HF_TOKEN")
            .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| fs::read_to_string(kept?).ok());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());

        let offline = match (variable("HF_HUB_OFFLINE"), variable("TRANSFORMERS_OFFLINE")) {
            (Some(value), _) if is_true(&value) => Some("HF_HUB_OFFLINE is set"),
            (None, Some(value)) if is_true(&value) => Some("TRANSFORMERS_OFFLINE is set"),
            _ => None,
        };
        let seconds = |name: &str| match variable(name).map(|text| (text.parse(), text)) {
            None => Ok(Duration::from_secs(10)),
            Some((Ok(seconds @ 1..=86_400), _)) => Ok(Duration::from_secs(seconds)),
            Some((_, text)) => bail!("{name}={text}: give a number of seconds from 1 to 86400"),
        };
        let endpoint = variable("HF_ENDPOINT").unwrap_or("https://huggingface.co".into());
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache,
            token,
            offline,
            download_timeout: seconds("HF_HUB_DOWNLOAD_TIMEOUT")?,
            etag_timeout: seconds("HF_HUB_ETAG_TIMEOUT")?,
        })
    }
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(|name| set.iter().find(|it| it.0 == name).map(|it| it.1.to_owned()))
    }

    #[test]
    fn variables_are_those_of_hugging_faces_tools() {
        let plain = read(&[("HF_HOME", "/h")]).unwrap();
        assert_eq!(plain.cache, Path::new("/h/hub"));
        assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", None));
        assert_eq!(plain.download_timeout, Duration::from_secs(10));
        let set = read(&[
            ("HF_HUB_CACHE", "/c"),
            ("HF_TOKEN", " t\n"),
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_HUB_OFFLINE", "yes"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "60"),
        ])
        .unwrap();
        assert_eq!(set.cache, Path::new("/c"));
        assert_eq!(set.token.as_deref(), Some("t"));
        assert_eq!(set.offline, Some("HF_HUB_OFFLINE is set"));
        assert_eq!(set.endpoint, "http://mirror");
        assert_eq!(set.download_timeout, Duration::from_secs(60));
        let error = read(&[("HF_HUB_ETAG_TIMEOUT", "soon")]).unwrap_err().to_string();
        assert!(error.contains("HF_HUB_ETAG_TIMEOUT=soon"), "{error}");
    }

    #[test]
    fn folders_may_be_written_as_a_shell_reads_them_and_old_names_count() {
        let cache = |set: &[(&str, &str)]| read(set).unwrap().cache;
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/me"), ("HF_HOME", "~/hf")]), Path::new("/me/hf/hub"));
        let big = ("BIG", "/big");
        assert_eq!(cache(&[big, ("HF_HUB_CACHE", "$BIG/hub")]), Path::new("/big/hub"));
        assert_eq!(cache(&[big, ("HUGGINGFACE_HUB_CACHE", "${BIG}/old")]), Path::new("/big/old"));
        let both = [("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")];
        assert_eq!(cache(&both), Path::new("/new"));
        let old = read(&[("HUGGING_FACE_HUB_TOKEN", "t"), ("TRANSFORMERS_OFFLINE", "1")]).unwrap();
        assert_eq!(old.token.as_deref(), Some("t"));
        assert_eq!(old.offline, Some("TRANSFORMERS_OFFLINE is set"));
    }
}
