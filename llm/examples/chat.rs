//! Asks a model, and shows what it says as it comes:
//!
//! ```sh
//! cargo run --release -p iree-llm --example chat -- models/tiny-tales "Who lived under the leaves?"
//! ```

use std::io::Write;

use anyhow::Context;
use iree_llm::{Ask, Llm, LlmOptions, Message, Part, Progress};

/// Says on stderr what goes on while a model is fetched.
struct Stderr;

impl Progress for Stderr {
    fn say(&self, line: &str) {
        eprintln!("{line}");
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().context("which model? a folder, a .gguf file or owner/name")?;
    let question = arguments.next().unwrap_or_else(|| "Tell me a story.".to_owned());

    let options = LlmOptions { progress: std::sync::Arc::new(Stderr), ..LlmOptions::default() };
    let llm = Llm::open_with(&model, &options)?;
    let ask = Ask { max_tokens: Some(200), sampling: Some(llm.recommended()), ..Ask::default() };
    let mut answer = llm.chat(&[Message::new("user", question)], &ask)?;
    while let Some(part) = answer.blocking_recv() {
        match part? {
            Part::Content(text) => print!("{text}"),
            Part::Reasoning(text) => eprint!("{text}"),
            Part::Call(_) | Part::Arguments(_) => {}
        }
        std::io::stdout().flush()?;
    }
    let end = answer.end().context("the answer has ended")?;
    println!("\n[{:?}: {} tokens in {:.1?}]", end.reason, end.timings.tokens, end.timings.total);
    Ok(())
}
