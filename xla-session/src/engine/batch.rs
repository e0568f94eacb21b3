//! The rows of a step, as they go to the device.

use crate::pages::Reservation;

/// Rows of several sequences.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The token of each row.
    pub tokens: Vec<u32>,
    /// Its position in its sequence.
    pub positions: Vec<usize>,
    /// Of which of its texts it is: 0, or 1 where there is a second one.
    pub texts: Vec<u8>,
    /// Where its keys and values go: the page times 64, and the row of the page.
    pub slots: Vec<usize>,
    /// The runs.
    pub entries: Vec<Entry>,
    /// The pages of each run's sequence, one table behind the other.
    pub tables: Vec<u32>,
    /// Where layers keep states: of each run the number of the one that it goes on from, if there is a token
    /// before, and of the one that it leaves.
    pub states: Vec<(Option<u32>, u32)>,
}

/// Consecutive rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The first one.
    pub row: usize,
    /// How many.
    pub rows: usize,
    /// Its position.
    pub start: usize,
    /// Where the table of the sequence begins.
    pub table: usize,
    /// Tokens of the sequence behind the step.
    pub end: usize,
}

impl Batch {
    /// Adds a run, of a sequence whose second text begins at a position, if it has one.
    pub fn push(&mut self, tokens: &[u32], second: Option<usize>, reserved: &Reservation<'_>) {
        let (row, start) = (self.tokens.len(), reserved.start());
        let (rows, table, end) = (tokens.len(), self.tables.len(), start + tokens.len());
        self.entries.push(Entry { row, rows, start, table, end });
        self.tokens.extend(tokens);
        self.positions.extend(start..end);
        let is_second = |position| second.is_some_and(|second| second <= position);
        self.texts.extend((start..end).map(|position| u8::from(is_second(position))));
        self.slots.extend(reserved.slots());
        self.tables.extend(reserved.pages());
        self.states.extend(reserved.states());
    }

    /// Rows of all runs.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}
