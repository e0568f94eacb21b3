//! Rotary angles of the rows of steps.

use checkpoint::architecture::{Rope, RopeTables};
use checkpoint::config::ModelConfig;

/// The angles of all positions so far, of each way in which a model's layers rotate.
pub(super) struct Angles(Vec<(Rope, RopeTables)>);

impl Angles {
    pub fn new(config: &ModelConfig) -> Self {
        let nothing = RopeTables { cos: Vec::new(), sin: Vec::new() };
        let ropes = config.architecture.ropes.iter().cloned();
        Self(ropes.map(|rope| (rope, nothing.clone())).collect())
    }

    /// Cosines and sines of `positions` for each rope, `[positions, width / 2]` each.
    pub fn of(&mut self, positions: &[usize]) -> Vec<[Vec<f32>; 2]> {
        let end = positions.iter().max().map_or(0, |last| last + 1);
        let of_rope = |(rope, tables): &mut (Rope, RopeTables)| {
            let half = rope.width / 2;
            let known = tables.cos.len() / half;
            if end > known {
                let more = rope.tables(known..end.next_multiple_of(1024));
                tables.cos.extend(more.cos);
                tables.sin.extend(more.sin);
            }
            [&tables.cos, &tables.sin].map(|table| {
                let row = |&position: &usize| &table[position * half..][..half];
                positions.iter().flat_map(row).copied().collect()
            })
        };
        self.0.iter_mut().map(of_rope).collect()
    }
}
