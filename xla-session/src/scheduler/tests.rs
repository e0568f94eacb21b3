mod driver;
mod random;

use super::*;
use driver::Driver;

fn request(prompt: std::ops::Range<u32>, max_new_tokens: usize, priority: i32) -> Request {
    Request { prompt: prompt.collect(), max_new_tokens, priority }
}

/// Requests and rows of a plan.
fn rows(plan: &Plan) -> Vec<(RequestId, usize)> {
    plan.runs.iter().map(|run| (run.request, run.tokens.len())).collect()
}

#[test]
fn a_prompt_alone_takes_the_whole_step() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    let id = driver.add(request(0..600, 2, 0)).unwrap();
    assert_eq!(rows(&driver.step()), [(id, 256)]);
    assert_eq!(rows(&driver.step()), [(id, 256)]);
    let last = driver.step();
    assert_eq!(rows(&last), [(id, 88)]);
    assert!(last.runs[0].wanted);
    assert_eq!(rows(&driver.step()), [(id, 1)]);
    assert_eq!(driver.scheduler.state(id), State::Finished);
}

#[test]
fn beside_decodes_prompts_share_a_bounded_number_of_rows() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    let stream = driver.add(request(0..5, 50, 0)).unwrap();
    driver.step();
    let long = driver.add(request(1000..1100, 5, 0)).unwrap();
    let short = driver.add(request(2000..2040, 5, 0)).unwrap();
    assert_eq!(rows(&driver.step()), [(stream, 1), (long, 64)]);
    assert_eq!(rows(&driver.step()), [(stream, 1), (long, 36), (short, 28)]);
    assert_eq!(rows(&driver.step()), [(stream, 1), (long, 1), (short, 12)]);
}

#[test]
fn rows_beside_decodes_are_as_many_as_each_step_is_allowed() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    let stream = driver.add(request(0..5, 50, 0)).unwrap();
    driver.step();
    let long = driver.add(request(1000..1400, 5, 0)).unwrap();
    for beside in [8, 40, 1, 200] {
        driver.beside = beside;
        assert_eq!(rows(&driver.step()), [(stream, 1), (long, beside)]);
    }
    // A step without any prompt's would never bring that to its end.
    let plan = driver.scheduler.schedule(&mut driver.pages, 0);
    assert_eq!(rows(&plan), [(stream, 1), (long, 1)]);
}

#[test]
fn requests_without_a_token_are_counted_wherever_they_are() {
    let options = SchedulerOptions { most_running: 3, ..Default::default() };
    let mut driver = Driver::new(&options, 64);
    driver.add(request(0..5, 50, 0)).unwrap();
    assert_eq!((driver.scheduler.prompts(), driver.scheduler.streams()), (1, 0));
    driver.step();
    assert_eq!((driver.scheduler.prompts(), driver.scheduler.streams()), (0, 1));
    // One that runs to its end, one of which a part runs, one that finds no place.
    for (at, length) in [(1000, 40), (2000, 100), (3000, 10)] {
        driver.add(request(at..at + length, 50, 0)).unwrap();
    }
    driver.step();
    assert_eq!(driver.scheduler.waiting(), 1);
    assert_eq!((driver.scheduler.prompts(), driver.scheduler.streams()), (2, 2));
}

#[test]
fn drafts_and_prompts_share_the_rows_beside_decodes() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    let stream = driver.add(request(0..5, 200, 0)).unwrap();
    driver.step();
    driver.beside = 20;
    driver.drafts = Some((30, 30));
    assert_eq!(rows(&driver.step()), [(stream, 21)]);
    let long = driver.add(request(1000..1100, 5, 0)).unwrap();
    assert_eq!(rows(&driver.step()), [(stream, 11), (long, 10)]);
    driver.drafts = Some((3, 3));
    assert_eq!(rows(&driver.step()), [(stream, 4), (long, 17)]);
}

/// Its page is still in the prefix cache when it starts again, so that it has one row, as a stream has.
#[test]
fn who_starts_again_is_beside_the_decodes_of_a_step() {
    let options = SchedulerOptions { most_running: 3, ..Default::default() };
    let mut driver = Driver::new(&options, 4);
    let stream = driver.add(request(0..1, 60, 0)).unwrap();
    let other = driver.add(request(1000..1064, 2, 0)).unwrap();
    let last = driver.add(request(2000..2064, 5, 0)).unwrap();
    assert_eq!(rows(&driver.step()), [(stream, 1), (other, 64), (last, 64)]);
    let plan = driver.step();
    assert_eq!((rows(&plan), plan.preempted), (vec![(stream, 1), (other, 1)], vec![last]));
    driver.beside = 4;
    driver.drafts = Some((20, 0));
    assert_eq!(rows(&driver.step()), [(stream, 4), (last, 1)]);
    driver.finish();
}

