//! Clients that ask, and what they saw.

use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Clients that ask a server at once.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    pub url: &'a str,
    pub clients: usize,
    /// Of each client, one after the other.
    pub requests: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens of an answer.
    pub answer: usize,
    /// Others give other prompts.
    pub seed: u64,
}

/// What a client saw of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    pub tokens: usize,
    /// From the request to its first token.
    pub first: Duration,
    /// From one token to the next, on average.
    pub between: Duration,
}

impl Load<'_> {
    /// Asks, and waits for all answers.
    ///
    /// # Errors
    ///
    /// An answer is an error, or not as long as it should be.
    pub fn run(&self) -> Result<Vec<Answer>> {
        thread::scope(|scope| {
            let ask = |client| move || self.client(client);
            let clients: Vec<_> = (0..self.clients).map(|it| scope.spawn(ask(it))).collect();
            let mut answers = Vec::new();
            for client in clients {
                answers.extend(client.join().expect("a client does not panic")?);
            }
            Ok(answers)
        })
    }

    fn client(&self, client: usize) -> Result<Vec<Answer>> {
        (0..self.requests).map(|at| self.ask(client * self.requests + at)).collect()
    }

    fn ask(&self, request: usize) -> Result<Answer> {
        let body = json!({
            "prompt": self.tokens(request), "max_tokens": self.answer, "temperature": 0,
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        let start = Instant::now();
        let mut answer = agent()
            .post(format!("{}/v1/completions", self.url))
            .header("Content-Type", "application/json")
            .send(body.to_string())
            .context("a request was not answered")?;
        let status = answer.status();
        if !status.is_success() {
            bail!("a request got {status}: {}", answer.body_mut().read_to_string()?);
        }
        let lines = BufReader::new(answer.body_mut().as_reader()).lines();
        let (mut first, mut last, mut tokens) = (None, start, 0);
        for line in lines {
            let line = line.context("an answer broke off")?;
            let Some(data) = line.strip_prefix("data: ").filter(|it| *it != "[DONE]") else {
                continue;
            };
            let event: Value = serde_json::from_str(data).with_context(|| data.to_owned())?;
            ensure!(event["error"].is_null(), "an answer ended with an error: {data}");
            if let Some(count) = event["usage"]["completion_tokens"].as_u64() {
                tokens = count as usize;
            }
            if event["choices"].as_array().is_some_and(|it| !it.is_empty()) {
                last = Instant::now();
                first.get_or_insert(last);
            }
        }
        let first = first.context("an answer had no token")?;
        ensure!(tokens == self.answer, "an answer had {tokens} tokens, not {}", self.answer);
        let between = (last - first) / (tokens as u32 - 1).max(1);
        Ok(Answer { tokens, first: first - start, between })
    }

    /// Ordinary tokens of any vocabulary, those that no other request begins with.
    fn tokens(&self, request: usize) -> Vec<u64> {
        let mut state = self.seed << 32 | request as u64;
        let mut next = || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            1000 + (mixed ^ (mixed >> 31)) % 20_000
        };
        (0..self.prompt).map(|_| next()).collect()
    }
}

/// Whether the server at `url` takes requests.
pub fn is_ready(url: &str) -> bool {
    agent().get(format!("{url}/health")).call().is_ok_and(|it| it.status() == 200)
}

fn agent() -> ureq::Agent {
    let proxy = None;
    ureq::Agent::config_builder().http_status_as_error(false).proxy(proxy).build().into()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn prompts_are_their_own_and_come_again() {
        let load = Load { url: "", clients: 1, requests: 1, prompt: 64, answer: 1, seed: 3 };
        assert_eq!(load.tokens(5), load.tokens(5));
        assert_ne!(load.tokens(5)[..4], load.tokens(6)[..4]);
        assert_ne!(load.tokens(5)[..4], Load { seed: 4, ..load }.tokens(5)[..4]);
        assert!(load.tokens(7).iter().all(|it| (1000..21_000).contains(it)));
    }
}
