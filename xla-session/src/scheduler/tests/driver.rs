//! A driver with real pages and a model whose next token is a number made of all tokens before it.

use std::collections::{HashMap, HashSet};

use crate::pages::memory::Memory;
use crate::pages::{PagePool, PageTable, Reservation};

use super::super::*;

/// The sequences of the requests that run.
pub struct Tables {
    pub pool: PagePool,
    pub tables: HashMap<RequestId, PageTable>,
    memory: Memory,
    /// Pages of every prompt that lie elsewhere, and how many of them are fetched before a step.
    pub elsewhere: (usize, usize),
    /// Requests that run all of their prompts, whatever the prefix cache has.
    pub anew: HashSet<RequestId>,
    /// Whether prompts are run whole.
    pub whole: bool,
}

impl Tables {
    fn held(&self, table: &PageTable, tokens: &[u32]) -> Held {
        let whole = (table.len() / KV_BLOCK + 1) * KV_BLOCK;
        Held {
            tokens: table.len(),
            more: whole < tokens.len() && whole <= self.elsewhere.0 * KV_BLOCK,
        }
    }
}

impl Pages for Tables {
    fn available(&self) -> usize {
        self.pool.available()
    }

    fn has_states(&self) -> bool {
        self.pool.has_states()
    }

    fn runs_whole(&self) -> bool {
        self.whole
    }

    fn needed(&self, request: RequestId, rows: usize) -> usize {
        self.tables[&request].needed(rows)
    }

    fn cached_prefix(&self, request: RequestId, tokens: &[u32]) -> Option<CachedPrefix> {
        let finds = self.pool.has_prefix_cache() && !self.anew.contains(&request);
        finds.then(|| self.pool.cached_prefix(tokens))
    }

    fn start(&mut self, request: RequestId, tokens: &[u32]) -> Held {
        let mut table = self.pool.table();
        if !self.anew.contains(&request) {
            table.resume(tokens);
        }
        let held = self.held(&table, tokens);
        assert!(self.tables.insert(request, table).is_none(), "{request:?} started twice");
        held
    }

    fn fetch(&mut self, request: RequestId, tokens: &[u32]) -> Held {
        let mut table = self.tables.remove(&request).expect("it has started");
        let mut held = self.held(&table, tokens);
        for _ in 0..self.elsewhere.1 {
            if !held.more {
                break;
            }
            let (start, end) = (held.tokens, (held.tokens / KV_BLOCK + 1) * KV_BLOCK);
            let page = tokens[start..end].to_vec();
            let Ok(reservation) = table.reserve(page.len()) else {
                // They belong to others.
                held.more = false;
                break;
            };
            let step = [(reservation, page)];
            self.memory.run(&step);
            step.into_iter().for_each(|(it, page)| it.commit(&page));
            held = self.held(&table, tokens);
        }
        self.tables.insert(request, table);
        held
    }

    fn give_back(&mut self, request: RequestId) {
        assert!(self.tables.remove(&request).is_some(), "{request:?} has no pages");
    }
}

/// The token that follows `tokens`.
pub fn next_token(tokens: &[u32]) -> u32 {
    let hash = tokens.iter().fold(7u32, |hash, &token| (hash ^ token).wrapping_mul(0x0100_0193));
    hash >> 24
}

/// `request`'s prompt and all its answer.
pub fn alone(request: &Request) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    for _ in 0..request.max_new_tokens {
        tokens.push(next_token(&tokens));
    }
    tokens
}

/// Drives a scheduler, and checks everything that is promised of every plan.
pub struct Driver {
    pub scheduler: Scheduler,
    pub pages: Tables,
    /// What every unfinished request will have in the end.
    pub expected: HashMap<RequestId, Vec<u32>>,
    pub finished: Vec<RequestId>,
    /// Rows beside decodes.
    pub beside: usize,
    /// Tokens proposed to every request before a step, and how many of them are right.
    pub drafts: Option<(usize, usize)>,
}

impl Driver {
    pub fn new(options: &SchedulerOptions, pages: usize) -> Self {
        let (pool, memory) = (PagePool::new(pages), Memory::new(pages));
        Self {
            scheduler: Scheduler::new(options, pages).unwrap(),
            pages: Tables {
                pool,
                tables: HashMap::new(),
                memory,
                elsewhere: (0, 1),
                anew: HashSet::new(),
                whole: false,
            },
            expected: HashMap::new(),
            finished: Vec::new(),
            beside: 64,
            drafts: None,
        }
    }

    pub fn add(&mut self, request: Request) -> Result<RequestId> {
        let expected = alone(&request);
        let id = self.scheduler.add(request)?;
        self.expected.insert(id, expected);
        Ok(id)
    }

    pub fn cancel(&mut self, request: RequestId) {
        assert_eq!(self.scheduler.finish(request), self.expected.remove(&request).is_some());
        self.pages.tables.remove(&request);
    }