#[test]
fn requests_start_by_priority_then_by_arrival() {
    let options = SchedulerOptions { most_running: 1, ..Default::default() };
    let mut driver = Driver::new(&options, 64);
    let ids: Vec<_> = [0, 1, 0, 5].map(|it| driver.add(request(0..5, 2, it)).unwrap()).into();
    driver.finish();
    assert_eq!(driver.finished, [ids[3], ids[1], ids[0], ids[2]]);
}

#[test]
fn a_prompt_that_has_begun_lets_those_of_higher_priority_go_first() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    let long = driver.add(request(0..1000, 2, 0)).unwrap();
    assert_eq!(rows(&driver.step()), [(long, 256)]);
    let alike = driver.add(request(3000..3010, 2, 0)).unwrap();
    let urgent = driver.add(request(2000..2005, 2, 5)).unwrap();
    assert_eq!(rows(&driver.step()), [(urgent, 5), (long, 251)]);
    assert_eq!(driver.scheduler.state(alike), State::Waiting);
    driver.finish();
    assert_eq!(driver.finished, [urgent, long, alike]);
}

#[test]
fn waiting_is_worth_priority() {
    let options = SchedulerOptions { most_running: 1, aging_steps: 10, ..Default::default() };
    let mut driver = Driver::new(&options, 64);
    let low = driver.add(request(0..5, 2, 0)).unwrap();
    // Requests of a higher priority without end, faster than they can be served.
    while !driver.finished.contains(&low) {
        driver.add(request(100..105, 2, 2)).unwrap();
        driver.step();
    }
    // Those of the first 20 steps rank before it, and those after it.
    assert_eq!(driver.finished.len(), 21);
    driver.finish();
}

#[test]
fn a_waiting_request_is_not_overtaken_by_smaller_ones() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 4);
    let first = driver.add(request(0..100, 20, 0)).unwrap();
    driver.step();
    let large = driver.add(request(1000..1150, 2, 0)).unwrap();
    let small = driver.add(request(2000..2005, 2, 0)).unwrap();
    driver.step();
    assert_eq!(driver.scheduler.state(large), State::Waiting);
    assert_eq!(driver.scheduler.state(small), State::Waiting);
    driver.finish();
    assert_eq!(driver.finished[0], first);
}

#[test]
fn a_request_starts_only_beside_the_pages_that_others_still_take_and_one_to_spare() {
    let options = SchedulerOptions { rows: 700, ..Default::default() };
    let mut driver = Driver::new(&options, 11);
    driver.add(request(0..600, 5, 0)).unwrap();
    let small = driver.add(request(1000..1005, 100, 0)).unwrap();
    assert_eq!(driver.step().runs.len(), 1);
    assert_eq!(driver.scheduler.state(small), State::Waiting);
    driver.finish();
    assert_eq!(driver.scheduler.preemptions(), 0);
}

#[test]
fn what_was_guessed_and_taken_back_is_no_prefix() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 3);
    let first = driver.add(request(0..60, 20, 0)).unwrap();
    driver.step();
    // Wrong tokens fill the first page.
    driver.drafts = Some((4, 0));
    let filled = (0..60).chain(driver.step().runs[0].tokens.clone()).collect::<Vec<u32>>();
    driver.drafts = None;
    let prompt = [&filled[..64], &[7]].concat();
    assert_eq!(driver.pages.pool.cached_prefix(&prompt).tokens, 0);
    driver.step();
    assert_eq!(driver.pages.pool.statistics().copies, 0, "{first:?} writes where it is");
    driver.finish();
}

#[test]
fn a_cached_prefix_counts_for_admission_and_is_not_run() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 6);
    let first = driver.add(request(0..256, 20, 0)).unwrap();
    driver.step();
    // Five pages alone, but four of them are there.
    let second = Request { prompt: (0..256).chain([7]).collect(), ..request(0..0, 2, 0) };
    let second = driver.add(second).unwrap();
    let plan = driver.step();
    assert_eq!(rows(&plan), [(first, 1), (second, 1)]);
    assert_eq!(plan.runs[1].start, 256);
    driver.finish();
}

