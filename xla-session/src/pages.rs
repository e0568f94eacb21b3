//! The pages of the KV cache: who has which, and which prefixes they hold. Numbers only; the memory
//! behind them is the engine's.
//!
//! A page holds [`KV_BLOCK`] tokens. A [`PageTable`] names the pages of one sequence; tables share
//! pages that hold the same tokens, and a page is copied before one of several writes into it. A
//! page that is full is published in the prefix cache under its tokens and the page before it, so
//! that another prompt that begins alike adopts it, and so is the last page of a sequence that goes: a conversation that
//! goes on, and a prompt that begins alike up to the middle of a page, run only what is new. When nobody has a published page any more it
//! stays, idle, until its memory is needed: the least recently used goes first, and of a chain the
//! last.
//!
//! Where layers keep a state in place of keys and values of all tokens, a table has the number of its
//! sequence's, and a step leaves another one; a page that a step has just filled keeps the number of the state
//! behind it as long as no sequence needs the room, so that a prompt that begins alike goes on from there. Only
//! pages with a state behind them can be adopted, and a sequence is cut no later than where one is.
//!
//! A step is a transaction: [`PageTable::reserve`] takes what it will write into, and either
//! [`Reservation::commit`] says which tokens were written, or everything is as before.

mod pool;
mod reservation;
mod table;

#[cfg(test)]
pub(crate) mod memory;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::KV_BLOCK;

use pool::Pool;
pub use reservation::{PageCopy, PagesInFlight, Reservation};
pub use table::PageTable;

/// All pages of an engine's KV cache. A clone is another handle of the same pages.
///
/// Any thread may drop tables and reservations: what they had returns to the pool at once.
#[derive(Debug, Clone)]
pub struct PagePool {
    pool: Arc<Mutex<Pool>>,
}

/// What the prefix cache holds of a prompt, in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedPrefix {
    /// Tokens, a multiple of [`KV_BLOCK`]; fewer than the prompt has.
    pub tokens: usize,
    /// Pages of these that nobody has: who adopts them takes them out of
    /// [`available`](PagePool::available).
    pub idle: usize,
}

/// Counts of a [`PagePool`]. Every page is either free, held or cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Pages in all.
    pub pages: usize,
    /// Tokens that a page holds.
    pub page_tokens: usize,
    /// Pages that hold nothing.
    pub free: usize,
    /// Pages of sequences, or of steps in flight.
    pub held: usize,
    /// Idle pages of the prefix cache: nobody has them, and they are given away when no page is
    /// free.
    pub cached: usize,
    /// Pages that more than one sequence has.
    pub shared: usize,
    /// Tokens of prompts that were looked up in the prefix cache, since the start.
    pub prefix_tokens_looked_up: u64,
    /// Tokens of these that were found and did not have to be run.
    pub prefix_tokens_found: u64,
    /// Cached pages that were given away for other tokens, since the start.
    pub evictions: u64,
    /// Pages that were copied because others had them too, since the start.
    pub copies: u64,
    /// States of sequences in all; none where layers keep none.
    pub states: usize,
    /// States that steps can have: free ones, and those that only the prefix cache has.
    pub states_available: usize,
}

/// How many of `left` tokens behind `start` are run next, of at most `rows`, where sequences have states: steps end
/// where pages do, as that is where a state can be gone on from; the end of a prompt behind its last full page is a
/// step by itself.
pub(crate) fn piece(start: usize, rows: usize, left: usize) -> usize {
    let rows = rows.min(left);
    let border = (start + rows) / KV_BLOCK * KV_BLOCK;
    if border > start { border - start } else { rows }
}

impl PagePool {
    /// `pages` free pages, with a prefix cache.
    ///
    /// # Panics
    ///
    /// When `pages` does not fit a `u32`.
    pub fn new(pages: usize) -> Self {
        Self::of(Pool::new(pages, true))
    }

    /// `pages` free pages that nothing is remembered of once nobody has them.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    pub fn without_prefix_cache(pages: usize) -> Self {
        Self::of(Pool::new(pages, false))
    }

    /// `pages` free pages and `states` free states.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), of either.
    pub fn with_states(pages: usize, states: usize, prefix_cache: bool) -> Self {
        Self::of(Pool::new(pages, prefix_cache).with_states(states))
    }

    fn of(pool: Pool) -> Self {
        Self { pool: Arc::new(Mutex::new(pool)) }
    }

    /// The table of a sequence that has no tokens yet.
    pub fn table(&self) -> PageTable {
        PageTable::new(self.clone())
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.lock().total()
    }

    /// Pages that hold nothing.
    pub fn free(&self) -> usize {
        self.lock().free()
    }

    /// Pages of sequences, or of steps in flight.
    pub fn held(&self) -> usize {
        self.lock().held()
    }

    /// Idle pages of the prefix cache.
    pub fn cached(&self) -> usize {
        self.lock().idle()
    }

    /// Pages that a sequence can have now: the free ones and the idle ones.
    pub fn available(&self) -> usize {
        self.lock().available()
    }

    /// Whether sequences have states.
    pub fn has_states(&self) -> bool {
        self.lock().has_states()
    }

    /// States that steps can have now.
    pub fn available_states(&self) -> usize {
        self.lock().available_states()
    }

    /// Whether pages are found again by what they hold.
    pub fn has_prefix_cache(&self) -> bool {
        self.lock().has_prefix_cache()
    }

    /// What the prefix cache holds of `prompt`; at least its last token is left to be run.
    pub fn cached_prefix(&self, prompt: &[u32]) -> CachedPrefix {
        let pool = self.lock();
        let pages = pool.find_prefix(prompt);
        let idle = pages.iter().filter(|&&page| pool.is_idle(page)).count();
        CachedPrefix { tokens: pages.len() * KV_BLOCK, idle }
    }

    /// Forgets the prefixes of idle pages, which are free from then on.
    pub fn forget_prefixes(&self) {
        self.lock().forget_idle();
    }

    /// Counts of pages, and of what was done with them.
    pub fn statistics(&self) -> Statistics {
        self.lock().statistics()
    }

    /// Whether both are handles of the same pages.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Nothing panics while the lock is held, other than by a mistake in the pool itself: what it
    /// holds is worth as much after a panic as before.
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
