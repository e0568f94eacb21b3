//! A stand-in for the memory behind the pages, to see in tests what a sequence would read.

use kernels::KV_BLOCK;

use super::{PageTable, Reservation};

/// What the pages hold, as a device would: the token whose keys and values are in each row.
pub(crate) struct Memory(Vec<[Option<u32>; KV_BLOCK]>);

impl Memory {
    pub fn new(pages: usize) -> Self {
        Self(vec![[None; KV_BLOCK]; pages])
    }

    /// What a step does: copies, then rows.
    pub fn run(&mut self, step: &[(Reservation<'_>, Vec<u32>)]) {
        for copy in step.iter().filter_map(|(it, _)| it.copy()) {
            let from = self.0[copy.from as usize];
            let to = &mut self.0[copy.to as usize];
            *to = [None; KV_BLOCK];
            to[..copy.tokens].copy_from_slice(&from[..copy.tokens]);
        }
        for (reservation, tokens) in step {
            for (slot, &token) in reservation.slots().zip(tokens) {
                self.0[slot / KV_BLOCK][slot % KV_BLOCK] = Some(token);
            }
        }
    }

    pub fn check(&self, table: &PageTable) {
        assert_eq!(table.pages().len(), table.len().div_ceil(KV_BLOCK));
        for (at, &token) in table.tokens().iter().enumerate() {
            let page = table.pages()[at / KV_BLOCK];
            assert_eq!(
                self.0[page as usize][at % KV_BLOCK],
                Some(token),
                "token {at}, page {page}"
            );
        }
    }
}
