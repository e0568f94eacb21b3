//! The pages and tokens of one sequence.

use kernels::KV_BLOCK;

use super::pool::Pool;
use super::{PagePool, Reservation};
use crate::{Error, Result};

/// The tokens of a sequence, and the pages that their keys and values lie in: token `i` is row
/// `i % KV_BLOCK` of page `i / KV_BLOCK`. Dropping it gives the pages back.
#[derive(Debug)]
pub struct PageTable {
    pub(super) pool: PagePool,
    /// As many as the tokens need. With a prefix cache, all that are full are published.
    pub(super) pages: Vec<u32>,
    pub(super) tokens: Vec<u32>,
    /// The state behind the last token, where sequences have one and there is a token.
    pub(super) state: Option<u32>,
}

/// What a run of rows must have before it can be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    /// Pages behind those that the table has.
    pub growth: usize,
    /// Whether the last page, which is not full, is to be copied first.
    pub copy: bool,
}

impl Demand {
    pub fn pages(self) -> usize {
        self.growth + usize::from(self.copy)
    }
}

impl PageTable {
    pub(super) fn new(pool: PagePool) -> Self {
        Self { pool, pages: Vec::new(), tokens: Vec::new(), state: None }
    }

    /// The tokens, oldest first.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The pages that hold the tokens, in their order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The pool that the pages are of.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// A second sequence with the same tokens, on the same pages until one of the two writes into
    /// the last.
    pub fn fork(&self) -> Self {
        let mut pool = self.pool.lock();
        for &page in &self.pages {
            pool.retain(page);
        }
        if let Some(state) = self.state {
            pool.retain_state(state);
        }
        drop(pool);
        let (pages, tokens) = (self.pages.clone(), self.tokens.clone());
        Self { pool: self.pool.clone(), pages, tokens, state: self.state }
    }

    /// Keeps the first `tokens` tokens, or where sequences have states as many of them as there is one behind,
    /// and gives back the pages that hold none of these.
    pub fn truncate(&mut self, tokens: usize) {
        if tokens >= self.len() {
            return;
        }
        let handle = self.pool.clone();
        let mut pool = handle.lock();
        let tokens = self.reachable(&pool, tokens);
        self.take_up(&mut pool, tokens);
        drop(pool);
        self.tokens.truncate(tokens);
        let pages = self.tokens.len().div_ceil(KV_BLOCK);
        let mut pool = handle.lock();
        if pages < self.pages.len() {
            let dropped = self.pages.split_off(pages);
            release(&mut pool, &dropped);
        }
        // What was guessed, and filled a page, is of no use to others.
        if let Some(last) = self.unfilled()
            && !pool.is_shared(last)
            && !pool.has_children(last)
        {
            pool.unpublish(last);
        }
    }

    /// Makes the sequence begin as `prompt` does: of its own tokens it keeps those that `prompt`
    /// begins with, or it adopts pages of the prefix cache, whichever are more. Returns how many
    /// tokens of `prompt` it holds then, and those are all it holds; at least the last token is
    /// left to be run.
    pub fn resume(&mut self, prompt: &[u32]) -> usize {
        let most = prompt.len().saturating_sub(1);
        let both = self.tokens.iter().zip(&prompt[..most]);
        let common = both.take_while(|(mine, asked)| mine == asked).count();
        let handle = self.pool.clone();
        let mut pool = handle.lock();
        let common = self.reachable(&pool, common);
        let mut found = pool.find_prefix(prompt);
        let full = found.len() * KV_BLOCK;
        let part = pool.find_part(found.last().copied(), &prompt[full..most.max(full)]);
        let part = part.filter(|part| Self::has_room(&pool, &found, *part, prompt.len()));
        let cached = full + part.map_or(0, |(_, tokens)| tokens);
        pool.looked_up += (prompt.len() - common) as u64;
        pool.found += cached.saturating_sub(common) as u64;
        if cached <= common {
            drop(pool);
            self.truncate(common);
        } else {
            // Retained first: what both hold must not become idle in between.
            found.extend(part.map(|(page, _)| page));
            for &page in &found {
                pool.retain(page);
            }
            release(&mut pool, &self.pages);
            self.pages = found;
            self.take_up(&mut pool, cached);
            drop(pool);
            self.tokens = prompt[..cached].to_vec();
        }
        self.len()
    }

