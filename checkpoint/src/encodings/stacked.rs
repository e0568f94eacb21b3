//! Experts that lie in one tensor, as gpt-oss, Qwen3.5 and Granite have them, and MLX of all families: cut up, so that
//! each has tensors of its own, under the names that families give them.
//!
//! gpt-oss's `experts.gate_up_proj_blocks`, `_scales` and `_bias` have an expert after the other, in each a row of
//! gate and a row of up in turn; `experts.gate_up_proj`, where they are not quantised, has columns in
//! their place. `experts.down_proj` is the same with no turns. Qwen3.5's `experts.gate_up_proj`, which has no biases
//! beside it, and Granite's `block_sparse_moe.input_linear` have all rows of an expert's gate before those of its up.
//! MLX's `switch_mlp.gate_proj` has the gates of all experts, and so on; of gpt-oss it is `experts.gate_proj`.

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
    let of_granite = tensors.keys().any(|name| name.contains(".block_sparse_moe.router."));
    let experts = |name: &str, entry: &Entry| {
        let own = if with_biases { in_turn } else { behind_each_other };
        own(name, entry).or_else(|| of_mlx(name, entry, of_granite))
    };
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

/// What MLX calls the projections of an expert, and Mixtral and LFM2.
const NUMBERED: [(&str, &str); 3] = [("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")];

/// The same, of MLX.
fn of_mlx(name: &str, entry: &Entry, of_granite: bool) -> Option<Vec<(String, Entry)>> {
    let (rest, part) = name.rsplit_once('.')?;
    let (module, projection) = rest.rsplit_once('.')?;
    let (plain, numbered) = NUMBERED.into_iter().find(|(plain, _)| *plain == projection)?;
    let of_lfm2 = |module: &str| module.ends_with(".feed_forward");
    if of_lfm2(module) {
        // No expert, but called as those are.
        return Some(vec![(format!("{module}.{numbered}.{part}"), entry.clone())]);
    }
    let all = module.strip_suffix(".switch_mlp").or_else(|| module.strip_suffix(".experts"))?;
    let of_mixtral = all.ends_with(".block_sparse_moe") && !of_granite;
    let projection = if of_lfm2(all) || of_mixtral { numbered } else { plain };
    let dimensions = match part {
        "weight" | "scales" | "biases" => 3,
        "bias" => 2,
        _ => return None,
    };
    let [count, of_one @ ..] = &entry.shape[..] else { return None };
    if entry.shape.len() != dimensions || !(1..=limit::EXPERTS).contains(count) {
        return None;
    }
    let bytes = (entry.end - entry.start) / *count as u64;
    let own = (0..*count).map(|expert| {
        let start = entry.start + expert as u64 * bytes;
        let name = format!("{all}.experts.{expert}.{projection}.{part}");
        (name, Entry { shape: of_one.to_vec(), start, end: start + bytes, ..entry.clone() })
    });
    Some(own.collect())
}

/// The name of `module` without the number of an expert, as MLX calls it or as its family: both become one.
pub(super) fn of_all_experts(module: &str) -> String {
    let Some((around, projection)) = module.rsplit_once('.') else { return module.into() };
    let numbered = NUMBERED.into_iter().find(|(_, numbered)| *numbered == projection);
    let projection = numbered.map_or(projection, |(plain, _)| plain);
    let around = match around.strip_suffix(".switch_mlp") {
        Some(all) => format!("{all}.experts"),
        None => match around.split_once(".experts.") {
            Some((all, _)) => format!("{all}.experts"),
            None => around.into(),
        },
    };
    format!("{around}.{projection}")
}

/// The same as [`behind_each_other`], of gpt-oss.
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
