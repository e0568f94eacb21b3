//! Random workloads.

use proptest::prelude::*;

use super::super::*;
use super::driver::Driver;
use crate::pages::PagePool;

#[derive(Debug, Clone)]
enum Event {
    /// A prompt of so many tokens of one of a few texts, tokens of its own behind it, of the
    /// answer, priority.
    Add(u32, usize, usize, usize, i32),
    Cancel(usize),
    /// Cancelled between the plan and its end.
    CancelInStep(usize),
    Step,
    Fail,
    Draft(Option<(usize, usize)>),
    /// From now on so many rows beside decodes.
    Beside(usize),
    /// From now on so many pages of every prompt lie elsewhere, of which so many are fetched at a time.
    Elsewhere(usize, usize),
}

fn event() -> impl Strategy<Value = Event> {
    let tokens = prop_oneof![0..5usize, 60..70usize, 120..260usize];
    let add = (0..3u32, tokens, 0..80usize, 0..90usize, -2..3i32);
    let draft = prop::option::of((1..9usize, 0..9usize));
    prop_oneof![
        4 => add.prop_map(|(text, shared, own, answer, priority)| {
            Event::Add(text, shared, own, answer, priority)
        }),
        1 => (0..99usize).prop_map(Event::Cancel),
        1 => (0..99usize).prop_map(Event::CancelInStep),
        10 => Just(Event::Step),
        1 => Just(Event::Fail),
        1 => draft.prop_map(Event::Draft),
        1 => (1..40usize).prop_map(Event::Beside),
        1 => (0..5usize, 1..3usize).prop_map(|(pages, each)| Event::Elsewhere(pages, each)),
    ]
}

fn options() -> impl Strategy<Value = SchedulerOptions> {
    (1..12usize, 0..80usize, 1..40u32).prop_map(|(most_running, more, aging_steps)| {
        SchedulerOptions { rows: most_running + more, most_running, aging_steps }
    })
}

fn prompt(text: u32, shared: usize, own: usize, salt: u32) -> Vec<u32> {
    let text = (0..shared as u32).map(|at| text * 1000 + at);
    text.chain((0..own as u32).map(|at| salt * 1000 + at)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Every plan keeps its promises ([`Driver::plan`]), and every request that is not cancelled
    /// finishes with the tokens that it has when it is alone.
    #[test]
    fn every_request_finishes_with_its_tokens(
        options in options(),
        pages in 2..16usize,
        // Where layers keep states nothing is drafted, and nothing is found elsewhere.
        states: bool,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let mut driver = Driver::new(&options, pages);
        if states {
            driver.pages.pool = PagePool::with_states(pages, 2 * options.most_running, true);
        }
        let mut added = Vec::new();
        let mut cancelled = 0;
        for (salt, event) in (10..).zip(events) {
            match event {
                Event::Add(text, shared, own, max_new_tokens, priority) => {
                    let prompt = prompt(text, shared, own, salt);
                    let needed = pages_of(prompt.len() + max_new_tokens.saturating_sub(1));
                    let empty = prompt.is_empty();
                    match driver.add(Request { prompt, max_new_tokens, priority }) {
                        Ok(id) => added.push(id),
                        Err(Error::EmptyPrompt) => prop_assert!(empty),
                        Err(Error::RequestTooLarge { needed: said, total }) => {
                            prop_assert!(needed > pages);
                            prop_assert_eq!((said, total), (needed, pages));
                        }
                        Err(other) => return Err(TestCaseError::fail(other.to_string())),
                    }
                }
                Event::Cancel(which) | Event::CancelInStep(which) if !added.is_empty() => {
                    let id = added[which % added.len()];
                    let plan = matches!(event, Event::CancelInStep(_)).then(|| driver.plan());
                    cancelled += usize::from(driver.expected.contains_key(&id));
                    driver.cancel(id);
                    if let Some(mut plan) = plan {
                        if let Some(at) = plan.runs.iter().position(|run| run.request == id) {
                            let run = plan.runs.remove(at);
                            prop_assert_eq!(driver.scheduler.completed(&run, &[]), State::Finished);
                        }
                        driver.run(&plan, false);
                    }
                }
                Event::Cancel(_) | Event::CancelInStep(_) => {}
                Event::Step => drop(driver.step()),
                Event::Fail => {
                    let plan = driver.plan();
                    driver.run(&plan, true);
                }
                Event::Draft(_) | Event::Elsewhere(..) if states => {}
                Event::Draft(drafts) => driver.drafts = drafts,
                Event::Beside(rows) => driver.beside = rows,
                Event::Elsewhere(pages, each) => driver.pages.elsewhere = (pages, each),
            }
        }
        driver.finish();
        prop_assert_eq!(driver.finished.len() + cancelled, added.len());
    }
}
