//! The plan of one step.

use kernels::KV_BLOCK;

use super::request::{Rank, Tracked};
use super::{Pages, RequestId, Scheduler};
use crate::pages::piece;

/// What the next step runs. The rows of all runs are within
/// [`SchedulerOptions::rows`](super::SchedulerOptions::rows), and the pages they take are
/// available.
///
/// A plan without runs, while requests wait and none [fetches](Scheduler::fetches), means that their pages
/// are held by others than the scheduler's requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// One run a request.
    pub runs: Vec<Run>,
    /// Requests that were preempted for it; their pages have been given back.
    pub preempted: Vec<RequestId>,
}

/// The rows of one request in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Whose.
    pub request: RequestId,
    /// Position of the first row: as many tokens its sequence holds.
    pub start: usize,
    /// Tokens to run, `[rows]`; the last `drafted` of them are drafted.
    pub tokens: Vec<u32>,
    /// Tokens that may turn out wrong. The step says what follows each of them and the one before
    /// them.
    pub drafted: usize,
    /// Whether the token that follows is wanted; it is not within a prompt.
    pub wanted: bool,
}

impl Run {
    /// Tokens that are not drafted.
    pub fn certain(&self) -> usize {
        self.tokens.len() - self.drafted
    }

    /// Tokens that the sequence is to keep after the step if `sampled` tokens came of it: the rest
    /// were drafted and wrong, and are truncated.
    pub fn kept(&self, sampled: usize) -> usize {
        self.start + self.certain() + sampled.saturating_sub(1)
    }
}

/// A plan in the making.
#[derive(Default)]
struct Draft {
    /// With the pages that each takes.
    runs: Vec<(Run, usize)>,
    preempted: Vec<RequestId>,
}

impl Draft {
    fn rows(&self) -> usize {
        self.runs.iter().map(|(run, _)| run.tokens.len()).sum()
    }

    /// Pages that no run takes.
    fn spare(&self, pages: &impl Pages) -> usize {
        let taken: usize = self.runs.iter().map(|(_, pages)| pages).sum();
        pages.available().saturating_sub(taken)
    }
}

impl Scheduler {
    /// Decides what the next step runs; starts and gives back sequences in `pages` accordingly. Beside
    /// decodes it has at most `beside` rows (1, where that is 0) of prompts and drafts.
    pub fn schedule(&mut self, pages: &mut impl Pages, beside: usize) -> Plan {
        let mut draft = Draft::default();
        let decoding = self.running_where(Tracked::decodes);
        for &rank in &decoding {
            self.plan_run(rank, 1, pages, &mut draft);
        }
        let beside = if draft.runs.is_empty() { usize::MAX } else { beside.max(1) };
        let room = beside.min(self.options.rows - draft.rows());
        let mut rows = room - self.drafted().min(room / 2);
        for rank in self.running_where(|it| !it.decodes() && !it.fetches) {
            rows -= self.admit(rows, Some(rank), pages, &mut draft);
            if rows > 0 {
                rows -= self.plan_run(rank, rows, pages, &mut draft);
            }
        }
        self.admit(rows, None, pages, &mut draft);
        self.plan_drafts(&decoding, beside, pages, &mut draft);
        if !draft.runs.is_empty() {
            self.steps += 1;
        }
        Plan {
            runs: draft.runs.into_iter().map(|(run, _)| run).collect(),
            preempted: draft.preempted,
        }
    }

    fn running_where(&self, which: impl Fn(&Tracked) -> bool) -> Vec<Rank> {
        let running = self.running.iter();
        running.filter(|(_, it)| which(it)).map(|(&rank, _)| rank).collect()
    }

    /// Plans up to `most` rows of a running request, as many as there are pages for, but one at
    /// least, or all where that has to be: for that, others are preempted from the last rank up to this one. Returns the
    /// number of rows.
    fn plan_run(
        &mut self,
        rank: Rank,
        most: usize,
        pages: &mut impl Pages,
        draft: &mut Draft,
    ) -> usize {
        while let Some(tracked) = self.running.get(&rank) {
            let spare = draft.spare(pages);
            if pages.runs_whole() && most < tracked.behind() {
                return 0;
            }
            let mut rows = most.min(tracked.behind());
            while rows > 0 && pages.needed(tracked.id, rows) > spare {
                let end = tracked.computed + rows;
                rows = ((end - 1) / KV_BLOCK * KV_BLOCK).saturating_sub(tracked.computed);
            }
            if pages.runs_whole() && rows < tracked.behind() {
                rows = 0;
            }
            if pages.has_states() {
                rows = piece(tracked.computed, rows, tracked.behind());
            }
            if rows > 0 {
                draft.runs.push((tracked.run(rows), pages.needed(tracked.id, rows)));
                return rows;
            }
            self.preempt_last(pages, draft);
        }
        0
    }

