//! Clients that ask a server: ours beside `llama-server`, in turn, on the same requests.

mod load;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::programs::{Programs, SERVER_SETTINGS, Served};
use super::sample::Samples;
use super::table::{markdown, number};
use super::{llama_cpp, machine};
use load::{Answer, Load};

/// How many clients ask at once: each asks again when it has its answer.
const CLIENTS: [usize; 4] = [1, 4, 8, 16];
/// How long a server may take to load and compile.
const START: Duration = Duration::from_secs(900);

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Tokens of each prompt; no two begin alike.
    pub prompts: Vec<usize>,
    /// Tokens of each answer.
    pub answer: usize,
    /// Requests of each client.
    pub requests: usize,
    /// How often the two servers take turns.
    pub turns: usize,
}

impl Plan {
    /// What the documentation's tables are made with, or a few minutes of it.
    pub fn new(quick: bool) -> Self {
        if quick {
            Self { prompts: vec![64], answer: 8, requests: 1, turns: 1 }
        } else {
            Self { prompts: vec![64, 512], answer: 64, requests: 2, turns: 3 }
        }
    }

    /// Tokens that a sequence may have.
    fn context(&self) -> usize {
        self.prompts.iter().max().copied().unwrap_or(0) + self.answer
    }
}

/// What so many clients saw of a server, with prompts of one length.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// Tokens of answers a second, of all clients.
    rate: Samples,
    /// Seconds to the first token: the median of the requests, and 95% of them.
    first: [Samples; 2],
    /// Seconds between two tokens of an answer, on average over it: as above.
    between: [Samples; 2],
}

impl Seen {
    fn add(&mut self, answers: &[Answer], took: Duration) {
        let tokens: usize = answers.iter().map(|it| it.tokens).sum();
        self.rate.extend([tokens as f64 / took.as_secs_f64()]);
        let mut keep = |kept: fn(&mut Self) -> &mut [Samples; 2],
                        value: fn(&Answer) -> Duration| {
            let mut seconds: Vec<_> = answers.iter().map(|it| value(it).as_secs_f64()).collect();
            seconds.sort_by(f64::total_cmp);
            for (samples, share) in kept(self).iter_mut().zip([0.5, 0.95]) {
                let at = (seconds.len() as f64 * share).ceil() as usize;
                samples.extend(seconds.get(at.saturating_sub(1)).copied());
            }
        };
        keep(|it| &mut it.first, |it| it.first);
        keep(|it| &mut it.between, |it| it.between);
    }
}

/// Of ours and of llama.cpp, by prompt and number of clients.
type Both = [Vec<Vec<Seen>>; 2];

/// Measures both servers with every one of `models`, and makes the section between the two marks.
///
/// # Errors
///
/// A server does not start, or does not answer as it should.
pub fn section(
    programs: &Programs,
    models: Vec<Served>,
    threads: usize,
    plan: &Plan,
    command: &str,
) -> Result<String> {
    let nothing = || vec![vec![Seen::default(); CLIENTS.len()]; plan.prompts.len()];
    let mut measured: Vec<(_, Both)> =
        models.into_iter().map(|model| (model, [nothing(), nothing()])).collect();
    for turn in 1..=plan.turns {
        for (model, both) in &mut measured {
            eprintln!("==> turn {turn} of {}: {}, clients: {CLIENTS:?}", plan.turns, model.name);
            let most = CLIENTS.iter().max().copied().unwrap_or(1);
            // Both are there all the time: one that waits takes nothing of what the other has.
            let port = free_port()?;
            let ours = Server::start(programs.our_server(model, threads, most, port), port)?;
            let port = free_port()?;
            let llama = programs.llama_server(model, threads, most, plan.context(), port)?;
            let servers = [ours, Server::start(llama, port)?];
            measure(&servers, plan, both)?;
        }
    }
    Ok(text(&measured, threads, plan, command))
}

/// Each cell of both servers one after the other: what else the machine does changes by the minute.
fn measure(servers: &[Server; 2], plan: &Plan, both: &mut Both) -> Result<()> {
    let Plan { answer, requests, .. } = *plan;
    for Server { url, .. } in servers {
        // Memory is touched, graphs are loaded.
        Load { url, clients: 1, requests: 1, prompt: 64, answer: 2, seed: 0 }.run()?;
    }
    for (row, &prompt) in plan.prompts.iter().enumerate() {
        for (column, clients) in CLIENTS.into_iter().enumerate() {
            let seed = (1 + row * CLIENTS.len() + column) as u64;
            let names = ["iree-llm", "llama.cpp"];
            for ((whose, Server { url, .. }), seen) in names.iter().zip(servers).zip(&mut *both) {
                let start = Instant::now();
                let answers = Load { url, clients, requests, prompt, answer, seed }.run()?;
                let took = start.elapsed();
                seen[row][column].add(&answers, took);
                let tokens: usize = answers.iter().map(|it| it.tokens).sum();
                let rate = tokens as f64 / took.as_secs_f64();
                eprintln!("{whose:9} prompts of {prompt}, clients: {clients:2}: {rate:.2} tok/s");
            }
        }
    }
    Ok(())
}