    /// Plans a step and checks the plan.
    pub fn plan(&mut self) -> Plan {
        self.scheduler.fetch(&mut self.pages);
        let fetching = self.running(|it| it.fetches);
        let decoding: Vec<RequestId> = self.running(Tracked::decodes);
        let running: HashSet<RequestId> = self.running(|_| true).into_iter().collect();
        if let Some((drafted, right)) = self.drafts {
            for &id in &running {
                let have = self.scheduler.tokens(id).unwrap().len();
                let tokens = self.expected[&id].iter().skip(have).chain([0; 64].iter());
                let wrong =
                    |(at, &token): (usize, &u32)| if at < right { token } else { token + 1 };
                let drafts = tokens.take(drafted).enumerate().map(wrong).collect();
                self.scheduler.draft(id, drafts);
            }
        }
        let plan = self.scheduler.schedule(&mut self.pages, self.beside);
        let options = &self.scheduler.options;
        let rows = |which: &dyn Fn(&Run) -> bool| -> usize {
            plan.runs.iter().filter(|run| which(run)).map(|run| run.tokens.len()).sum()
        };
        assert!(rows(&|_| true) <= options.rows);
        assert!(self.scheduler.running() <= options.most_running);
        // The bound on the gap: all that decode have a row, and all else a bounded number.
        for id in &decoding {
            let runs = plan.runs.iter().any(|run| run.request == *id);
            assert!(runs || plan.preempted.contains(id), "{id:?} has no row");
        }
        if plan.runs.iter().any(|run| decoding.contains(&run.request)) {
            let singles = plan.runs.iter().filter(|run| decoding.contains(&run.request)).count();
            let others = rows(&|_| true) - singles;
            assert!(others <= self.beside, "{others} rows beside decodes");
        }
        for id in &fetching {
            assert!(plan.runs.iter().all(|run| run.request != *id), "{id:?} is not there yet");
        }
        // Ranks: nobody overtakes, and the last are preempted.
        let rank = |id: &RequestId| self.scheduler.ranks[id];
        for (admitted, _) in
            self.scheduler.running.iter().filter(|(_, it)| !running.contains(&it.id))
        {
            assert!(plan.preempted.is_empty());
            assert!(self.scheduler.waiting.keys().all(|waiting| admitted < waiting));
        }
        for preempted in &plan.preempted {
            assert!(self.scheduler.running.keys().all(|running| *running < rank(preempted)));
            assert_eq!(self.scheduler.state(*preempted), State::Preempted);
        }
        let once: HashSet<RequestId> = plan.runs.iter().map(|run| run.request).collect();
        assert_eq!(once.len(), plan.runs.len());
        for run in &plan.runs {
            assert_eq!(run.start, self.pages.tables[&run.request].len(), "{run:?}");
            let expected = &self.expected[&run.request];
            let certain = run.start + run.tokens.len() - run.drafted;
            assert!(run.start < certain);
            assert_eq!(run.tokens[..certain - run.start], expected[run.start..certain]);
            let have = self.scheduler.tokens(run.request).unwrap().len();
            assert_eq!(run.wanted, certain == have && have < expected.len());
        }
        plan
    }

    /// Runs `plan`, whose pages there must be; `fails` on the way to the end.
    pub fn run(&mut self, plan: &Plan, fails: bool) {
        let mut step: Vec<(Reservation<'_>, Vec<u32>)> = Vec::new();
        for (id, table) in &mut self.pages.tables {
            let Some(run) = plan.runs.iter().find(|run| run.request == *id) else { continue };
            let reservation = table.reserve(run.tokens.len()).expect("pages for what was planned");
            step.push((reservation, run.tokens.clone()));
        }
        assert_eq!(step.len(), plan.runs.len());
        self.pages.memory.run(&step);
        if fails {
            drop(step);
        } else {
            step.into_iter().for_each(|(reservation, tokens)| reservation.commit(&tokens));
            plan.runs.iter().for_each(|run| self.complete(run));
        }
        self.pages.tables.values().for_each(|table| self.pages.memory.check(table));
    }

    fn complete(&mut self, run: &Run) {
        let table = self.pages.tables.get_mut(&run.request).unwrap();
        let mut sampled = Vec::new();
        if run.wanted {
            let certain = run.tokens.len() - run.drafted;
            for rows in certain..=run.tokens.len() {
                sampled.push(next_token(&table.tokens()[..run.start + rows]));
                if run.tokens.get(rows) != sampled.last() {
                    break;
                }
            }
        }
        table.truncate(run.kept(sampled.len()));
        let mut tokens = self.scheduler.tokens(run.request).unwrap().to_vec();
        tokens.extend(&sampled);
        if self.scheduler.completed(run, &sampled) == State::Finished {
            assert_eq!(Some(tokens), self.expected.remove(&run.request));
            self.pages.tables.remove(&run.request);
            self.finished.push(run.request);
        }
    }

    pub fn step(&mut self) -> Plan {
        let plan = self.plan();
        self.run(&plan, false);
        plan
    }

    /// Steps until everything has finished; returns their number.
    pub fn finish(&mut self) -> usize {
        let mut steps = 0;
        while !self.expected.is_empty() {
            let plan = self.step();
            let anything = !plan.runs.is_empty() || !plan.preempted.is_empty();
            assert!(anything || self.scheduler.fetches(), "a step without anything");
            steps += 1;
            assert!(steps < 20_000, "{:?} never finish", self.scheduler);
        }
        assert_eq!((self.scheduler.running(), self.scheduler.waiting()), (0, 0));
        assert_eq!(self.pages.pool.held(), 0);
        steps
    }

    fn running(&self, which: impl Fn(&Tracked) -> bool) -> Vec<RequestId> {
        self.scheduler.running.values().filter(|it| which(it)).map(|it| it.id).collect()
    }
}
