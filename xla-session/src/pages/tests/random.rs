//! Random interleavings of everything that can happen to the sequences of a pool.

use kernels::KV_BLOCK;
use proptest::prelude::*;

use super::super::memory::Memory;
use super::super::*;

/// One thing that happens to the sequences of a pool; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Event {
    New,
    Fork(usize),
    Drop(usize),
    Truncate(usize, usize),
    /// A prompt of runs of equal tokens, so that prompts begin alike now and then.
    Resume(usize, Vec<u32>),
    /// A step of runs: sequence, rows, how many of these are written, token. It fails or not.
    Step(Vec<(usize, usize, usize, u32)>, bool),
    /// As a step, but the device stays busy until the next `Land`.
    Launch(usize, usize),
    Land,
}

fn rows() -> impl Strategy<Value = usize> {
    prop_oneof![1..4usize, 60..70usize, Just(KV_BLOCK), Just(2 * KV_BLOCK), 100..200usize]
}

fn event() -> impl Strategy<Value = Event> {
    let run = (0..9usize, rows(), 0..200usize, 0..2u32);
    prop_oneof![
        2 => Just(Event::New),
        2 => (0..9usize).prop_map(Event::Fork),
        2 => (0..9usize).prop_map(Event::Drop),
        2 => (0..9usize, 0..400usize).prop_map(|(which, to)| Event::Truncate(which, to)),
        3 => (0..9usize, prop::collection::vec(0..2u32, 1..5))
            .prop_map(|(which, runs)| Event::Resume(which, runs)),
        8 => (prop::collection::vec(run, 1..4), prop::bool::weighted(0.2))
            .prop_map(|(runs, fails)| Event::Step(runs, fails)),
        1 => (0..9usize, rows()).prop_map(|(which, rows)| Event::Launch(which, rows)),
        1 => Just(Event::Land),
    ]
}

/// Pages that a run needs, by counting who has what.
fn needed(tables: &[PageTable], which: usize, rows: usize) -> std::ops::RangeInclusive<usize> {
    let table = &tables[which];
    let growth = (table.len() + rows).div_ceil(KV_BLOCK) - table.pages().len();
    let Some(&last) = table.pages().last().filter(|_| !table.len().is_multiple_of(KV_BLOCK)) else {
        return growth..=growth;
    };
    let holders = tables.iter().filter(|it| it.pages().contains(&last)).count();
    // A page of one's own is copied for the sake of what the cache knows of it, and behind it, of which this knows
    // nothing.
    if holders > 1 { growth + 1..=growth + 1 } else { growth..=growth + 1 }
}

/// Tokens and pages of every sequence.
fn contents(tables: &[PageTable]) -> Vec<(Vec<u32>, Vec<u32>)> {
    tables.iter().map(|it| (it.tokens.clone(), it.pages.clone())).collect()
}

