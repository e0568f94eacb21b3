//! Pages by number: references, the free list, and the prefix cache with its order of eviction.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kernels::KV_BLOCK;

use super::Statistics;

/// What a page is found by, which is full, or the last one of a sequence that is gone. The page before it stands for all
/// tokens before: it is not given away as long as a page behind it is published. Keys are compared, not only their hashes, so
/// that no collision can hand out the wrong tokens.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PrefixKey {
    parent: Option<u32>,
    tokens: Box<[u32]>,
}

/// Fewest tokens that are taken from the beginning of a page: with fewer, running them is as good.
const LEAST: usize = 8;

/// The beginning of pages behind one, by which those are looked through that may begin as a prompt goes on.
type Beginning = (Option<u32>, [u32; LEAST]);

#[derive(Debug, Default)]
struct Page {
    /// Tables that have it, and reservations of tables.
    references: u32,
    /// Steps that the device may still be busy with.
    in_flight: u32,
    /// What it is found by, if it is.
    published: Option<Arc<PrefixKey>>,
    /// Published pages whose parent it is.
    children: u32,
    /// When it was last let go of.
    released: u64,
    /// The page that took its place while a step in flight still read it.
    replaced_by: Option<u32>,
    /// The state of its sequence behind its last token, and when that goes.
    state: Option<(Rank, u32)>,
}

/// When the state of a page goes: those of answers first, of which the newest is enough to go on behind them; then by
/// when they were kept, or last gone on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    of_prompt: bool,
    used: u64,
}

/// States of sequences, by number: what a model whose layers keep one has of all tokens before. A state is
/// never written again once a step has left it: sequences and pages share it.
#[derive(Debug, Default)]
struct States {
    /// Of each, how many tables, reservations and pages have it.
    references: Vec<u32>,
    free: Vec<u32>,
    /// Pages that have one, in the order in which they go.
    kept: BTreeSet<(Rank, u32)>,
}

impl Page {
    fn is_used(&self) -> bool {
        self.references > 0 || self.in_flight > 0
    }
}

/// Every page is in one of three states: free (in `free`), held (referenced or in flight), idle
/// (published and not held). Who has a page has all pages before it, so that the pages behind an
/// idle page are idle too, and all of them can be given away, the last first.
#[derive(Debug)]
pub(super) struct Pool {
    pages: Vec<Page>,
    /// The last one is handed out first: its memory was touched most recently.
    free: Vec<u32>,
    /// Every published page by its key; none without a prefix cache.
    published: Option<HashMap<Arc<PrefixKey>, u32>>,
    /// The same by their beginnings.
    begun: HashMap<Beginning, Vec<u32>>,
    /// Idle pages without a published page behind them, least recently used first.
    leaves: BTreeSet<(u64, u32)>,
    idle: usize,
    /// `None` where sequences have no states.
    states: Option<States>,
    /// Counts releases.
    clock: u64,
    shared: usize,
    evictions: u64,
    pub copies: u64,
    pub looked_up: u64,
    pub found: u64,
}

impl Pool {
    pub fn new(pages: usize, prefix_cache: bool) -> Self {
        let count = u32::try_from(pages).expect("the number of pages fits a u32");
        Self {
            pages: (0..count).map(|_| Page::default()).collect(),
            free: (0..count).rev().collect(),
            published: prefix_cache.then(HashMap::new),
            begun: HashMap::new(),
            leaves: BTreeSet::new(),
            idle: 0,
            states: None,
            clock: 0,
            shared: 0,
            evictions: 0,
            copies: 0,
            looked_up: 0,
            found: 0,
        }
    }

    pub fn has_prefix_cache(&self) -> bool {
        self.published.is_some()
    }

    /// With as many states.
    pub fn with_states(mut self, states: usize) -> Self {
        let count = u32::try_from(states).expect("the number of states fits a u32");
        let (references, free) = (vec![0; states], (0..count).rev().collect());
        self.states = Some(States { references, free, kept: BTreeSet::new() });
        self
    }

