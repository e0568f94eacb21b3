//! The tensors of a converted model, and which parameters each of them is made of.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::architecture::{GatedDelta, Layer, Parameter};
use crate::config::ModelConfig;

/// A tensor that is written.
pub(super) struct Written<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    pub from: From<'a>,
}

pub(super) enum From<'a> {
    /// Rows of one, or of several after each other.
    Rows(Vec<(&'a Parameter, Range<usize>)>),
    /// One expert after the other, whose rows become columns: of each, what takes turns there.
    Experts(Vec<Vec<&'a Parameter>>),
}

impl Written<'_> {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What is written of `config`, in the order in which a token meets it.
pub(super) fn written(config: &ModelConfig) -> Vec<Written<'_>> {
    let mut all: Vec<Written> = Vec::new();
    // Of tensors of all experts the place in the list.
    let mut stacks = BTreeMap::new();
    for parameter in config.tensors() {
        let family = config.family.model_type();
        let stacked = match family {
            "gpt_oss" => stacked(&parameter.name),
            "granitemoe" | "granitemoeshared" => stacked_rows(&parameter.name),
            _ => None,
        };
        let Some((name, expert)) = stacked else {
            let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
            let from = From::Rows(vec![(parameter, 0..parameter.rows())]);
            all.push(Written { name, shape, from });
            continue;
        };
        let at = *stacks.entry(name.clone()).or_insert_with(|| {
            let from = match family {
                "gpt_oss" => From::Experts(Vec::new()),
                _ => From::Rows(Vec::new()),
            };
            all.push(Written { name, shape: Vec::new(), from });
            all.len() - 1
        });
        let Written { shape, from, .. } = &mut all[at];
        let experts = match from {
            From::Rows(parts) => {
                parts.push((parameter, 0..parameter.rows()));
                let rows: usize = parts.iter().map(|(_, rows)| rows.len()).sum();
                *shape = vec![expert + 1, rows / (expert + 1), parameter.shape[1]];
                continue;
            }
            From::Experts(experts) => experts,
        };
        experts.resize_with(experts.len().max(expert + 1), Vec::new);
        experts[expert].push(parameter);
        // Columns, if it has any, then rows, as many as all that take turns have.
        *shape = parameter.shape[1..].to_vec();
        shape.insert(0, experts.len());
        shape.push(experts[expert].iter().map(|it| it.shape[0]).sum());
    }
    if config.family.model_type() == "qwen3_next" {
        key_head_by_key_head(config, &mut all);
    }
    all
}

/// Puts together what Qwen3-Next has in two tensors for four.
fn key_head_by_key_head<'a>(config: &'a ModelConfig, all: &mut Vec<Written<'a>>) {
    for of in config.architecture.layers.iter().filter_map(Layer::gated_delta) {
        let &GatedDelta { key_heads: heads, key_dim, value_heads, value_dim, .. } = of;
        let each = value_heads / heads;
        let [qkv, z, b, a] = [0, 1, 2, 3].map(|at| &of.inputs[at].weight);
        // So many rows of each head, behind others.
        type Rows<'a> = (&'a Parameter, usize, usize);
        let wholes: [(&str, [&str; 2], &[Rows]); 2] = [
            (
                "in_proj_qkvz",
                ["in_proj_qkv", "in_proj_z"],
                &[
                    (qkv, 0, key_dim),
                    (qkv, heads * key_dim, key_dim),
                    (qkv, 2 * heads * key_dim, each * value_dim),
                    (z, 0, each * value_dim),
                ],
            ),
            ("in_proj_ba", ["in_proj_b", "in_proj_a"], &[(b, 0, each), (a, 0, each)]),
        ];
        for (name, [first, second], rows) in wholes {
            let of_head = |head: usize| {
                rows.iter().map(move |&(parameter, before, wide)| {
                    let first = before + head * wide;
                    (parameter, first..first + wide)
                })
            };
            let from: Vec<_> = (0..heads).flat_map(of_head).collect();
            let (parameter, _) = from[0];
            let named = |part: &str| parameter.name.replace(first, part);
            let shape = vec![from.iter().map(|(_, rows)| rows.len()).sum(), parameter.shape[1]];
            let second = named(second);
            all.retain(|it| it.name != second);
            let at = all.iter().position(|it| it.name == parameter.name);
            all[at.expect("it is a tensor")] =
                Written { name: named(name), shape, from: From::Rows(from) };
        }
    }
}

/// The tensor of all experts that has a parameter of one of them, and which.
fn stacked(name: &str) -> Option<(String, usize)> {
    let (module, of_expert) = name.split_once(".experts.")?;
    let (expert, part) = of_expert.split_once('.')?;
    let (projection, kind) = part.split_once('.')?;
    let projection = match projection {
        "gate_proj" | "up_proj" => "gate_up_proj",
        other => other,
    };
    let end = if kind == "bias" { "_bias" } else { "" };
    Some((format!("{module}.experts.{projection}{end}"), expert.parse().ok()?))
}

/// The same, of Granite's.
fn stacked_rows(name: &str) -> Option<(String, usize)> {
    let (module, of_expert) = name.split_once(".experts.")?;
    let (expert, part) = of_expert.split_once('.')?;
    let linear = if part.starts_with("down_proj") { "output_linear" } else { "input_linear" };
    Some((format!("{module}.{linear}.weight"), expert.parse().ok()?))
}
