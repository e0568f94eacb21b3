//! A stand-in for the memory behind the pages, to see in tests what a sequence would read.

use kernels::KV_BLOCK;

use super::{PageTable, Reservation};

/// What the pages hold, as a device would: the token whose keys and values are in each row.
pub(crate) struct Memory {
    pages: Vec<[Option<u32>; KV_BLOCK]>,
    /// What the states are of: all tokens before.
    states: Vec<Vec<u32>>,
}

impl Memory {
    pub fn new(pages: usize) -> Self {
        Self { pages: vec![[None; KV_BLOCK]; pages], states: vec![Vec::new(); 64] }
    }

    /// What a step does: copies, then rows.
    pub fn run(&mut self, step: &[(Reservation<'_>, Vec<u32>)]) {
        for copy in step.iter().filter_map(|(it, _)| it.copy()) {
            let from = self.pages[copy.from as usize];
            let to = &mut self.pages[copy.to as usize];
            *to = [None; KV_BLOCK];
            to[..copy.tokens].copy_from_slice(&from[..copy.tokens]);
        }
        for (reservation, tokens) in step {
            if let Some((from, to)) = reservation.states() {
                assert_ne!(from, Some(to));
                let before = from.map_or(Vec::new(), |from| self.states[from as usize].clone());
                self.states[to as usize] = [&before, &tokens[..]].concat();
            }
            for (slot, &token) in reservation.slots().zip(tokens) {
                self.pages[slot / KV_BLOCK][slot % KV_BLOCK] = Some(token);
            }
        }
    }

    pub fn check(&self, table: &PageTable) {
        assert_eq!(table.pages().len(), table.len().div_ceil(KV_BLOCK));
        if let Some(state) = table.state {
            assert_eq!(self.states[state as usize], table.tokens());
        }
        assert_eq!(table.state.is_some(), table.pool().has_states() && !table.is_empty());
        for (at, &token) in table.tokens().iter().enumerate() {
            let page = table.pages()[at / KV_BLOCK];
            assert_eq!(
                self.pages[page as usize][at % KV_BLOCK],
                Some(token),
                "token {at}, page {page}"
            );
        }
    }
}