    pub fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// States that steps can have now: the free ones, and those that pages alone have.
    pub fn available_states(&self) -> usize {
        let Some(States { references, free, kept }) = &self.states else { return 0 };
        let of_pages = kept.iter().filter_map(|&(_, page)| self.page(page).state);
        free.len() + of_pages.filter(|&(_, state)| references[state as usize] == 1).count()
    }

    /// A state with one reference, a free one before one that only a page has.
    pub fn take_state(&mut self) -> Option<u32> {
        if self.states.as_ref()?.free.is_empty() {
            let States { references, kept, .. } = self.states.as_ref()?;
            let is_of_page = |page| {
                let state = self.state_behind(page);
                state.is_some_and(|state| references[state as usize] == 1)
            };
            let page = kept.iter().map(|&(_, page)| page).find(|&page| is_of_page(page))?;
            self.forget_state(page);
        }
        let states = self.states.as_mut()?;
        let state = states.free.pop()?;
        states.references[state as usize] = 1;
        Some(state)
    }

    /// One more has `state`.
    pub fn retain_state(&mut self, state: u32) {
        if let Some(states) = &mut self.states {
            states.references[state as usize] += 1;
        }
    }

    /// One less has `state`.
    pub fn release_state(&mut self, state: u32) {
        let Some(states) = &mut self.states else { return };
        let references = &mut states.references[state as usize];
        *references -= 1;
        if *references == 0 {
            states.free.push(state);
        }
    }

    /// The state behind the last token of `page`, if it is still there.
    pub fn state_behind(&self, page: u32) -> Option<u32> {
        self.page(page).state.map(|(_, state)| state)
    }

    /// `state` is that behind the last token of `page`, which is published: who adopts that goes on with it.
    pub fn keep_state(&mut self, page: u32, state: u32, of_prompt: bool) {
        if self.page(page).published.is_some() && self.page(page).state.is_none() {
            self.retain_state(state);
            self.rank_state(page, state, of_prompt);
        }
    }

    /// The state behind `page`, from which a sequence goes on now.
    pub fn use_state(&mut self, page: u32) -> Option<u32> {
        let state = self.state_behind(page)?;
        if let (Some((rank, _)), Some(states)) = (self.page(page).state, &mut self.states) {
            states.kept.remove(&(rank, page));
        }
        self.rank_state(page, state, true);
        self.retain_state(state);
        Some(state)
    }

    fn rank_state(&mut self, page: u32, state: u32, of_prompt: bool) {
        self.clock += 1;
        let rank = Rank { of_prompt, used: self.clock };
        self.page_mut(page).state = Some((rank, state));
        if let Some(states) = &mut self.states {
            states.kept.insert((rank, page));
        }
    }

    fn forget_state(&mut self, page: u32) {
        let Some((rank, state)) = self.page_mut(page).state.take() else { return };
        if let Some(states) = &mut self.states {
            states.kept.remove(&(rank, page));
        }
        self.release_state(state);
    }

    pub fn total(&self) -> usize {
        self.pages.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn idle(&self) -> usize {
        self.idle
    }

    pub fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    pub fn held(&self) -> usize {
        self.total() - self.available()
    }

    pub fn is_idle(&self, page: u32) -> bool {
        !self.page(page).is_used() && self.page(page).published.is_some()
    }

    /// Whether somebody has it.
    pub fn is_held(&self, page: u32) -> bool {
        self.page(page).is_used()
    }

    /// Whether others than one table or reservation have it.
    pub fn is_shared(&self, page: u32) -> bool {
        self.page(page).references > 1
    }

    /// Whether it is published with more than the first `tokens` tokens of it.
    pub fn has_more(&self, page: u32, tokens: usize) -> bool {
        self.page(page).published.as_ref().is_some_and(|key| key.tokens.len() > tokens)
    }

    /// Whether who goes on behind the first `tokens` tokens of it has to leave it to others, where there is room for a copy.
    pub fn is_worth(&self, page: u32, tokens: usize) -> bool {
        self.has_children(page) || self.has_more(page, tokens)
    }

    /// Whether pages are published that are found only through it.
    pub fn has_children(&self, page: u32) -> bool {
        self.page(page).children > 0
    }

    fn page(&self, page: u32) -> &Page {
        &self.pages[page as usize]
    }

    fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.pages[page as usize]
    }

