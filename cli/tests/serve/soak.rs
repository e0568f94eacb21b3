//! A long time of everything at once: what is asked, how, and who goes away are drawn at random.
//!
//! `SOAK_SECONDS=3600` makes it an hour, `SOAK_SEED` repeats what a run had drawn; each line on stdout says what the
//! server took by then.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::rerank::named;
use crate::server::*;
use crate::support::mark;
use crate::tools::with_tools;
use fastrand::Rng;
use serde_json::{Value, json};

const CLIENTS: usize = 8;
/// Small enough that requests take pages from each other.
const FLAGS: [&str; 12] = [
    "--log",
    "off",
    "--kv-memory",
    "2",
    "--parallel",
    "6",
    "--queue",
    "4",
    "--speculate",
    "auto",
    "--token-gap",
    "20",
];
/// Everybody is busy so long.
const BURST: Duration = Duration::from_secs(2);
/// And then leaves the server alone, as tests beside this one want the cores too.
const REST: Duration = Duration::from_secs(4);
/// What the server may have grown by after the first third, in KiB of memory that is its own: heaps of threads
/// and of their odd ends go up and down by less.
const GROWTH: u64 = 12 << 10;
/// Tokio ends threads for blocking work that had none for 10 seconds.
const IDLE_THREADS: Duration = Duration::from_secs(15);

const TEXT: &str = "/v1/completions";
const TALK: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const EMBEDDINGS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";
const INFILL: &str = "/infill";

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// What a process has, apart from what it shares with others.
#[derive(Debug, Clone, Copy)]
struct Footprint {
    /// KiB that no file has.
    anonymous: u64,
    /// KiB of all memory, with its part of what others have, too.
    proportional: u64,
    threads: usize,
    files: usize,
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { anonymous, proportional, threads, files } = self;
        write!(
            f,
            "{anonymous} KiB of its own, Pss {proportional} KiB, {threads} threads, {files} files"
        )
    }
}

impl Footprint {
    fn of(server: &Server) -> Self {
        let folder = format!("/proc/{}", server.child.id());
        let rollup = std::fs::read_to_string(format!("{folder}/smaps_rollup")).unwrap();
        let number = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let count = |of: &str| std::fs::read_dir(format!("{folder}/{of}")).unwrap().count();
        Self {
            anonymous: number("Pss_Anon:"),
            proportional: number("Pss:"),
            threads: count("task"),
            files: count("fd"),
        }
    }
}

