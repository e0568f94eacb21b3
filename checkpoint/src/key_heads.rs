//! Tensors of linear attention that lie key head by key head, as Qwen3-Next has them: `in_proj_qkvz` has of each key
//! head the rows of its query, its key, its values and their gates, `in_proj_ba` two numbers of each of its values.
//! They are taken for the tensors that Qwen3.5 has in their place, whose rows lie kind by kind.

use crate::Result;
use crate::families::limit;
use crate::header::Entry;
use crate::keys::Keys;
use crate::tensor::RowOrder;

/// A part: its name, and the first kind of rows that it has and the one behind its last.
type Part = (&'static str, [usize; 2]);

/// What is taken apart, and into what.
const APART: [(&str, [Part; 2]); 2] = [
    ("in_proj_qkvz", [("in_proj_qkv", [0, 3]), ("in_proj_z", [3, 4])]),
    ("in_proj_ba", [("in_proj_b", [0, 1]), ("in_proj_a", [1, 2])]),
];

/// The key heads of linear attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHeads {
    pub heads: usize,
    /// Width of one.
    pub width: usize,
}

impl KeyHeads {
    /// Those that `config.json` says; the defaults are those of Qwen3-Next and Qwen3.5 in transformers 5.
    pub fn read(keys: &Keys) -> Result<Self> {
        let heads = keys.size("linear_num_key_heads", limit::HEADS)?.unwrap_or(16);
        let width = keys.size("linear_key_head_dim", limit::HEAD_DIM)?.unwrap_or(128);
        Ok(Self { heads, width })
    }

    /// Whether a model has such tensors.
    pub fn are_in<'a>(mut tensors: impl Iterator<Item = &'a str>) -> bool {
        tensors.any(|name| name.contains(".linear_attn.in_proj_qkvz."))
    }

    /// The tensors that the one called `name` has; `None` where it is none of these, or has other rows.
    pub fn apart(self, name: &str, entry: &Entry) -> Option<[(String, Entry); 2]> {
        let (module, tensor) = name.rsplit_once(".linear_attn.")?;
        let tensor = tensor.strip_suffix(".weight")?;
        let (_, apart) = APART.iter().find(|(whole, _)| *whole == tensor)?;
        let &[rows, columns] = &entry.shape[..] else { return None };
        let kinds = self.kinds(tensor, rows)?;
        Some(apart.map(|(name, own)| {
            let of_one: usize = kinds[own[0]..own[1]].iter().sum();
            let shape = vec![self.heads * of_one, columns];
            let rows = RowOrder::Grouped { groups: self.heads, kinds, own };
            (format!("{module}.linear_attn.{name}.weight"), Entry { shape, rows, ..entry.clone() })
        }))
    }

    /// Where the matrix of `module` of so many rows lies: in which module, how many rows that has, and in which order;
    /// `None` where it lies alone.
    pub fn whole(self, module: &str, rows: usize) -> Option<(String, usize, RowOrder)> {
        let (layer, part) = module.rsplit_once(".linear_attn.")?;
        let (whole, own) = APART.into_iter().find_map(|(whole, apart)| {
            let (_, own) = apart.into_iter().find(|(name, _)| *name == part)?;
            Some((whole, own))
        })?;
        let keys = 2 * self.heads * self.width;
        let all = match part {
            "in_proj_qkv" => keys + 2 * rows.checked_sub(keys)?,
            "in_proj_z" => keys + 2 * rows,
            _ => 2 * rows,
        };
        let rows = RowOrder::Grouped { groups: self.heads, kinds: self.kinds(whole, all)?, own };
        Some((format!("{layer}.linear_attn.{whole}"), all, rows))
    }

    /// Rows of each kind of a key head, of a tensor of so many.
    fn kinds(self, tensor: &str, rows: usize) -> Option<[usize; 4]> {
        let of_one = rows.checked_div(self.heads)?;
        let halves = |rows: usize| Some(rows / 2).filter(|half| *half > 0);
        let kinds = if tensor == "in_proj_qkvz" {
            let (keys, values) = (self.width, halves(of_one.checked_sub(2 * self.width)?)?);
            [keys, keys, values, values]
        } else {
            let values = halves(of_one)?;
            [values, values, 0, 0]
        };
        (kinds.iter().sum::<usize>() * self.heads == rows).then_some(kinds)
    }
}