    /// `count` pages with one reference each, free ones before idle ones; none at all when there
    /// are fewer.
    pub fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.available() {
            return None;
        }
        let taken: Vec<u32> = (0..count).map(|_| self.take_one()).collect();
        Some(taken)
    }

    fn take_one(&mut self) -> u32 {
        let page = self.free.pop().unwrap_or_else(|| {
            self.evictions += 1;
            self.evict()
        });
        self.page_mut(page).references = 1;
        page
    }

    /// One more table has `page`.
    pub fn retain(&mut self, page: u32) {
        self.use_again(page);
        let references = &mut self.page_mut(page).references;
        *references += 1;
        if *references == 2 {
            self.shared += 1;
        }
    }

    /// One table less has `page`.
    pub fn release(&mut self, page: u32) {
        let references = &mut self.page_mut(page).references;
        *references -= 1;
        if *references == 1 {
            self.shared -= 1;
        }
        self.rest(page);
    }

    /// A step that reads or writes `page` has begun.
    pub fn begin(&mut self, page: u32) {
        self.use_again(page);
        self.page_mut(page).in_flight += 1;
    }

    /// That step has ended.
    pub fn end(&mut self, page: u32) {
        let ended = self.page_mut(page);
        ended.in_flight -= 1;
        if ended.in_flight == 0
            && let Some(equal) = ended.replaced_by.take()
        {
            self.end(equal);
        }
        self.rest(page);
    }

    /// An idle page is about to be used.
    fn use_again(&mut self, page: u32) {
        if self.is_idle(page) {
            self.idle -= 1;
            self.leaves.remove(&(self.page(page).released, page));
        }
    }

    /// A page that nobody uses any more becomes idle or free.
    fn rest(&mut self, page: u32) {
        if self.page(page).is_used() {
            return;
        }
        if self.page(page).published.is_none() {
            return self.free.push(page);
        }
        self.clock += 1;
        self.page_mut(page).released = self.clock;
        self.idle += 1;
        self.wait_for_eviction(page);
    }

    fn wait_for_eviction(&mut self, page: u32) {
        if !self.has_children(page) {
            self.leaves.insert((self.page(page).released, page));
        }
    }

    /// Takes the least recently used idle page that no other is found through out of the cache.
    fn evict(&mut self) -> u32 {
        let (_, page) = self.leaves.pop_first().expect("an idle page has a last one behind it");
        self.idle -= 1;
        self.unpublish(page);
        page
    }

    /// All idle pages become free.
    pub fn forget_idle(&mut self) {
        while self.idle > 0 {
            let page = self.evict();
            self.free.push(page);
        }
    }

    /// `page`, whose predecessor in its sequence is `parent`, is full of `tokens`, and can be found
    /// from now on. Returns the page to use in its place: itself, or another that holds the same;
    /// the reference goes over to that.
    pub fn publish(&mut self, page: u32, parent: Option<u32>, tokens: &[u32]) -> u32 {
        if self.published.is_none() {
            return page;
        }
        let key = Self::key(parent, tokens);
        if let Some(equal) = self.find(&key) {
            self.retain(equal);
            if self.page(page).in_flight > 0 {
                // The step may also read pages that are going to be published behind `equal`, which
                // must not rest before they do.
                self.begin(equal);
                self.page_mut(page).replaced_by = Some(equal);
            }
            self.release(page);
            return equal;
        }
        self.insert(page, key);
        page
    }

    /// The last page of a sequence that goes, with `tokens` in it: another one may begin so. Where others have the page, they
    /// still write into it, as a step in flight may; where another begins with all of that, that one is enough.
    pub fn publish_part(&mut self, page: u32, parent: Option<u32>, tokens: &[u32]) {
        let Page { references, in_flight, published, .. } = self.page(page);
        let is_free = *references == 1 && *in_flight == 0 && published.is_none();
        // Where there are states, none is behind it.
        let is_of_use = self.published.is_some() && !self.has_states() && tokens.len() >= LEAST;
        if !is_free
            || !is_of_use
            || self.find_part(parent, tokens).is_some_and(|it| it.1 == tokens.len())
        {
            return;
        }
        self.insert(page, Self::key(parent, tokens));
    }

    fn insert(&mut self, page: u32, key: PrefixKey) {
        if let Some(parent) = key.parent {
            self.page_mut(parent).children += 1;
        }
        if let Some(beginning) = Self::beginning(key.parent, &key.tokens) {
            self.begun.entry(beginning).or_default().push(page);
        }
        let key = Arc::new(key);
        self.page_mut(page).published = Some(Arc::clone(&key));
        if let Some(published) = &mut self.published {
            published.insert(key, page);
        }
    }

    /// `page`, which no other is found through, is not found any more.
    pub fn unpublish(&mut self, page: u32) {
        debug_assert!(!self.has_children(page), "pages behind page {page} are published");
        self.forget_state(page);
        let Some(key) = self.page_mut(page).published.take() else { return };
        if let Some(published) = &mut self.published {
            published.remove(&key);
        }
        if let Some(beginning) = Self::beginning(key.parent, &key.tokens)
            && let Some(begun) = self.begun.get_mut(&beginning)
        {
            begun.retain(|it| *it != page);
            if begun.is_empty() {
                self.begun.remove(&beginning);
            }
        }
        if let Some(parent) = key.parent {
            self.page_mut(parent).children -= 1;
            if self.is_idle(parent) {
                self.wait_for_eviction(parent);
            }
        }
    }

    /// The full published pages that `prompt` begins with, but for its last token; where sequences have states, as
    /// many as there is one behind.
    pub fn find_prefix(&self, prompt: &[u32]) -> Vec<u32> {
        let mut pages = Vec::new();
        let most = prompt.len().saturating_sub(1) / KV_BLOCK;
        for tokens in prompt.chunks_exact(KV_BLOCK).take(most) {
            let Some(page) = self.find(&Self::key(pages.last().copied(), tokens)) else { break };
            pages.push(page);
        }
        if self.has_states() {
            let with = pages.iter().rposition(|&page| self.page(page).state.is_some());
            pages.truncate(with.map_or(0, |last| last + 1));
        }
        pages
    }

    /// The published page behind `parent` that has the most of `tokens` at its beginning, and how many; none where
    /// sequences have states.
    pub fn find_part(&self, parent: Option<u32>, tokens: &[u32]) -> Option<(u32, usize)> {
        let begun = self.begun.get(&Self::beginning(parent, tokens)?)?;
        let parts = begun.iter().filter(|_| !self.has_states()).filter_map(|&page| {
            let its = &self.page(page).published.as_ref()?.tokens;
            let common = its.iter().zip(tokens).take_while(|(its, asked)| its == asked).count();
            // Of several the one that has nothing else: it need not be copied.
            Some((common, its.len() == common, page))
        });
        parts.max().map(|(common, _, page)| (page, common))
    }

    fn beginning(parent: Option<u32>, tokens: &[u32]) -> Option<Beginning> {
        Some((parent, *tokens.first_chunk()?))
    }

    fn find(&self, key: &PrefixKey) -> Option<u32> {
        self.published.as_ref()?.get(key).copied()
    }

    /// The key of a page with `tokens`.
    fn key(parent: Option<u32>, tokens: &[u32]) -> PrefixKey {
        PrefixKey { parent, tokens: tokens.into() }
    }

    pub fn statistics(&self) -> Statistics {
        Statistics {
            pages: self.total(),
            page_tokens: KV_BLOCK,
            free: self.free(),
            held: self.held(),
            cached: self.idle(),
            shared: self.shared,
            prefix_tokens_looked_up: self.looked_up,
            prefix_tokens_found: self.found,
            evictions: self.evictions,
            copies: self.copies,
            states: self.states.as_ref().map_or(0, |states| states.references.len()),
            states_available: self.available_states(),
        }
    }
}
