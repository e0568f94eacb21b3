//! Tokens that are forced, guessed, and never chosen.

use super::*;

#[test]
fn what_is_forced_runs_as_one_piece_and_changes_no_other_token() {
    let model = open(Path::new(TALES));
    let prompt: Vec<u32> = (300..340).collect();
    let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Refrain::default()));
    let sampled = SamplerOptions { temperature: 1.2, repeat_penalty: 1.3, ..Default::default() };
    let sampled = Sampler::new(SamplerOptions { seed: 5, ..sampled }).unwrap();
    let one = Request { constraint, eos: vec![1, 2], ..greedy(&prompt, 60) };
    for request in [one.clone(), Request { sampler: Some(sampled), ..one }] {
        let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
        let id = desk.submit(&request);
        let statistics = desk.finish();
        let tokens = desk.tokens.remove(&id).unwrap();
        assert_eq!(desk.ended[&id].reason, FinishReason::Length);
        // The prompt's gives a token; of each line two free ones, and the forced ones with the next.
        assert_eq!((statistics.steps, statistics.rows), (1 + 4 * 3 + 3, 40 + 59));
        for (at, &token) in tokens.iter().enumerate() {
            match Refrain::forced_at(at) {
                Some(forced) => assert_eq!(token, forced),
                None if request.sampler.is_none() => {
                    let prompt = [&prompt, &tokens[..at]].concat();
                    let restricted = Request { prompt, max_tokens: 1, ..request.clone() };
                    let free = Request { constraint: Some(Box::new(NoMarks)), ..restricted };
                    let id = desk.submit(&free);
                    desk.finish();
                    assert_eq!(desk.tokens[&id], [token], "token {at}");
                }
                None => assert!(token >= 200),
            }
        }
        // One by one; in steps with no room for most of it; and among others who take its pages.
        let likely = Request { likelihood: Some(1), ..request.clone() };
        let few = SchedulerOptions { rows: 4, most_running: 3, ..SchedulerOptions::default() };
        for (request, options) in [(&likely, SchedulerOptions::default()), (&request, few)] {
            let mut desk = Desk::new(batcher(&model, 6, &options));
            let others = requests(&mut ChaCha8Rng::seed_from_u64(9), 4);
            let ids: Vec<_> = others.iter().map(|it| desk.submit(it)).collect();
            let id = desk.submit(request);
            desk.finish();
            assert_eq!(desk.tokens[&id], tokens);
            for (id, other) in ids.iter().zip(&others) {
                assert_eq!(desk.tokens[id], alone(&model, other).0);
            }
        }
    }
}

