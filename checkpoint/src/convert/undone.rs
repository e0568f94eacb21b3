//! What a file's converter has done to tensors, undone where they are written: the 1 that it added to norms, and
//! the order of value heads.

use std::collections::HashMap;

use crate::Tensor;
use crate::architecture::{Architecture, GatedDelta, Parameter};

/// What is undone, by the names of tensors.
#[derive(Debug)]
pub(super) struct Undone {
    /// What is taken off their values, where it is not 0.
    shifts: HashMap<String, f32>,
    /// Where their value heads are.
    heads: HashMap<String, ValueHeads>,
}

impl Undone {
    /// What differs between the file's model and the one that is written.
    pub fn of(source: &Architecture, target: &Architecture) -> Self {
        let norms = source.norms().zip(target.norms());
        let shifts = norms.map(|(from, to)| (from.weight.name.clone(), to.offset - from.offset));
        let layers = source.layers.iter().zip(&target.layers);
        let deltas = layers.filter_map(|(from, to)| from.gated_delta().zip(to.gated_delta()));
        let tiled = deltas.filter(|(from, to)| from.tiled && !to.tiled);
        Self {
            shifts: shifts.filter(|(_, shift)| *shift != 0.0).collect(),
            heads: tiled.flat_map(|(from, _)| ValueHeads::of(from)).collect(),
        }
    }

    /// Row `row` of `parameter`, which the file has as `tensor`, as it is written.
    pub fn row(&self, tensor: &Tensor, parameter: &Parameter, row: usize, values: &mut [f32]) {
        let heads = self.heads.get(&parameter.name);
        let place = heads.filter(|it| !it.columns).map_or(row, |it| it.place(row));
        tensor.to_f32_row(tensor.row(place), values);
        if let Some(heads) = heads.filter(|it| it.columns) {
            let stored = values.to_vec();
            for (column, value) in values.iter_mut().enumerate() {
                *value = stored[heads.place(column)];
            }
        }
        if let Some(shift) = self.shifts.get(&parameter.name) {
            values.iter_mut().for_each(|value| *value -= shift);
        }
    }
}

/// Rows of a tensor, or columns, that are value heads in the order of GGUF files.
#[derive(Debug, Clone, Copy)]
struct ValueHeads {
    columns: bool,
    /// Rows before them.
    before: usize,
    /// Rows of each.
    width: usize,
    key_heads: usize,
    /// Value heads of a key head.
    each: usize,
}

impl ValueHeads {
    /// Those of a layer's tensors, by their names.
    fn of(of: &GatedDelta) -> Vec<(String, Self)> {
        let &GatedDelta { key_heads, value_heads, key_dim, value_dim, .. } = of;
        let each = value_heads / key_heads;
        let rows = |before, width| Self { columns: false, before, width, key_heads, each };
        let keys = 2 * key_heads * key_dim;
        let values = keys + 2 * value_heads * value_dim;
        let mut first = 0;
        let mut all = Vec::new();
        for input in &of.inputs {
            let width = if first < values { value_dim } else { 1 };
            all.push((&input.weight, rows(keys.saturating_sub(first), width)));
            first += input.outputs();
        }
        all.push((&of.taps, rows(keys, value_dim)));
        all.push((&of.decay, rows(0, 1)));
        all.push((&of.step, rows(0, 1)));
        all.push((&of.output.weight, Self { columns: true, ..rows(0, value_dim) }));
        all.into_iter().map(|(parameter, heads)| (parameter.name.clone(), heads)).collect()
    }

    /// Where the file has row `row`.
    fn place(&self, row: usize) -> usize {
        let Some(row) = row.checked_sub(self.before) else { return row };
        let (head, within) = (row / self.width, row % self.width);
        let there = head % self.each * self.key_heads + head / self.each;
        self.before + there * self.width + within
    }
}