/// Rows that `prompts`, which come at once, take for one token each; and in how many steps.
fn rows_of_all(driver: &mut Driver, prompts: &[Vec<u32>]) -> (usize, usize) {
    for prompt in prompts {
        driver.add(Request { prompt: prompt.clone(), max_new_tokens: 1, priority: 0 }).unwrap();
    }
    let (mut taken, mut steps) = (0, 0);
    while !driver.expected.is_empty() {
        taken += rows(&driver.step()).iter().map(|(_, rows)| rows).sum::<usize>();
        steps += 1;
    }
    (taken, steps)
}

#[test]
fn what_requests_have_in_common_is_computed_once_although_they_come_at_once() {
    // In pages of 64: 2 and 16 of them, and a part of another that nobody finds.
    for common in [128, 1024, 1030] {
        let prompt = |own: u32| (0..common).chain(own * 10_000..own * 10_000 + 32).collect();
        let prompts: Vec<Vec<u32>> = (1..=16).map(prompt).collect();
        let mut driver = Driver::new(&SchedulerOptions::default(), 256);
        let (rows, steps) = rows_of_all(&mut driver, &prompts);
        let found = common / 64 * 64;
        let all = (found + 16 * (common - found + 32)) as usize;
        assert_eq!(rows, all, "{common} tokens in common");
        // One step more than full steps take: that in which the others wait for the first.
        assert!(steps <= all.div_ceil(256) + 1, "{steps} steps");
    }
}

#[test]
fn nobody_waits_for_pages_that_are_not_kept() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    driver.pages.pool = crate::pages::PagePool::without_prefix_cache(64);
    let prompts = vec![(0..150).collect(); 4];
    assert_eq!(rows_of_all(&mut driver, &prompts), (600, 3));
}

/// As many as fit into a step, and never a part of one; a step that failed is tried again.
#[test]
fn texts_that_are_run_whole_share_steps() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 8);
    driver.pages.pool = crate::pages::PagePool::without_prefix_cache(8);
    driver.pages.whole = true;
    let lengths = [100, 156, 1, 200, 60, 256, 3];
    let add = |driver: &mut Driver, length| driver.add(request(0..length, 0, 0)).unwrap();
    let ids = lengths.map(|length| add(&mut driver, length));
    let mut steps = Vec::new();
    while driver.finished.len() < ids.len() {
        // What is planned and not told to have run has failed.
        let planned = driver.plan();
        let plan = driver.step();
        assert_eq!(planned.runs, plan.runs);
        assert!(plan.preempted.is_empty());
        steps.push(plan.runs.iter().map(|run| run.tokens.len()).collect::<Vec<_>>());
    }
    // The third begins a step, into which the fourth fits, and the fifth not any more.
    assert_eq!(steps, [vec![100, 156], vec![1, 200], vec![60], vec![256], vec![3]]);
    assert_eq!(driver.finished, ids);
}

/// A text whose tokens are judged is computed anew; who finds most of it, and goes first, does not wait for that.
#[test]
fn nobody_waits_for_a_prompt_that_is_computed_anew_for_its_own_sake() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 256);
    driver.add(request(0..4096, 1, 0)).unwrap();
    driver.finish();
    let judged = driver.add(request(0..4200, 1, 0)).unwrap();
    driver.pages.anew.insert(judged);
    driver.step();
    let answered = driver.add(request(0..4200, 1, 5)).unwrap();
    let plan = driver.step();
    assert_eq!(plan.runs[0].request, answered);
    assert_eq!((plan.runs[0].start, plan.runs[0].tokens.len()), (4096, 104));
    driver.finish();
    assert_eq!(driver.finished[1..], [answered, judged]);
}

#[test]
fn what_lies_elsewhere_is_brought_in_piece_by_piece_beside_streams() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 64);
    let stream = driver.add(request(0..5, 50, 0)).unwrap();
    driver.step();
    driver.pages.elsewhere = (5, 2);
    let long = driver.add(request(1000..1400, 5, 0)).unwrap();
    let alike =
        driver.add(Request { prompt: (1000..1400).chain([7]).collect(), ..request(0..0, 5, 0) });
    let alike = alike.unwrap();
    // Two pages before each step, and a fifth.
    for _ in 0..3 {
        assert_eq!(rows(&driver.step()), [(stream, 1)]);
        assert_eq!(driver.scheduler.state(alike), State::Waiting, "it finds them in memory");
    }
    let plan = driver.step();
    assert_eq!((rows(&plan), plan.runs[1].start), (vec![(stream, 1), (long, 64)], 320));
    driver.finish();
}