/// Requests whose answers are the same each time, with seeds.
fn known() -> Vec<(&'static str, Value)> {
    let user = json!([{"role": "user", "content": "Is it warm in Bern?"}]);
    let shape = json!({"type": "object", "properties": {"city": {"enum": ["Bern", "Zürich"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false});
    let function = json!({"name": "weather", "parameters": shape});
    let tool = json!({"type": "function", "function": function});
    vec![
        (TEXT, json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0})),
        (
            TEXT,
            json!({"prompt": "The sea", "max_tokens": 40, "seed": 3, "repeat_penalty": 1.1,
            "logprobs": 2, "stream": true}),
        ),
        (
            TEXT,
            json!({"prompt": ["A", "The dog"], "n": 2, "max_tokens": 12, "seed": 1, "echo": true,
            "logprobs": 1}),
        ),
        (TEXT, json!({"prompt": "The animal", "max_tokens": 120, "seed": 4, "guided_json": shape})),
        (
            TEXT,
            json!({"prompt": "é", "max_tokens": 40, "temperature": 30, "seed": 2, "stream": true}),
        ),
        (
            TALK,
            json!({"messages": user, "max_tokens": 40, "seed": 5, "logprobs": true, "stream": true}),
        ),
        (
            TALK,
            json!({"messages": user, "max_tokens": 150, "seed": 6, "tools": [tool],
            "tool_choice": "required"}),
        ),
        (MESSAGES, json!({"messages": user, "max_tokens": 30, "seed": 7, "system": "Be brief."})),
        (
            MESSAGES,
            json!({"messages": user, "max_tokens": 150, "seed": 8, "stream": true,
            "tools": [{"name": "weather", "input_schema": shape}], "tool_choice": {"type": "any"}}),
        ),
        (
            RESPONSES,
            json!({"input": "Who are you?", "max_output_tokens": 30, "seed": 9, "store": false}),
        ),
        (
            RESPONSES,
            json!({"input": "Who are you?", "max_output_tokens": 30, "seed": 10, "store": false,
            "stream": true}),
        ),
        (EMBEDDINGS, json!({"input": ["A cat", "Once upon a time, there was a dog."]})),
        (
            RERANK,
            json!({"query": "Who ran?", "documents": ["The dog ran.", "It was cold.", "A cat."]}),
        ),
        (
            INFILL,
            json!({"input_prefix": "One day", "input_suffix": " home.", "n_predict": 20,
            "input_extra": [{"filename": "a.txt", "text": "The dog ran."}], "n_indent": 2}),
        ),
    ]
}

/// Requests with something wrong, and the status that each has.
fn wrong() -> Vec<(&'static str, Value, u16)> {
    let user = json!([{"role": "user", "content": "a"}]);
    vec![
        (TEXT, json!({"prompt": [99_999]}), 400),
        (TEXT, json!({"prompt": "a", "what": 1}), 400),
        (TEXT, json!({"prompt": vec![7; 2500]}), 400),
        (TEXT, json!({"prompt": "a", "guided_regex": "("}), 400),
        (TEXT, json!({"prompt": "a", "guided_grammar": "start: nothing"}), 400),
        (TEXT, json!({"prompt": "a", "model": "nobody"}), 404),
        (TALK, json!({"messages": user, "tools": [{}]}), 400),
        (TALK, json!({"messages": [{"role": "critic", "content": "a"}]}), 400),
        (MESSAGES, json!({"messages": user}), 400),
        (MESSAGES, json!({"messages": user, "max_tokens": 1, "model": "nobody"}), 404),
        (RESPONSES, json!({"input": "a", "previous_response_id": "resp_none"}), 400),
        (EMBEDDINGS, json!({"input": "a", "dimensions": 0}), 400),
    ]
}

/// Something that nobody has asked before, most of the time.
fn drawn(rng: &mut Rng) -> (&'static str, Value) {
    const BEGINNINGS: [&str; 3] = [
        "Once upon a time, there was a little girl who had a red ball and a dog",
        "The big bear went into the deep forest to look for honey and berries",
        "One day, Tom and his friend Lily found a shiny key under the old tree",
    ];
    let beginning = BEGINNINGS[rng.usize(..3)];
    let rest: String =
        (0..rng.usize(..80)).map(|_| [" cat", " a", " ", "é", "\n", "7"][rng.usize(..6)]).collect();
    let words = beginning.repeat(1 + rng.usize(..4)) + &rest;
    let path = [TEXT, TEXT, TALK, MESSAGES, RESPONSES, EMBEDDINGS][rng.usize(..6)];
    if path == EMBEDDINGS {
        let many = vec![words; 1 + rng.usize(..5)];
        return (path, json!({"input": many}));
    }
    let long = if rng.u8(..8) == 0 { 250 } else { 60 };
    let most = rng.usize(1..long);
    let mut body = match path {
        TEXT if rng.bool() => {
            let ids: Vec<_> = (0..1 + rng.usize(..300)).map(|_| 3 + rng.u32(..500)).collect();
            json!({"prompt": ids, "max_tokens": most})
        }
        TEXT => json!({"prompt": words, "max_tokens": most}),
        RESPONSES => json!({"input": words, "max_output_tokens": most, "store": false}),
        _ => json!({"messages": [{"role": "user", "content": words}], "max_tokens": most}),
    };
    let mut set = |name: &str, value: Value| body[name] = value;
    set("seed", rng.u32(..).into());
    set("stream", rng.bool().into());
    set("priority", rng.i32(-2..3).into());
    set("temperature", [0.0, 0.7, 1.5][rng.usize(..3)].into());
    if rng.u8(..10) == 0 {
        set("timeout", (0.01 + rng.f64()).into());
    }
    if [TEXT, TALK].contains(&path) {
        set("n", (1 + rng.u8(..3)).into());
        set("stop", json!([" was", "xyz"]));
    }
    match rng.u8(..6) {
        // Each a grammar of its own.
        0 => set("guided_regex", format!("[a-z]{{1,9}}-{}", rng.u16(..)).into()),
        1 => {
            let name = format!("field{}", rng.u16(..));
            let number = json!({"type": "integer"});
            set(
                "guided_json",
                json!({"type": "object", "properties": {&name: number},
                "required": [&name], "additionalProperties": false}),
            );
        }
        2 if path == TEXT => {
            set("stream", false.into());
            set("echo", true.into());
            set("logprobs", 3.into());
        }
        3 if path == TALK => {
            set("logprobs", true.into());
            set("top_logprobs", 5.into());
        }
        // Forms have an end.
        _ => set("ignore_eos", true.into()),
    }
    (path, body)
}

/// `value` without what is another each time.
fn steady(value: &Value) -> Value {
    const OTHER: [&str; 8] =
        ["id", "item_id", "call_id", "created", "created_at", "completed_at", "usage", "timings"];
    match value {
        Value::Array(all) => all.iter().map(steady).collect(),
        Value::Object(all) => {
            let kept = all.iter().filter(|(name, _)| !OTHER.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), steady(value))).collect())
        }
        other => other.clone(),
    }
}

