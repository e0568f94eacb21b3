//! Files that results go to: they are opened before there are any, and keep what they have until then.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempPath;

/// A file that waits for results. One that was made for them and gets none is removed.
#[derive(Debug)]
pub struct Waiting {
    file: File,
    path: PathBuf,
    made: Option<TempPath>,
    append: bool,
}

/// Opens `output` for what is made of `input`; `None` where it is `-`, stdout.
///
/// # Errors
///
/// It cannot be written, or is `input`.
pub fn open(output: &Path, input: Option<&Path>) -> Result<Option<Waiting>> {
    if output.as_os_str() == "-" {
        return Ok(None);
    }
    if let (Some(Ok(from)), Ok(to)) = (input.map(Path::canonicalize), output.canonicalize()) {
        let name = output.display();
        ensure!(from != to, "{name}: that is the input; give --output another file");
    }
    Waiting::open(output, false).map(Some)
}

impl Waiting {
    /// Opens the file at `path`, to empty it, or to `append` to it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn open(path: &Path, append: bool) -> Result<Self> {
        let open = || {
            let mut options = File::options();
            options.write(true).append(append);
            match options.clone().create_new(true).open(path) {
                Ok(file) => Ok((file, Some(TempPath::try_from_path(path)?))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Ok((options.create(true).truncate(false).open(path)?, None))
                }
                Err(error) => Err(error),
            }
        };
        let (file, made) = open().with_context(|| path.display().to_string())?;
        Ok(Self { file, path: path.to_owned(), made, append })
    }

    /// Whether it is one on a disk, no pipe or device.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn is_regular(&self) -> Result<bool> {
        let metadata = self.file.metadata();
        Ok(metadata.with_context(|| self.path.display().to_string())?.is_file())
    }

    /// The file, empty unless it is appended to: now there are results.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn begin(self) -> Result<File> {
        if !self.append && self.is_regular()? {
            self.file.set_len(0).with_context(|| self.path.display().to_string())?;
        }
        if let Some(made) = self.made {
            made.keep()?;
        }
        Ok(self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_without_results_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, "before").unwrap();
        for append in [false, true] {
            for path in [&old, &new] {
                drop(Waiting::open(path, append).unwrap());
            }
            assert_eq!(fs::read_to_string(&old).unwrap(), "before");
            assert!(!new.exists());
        }
        let write = |path: &Path, append| {
            let mut file = Waiting::open(path, append).unwrap().begin().unwrap();
            file.write_all(b"now").unwrap();
            fs::read_to_string(path).unwrap()
        };
        assert_eq!([write(&old, true), write(&old, false)], ["beforenow", "now"]);
        assert_eq!([write(&new, true), write(&new, true)], ["now", "nownow"]);
    }
}