#[test]
fn the_last_and_least_gives_its_pages_to_the_others() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 4);
    let first = driver.add(request(0..60, 100, 0)).unwrap();
    let second = driver.add(request(1000..1060, 100, 0)).unwrap();
    while driver.scheduler.preemptions() == 0 {
        driver.step();
    }
    assert_eq!(driver.scheduler.state(first), State::Running);
    assert_eq!(driver.scheduler.state(second), State::Preempted);
    let later = driver.add(request(2000..2005, 100, 0)).unwrap();
    driver.finish();
    assert_eq!(driver.finished, [first, second, later], "preempted ones wait in front");
}

#[test]
fn drafted_tokens_are_verified_in_the_rows_that_are_left() {
    let options = SchedulerOptions { rows: 8, most_running: 2, ..Default::default() };
    let mut driver = Driver::new(&options, 8);
    driver.drafts = Some((20, 20));
    let id = driver.add(request(0..5, 12, 0)).unwrap();
    driver.step();
    let plan = driver.step();
    assert_eq!((plan.runs[0].tokens.len(), plan.runs[0].drafted), (8, 7));
    assert_eq!(driver.scheduler.tokens(id).unwrap().len(), 5 + 1 + 8);
    // Three tokens are still to come, of which the last is never run.
    let plan = driver.step();
    assert_eq!((plan.runs[0].tokens.len(), plan.runs[0].drafted), (3, 2));
    assert_eq!(driver.scheduler.state(id), State::Finished);
}

#[test]
fn wrong_drafts_leave_no_trace() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 8);
    driver.drafts = Some((4, 1));
    let id = driver.add(request(0..60, 30, 0)).unwrap();
    driver.step();
    let before = driver.scheduler.tokens(id).unwrap().len();
    driver.step();
    assert_eq!(driver.scheduler.tokens(id).unwrap().len(), before + 2);
    driver.finish();
}

#[test]
fn a_prompt_without_an_answer_is_run_and_finished() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 8);
    driver.add(request(0..300, 0, 0)).unwrap();
    assert_eq!(driver.finish(), 2);
}

#[test]
fn what_never_fits_is_refused_and_what_just_fits_runs() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 2);
    match driver.scheduler.add(request(0..100, 30, 0)) {
        Err(Error::RequestTooLarge { needed: 3, total: 2 }) => {}
        other => panic!("{other:?}"),
    }
    let endless = Request { max_new_tokens: usize::MAX, ..request(0..100, 0, 0) };
    assert!(matches!(driver.scheduler.add(endless), Err(Error::RequestTooLarge { .. })));
    assert!(matches!(driver.scheduler.add(request(0..0, 30, 0)), Err(Error::EmptyPrompt)));
    // The last token of the answer is not run: 128 are.
    driver.add(request(0..100, 29, 0)).unwrap();
    driver.add(request(0..128, 1, 0)).unwrap();
    driver.finish();
}

#[test]
fn pages_of_others_make_everyone_wait_and_nobody_fail() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 4);
    let mut other = driver.pages.pool.table();
    other.reserve(200).unwrap().commit(&[0; 200]);
    driver.add(request(0..100, 5, 0)).unwrap();
    assert_eq!(driver.step(), Plan::default());
    drop(other);
    driver.finish();
}

#[test]
fn a_failed_step_is_planned_again() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 8);
    driver.add(request(0..100, 5, 0)).unwrap();
    let plan = driver.plan();
    driver.run(&plan, true);
    assert_eq!(driver.plan(), plan);
}

#[test]
fn a_cancelled_request_is_gone_at_once() {
    let mut driver = Driver::new(&SchedulerOptions::default(), 8);
    let id = driver.add(request(0..100, 5, 0)).unwrap();
    let plan = driver.plan();
    assert!(driver.scheduler.finish(id));
    assert!(!driver.scheduler.finish(id));
    assert_eq!(driver.scheduler.completed(&plan.runs[0], &[1]), State::Finished);
    assert_eq!((driver.scheduler.running(), driver.scheduler.waiting()), (0, 0));
}

#[test]
fn options_below_their_least_values_are_refused() {
    let good = SchedulerOptions::default();
    let bad = [
        (
            SchedulerOptions { most_running: 0, ..good.clone() },
            "the number of running requests is 0",
        ),
        (SchedulerOptions { rows: 63, ..good.clone() }, "a row for every running request"),
        (SchedulerOptions { aging_steps: 0, ..good }, "aging is 0"),
    ];
    for (options, message) in bad {
        let error = Scheduler::new(&options, 8).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