/// The events of a stream that ended as it should.
fn events(path: &str, reply: &Reply) -> Vec<Value> {
    let data = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut data: Vec<_> = data.collect();
    if path != MESSAGES && path != RESPONSES {
        assert_eq!(data.pop(), Some("[DONE]"), "{}", reply.text);
    }
    let events = data.iter().map(|it| serde_json::from_str(it).unwrap());
    let events: Vec<Value> = events.collect();
    let last = events.last().unwrap_or_else(|| panic!("an empty stream: {}", reply.head));
    let kind = last["type"].as_str().unwrap_or_default();
    match path {
        MESSAGES => assert!(["message_stop", "error"].contains(&kind), "{last}"),
        RESPONSES => {
            let ends = ["response.completed", "response.incomplete", "response.failed", "error"];
            assert!(ends.contains(&kind), "{last}");
        }
        _ => {}
    }
    events
}

/// The error of `reply`, in the form of the API at `path`.
fn error_of(path: &str, reply: &Reply) -> Value {
    let json = reply.json();
    let error = &json["error"];
    assert!(error["message"].is_string() && error["type"].is_string(), "{path}: {}", reply.text);
    assert_eq!(json["type"] == "error", path == MESSAGES, "{path}: {}", reply.text);
    error.clone()
}

/// What `reply` says, the same each time.
fn said(path: &str, reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    if reply.head.contains("text/event-stream") {
        events(path, reply).iter().map(steady).collect()
    } else {
        steady(&reply.json())
    }
}

/// A client that does this and that until the time is up.
struct Client<'a> {
    server: &'a Server,
    rng: Rng,
    known: &'a [(&'static str, Value, Value)],
    wrong: &'a [(&'static str, Value, u16)],
    counts: &'a Counts,
}

#[derive(Debug, Default)]
struct Counts {
    same: AtomicUsize,
    whole: AtomicUsize,
    refused: AtomicUsize,
    left: AtomicUsize,
    late: AtomicUsize,
    busy: AtomicUsize,
}