fn text(measured: &[(Served, Both)], threads: usize, plan: &Plan, command: &str) -> String {
    let Plan { answer, requests, turns, .. } = plan;
    let mut text = format!(
        "{}, {}, threads: {threads}. `{command}`; {}, whose settings are always `{}`: the fastest are not \
         searched for. Each client asks {requests} times for {answer} tokens, streamed, of random \
         prompts, one after the other; turns of both servers, of which medians: {turns}. Times are the \
         median of the requests, and what 95% of them stay below.\n",
        machine::describe(),
        machine::today(),
        llama_cpp::described(),
        SERVER_SETTINGS.join(" "),
    );
    let table = |title: &str, cell: &dyn Fn(&Seen, &Seen) -> String| {
        let first = format!("{title}, ours / llama.cpp, clients:");
        let header: Vec<_> =
            std::iter::once(first).chain(CLIENTS.iter().map(usize::to_string)).collect();
        let rows = measured.iter().flat_map(|(model, [ours, llama])| {
            plan.prompts.iter().zip(ours.iter().zip(llama)).map(|(prompt, (ours, llama))| {
                let name = format!("{}, prompts of {prompt}", model.name);
                let cells = ours.iter().zip(llama).map(|(ours, llama)| cell(ours, llama));
                std::iter::once(name).chain(cells).collect::<Vec<_>>()
            })
        });
        markdown(&header, rows)
    };
    let show = |samples: &Samples| samples.median().map_or_else(|| "?".to_owned(), number);
    let shares = |samples: &[Samples; 2], unit: f64| {
        let values = samples.iter().map(|it| it.median().map(|seconds| seconds / unit));
        let shown = values.map(|it| it.map_or_else(|| "?".to_owned(), number));
        shown.collect::<Vec<_>>().join(", ")
    };
    text += "\n";
    text += &table("tok/s of answers", &|ours, llama| {
        let ratio = ours.rate.over(&llama.rate).map_or_else(|| "?".to_owned(), number);
        format!("{} / {}, {ratio}x", show(&ours.rate), show(&llama.rate))
    });
    text += "\n\n";
    text += &table("seconds to the first token", &|ours, llama| {
        format!("{} / {}", shares(&ours.first, 1.0), shares(&llama.first, 1.0))
    });
    text += "\n\n";
    text += &table("milliseconds between tokens", &|ours, llama| {
        format!("{} / {}", shares(&ours.between, 1e-3), shares(&llama.between, 1e-3))
    });
    text
}

/// A server that runs, and ends with this.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts `command`, and waits until it answers at `port`.
    fn start(mut command: Command, port: u16) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        let log = child.stderr.take().expect("it is piped");
        // A full pipe would stop it; its end says why it ended.
        let log = thread::spawn(move || last_lines(log));
        let url = format!("http://127.0.0.1:{port}");
        let mut server = Self { child, url };
        let start = Instant::now();
        while !load::is_ready(&server.url) {
            if let Some(status) = server.child.try_wait()? {
                let lines = log.join().unwrap_or_default();
                bail!("{name} ended before it answered ({status}):\n{lines}");
            }
            if start.elapsed() > START {
                bail!("{name} does not answer after {START:?}");
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_lines(log: impl Read) -> String {
    let mut lines = std::collections::VecDeque::new();
    for line in BufReader::new(log).split(b'\n').map_while(Result::ok) {
        lines.push_back(String::from_utf8_lossy(&line).into_owned());
        if lines.len() > 20 {
            lines.pop_front();
        }
    }
    lines.make_contiguous().join("\n")
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod unit_tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_cell_has_both_servers_and_the_ratio() {
        let plan = Plan { prompts: vec![64], ..Plan::new(false) };
        let answer = |first: u64, between: u64| Answer {
            tokens: 10,
            first: Duration::from_millis(first),
            between: Duration::from_millis(between),
        };
        let seen = |answers: &[Answer], seconds: u64| {
            let mut seen = Seen::default();
            seen.add(answers, Duration::from_secs(seconds));
            vec![vec![seen; CLIENTS.len()]]
        };
        let ours = seen(&[answer(100, 20), answer(300, 40), answer(200, 30)], 1);
        let llama = seen(&[answer(400, 50)], 1);
        let model = Served::file(Path::new("models/small.gguf"));
        let text = text(&[(model, [ours, llama])], 2, &plan, "cargo xtask bench --part serve");
        for part in [
            "`cargo xtask bench --part serve`; llama-cpp-python ",
            "whose settings are always `-fa on -lm mmap`",
            "| small, prompts of 64 |",
            "30.0 / 10.0, 3.00x",
            "0.200, 0.300 / 0.400, 0.400",
            "30.0, 40.0 / 50.0, 50.0",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_server_that_ends_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo it is broken >&2; exit 3"]);
        let error = Server::start(command, free_port().unwrap()).err().unwrap().to_string();
        assert!(error.contains("it is broken") && error.contains('3'), "{error}");
    }
}
