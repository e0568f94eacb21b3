//! Greedy answers, and how long those of two models stay the same.

use std::collections::HashMap;
use std::ops::ControlFlow;

use serde::Serialize;
use xla_session::batching::{BatcherOptions, Gap, Request};
use xla_session::{Batcher, Engine, EngineOptions, Model, Result};

/// How well the answers of a precision agree with float32's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Tokens until the first difference, on average.
    pub common_prefix: f64,
    /// Tokens of float32's answers, on average: what `common_prefix` could be.
    pub length: f64,
    /// Answers that are the same to the end.
    pub to_the_end: usize,
}

impl Agreement {
    /// Of `answers` with float32's, the same prompts in the same order; `None` of no answers.
    pub fn of(reference: &[Vec<u32>], answers: &[Vec<u32>]) -> Option<Self> {
        let pairs = || reference.iter().zip(answers);
        let mean = |sum: usize| sum as f64 / reference.len() as f64;
        (!reference.is_empty()).then(|| Self {
            common_prefix: mean(pairs().map(|(a, b)| common_prefix(a, b)).sum()),
            length: mean(reference.iter().map(Vec::len).sum()),
            to_the_end: pairs().filter(|(a, b)| a == b).count(),
        })
    }
}

/// The most likely `tokens` after each of `prompts`, less where one of `eos` ends them: all at once.
///
/// # Errors
///
/// The engine's.
pub fn answers(
    model: &Model,
    prompts: &[Vec<u32>],
    tokens: usize,
    eos: &[u32],
    ran: &dyn Fn(usize),
) -> Result<Vec<Vec<u32>>> {
    let longest = prompts.iter().map(|it| it.len() + tokens).max().unwrap_or(1);
    let options = EngineOptions::default().with_room(model, prompts.len().max(1), longest);
    let engine = Engine::new(model, &options)?;
    let mut steps = BatcherOptions::of(&engine);
    steps.gap = Gap::Nothing;
    let mut batcher = Batcher::new(engine, &steps)?;
    let mut answers = HashMap::new();
    let mut order = Vec::new();
    for prompt in prompts {
        let (prompt, eos) = (prompt.clone(), eos.to_vec());
        let request = Request { prompt, max_tokens: tokens, eos, ..Request::default() };
        let id = batcher.submit(request)?;
        answers.insert(id, Vec::new());
        order.push(id);
    }
    while !batcher.is_idle() {
        let ended = batcher.advance(&mut |id, token| {
            answers.entry(id).or_default().push(token.id);
            ControlFlow::Continue(())
        })?;
        ran(ended.len() * tokens);
    }
    Ok(order.iter().filter_map(|id| answers.remove(id)).collect())
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_by_hand() {
        let reference = [vec![1, 2, 3, 4], vec![1, 2], vec![5, 6, 7], vec![8]];
        // All of it; all, and then more; the first token; none.
        let answers = [vec![1, 2, 3, 4], vec![1, 2, 3], vec![5, 7, 7], vec![9, 8]];
        let found = Agreement::of(&reference, &answers).unwrap();
        let expected = Agreement { common_prefix: 7.0 / 4.0, length: 2.5, to_the_end: 1 };
        assert_eq!(found, expected);
        assert_eq!(Agreement::of(&[], &[]), None);
    }
}
