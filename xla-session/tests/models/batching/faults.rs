//! Requests that cannot run, and steps that fail.

use super::*;

#[test]
fn what_cannot_run_is_refused_and_changes_nothing() {
    let model = open(Path::new(TALES));
    let mut batcher = batcher(&model, 3, &SchedulerOptions::default());
    assert!(matches!(batcher.submit(greedy(&[], 1)), Err(Error::EmptyPrompt)));
    match batcher.submit(greedy(&[5, 1536], 1)) {
        Err(Error::TokenOutOfRange { token: 1536, vocab_size: 1536 }) => {}
        other => panic!("{other:?}"),
    }
    match batcher.submit(greedy(&[5; 2049], 1)) {
        Err(Error::ContextFull { needed: 2049, context: 2048, max: 2048 }) => {}
        other => panic!("{other:?}"),
    }
    match batcher.submit(greedy(&[5; 100], 100)) {
        Err(Error::RequestTooLarge { needed: 4, total: 3 }) => {}
        other => panic!("{other:?}"),
    }
    assert!(batcher.is_idle());
    assert!(batcher.advance(&mut |_, _| unreachable!()).unwrap().is_empty());

    let mut options = BatcherOptions::default();
    options.scheduler.rows = 257;
    let error = Batcher::new(engine(&model, 3), &options).unwrap_err().to_string();
    assert!(error.contains("257 rows") && error.contains("256"), "{error}");
}

#[test]
fn pages_that_others_hold_are_an_error_and_no_endless_loop() {
    let model = open(Path::new(TALES));
    let mut desk = Desk::new(batcher(&model, 4, &SchedulerOptions::default()));
    let prompt: Vec<u32> = (100..300).collect();
    desk.submit(&greedy(&prompt, 1));
    desk.finish();
    let mut other = desk.batcher.engine().pages().table();
    assert_eq!(other.resume(&prompt), 192);
    let request = greedy(&(400..600).collect::<Vec<_>>(), 9);
    let id = desk.submit(&request);
    let error = desk.step().unwrap_err().to_string();
    assert!(error.contains("waiting requests: 1") && error.contains("3 of 4 pages"), "{error}");
    drop(other);
    desk.finish();
    assert_eq!(desk.tokens[&id], alone(&model, &request).0);
}

/// The fixture with a token whose embedding is no number: a step with it fails.
pub(super) fn poisoned(token: u32) -> tempfile::TempDir {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        if fixture.folder.join(file).exists() {
            std::fs::copy(fixture.folder.join(file), folder.path().join(file)).unwrap();
        }
    }
    let mut bytes = std::fs::read(fixture.folder.join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let embedding = &entries["model.embed_tokens.weight"];
    assert_eq!(embedding["dtype"], "F32");
    assert!(!entries["lm_head.weight"].is_null(), "its output projection stays whole");
    let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
    let row = 4 * number(&embedding["shape"][1]);
    let at = header + number(&embedding["data_offsets"][0]) + token as usize * row;
    for value in bytes[at..at + row].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn a_failed_step_loses_no_request() {
    let folder = poisoned(77);
    let model = open(folder.path());
    let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
    let requests: Vec<_> = (0..5).map(|at| greedy(&[at * 3 + 1; 30], 20 + at as usize)).collect();
    let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
    for _ in 0..3 {
        desk.step().unwrap();
    }
    let bad = desk.submit(&greedy(&[4, 77, 5], 5));
    let before = (desk.tokens.clone(), desk.batcher.requests());
    for _ in 0..2 {
        let error = desk.step().unwrap_err();
        let Error::Request { request, source } = error else { panic!("{error:?}") };
        assert!(source.to_string().contains("not numbers"), "{source}");
        assert_eq!(request, bad);
        assert_eq!((desk.tokens.clone(), desk.batcher.requests()), before);
    }
    assert!(desk.batcher.cancel(bad));
    desk.finish();
    for (id, request) in ids.iter().zip(&requests) {
        let (tokens, reason) = alone(&model, request);
        assert!(!tokens.contains(&77));
        assert_eq!((&desk.tokens[id], desk.ended[id].reason), (&tokens, reason));
    }
}

#[test]
fn a_vector_that_is_not_numbers_is_an_error_of_its_request() {
    let folder = poisoned(77);
    let model = open(folder.path());
    let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
    for pooling in [Pooling::Last, Pooling::Cls, Pooling::Mean] {
        let ask = |prompt: [u32; 3]| Request {
            prompt: prompt.to_vec(),
            pooling: Some(pooling),
            ..Request::default()
        };
        let bad = desk.submit(&ask([77, 4, 77]));
        match desk.step().unwrap_err() {
            Error::Request { request, source } => {
                assert_eq!(request, bad);
                assert!(source.to_string().contains("not numbers"), "{source}");
            }
            other => panic!("{other:?}"),
        }
        assert!(desk.batcher.cancel(bad));
        let good = desk.submit(&ask([4, 5, 6]));
        desk.finish();
        assert!(desk.ended[&good].vector.as_ref().unwrap().iter().all(|x| x.is_finite()));
    }
}
