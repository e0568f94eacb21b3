//! What a step writes into, until it is known whether it was written.

use kernels::KV_BLOCK;

use super::table::{out_of_pages, release};
use super::{PagePool, PageTable};
use crate::{Error, Result};

/// The pages of a sequence for the time of a step. Dropping it without [`commit`](Self::commit)
/// gives back what it took: the sequence is as it was. (What the prefix cache lost for its sake
/// stays lost.)
///
/// It borrows the table, so that nobody can drop, fork or truncate a sequence that a step is being
/// made of. A device that is still busy when the borrow ends needs [`in_flight`](Self::in_flight).
#[derive(Debug)]
pub struct Reservation<'table> {
    table: &'table mut PageTable,
    rows: usize,
    /// All pages that the step reads and writes, in order.
    pages: Vec<u32>,
    /// Those of them that were taken for it.
    taken: Vec<u32>,
    copy: Option<PageCopy>,
    /// The state that the step leaves, where sequences have one.
    state: Option<u32>,
}

/// A page that others have too, and the one that is written instead: the engine copies what is kept
/// before the step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// The page that is shared.
    pub from: u32,
    /// The page that takes its place in this sequence.
    pub to: u32,
    /// Tokens at its beginning that the sequence needs; the step writes those behind.
    pub tokens: usize,
}

/// Keeps the pages of a step from being given to others as long as it lives, whatever becomes of
/// the sequence: an engine whose device works on after the call that began a step returned, or
/// failed, holds it until the device is done.
///
/// It is an owned count per step and page, rather than one of steps begun and ended, because steps
/// overlap: with the next one always begun before the last one ends there would be no moment at
/// which nothing is in flight.
#[derive(Debug)]
pub struct PagesInFlight {
    pool: PagePool,
    pub(super) pages: Vec<u32>,
    /// States that it reads and writes.
    states: Vec<u32>,
}

impl<'table> Reservation<'table> {
    pub(super) fn new(table: &'table mut PageTable, rows: usize) -> Result<Self> {
        let handle = table.pool.clone();
        let mut pool = handle.lock();
        let demand = table.demand(&pool, rows);
        let Some(mut taken) = pool.take(demand.pages()) else {
            return Err(out_of_pages(&pool, demand.pages()));
        };
        let state = if rows > 0 { pool.take_state() } else { None };
        if state.is_none() && rows > 0 && pool.has_states() {
            release(&mut pool, &taken);
            return Err(Error::OutOfStates { needed: 1, free: 0 });
        }
        let mut pages = table.pages.clone();
        let mut copy = None;
        match table.unfilled() {
            Some(last) if demand.copy => {
                // The table's reference stays until the commit, so that nobody else takes the page
                // for theirs alone and writes into it.
                let to = taken[0];
                copy = Some(PageCopy { from: last, to, tokens: table.len() % KV_BLOCK });
                pages.pop();
            }
            Some(last) if rows > 0 => {
                // Pages behind it that a step in flight still reads could not be taken.
                if pool.has_children(last) {
                    let needed = demand.pages() + 1;
                    release(&mut pool, &std::mem::take(&mut taken));
                    if let Some(state) = state {
                        pool.release_state(state);
                    }
                    return Err(out_of_pages(&pool, needed));
                }
                pool.unpublish(last);
            }
            _ => {}
        }
        pages.extend(&taken);
        drop(pool);
        Ok(Self { table, rows, pages, taken, copy, state })
    }

    /// Tokens before the first row.
    pub fn start(&self) -> usize {
        self.table.len()
    }

    /// Rows that were reserved.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The pages of all tokens, those of the rows among them, in their order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The copy to be made before the step runs. It is one at most: only the last page of a
    /// sequence is ever written again.
    pub fn copy(&self) -> Option<PageCopy> {
        self.copy
    }

    /// Where sequences have states: the one behind the tokens before the rows, if there are some, and the one
    /// that the step leaves.
    pub fn states(&self) -> Option<(Option<u32>, u32)> {
        self.state.map(|left| (self.table.state, left))
    }

    /// Where each row is written, as `page * KV_BLOCK + row of the page`; `[rows]`.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        let positions = self.start()..self.start() + self.rows;
        positions.map(|at| self.pages[at / KV_BLOCK] as usize * KV_BLOCK + at % KV_BLOCK)
    }

    /// Keeps all pages of the step from others until the device is done with it.
    pub fn in_flight(&self) -> PagesInFlight {
        let pages: Vec<u32> =
            self.pages.iter().copied().chain(self.copy.map(|it| it.from)).collect();
        let mut pool = self.table.pool.lock();
        for &page in &pages {
            pool.begin(page);
        }
        let states: Vec<u32> = self.state.into_iter().chain(self.table.state).collect();
        for &state in &states {
            pool.retain_state(state);
        }
        drop(pool);
        PagesInFlight { pool: self.table.pool.clone(), pages, states }
    }

    /// The step has written `tokens`, which may be fewer than the rows reserved: they belong to the
    /// sequence now. Pages that they filled are published; where the prefix cache has a page
    /// with the same contents already, that one takes their place.
    ///
    /// # Panics
    ///
    /// When there are more tokens than rows; or fewer, but some, where the step left a state, which is of all of them.
    pub fn commit(mut self, tokens: &[u32]) {
        assert!(tokens.len() <= self.rows, "{} tokens in {} rows", tokens.len(), self.rows);
        let is_of_all = tokens.is_empty() || tokens.len() == self.rows;
        assert!(is_of_all || self.state.is_none(), "a state of {} rows", self.rows);
        if tokens.is_empty() {
            return;
        }
        let mut pages = std::mem::take(&mut self.pages);
        self.taken.clear();
        let left = self.state.take();
        let Self { table, copy, .. } = &mut self;
        let handle = table.pool.clone();
        let mut pool = handle.lock();
        let full = table.len() / KV_BLOCK;
        table.tokens.extend(tokens);
        release(&mut pool, &pages.split_off(table.len().div_ceil(KV_BLOCK)));
        if let Some(copy) = copy {
            pool.release(copy.from);
            pool.copies += 1;
        }
        let filled = table.tokens.chunks_exact(KV_BLOCK).enumerate().skip(full);
        for (index, tokens) in filled {
            let parent = index.checked_sub(1).map(|before| pages[before]);
            pages[index] = pool.publish(pages[index], parent, tokens);
        }
        if let Some(left) = left {
            if let Some(&last) = pages.last().filter(|_| table.len().is_multiple_of(KV_BLOCK)) {
                // A row alone is a token of an answer.
                pool.keep_state(last, left, tokens.len() > 1);
            }
            if let Some(before) = table.state.replace(left) {
                pool.release_state(before);
            }
        }
        table.pages = pages;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut pool = self.table.pool.lock();
        release(&mut pool, &self.taken);
        if let Some(state) = self.state {
            pool.release_state(state);
        }
    }
}

impl Drop for PagesInFlight {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        for &page in self.pages.iter().rev() {
            pool.end(page);
        }
        for &state in &self.states {
            pool.release_state(state);
        }
    }
}