impl Client<'_> {
    fn send(&self, path: &str, body: &Value) -> std::net::TcpStream {
        self.server.send("POST", path, "application/json", body.to_string().as_bytes())
    }

    /// The reply, but where there was no place in the queue.
    fn ask(&mut self, path: &str, body: &Value) -> Option<Reply> {
        let reply = read(self.send(path, body));
        if reply.status != 429 {
            return Some(reply);
        }
        error_of(path, &reply);
        self.counts.busy.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(self.rng.u64(..50)));
        None
    }

    fn once(&mut self) {
        let Self { known, wrong, counts, .. } = *self;
        match self.rng.u8(..12) {
            0..3 => {
                let (path, body, expected) = self.rng.choice(known).unwrap();
                let Some(reply) = self.ask(path, body) else { return };
                assert_eq!(said(path, &reply), *expected, "{path} {body}");
                counts.same.fetch_add(1, Ordering::Relaxed);
            }
            3 => {
                let (path, body, status) = self.rng.choice(wrong).unwrap();
                let Some(reply) = self.ask(path, body) else { return };
                assert_eq!(reply.status, *status, "{path} {body}: {}", reply.text);
                error_of(path, &reply);
                counts.refused.fetch_add(1, Ordering::Relaxed);
            }
            4 => self.talk(),
            5..8 => self.leave(),
            _ => {
                let (path, body) = drawn(&mut self.rng);
                let Some(reply) = self.ask(path, &body) else { return };
                let error = match reply.status {
                    200 if body["stream"] == true => {
                        let last = events(path, &reply).pop().unwrap();
                        [&last["error"], &last["response"]["error"]]
                            .into_iter()
                            .find(|it| it.is_object())
                            .cloned()
                    }
                    200 => None,
                    _ => Some(error_of(path, &reply)),
                };
                match error {
                    None => drop(counts.whole.fetch_add(1, Ordering::Relaxed)),
                    Some(error) => {
                        assert!(
                            body["timeout"].is_number() && error.to_string().contains("timeout"),
                            "{error} of {body}"
                        );
                        counts.late.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Goes away: at once, after a while, or in the middle of what comes.
    fn leave(&mut self) {
        let (path, body) = drawn(&mut self.rng);
        let stream = self.send(path, &body);
        match self.rng.u8(..3) {
            0 => {}
            1 => std::thread::sleep(Duration::from_millis(self.rng.u64(..300))),
            _ => {
                let mut lines = BufReader::new(stream).take(self.rng.u64(..4000)).lines();
                while let Some(Ok(_)) = lines.next() {}
            }
        }
        self.counts.left.fetch_add(1, Ordering::Relaxed);
    }

    /// A response, one that goes on from it, and the end of both.
    fn talk(&mut self) {
        let body =
            json!({"input": "Who are you?", "max_output_tokens": 9, "seed": self.rng.u8(..)});
        let Some(first) = self.ask(RESPONSES, &body) else { return };
        assert_eq!(first.status, 200, "{}", first.text);
        let mut ids = vec![first.json()["id"].clone()];
        let more = json!({"input": "Why?", "previous_response_id": ids[0], "max_output_tokens": 9});
        if let Some(second) = self.ask(RESPONSES, &more) {
            assert_eq!(second.status, 200, "{}", second.text);
            ids.push(second.json()["id"].clone());
        }
        for id in ids {
            let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
            assert_eq!(self.server.get(&path).status, 200);
            assert_eq!(self.server.raw("DELETE", &path, "text/plain", b"").status, 200);
        }
        self.counts.whole.fetch_add(1, Ordering::Relaxed);
    }
}

/// How long it is until the next burst, if there is none `after` the beginning.
fn pause(after: Duration) -> Option<Duration> {
    let period = BURST + REST;
    let since = Duration::from_nanos((after.as_nanos() % period.as_nanos()) as u64);
    (since >= BURST).then(|| period - since)
}

/// Ends all clients when one has failed.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn it_is_as_it_was_after_a_long_time_of_everything_at_once() {
    let seconds = from_environment("SOAK_SECONDS").unwrap_or(120);
    let seed = from_environment("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("SOAK_SEED={seed} SOAK_SECONDS={seconds}");
    let folder = with_tools("qwen2.5");
    // It fills in and ranks, too.
    mark(folder.path());
    let path = named(&folder);
    let server = Server::of(&["-m", path.to_str().unwrap()], &FLAGS);
    let alone = known().into_iter().map(|(path, body)| {
        let said = said(path, &server.post(path, &body));
        (path, body, said)
    });
    let (known, wrong, counts) = (alone.collect::<Vec<_>>(), wrong(), Counts::default());
    let begun = Instant::now();
    let load = |seed: u64, until: Duration| {
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..CLIENTS as u64 {
                let rng = Rng::with_seed(seed.wrapping_add(number));
                let (known, wrong, counts, server) = (&known[..], &wrong[..], &counts, &server);
                let mut client = Client { server, rng, known, wrong, counts };
                let failed = &failed;
                scope.spawn(move || {
                    let _alarm = Alarm(failed);
                    while begun.elapsed() < until && !failed.load(Ordering::Relaxed) {
                        match pause(begun.elapsed()) {
                            Some(rest) => std::thread::sleep(rest),
                            None => client.once(),
                        }
                    }
                });
            }
            while begun.elapsed() < until && !failed.load(Ordering::Relaxed) {
                println!("{:4} s: {}", begun.elapsed().as_secs(), Footprint::of(&server));
                let rest = until.saturating_sub(begun.elapsed());
                std::thread::sleep(rest.min(Duration::from_secs(seconds.div_ceil(12))));
            }
        });
        // Whoever has gone away is noticed, and threads without work end.
        server.is_empty();
        std::thread::sleep(IDLE_THREADS);
        Footprint::of(&server)
    };
    let all = Duration::from_secs(seconds);
    let warm = load(seed, all / 3);
    println!("warm: {warm}");
    let mut last = load(seed.wrapping_add(CLIENTS as u64), all + IDLE_THREADS);
    // A busy machine takes longer to end threads.
    let ended = Instant::now();
    while (last.threads, last.files) != (warm.threads, warm.files) && ended.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_secs(1));
        last = Footprint::of(&server);
    }
    println!(
        "last: {last}, {counts:?}, {} preemptions",
        server.number("vllm:num_preemptions_total", "")
    );

    assert!(last.anonymous <= warm.anonymous + GROWTH, "it grows: {warm}, then {last}");
    assert_eq!((last.threads, last.files), (warm.threads, warm.files));
    assert_eq!(server.number("iree_llm_step_failures_total", ""), 0.0);
    assert!(
        server.number("vllm:num_preemptions_total", "") > 0.0,
        "nobody takes pages from others"
    );
    let Counts { same, whole, refused, left, .. } = counts;
    assert!([same, whole, refused, left].map(AtomicUsize::into_inner).iter().all(|it| *it > 0));
    assert_eq!(server.get("/health").status, 200);
}