    /// Whether all of a prompt of `length` tokens finds room when it begins with the pages `found` and a part of one more,
    /// which may have to be copied.
    fn has_room(pool: &Pool, found: &[u32], (page, tokens): (u32, usize), length: usize) -> bool {
        let copied = pool.is_held(page) || pool.is_worth(page, tokens);
        let idle = found.iter().chain([&page]).filter(|&&page| pool.is_idle(page)).count();
        let growth = length.div_ceil(KV_BLOCK) - (found.len() + 1);
        growth + usize::from(copied) + idle <= pool.available()
    }

    /// How many of the first `tokens` tokens it can go on behind.
    fn reachable(&self, pool: &Pool, tokens: usize) -> usize {
        if !pool.has_states() || tokens == self.len() {
            return tokens;
        }
        let full = &self.pages[..tokens / KV_BLOCK];
        let last = full.iter().rposition(|&page| pool.state_behind(page).is_some());
        last.map_or(0, |last| (last + 1) * KV_BLOCK)
    }

    /// The state is that behind its first `tokens` tokens from now on, where a page has one.
    fn take_up(&mut self, pool: &mut Pool, tokens: usize) {
        let page = (tokens / KV_BLOCK).checked_sub(1).map(|last| self.pages[last]);
        let state = page.and_then(|page| pool.use_state(page));
        if let Some(before) = std::mem::replace(&mut self.state, state) {
            pool.release_state(before);
        }
    }

    /// Pages that must be [available](PagePool::available) for `rows` more tokens.
    pub fn needed(&self, rows: usize) -> usize {
        self.demand(&self.pool.lock(), rows).pages()
    }

    /// The last page is copied if another sequence has it. If only the prefix cache knows it, it is
    /// taken out of the cache and written in place; but where it has more than this sequence, or other cached pages are
    /// found through it, it stays and is copied, unless there are no pages for that: then all idle pages are
    /// going to be taken, and those with them.
    pub(super) fn demand(&self, pool: &Pool, rows: usize) -> Demand {
        let growth = (self.len() + rows).div_ceil(KV_BLOCK) - self.pages.len();
        let copy = match self.unfilled() {
            Some(last) if rows > 0 => {
                let is_worth = pool.is_worth(last, self.len() % KV_BLOCK);
                pool.is_shared(last) || (is_worth && growth != pool.available())
            }
            _ => false,
        };
        Demand { growth, copy }
    }

    /// The last page, unless it is full.
    pub(super) fn unfilled(&self) -> Option<u32> {
        let last = self.pages.last().copied();
        last.filter(|_| !self.len().is_multiple_of(KV_BLOCK))
    }

    /// Takes what `rows` more tokens need. The table stays as it is until [`Reservation::commit`].
    ///
    /// # Errors
    ///
    /// [`OutOfPages`](Error::OutOfPages) or [`OutOfStates`](Error::OutOfStates), and no sequence has changed.
    pub fn reserve(&mut self, rows: usize) -> Result<Reservation<'_>> {
        Reservation::new(self, rows)
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        if let Some(last) = self.unfilled() {
            let full = self.pages.len() - 1;
            let parent = full.checked_sub(1).map(|before| self.pages[before]);
            pool.publish_part(last, parent, &self.tokens[full * KV_BLOCK..]);
        }
        release(&mut pool, &self.pages);
        if let Some(state) = self.state {
            pool.release_state(state);
        }
    }
}

/// The last first, so that of pages let go at once the first are those used last.
pub(super) fn release(pool: &mut Pool, pages: &[u32]) {
    for &page in pages.iter().rev() {
        pool.release(page);
    }
}

pub(super) fn out_of_pages(pool: &Pool, needed: usize) -> Error {
    Error::OutOfPages { needed, free: pool.available() }
}