fn check(pool: &PagePool, memory: &Memory, tables: &[PageTable], flights: &[PagesInFlight]) {
    tables.iter().for_each(|table| memory.check(table));
    let statistics = pool.statistics();
    let mut holders = vec![0; pool.total()];
    tables.iter().flat_map(|it| it.pages()).for_each(|&page| holders[page as usize] += 1);
    let shared = holders.iter().filter(|&&it| it > 1).count();
    let flying = flights.iter().flat_map(|it| &it.pages);
    flying.for_each(|&page| holders[page as usize] += 1);
    let held = holders.iter().filter(|&&it| it > 0).count();
    assert_eq!(statistics.shared, shared);
    // A page in flight that was replaced by an equal one keeps that one too.
    assert!(if flights.is_empty() { statistics.held == held } else { statistics.held >= held });
    assert_eq!(statistics.free + statistics.held + statistics.cached, statistics.pages);
    for table in tables.iter().filter(|_| !pool.has_states()) {
        // What a sequence has, another can have too.
        let found = pool.cached_prefix(&[table.tokens(), &[0]].concat()).tokens;
        assert!(found >= table.len() / KV_BLOCK * KV_BLOCK, "{found} of {}", table.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happens, the pages of every sequence hold its tokens; none is lost and none is
    /// counted twice; and a step fails only where there are too few, without a trace.
    #[test]
    fn pages_hold_the_tokens_of_everyone_who_has_them(
        pages in 3..14usize,
        // None where layers keep none.
        states in prop_oneof![Just(0), 1..12usize],
        events in prop::collection::vec(event(), 1..60),
    ) {
        let pool = match states {
            0 => PagePool::new(pages),
            _ => PagePool::with_states(pages, states, true),
        };
        let mut memory = Memory::new(pages);
        let mut tables: Vec<PageTable> = vec![pool.table()];
        let mut flights: Vec<PagesInFlight> = Vec::new();
        for event in events {
            let count = tables.len();
            match event {
                Event::New => tables.push(pool.table()),
                Event::Fork(which) if count > 0 => tables.push(tables[which % count].fork()),
                Event::Drop(which) if count > 0 => drop(tables.swap_remove(which % count)),
                Event::Truncate(which, to) if count > 0 => tables[which % count].truncate(to),
                Event::Resume(which, runs) if count > 0 => {
                    let prompt: Vec<u32> = runs.iter().flat_map(|&it| [it; KV_BLOCK]).collect();
                    let table = &mut tables[which % count];
                    let found = table.resume(&prompt);
                    prop_assert!(found < prompt.len());
                    prop_assert_eq!(table.tokens(), &prompt[..found]);
                }
                Event::Launch(which, rows) if count > 0 => {
                    let which = which % count;
                    let Ok(reservation) = tables[which].reserve(rows) else { continue };
                    flights.push(reservation.in_flight());
                    let step = vec![(reservation, vec![1; rows])];
                    memory.run(&step);
                    step.into_iter().for_each(|(it, tokens)| it.commit(&tokens));
                }
                Event::Land => flights.clear(),
                Event::Step(mut runs, fails) if count > 0 => {
                    runs.iter_mut().for_each(|run| run.0 %= count);
                    runs.sort();
                    runs.dedup_by_key(|run| run.0);
                    let range = runs.iter().map(|run| needed(&tables, run.0, run.1));
                    let ranges: Vec<_> = range.collect();
                    let least: usize = ranges.iter().map(|it| it.start()).sum();
                    let most: usize = ranges.iter().map(|it| it.end()).sum();
                    let before = contents(&tables);
                    let (available, held) = (pool.available(), pool.held());
                    let available_states = pool.available_states();
                    let mut step = Vec::new();
                    for (index, table) in tables.iter_mut().enumerate() {
                        let Some(run) = runs.iter().find(|run| run.0 == index) else { continue };
                        let Ok(reservation) = table.reserve(run.1) else { break };
                        step.push((reservation, vec![run.3; run.1]));
                    }
                    let whole = step.len() == runs.len();
                    let stated = states == 0 || runs.len() <= available_states;
                    let expected =
                        if whole { least <= available && stated } else { most > available || !stated };
 prop_assert!(expected);
                    if whole {
                        memory.run(&step);
                    }
                    if whole && !fails {
                        for ((reservation, tokens), run) in step.into_iter().zip(&runs) {
                            // A state is of all rows.
                            let written = if states > 0 && run.2 > 0 { run.1 } else { run.2 };
                            reservation.commit(&tokens[..written.min(run.1)]);
                        }
                    } else {
                        drop(step);
                        let after = contents(&tables);
                        prop_assert_eq!(before, after);
                        prop_assert_eq!((available, held), (pool.available(), pool.held()));
                        prop_assert_eq!(available_states, pool.available_states());
                    }
                }
                _ => {}
            }
            check(&pool, &memory, &tables, &flights);
        }
        drop((tables, flights));
        prop_assert_eq!((pool.held(), pool.statistics().shared), (0, 0));
        prop_assert_eq!(pool.available_states(), states);
        pool.forget_prefixes();
        prop_assert_eq!(pool.free(), pages);
        let mut taken: Vec<_> = (0..states).map(|_| pool.table()).collect();
        for table in taken.iter_mut().take(pages) {
            prop_assert!(table.reserve(1).is_ok());
        }
    }
}
