//! The tensors of a folder, for an encoding that looks for its own among them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use super::encoded::Part;
use crate::file::WeightFile;
use crate::header::Entry;
use crate::{Dtype, Error, Result};

/// All tensors of a folder's files.
pub(crate) struct Parts<'a> {
    pub tensors: &'a BTreeMap<String, (usize, Entry)>,
    /// The files, by their numbers.
    pub files: &'a [WeightFile],
    /// What to name when a tensor is missing.
    pub source: &'a Path,
}

impl Parts<'_> {
    pub fn has(&self, module: &str, part: &str) -> bool {
        self.tensors.contains_key(&format!("{module}.{part}"))
    }

    /// The tensor `part` of `module`.
    pub fn find(&self, module: &str, part: &str) -> Result<Part> {
        let name = format!("{module}.{part}");
        let Some((file, entry)) = self.tensors.get(&name) else {
            return Err(Error::Checkpoint {
                path: self.source.into(),
                message: format!(
                    "tensor `{name}` is missing, which belongs to the other quantised tensors of \
                     `{module}`: download the files again, from the same revision"
                ),
            });
        };
        Ok(Part { name, file: *file, entry: entry.clone() })
    }

    /// That tensor, if its element type is one of `types` and its shape is `shape`.
    pub fn of(&self, module: &str, part: &str, types: &[&str], shape: &[usize]) -> Result<Part> {
        let found = self.find(module, part)?;
        if !types.contains(&found.entry.dtype_name.as_str()) {
            let must = format!("expected {}", types.join(" or "));
            return Err(
                self.wrong(&found, format!("has element type {}: {must}", found.entry.dtype_name))
            );
        }
        if found.entry.shape != shape {
            return Err(self.misshapen(&found, shape));
        }
        Ok(found)
    }

    /// Floats of `shape`, and their type.
    pub fn floats(&self, module: &str, part: &str, shape: &[usize]) -> Result<(Part, Dtype)> {
        let found = self.of(module, part, &["F32", "F16", "BF16"], shape)?;
        let dtype = found.entry.dtype.unwrap_or(Dtype::F32);
        Ok((found, dtype))
    }

    /// The bytes of a tensor that says something of others, and is small.
    pub fn bytes(&self, part: &Part) -> Result<Cow<'_, [u8]>> {
        const MOST: u64 = 4096;
        let bytes = part.entry.bytes();
        if bytes > MOST {
            return Err(self.wrong(part, format!("has {bytes} bytes: expected {MOST} at most")));
        }
        Ok(self.files[part.file].bytes(&part.entry)?.bytes)
    }

    pub fn misshapen(&self, part: &Part, shape: &[usize]) -> Error {
        self.wrong(
            part,
            format!(
                "has shape {:?}, but shape and quantisation of the matrix make it {shape:?}: \
                 config.json is not of these weights",
                part.entry.shape
            ),
        )
    }

    pub fn wrong(&self, part: &Part, what: String) -> Error {
        Error::Checkpoint {
            path: self.files[part.file].path.clone(),
            message: format!("tensor `{}` {what}", part.name),
        }
    }

    /// Groups of `group` columns in rows of `columns`, of whole ones.
    pub fn groups(&self, part: &Part, columns: usize, group: usize) -> Result<usize> {
        if group == 0 || !columns.is_multiple_of(group) {
            let what = format!(
                "belongs to rows of {columns} columns, which are no whole groups of {group} \
                 (`group_size`): config.json is not of these weights"
            );
            return Err(self.wrong(part, what));
        }
        Ok(columns / group)
    }
}
