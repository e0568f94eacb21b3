//! Rotary angles of the rows of steps.

use checkpoint::config::{ModelConfig, RopeTables};

/// The angles of all positions so far, in f64's accuracy, whatever the model's scaling.
pub(super) struct Rope(RopeTables);

impl Rope {
    pub fn new() -> Self {
        Self(RopeTables { cos: Vec::new(), sin: Vec::new() })
    }

    /// Cosines and sines of `positions`, `[positions, head_dim / 2]` each.
    pub fn angles(&mut self, config: &ModelConfig, positions: &[usize]) -> [Vec<f32>; 2] {
        let Self(tables) = self;
        let half = config.head_dim / 2;
        let end = positions.iter().max().map_or(0, |last| last + 1);
        let known = tables.cos.len() / half;
        if end > known {
            let more = config.rope_tables(known..end.next_multiple_of(1024));
            tables.cos.extend(more.cos);
            tables.sin.extend(more.sin);
        }
        let rows = |table: &[f32]| {
            let row = |&position: &usize| &table[position * half..][..half];
            positions.iter().flat_map(row).copied().collect()
        };
        [rows(&tables.cos), rows(&tables.sin)]
    }
}
