//! The tensors of a converted model, and which parameters each of them is made of.

use std::collections::BTreeMap;

use crate::architecture::Parameter;
use crate::config::ModelConfig;

/// A tensor that is written.
pub(super) struct Written<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    pub from: From<'a>,
}

pub(super) enum From<'a> {
    /// As it is.
    One(&'a Parameter),
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
        let stacked = match config.family.model_type() {
            "gpt_oss" => stacked(&parameter.name),
            _ => None,
        };
        let Some((name, expert)) = stacked else {
            let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
            all.push(Written { name, shape, from: From::One(parameter) });
            continue;
        };
        let at = *stacks.entry(name.clone()).or_insert_with(|| {
            all.push(Written { name, shape: Vec::new(), from: From::Experts(Vec::new()) });
            all.len() - 1
        });
        let Written { shape, from: From::Experts(experts), .. } = &mut all[at] else { continue };
        experts.resize_with(experts.len().max(expert + 1), Vec::new);
        experts[expert].push(parameter);
        // Columns, if it has any, then rows, as many as all that take turns have.
        *shape = parameter.shape[1..].to_vec();
        shape.insert(0, experts.len());
        shape.push(experts[expert].iter().map(|it| it.shape[0]).sum());
    }
    all
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
