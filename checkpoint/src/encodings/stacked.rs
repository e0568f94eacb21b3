//! Experts that lie in one tensor, as gpt-oss, Qwen3.5 and Granite have them: cut up, so that each has tensors of its
//! own, under the names that families give them.
//!
//! gpt-oss's `experts.gate_up_proj_blocks`, `_scales` and `_bias` have an expert after the other, in each a row of
//! gate and a row of up in turn; `experts.gate_up_proj`, where they are not quantised, has columns in
//! their place. `experts.down_proj` is the same with no turns. Qwen3.5's `experts.gate_up_proj`, which has no biases
//! beside it, and Granite's `block_sparse_moe.input_linear` have all rows of an expert's gate before those of its up.

use std::collections::BTreeMap;

use crate::families::limit;
use crate::header::Entry;
use crate::tensor::RowOrder;

type Tensors = BTreeMap<String, (usize, Entry)>;

/// What the tensors of an expert are called, by the ends of names of all experts' tensors; and how many
/// dimensions these have.
const PARTS: [(&str, &str, usize); 4] =
    [("_blocks", "blocks", 4), ("_scales", "scales", 3), ("_bias", "bias", 2), ("", "weight", 3)];

/// `tensors`, those of experts cut up; what has another shape, or would make too many, stays as it is, and is
/// missed later.
pub(crate) fn cut_up(tensors: Tensors) -> Tensors {
    let mut out = Tensors::new();
    let with_biases = tensors.keys().any(|name| name.ends_with(".experts.gate_up_proj_bias"));
    let experts = if with_biases { in_turn } else { behind_each_other };
    for (name, (file, entry)) in tensors {
        match experts(&name, &entry).filter(|own| out.len() + own.len() <= limit::TENSORS) {
            Some(own) => out.extend(own.into_iter().map(|(name, own)| (name, (file, own)))),
            None => {
                out.insert(name, (file, entry));
            }
        }
    }
    out
}

/// What tensors of whole experts are called, and what is in each, one behind the other.
const WHOLE: [(&str, &[&str]); 4] = [
    (".mlp.experts.gate_up_proj", &["gate_proj", "up_proj"]),
    (".mlp.experts.down_proj", &["down_proj"]),
    (".block_sparse_moe.input_linear.weight", &["gate_proj", "up_proj"]),
    (".block_sparse_moe.output_linear.weight", &["down_proj"]),
];

/// The tensors of each expert that `entry` has, of Granite and of Qwen3.5.
fn behind_each_other(name: &str, entry: &Entry) -> Option<Vec<(String, Entry)>> {
    let (end, names) = WHOLE.into_iter().find(|(end, _)| name.ends_with(end))?;
    let (layer, module) = (name.strip_suffix(end)?, end.split('.').nth(1)?);
    let &[count, rows, columns] = &entry.shape[..] else { return None };
    if !(1..=limit::EXPERTS).contains(&count) || !rows.is_multiple_of(names.len()) {
        return None;
    }
    let shape = vec![rows / names.len(), columns];
    let bytes = (entry.end - entry.start) / (count * names.len()) as u64;
    let parts = (0..count).flat_map(|expert| names.iter().map(move |name| (expert, name)));
    let own = parts.enumerate().map(|(at, (expert, name))| {
        let start = entry.start + at as u64 * bytes;
        let name = format!("{layer}.{module}.experts.{expert}.{name}.weight");
        (name, Entry { shape: shape.clone(), start, end: start + bytes, ..entry.clone() })
    });
    Some(own.collect())
}

/// The same, of gpt-oss.
fn in_turn(name: &str, entry: &Entry) -> Option<Vec<(String, Entry)>> {
    let (module, tensor) = name.rsplit_once(".experts.")?;
    let (names, part): (&[&str], _) = match tensor.strip_prefix("gate_up_proj") {
        Some(part) => (&["gate_proj", "up_proj"], part),
        None => (&["down_proj"], tensor.strip_prefix("down_proj")?),
    };
    let &(_, part, dimensions) = PARTS.iter().find(|(end, ..)| *end == part)?;
    let [count, of_one @ ..] = &entry.shape[..] else { return None };
    let step = names.len();
    let fits = entry.shape.len() == dimensions && (1..=limit::EXPERTS).contains(count);
    let mut shape = of_one.to_vec();
    if part == "weight" {
        shape.reverse();
    }
    if !fits || !shape[0].is_multiple_of(step) {
        return None;
    }
    shape[0] /= step;
    let bytes = (entry.end - entry.start) / *count as u64;
    let mut own = Vec::with_capacity(count * step);
    for expert in 0..*count {
        let start = entry.start + expert as u64 * bytes;
        for (first, name) in names.iter().enumerate() {
            let rows = match part {
                "weight" => RowOrder::Columns { step, first },
                _ => RowOrder::InTurn { step, first },
            };
            let (shape, end) = (shape.clone(), start + bytes);
            let own_name = format!("{module}.experts.{expert}.{name}.{part}");
            own.push((own_name, Entry { shape, start, end, rows, ..entry.clone() }));
        }
    }
    Some(own)
}
