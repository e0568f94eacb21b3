//! How likely tokens are, and vectors of texts, in any company.

use super::*;

/// As the logits of all its rows at once say, beside answers that take its pages, and of prompts that the prefix
/// cache knows.
#[test]
fn tokens_of_a_prompt_are_as_likely_in_any_company() {
    let model = open(Path::new(TALES));
    let options = SchedulerOptions { rows: 100, most_running: 9, ..SchedulerOptions::default() };
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let mut asked = requests(&mut random, 12);
    for request in &mut asked {
        request.prompt_likelihood = Some(2);
    }
    asked[0] = Request { prompt: vec![7], ..asked[0].clone() };
    asked[1].max_tokens = 0;
    asked[2].prompt = (0..230).map(|at| 3 + at % 700).collect();
    asked[2].priority = 1;
    let mut desk = Desk::new(batcher_with(&model, 6, &options, Gap::Rows(8)));
    for at in 0..2 {
        desk.submit(&Request { priority: 2, ..greedy(&[at + 40; 50], 150) });
    }
    desk.step().unwrap();
    let ids: Vec<_> = [&asked[..], &asked].concat().iter().map(|it| desk.submit(it)).collect();
    // The answers need the pages of the long one when it has run a part of its prompt.
    assert!(desk.finish().preemptions > 0);
    let mut engine = engine(&model, 8);
    for (at, id) in ids.iter().enumerate() {
        let request = &asked[at % asked.len()];
        let Request { prompt, max_tokens, .. } = request;
        if *max_tokens > 0 {
            assert_eq!(desk.tokens[id], alone(&model, request).0);
        }
        let mut sequence = engine.sequence();
        let run = Run { sequence: &mut sequence, tokens: prompt, want: Want::AllLogits };
        let Some(Output::AllLogits(logits)) = engine.step(&mut [run]).unwrap().pop() else {
            panic!("logits were wanted")
        };
        let found = desk.ended[id].prompt.as_ref().unwrap();
        assert_eq!(found.len(), prompt.len() - 1);
        for ((logits, &token), found) in logits.chunks_exact(1536).zip(&prompt[1..]).zip(found) {
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = logits.iter().map(|&it| f64::from(it - most).exp()).sum();
            let logprob = f64::from(logits[token as usize] - most) - sum.ln();
            assert!((f64::from(found.logprob) - logprob).abs() < 1e-4, "{found:?} {logprob}");
            assert_eq!(found.top.len(), 2);
            assert_eq!(logits[found.top[0].0 as usize], most);
        }
    }
}

/// Of its hidden states all at once, beside answers, out of pages that others take, and of prompts that the
/// prefix cache knows.
#[test]
fn a_vector_is_that_of_its_hidden_states_in_any_company() {
    let model = open(Path::new(TALES));
    let poolings = [Pooling::Last, Pooling::Mean, Pooling::Cls];
    let width = model.config().hidden_size;
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let others = requests(&mut random, 18);
    let prompts: Vec<_> = requests(&mut random, 9).into_iter().map(|it| it.prompt).collect();
    let options = SchedulerOptions { rows: 100, most_running: 9, ..SchedulerOptions::default() };
    let mut submitted = Vec::new();
    let mut ended = HashMap::new();
    for pooling in poolings {
        let mut desk = Desk::new(batcher_with(&model, 6, &options, Gap::Rows(8)));
        for at in 0..2 {
            desk.submit(&greedy(&[at + 40; 50], 150));
        }
        desk.step().unwrap();
        let prompt = (0..230).map(|at| 3 + at % 700).collect();
        let request =
            Request { prompt, pooling: Some(pooling), priority: -1, ..Request::default() };
        let id = desk.submit(&request);
        // The answers need its pages when it has run a part of its prompt.
        assert!(desk.finish().preemptions > 0, "{pooling:?}");
        ended.insert(submitted.len(), desk.ended[&id].clone());
        submitted.push(request);
    }
    let mut desk = Desk::new(batcher_with(&model, 6, &options, Gap::Rows(8)));
    let mut ids = Vec::new();
    for turn in 0..2 {
        for (at, prompt) in prompts.iter().enumerate() {
            let pooling = Some(poolings[(at + turn) % 3]);
            let request = Request { prompt: prompt.clone(), pooling, ..Request::default() };
            ids.push((submitted.len(), desk.submit(&request)));
            submitted.push(request);
            desk.submit(&others[turn * 9 + at]);
        }
    }
    let statistics = desk.finish();
    assert!(statistics.pages.prefix_tokens_found > 0, "{statistics:?}");
    ended.extend(ids.into_iter().map(|(at, id)| (at, desk.ended[&id].clone())));

    let mut engine = engine(&model, 8);
    for (at, Request { prompt, pooling, .. }) in submitted.into_iter().enumerate() {
        let mut sequence = engine.sequence();
        let run = Run { sequence: &mut sequence, tokens: &prompt, want: Want::AllHidden };
        let Some(Output::AllHidden(states)) = engine.step(&mut [run]).unwrap().pop() else {
            panic!("hidden states were wanted")
        };
        let states: Vec<_> = states.chunks_exact(width).collect();
        let mean = |column: usize| {
            let sum: f64 = states.iter().map(|state| f64::from(state[column])).sum();
            (sum / states.len() as f64) as f32
        };
        let expected: Vec<f32> = match pooling.unwrap() {
            Pooling::Last => states[states.len() - 1].to_vec(),
            Pooling::Cls => states[0].to_vec(),
            Pooling::Mean => (0..width).map(mean).collect(),
        };
        let what = format!("{pooling:?} of {} tokens", prompt.len());
        assert!(ended[&at].vector.as_ref().unwrap() == &expected, "{what}");
    }
}

#[test]
fn what_ended_an_answer_is_told_with_how_likely_it_was() {
    let model = open(Path::new(TALES));
    let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
    let plain = greedy(&(100..130).collect::<Vec<_>>(), 6);
    let asked = Request { likelihood: Some(2), ..plain.clone() };
    let ids = [&plain, &asked].map(|it| desk.submit(it));
    desk.finish();
    let tokens = desk.tokens[&ids[0]].clone();
    assert_eq!(desk.ended[&ids[1]].eos, None, "it was as long as it might be");
    // What comes fourth ends it now.
    let end = tokens[3];
    let before = tokens.iter().position(|it| *it == end).unwrap();
    let ends = [plain, asked].map(|it| Request { eos: vec![end], ..it });
    let ids = ends.each_ref().map(|it| desk.submit(it));
    desk.finish();
    for id in ids {
        assert_eq!(desk.tokens[&id], tokens[..before]);
        assert_eq!(desk.ended[&id].reason, FinishReason::Eos);
    }
    assert_eq!(desk.ended[&ids[0]].eos, None);
    let eos = desk.ended[&ids[1]].eos.clone().unwrap();
    let likelihood = eos.likelihood.unwrap();
    assert_eq!((eos.id, likelihood.top[0]), (end, (end, likelihood.logprob)));
    // An answer that has it is over.
    let over = Request { answer: tokens[..=before].to_vec(), ..ends[1].clone() };
    let id = desk.submit(&over);
    desk.finish();
    assert_eq!((desk.tokens[&id].len(), desk.ended[&id].reason), (before + 1, FinishReason::Eos));
}