    fn preempt_last(&mut self, pages: &mut impl Pages, draft: &mut Draft) {
        let Some((rank, mut tracked)) = self.running.pop_last() else { return };
        pages.give_back(tracked.id);
        draft.runs.retain(|(run, _)| run.request != tracked.id);
        // Whether a page is copied depends on how many there are.
        for (run, needed) in &mut draft.runs {
            *needed = pages.needed(run.request, run.tokens.len());
        }
        draft.preempted.push(tracked.id);
        tracked.preempt();
        self.waiting.insert(rank, tracked);
        self.preemptions += 1;
    }

    /// Starts waiting requests that rank before `before` in `rows` rows, as long as nobody was preempted, the first of
    /// them fits beside all that the running ones need for the tokens they have, and none of these computes what it
    /// begins with. Returns the number of rows.
    fn admit(
        &mut self,
        rows: usize,
        before: Option<Rank>,
        pages: &mut impl Pages,
        draft: &mut Draft,
    ) -> usize {
        let mut used = 0;
        while used < rows
            && draft.preempted.is_empty()
            && self.running.len() < self.options.most_running
        {
            let Some((&rank, tracked)) = self.waiting.first_key_value() else { break };
            if before.is_some_and(|before| before < rank) {
                break;
            }
            if pages.runs_whole() && rows - used < tracked.tokens.len() {
                break;
            }
            let cached = pages.cached_prefix(tracked.id, &tracked.tokens);
            if cached.is_some_and(|cached| {
                self.computes_next_page(&tracked.tokens, cached.tokens, pages.has_states())
            }) {
                break;
            }
            let cached = cached.unwrap_or_default();
            let needed = tracked.pages_to_start() - cached.tokens / KV_BLOCK + cached.idle;
            if needed + self.promised(pages) > pages.available() {
                break;
            }
            let mut tracked = self.waiting.remove(&rank).expect("the first one");
            tracked.hold(pages.start(tracked.id, &tracked.tokens));
            let fetches = tracked.fetches;
            self.running.insert(rank, tracked);
            // It may share the last page of another now, who would have to copy that.
            if self.promised(pages) > pages.available() {
                let mut tracked = self.running.remove(&rank).expect("the one that started");
                pages.give_back(tracked.id);
                tracked.give_back();
                self.waiting.insert(rank, tracked);
                break;
            }
            if !fetches {
                used += self.plan_run(rank, rows - used, pages, draft);
            }
        }
        used
    }

    /// Whether a running request is going to publish the page of `tokens` behind the first `cached`,
    /// which a request that starts with them could adopt; where sequences have states, with one behind it or a later
    /// page.
    fn computes_next_page(&self, tokens: &[u32], cached: usize, has_states: bool) -> bool {
        let end = cached + KV_BLOCK;
        // The last token is always left to be run.
        if end >= tokens.len() {
            return false;
        }
        let mut running = self.running.values();
        running.any(|it| {
            let ends = it.computed + piece(it.computed, self.options.rows, it.behind());
            // One that computes all of it anew, for its own sake, has a long way to that page.
            (cached..end).contains(&it.computed)
                && it.tokens.starts_with(&tokens[..end])
                && (!has_states || tokens.starts_with(&it.tokens[..ends]))
        })
    }

    /// Pages that the running requests take until all their tokens are in their sequences.
    fn promised(&self, pages: &impl Pages) -> usize {
        self.running.values().map(|it| pages.needed(it.id, it.behind())).sum()
    }

    /// Tokens that are drafted.
    fn drafted(&self) -> usize {
        self.running.values().filter(|it| it.decodes()).map(|it| it.drafts.len()).sum()
    }

    /// Adds drafted tokens to those that were `decoding` before (by rank), as long as there are pages that nobody
    /// else takes, and of the rows `beside` them some that no prompt has.
    fn plan_drafts(&self, decoding: &[Rank], beside: usize, pages: &impl Pages, draft: &mut Draft) {
        let decodes = |run: &Run| decoding.binary_search(&self.ranks[&run.request]).is_ok();
        let singles = draft.runs.iter().filter(|(run, _)| decodes(run)).count();
        let prompts = draft.rows() - singles;
        let mut rows = (self.options.rows - draft.rows()).min(beside.saturating_sub(prompts));
        let taken = draft.runs.iter().map(|(run, _)| pages.needed(run.request, run.tokens.len()));
        let mut spare = pages.available().saturating_sub(taken.sum());
        for (run, _) in &mut draft.runs {
            if !decodes(run) {
                continue;
            }
            let tracked = &self.running[&self.ranks[&run.request]];
            // The last token of an answer is never run, so that none is drafted after it.
            let most = tracked.drafts.len().min(tracked.left - 1).min(rows);
            let needed = |rows| pages.needed(run.request, rows);
            let more = |drafted| needed(1 + drafted) - needed(1);
            let drafted = (1..=most).rev().find(|&it| more(it) <= spare).unwrap_or(0);
            spare -= more(drafted);
            rows -= drafted;
            run.tokens.extend(&tracked.drafts[..drafted]);
            run.drafted = drafted;
        }
    }
}