/// Texts that repeat themselves, of which much is guessed right, and others, of which it is not.
#[test]
fn guessed_tokens_change_no_answer() {
    let model = open(Path::new(TALES));
    let mut random = ChaCha8Rng::seed_from_u64(31);
    let mut asked = requests(&mut random, 12);
    for (at, request) in asked.iter_mut().enumerate() {
        let part: Vec<u32> = request.prompt.iter().copied().take(9 + at).collect();
        request.prompt = part.iter().copied().cycle().take(70).collect();
        request.eos.clear();
    }
    asked[3].max_tokens = 1;
    asked[4].max_tokens = 2;
    let ends: Vec<_> = asked.iter().map(|it| alone(&model, it)).collect();
    // A token of its own ends one, which may be among those that were guessed.
    asked.push(Request { eos: vec![ends[5].0[ends[5].0.len() / 2]], ..asked[5].clone() });
    let mut drafts = Vec::new();
    for (together, pages, speculate) in [
        (1, 40, Speculate::Fixed(7)),
        (3, 40, Speculate::Fixed(3)),
        (3, 7, Speculate::Fixed(5)),
        (1, 40, Speculate::Auto),
        (9, 40, Speculate::Auto),
    ] {
        let mut options = BatcherOptions::default();
        (options.speculate, options.gap) = (speculate, Gap::Rows(64));
        options.scheduler.most_running = together;
        let mut desk = Desk::new(Batcher::new(engine(&model, pages), &options).unwrap());
        let ids: Vec<_> = asked.iter().map(|it| desk.submit(it)).collect();
        let statistics = desk.finish();
        for (id, request) in ids.iter().zip(&asked) {
            let (tokens, reason) = alone(&model, request);
            assert_eq!(desk.tokens[id], tokens, "{together}: {request:?}");
            assert_eq!(desk.ended[id].reason, reason);
        }
        drafts.push(statistics.drafts);
        // A reader who goes.
        let id = desk.batcher.submit(Request { max_tokens: 80, ..asked[0].clone() }).unwrap();
        let mut left = 11;
        while !desk.batcher.is_idle() {
            let ended = desk.batcher.advance(&mut |_, _| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            for (ended, it) in ended.unwrap() {
                assert_eq!((ended, it.timings.tokens), (id, 11));
            }
        }
        assert_eq!((left, desk.batcher.statistics().pages.held), (0, 0));
    }
    // Otherwise nothing of it was tested.
    assert!(drafts[..3].iter().all(|it| 0 < it.accepted && it.accepted < it.drafted), "{drafts:?}");
}

/// Not alone, not together, neither as the likeliest nor drawn, guessed or not; they take no share of what is likely.
#[test]
fn tokens_that_a_model_must_not_generate_never_come() {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.folder.join(name), folder.path().join(name)).unwrap();
    }
    let suppressed: Vec<u32> = (3..299).step_by(4).collect();
    let said = format!("{{\"suppress_tokens\": {suppressed:?}}}");
    std::fs::write(folder.path().join("generation_config.json"), said).unwrap();
    let model = open(folder.path());
    let case = &fixture.cases[2];
    let count = case.tokens.len();

    // What may come by the model's own logits, which have all tokens.
    let (mut session, mut logits) = (EngineSession::new(&model, None).unwrap(), Vec::new());
    let (mut new, mut expected) = (case.prompt.clone(), Vec::new());
    for _ in 0..count {
        session.logits(&new, &mut logits).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        let allowed = (0..logits.len() as u32).filter(|id| !suppressed.contains(id));
        let best = allowed.max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]));
        expected.push(best.unwrap());
        new = vec![best.unwrap()];
    }
    assert_ne!(expected, case.tokens, "the likeliest token may always come");

    let sampler = |temperature: f32| {
        let options = SamplerOptions { temperature, seed: 3, ..SamplerOptions::default() };
        Some(Sampler::new(options).unwrap())
    };
    let plain = greedy(&case.prompt, count);
    let of_logits = Request { sampler: sampler(0.0), ..plain.clone() };
    let likely = Request { likelihood: Some(3), ..plain.clone() };
    let drawn = Request { sampler: sampler(3.0), ..plain.clone() };
    let as_drawn = alone(&model, &drawn).0;
    assert!(!as_drawn.iter().any(|token| suppressed.contains(token)));
    for request in [&plain, &of_logits] {
        assert_eq!(alone(&model, request).0, expected);
    }
    for speculate in [Speculate::Off, Speculate::Fixed(3)] {
        let mut options = BatcherOptions::default();
        options.speculate = speculate;
        let mut desk = Desk::new(Batcher::new(engine(&model, 20), &options).unwrap());
        let ids = [&plain, &of_logits, &likely, &drawn].map(|request| desk.submit(request));
        let drafts = desk.finish().drafts;
        assert_eq!(drafts.drafted > 0, speculate != Speculate::Off);
        for (id, tokens) in ids.iter().zip([&expected, &expected, &expected, &as_drawn]) {
            assert_eq!(&desk.tokens[id], tokens, "{speculate:?}");
        }
    }

    let mut batcher = batcher(&model, 20, &SchedulerOptions::default());
    let all = Request { max_tokens: 1, likelihood: Some(logits.len()), ..plain };
    batcher.submit(all).unwrap();
    let mut likely = 0.0;
    let mut on_token = |_, token: xla_session::batching::Token| {
        for (id, it) in token.likelihood.unwrap().top {
            assert_eq!(it == f32::NEG_INFINITY, suppressed.contains(&id), "{id}: {it}");
            likely += f64::from(it).exp();
        }
        ControlFlow::Continue(())
    };
    batcher.advance(&mut on_token).unwrap();
    assert!((likely - 1.0).abs() < 1e-5, "{likely}");
}

/// What is written where there is to be no limit.
#[test]
fn the_largest_numbers_are_limits_too() {
    let model = open(Path::new(TALES));
    let mut options = BatcherOptions::default();
    options.speculate = Speculate::Fixed(usize::MAX);
    options.gap = Gap::Time(Duration::MAX);
    let mut desk = Desk::new(Batcher::new(engine(&model, 40), &options).unwrap());
    let prompt: Vec<u32> = (300..310).cycle().take(70).collect();
    let asked: Vec<_> = (0..3).map(|i| greedy(&prompt[i..], 40)).collect();
    let ids: Vec<_> = asked.iter().map(|it| desk.submit(it)).collect();
    let statistics = desk.finish();
    assert!(statistics.drafts.drafted > 0, "{statistics:?}");
    for (id, request) in ids.iter().zip(&asked) {
        assert_eq!(desk.tokens[id], alone(&model, request).0);
    }
}
