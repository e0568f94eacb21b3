//! What answers of OpenAI's API have in common.

use serde_json::{Value, json};
use xla_session::FinishReason;

use crate::Problem;
use crate::answer::{About, Answer, End, Shape, Token, Usage};

/// How the choices of an endpoint look.
pub(crate) trait Choices: Send + 'static {
    /// What a whole answer is called.
    const WHOLE: &'static str;
    /// What a piece is called.
    const PIECE: &'static str;
    /// What ids begin with.
    const ID: &'static str;

    /// The choice with which a stream begins; `None` where it begins with its text.
    fn begin(&self, index: usize) -> Option<Value>;
    /// What the answer begins with, which is not shown again.
    fn resume(&mut self, index: usize, text: &str, tokens: &[Token]);
    /// The choices of a piece of a stream: often one, and none where it shows nothing.
    fn piece(&mut self, index: usize, text: &str, tokens: &[Token]) -> Vec<Value>;
    /// A choice that shows nothing.
    fn nothing(&self, index: usize) -> Value;
    /// The choices that end a stream.
    fn end(&mut self, index: usize, end: &End) -> Vec<Value>;
    /// Tokens of thoughts so far, where there may be some.
    fn thoughts(&self) -> Option<usize> {
        None
    }
    /// The choice of a whole answer.
    fn whole(&mut self, index: usize, answer: &Answer) -> Value;
}

/// Answers with `choices`.
pub(crate) struct OpenAi<C> {
    pub choices: C,
    /// What stands before each of them.
    pub heads: Vec<String>,
    /// Whether they have the ids of their tokens.
    pub token_ids: bool,
    /// Which pieces have the usage.
    pub usage: UsageIn,
    /// Tokens of the prompt of each, and those of each so far.
    pub counts: Vec<[usize; 2]>,
}

/// Which pieces of a stream have the usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageIn {
    None,
    /// One more at the end.
    Last,
    /// That, and what is so far in each, as vLLM has it.
    Each,
}

/// Why an answer has ended.
pub(crate) fn reason(end: &End) -> &'static str {
    match end.reason {
        FinishReason::Eos | FinishReason::Stop => "stop",
        FinishReason::Length | FinishReason::Context => "length",
    }
}

fn usage_of(usage: &Usage, thoughts: Option<usize>) -> Value {
    let (prompt, tokens) = (usage.prompt_tokens(), usage.tokens);
    let mut value = json!({
        "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens()},
    });
    if let Some(thoughts) = thoughts {
        value["completion_tokens_details"] = json!({"reasoning_tokens": thoughts});
    }
    value
}

fn ids(tokens: &[Token]) -> Value {
    tokens.iter().map(|token| token.id).collect()
}

fn line(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn done() -> String {
    "data: [DONE]\n\n".into()
}

impl<C: Choices> OpenAi<C> {
    fn envelope(about: &About, object: &str, choices: Vec<Value>) -> Value {
        let About { id, model, created, .. } = about;
        let id = format!("{}-{id}", C::ID);
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices})
    }

    /// Of answer `index`.
    fn lines(
        &self,
        about: &About,
        index: usize,
        choices: impl IntoIterator<Item = Value>,
    ) -> Vec<String> {
        let line = |choice| {
            let mut piece = Self::envelope(about, C::PIECE, vec![choice]);
            match self.usage {
                UsageIn::None => {}
                UsageIn::Last => piece["usage"] = Value::Null,
                UsageIn::Each => {
                    let [prompt, tokens] = self.counts[index];
                    piece["usage"] = json!({
                        "prompt_tokens": prompt, "completion_tokens": tokens,
                        "total_tokens": prompt + tokens,
                    });
                }
            }
            line(&piece)
        };
        choices.into_iter().map(line).collect()
    }
}

impl<C: Choices> Shape for OpenAi<C> {
    fn begin(&mut self, about: &About) -> Vec<String> {
        let mut lines = Vec::new();
        for index in 0..about.count {
            lines.extend(self.lines(about, index, self.choices.begin(index)));
            if let Some(head) = self.heads.get(index).filter(|head| !head.is_empty()) {
                let choices = self.choices.piece(index, head, &[]);
                lines.extend(self.lines(about, index, choices));
            }
        }
        lines
    }

    fn resume(&mut self, index: usize, text: &str, tokens: &[Token]) {
        // They count as the prompt's.
        self.choices.resume(index, text, tokens);
    }

    fn piece(&mut self, about: &About, index: usize, text: &str, tokens: &[Token]) -> Vec<String> {
        self.counts[index][1] += tokens.len();
        let mut choices = self.choices.piece(index, text, tokens);
        if self.token_ids && !tokens.is_empty() {
            if choices.is_empty() {
                // Its text is not certain yet.
                choices.push(self.choices.nothing(index));
            }
            // Whoever has read all of these has all that the tokens made certain.
            let last = choices.len() - 1;
            choices[last]["token_ids"] = ids(tokens);
        }
        self.lines(about, index, choices)
    }

    fn end(&mut self, about: &About, index: usize, end: &End) -> Vec<String> {
        let choices = self.choices.end(index, end);
        self.lines(about, index, choices)
    }

    fn finish(&mut self, about: &About, usage: &Usage) -> Vec<String> {
        let mut lines = Vec::new();
        if self.usage != UsageIn::None {
            let mut piece = Self::envelope(about, C::PIECE, Vec::new());
            piece["usage"] = usage_of(usage, self.choices.thoughts());
            lines.push(line(&piece));
        }
        lines.push(done());
        lines
    }

    fn fail(&mut self, _: &About, problem: &Problem) -> Vec<String> {
        vec![line(&problem.json()), done()]
    }

    fn still_there(&mut self, _: &About) -> String {
        ": still there\n\n".into()
    }

    fn whole(&mut self, about: &About, answers: Vec<Answer>, usage: &Usage) -> Value {
        let choices = answers.into_iter().enumerate().map(|(index, mut answer)| {
            answer.text.insert_str(0, self.heads.get(index).map_or("", String::as_str));
            let mut choice = self.choices.whole(index, &answer);
            if self.token_ids {
                choice["token_ids"] = ids(&answer.tokens);
            }
            choice
        });
        let choices = choices.collect();
        let mut whole = Self::envelope(about, C::WHOLE, choices);
        whole["usage"] = usage_of(usage, self.choices.thoughts());
        whole
    }
}
