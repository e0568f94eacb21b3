//! What an answer is made of: words, thoughts, and calls of tools, told apart while it comes.

mod answer_style;
mod between_calls;
mod call;
mod call_marks;
mod harmony;
mod literal_call;
mod parameters;
mod written;

use std::sync::Arc;

pub use answer_style::AnswerStyle;
use call::Call;
pub use call_marks::{ArgumentMarks, CallMarks, Calls, Keys, NameMarks};
use harmony::Harmony;
pub use literal_call::GEMMA_TEXT;
use literal_call::LiteralCall;
pub use parameters::takes_text;
use parameters::{Parameters, Schemas};
use serde_json::Value;

use crate::stop_strings::overlap;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// What it says.
    Content(String),
    /// What it thinks before that.
    Reasoning(String),
    /// It calls the tool of this name; the arguments follow.
    Call(String),
    /// More of the last call's arguments: JSON's text.
    Arguments(String),
}

/// What thoughts lie between.
pub type Thoughts = [&'static str; 2];

/// As most models write it.
pub const THINK: Thoughts = ["<think>", "</think>"];
/// As Mistral's do: Magistral, Ministral.
pub const MISTRAL_THINK: Thoughts = ["[THINK]", "[/THINK]"];
/// As Gemma 4 does.
pub const GEMMA_THINK: Thoughts = ["<|channel>thought", "<channel|>"];
/// As Cohere's do.
pub const COHERE_THINK: Thoughts = ["<|START_THINKING|>", "<|END_THINKING|>"];
/// As Apertus does.
const APERTUS_THINK: Thoughts = ["<|inner_prefix|>", "<|inner_suffix|>"];
/// As Seed-OSS does.
const SEED_THINK: Thoughts = ["<seed:think>", "</seed:think>"];

/// What models put what they say in: Granite 3.3 behind thoughts, Command R7B and A, and Command A+.
const RESPONSES: [Thoughts; 3] = [
    ["<response>", "</response>"],
    ["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    ["<|START_TEXT|>", "<|END_TEXT|>"],
];

/// What thoughts lie between in answers of which the template `source` knows; `None` where there are none.
pub(crate) fn thoughts_of(source: &str) -> Option<Thoughts> {
    let marks = [THINK, MISTRAL_THINK, GEMMA_THINK, COHERE_THINK, SEED_THINK, APERTUS_THINK];
    marks.into_iter().find(|[open, close]| source.contains(open) || source.contains(close))
}

/// What words may lie between in answers of which the template `source` knows, if there is something.
pub(crate) fn response_of(source: &str) -> Option<Thoughts> {
    // Words between tags are named by prose, too.
    let is_asked = |[open, close]: &Thoughts| match open.contains('|') {
        true => source.contains(open) && source.contains(close),
        false => source.contains(&[*open, close].concat()),
    };
    RESPONSES.into_iter().find(is_asked)
}

/// Tells the parts of an answer apart. A part appears as soon as it is certain.
#[derive(Debug)]
pub struct Reply {
    style: Option<AnswerStyle>,
    thoughts: Thoughts,
    /// Whether the prompt has opened them.
    prompted: bool,
    state: State,
    /// What words may be in that have not begun.
    response: Option<Thoughts>,
    /// What ends the words that have begun so.
    response_end: Option<&'static str>,
    /// What is not certain yet.
    held: String,
    /// What of it was there before the answer, and is told no more.
    told: String,
    /// What has opened the calls that come, where it would be shown if they were none.
    opened: &'static str,
    /// What may be called, where nothing opens calls.
    names: Option<Arc<[String]>>,
    /// What arguments of tools are, where they are written without saying it.
    schemas: Option<Schemas>,
    /// Whether nothing follows the first call.
    single: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing has come but white space.
    Start {
        thoughts: bool,
    },
    Thoughts {
        begun: bool,
    },
    Words {
        after: bool,
    },
    /// In an opened place, before a call or behind one.
    Calls,
    Call(Call),
    /// The same, of arguments one by one.
    Parameters(Parameters),
    /// The same, of literals.
    Literals(LiteralCall),
    /// In messages of a format that has thoughts, words and calls in it.
    Messages(Harmony),
    /// Nothing that comes counts.
    Over,
}

impl Reply {
    /// An answer in which calls are written in `style`, if any, and thoughts at the beginning between the marks
    /// `thoughts`, if there may be some. [`AnswerStyle::Harmony`] says for itself where thoughts are.
    pub fn new(style: Option<AnswerStyle>, thoughts: Option<Thoughts>) -> Self {
        let state = match style {
            Some(AnswerStyle::Harmony) => State::Messages(Harmony::default()),
            _ => State::Start { thoughts: thoughts.is_some() },
        };
        let (held, told) = (String::new(), String::new());
        let (opened, thoughts) = ("", thoughts.unwrap_or(THINK));
        let (response, response_end) = (None, None);
        let (names, schemas, single) = (None, None, false);
        Self {
            style,
            thoughts,
            prompted: false,
            state,
            response,
            response_end,
            held,
            told,
            opened,
            names,
            schemas,
            single,
        }
    }

    /// The same, where the prompt has ended in what opens thoughts.
    pub fn thinking(style: Option<AnswerStyle>, thoughts: Thoughts) -> Self {
        let state = State::Thoughts { begun: false };
        Self { state, prompted: true, ..Self::new(style, Some(thoughts)) }
    }

    /// The same, where tools of these `names` may be called: an object that nothing opens, as Llama 3 writes
    /// calls, is words if it has another name, and a message in harmony to another tool is thoughts.
    #[must_use]
    pub fn of_tools(self, names: &[String]) -> Self {
        Self { names: Some(names.into()), ..self }
    }

    /// The same, where the arguments of tools have these `schemas`, by the tools' names: of
    /// [`AnswerStyle::OneByOne`] an argument is text unless its schema says another type.
    #[must_use]
    pub fn of_schemas(self, schemas: Arc<[(String, Value)]>) -> Self {
        Self { schemas: Some(schemas), ..self }
    }

    /// The same, where words may begin and end with the marks `response`, which are left out: behind thoughts, or at the
    /// beginning where they are no text.
    #[must_use]
    pub fn in_response(self, response: Option<Thoughts>) -> Self {
        Self { response, ..self }
    }

    /// The same, for whoever makes one text of all words, and another of all thoughts: what were messages of their own
    /// are paragraphs, also where others stand between.
    #[must_use]
    pub fn joined(mut self) -> Self {
        if let State::Messages(harmony) = &mut self.state {
            harmony.joined = true;
        }
        self
    }

    /// The same with one call at most: what is behind it is left out.
    #[must_use]
    pub fn with_one_call(self) -> Self {
        Self { single: true, ..self }
    }

    /// The same, of which `begun` is there already: it is read, and not told.
    #[must_use]
    pub fn behind(mut self, begun: &str) -> Self {
        drop(self.push(begun));
        self.told.clone_from(&self.held);
        self
    }

    /// Leaves out of the first of `parts` what was told before; it may have been a mark's.
    fn untold(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        if parts.is_empty() || self.told.is_empty() {
            return parts;
        }
        let told = std::mem::take(&mut self.told);
        if let Part::Content(text) | Part::Reasoning(text) = &mut parts[0]
            && text.starts_with(&told)
        {
            text.drain(..told.len());
            if text.is_empty() {
                parts.remove(0);
            }
        }
        parts
    }

    /// Whether what comes next is thoughts.
    pub fn is_thinking(&self) -> bool {
        match &self.state {
            State::Thoughts { .. } => true,
            State::Messages(harmony) => harmony.is_thinking(),
            _ => false,
        }
    }

    /// Whether what was told last is a call that is not whole.
    pub fn is_in_call(&self) -> bool {
        match &self.state {
            State::Call(call) => call.is_call(),
            State::Parameters(_) | State::Literals(_) => true,
            State::Messages(harmony) => harmony.is_in_call(),
            _ => false,
        }
    }

    /// Whether an answer that ends here by itself leaves a call that is not whole. One of gpt-oss' is whole: it ends with
    /// the answer.
    pub fn lacks_end(&self) -> bool {
        self.is_in_call() && !matches!(self.state, State::Messages(_))
    }

    /// Takes text and returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while !self.held.is_empty() && self.advance(&mut parts) {}
        self.untold(parts)
    }

    /// Returns what was held back: no more text comes.
    pub fn finish(mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        match std::mem::replace(&mut self.state, State::Calls) {
            State::Call(call) => call.give_up(self.opened, &mut parts),
            State::Messages(harmony) => harmony.finish(&self.held, &mut parts),
            State::Thoughts { begun } => {
                let text = self.held.trim_end();
                words(Part::Reasoning, if begun { text } else { text.trim_start() }, &mut parts);
            }
            State::Words { after: true } => {
                words(Part::Content, self.held.trim_start(), &mut parts);
            }
            // Behind a call, what closes it has been cut off.
            State::Calls if self.opened.is_empty() => {}
            // Its arguments have been told as far as they go.
            State::Over | State::Parameters(_) | State::Literals(_) => {}
            State::Calls => {
                words(Part::Content, &(self.opened.to_owned() + &self.held), &mut parts)
            }
            State::Start { .. } | State::Words { .. } => {
                words(Part::Content, &self.held, &mut parts);
            }
        }
        self.untold(parts)
    }

    /// Whether there is more to do with what is held.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Start { thoughts } => {
                let thoughts = *thoughts;
                self.start(thoughts)
            }
            State::Thoughts { begun } => {
                let begun = *begun;
                self.think(begun, parts)
            }
            State::Words { after } => {
                let after = *after;
                self.speak(after, parts)
            }
            State::Calls => self.between_calls(parts),
            State::Call(call) => {
                let used = call.push(&self.held, parts);
                self.held.drain(..used);
                if call.is_whole() || call.is_refused() {
                    let State::Call(call) = std::mem::replace(&mut self.state, State::Calls) else {
                        unreachable!("it is a call")
                    };
                    if call.is_call() {
                        self.opened = "";
                        if self.single {
                            self.state = State::Over;
                        }
                    } else {
                        call.give_up(self.opened, parts);
                        self.state = State::Words { after: false };
                    }
                }
                true
            }
            State::Parameters(parameters) => {
                let used = parameters.push(&self.held, parts);
                self.held.drain(..used);
                if parameters.is_whole() {
                    self.opened = "";
                    self.state = if self.single { State::Over } else { State::Calls };
                    return true;
                }
                used > 0
            }
            State::Literals(call) => {
                let used = call.push(&self.held, parts);
                self.held.drain(..used);
                if call.is_whole() {
                    self.opened = "";
                    self.state = if self.single { State::Over } else { State::Calls };
                }
                used > 0
            }
            State::Messages(harmony) => {
                let more = harmony.advance(&mut self.held, self.names.as_deref(), parts);
                if self.single && harmony.is_behind_call() {
                    self.state = State::Over;
                }
                more
            }
            State::Over => {
                self.held.clear();
                false
            }
        }
    }

    fn start(&mut self, thoughts: bool) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        let mut marks = Vec::new();
        if thoughts {
            marks.push(self.thoughts[0]);
        }
        if self.style == Some(AnswerStyle::Llama3) {
            marks.push(AnswerStyle::Llama3.opening());
            if text.starts_with('{') {
                self.held.drain(..self.held.len() - text.len());
                self.state = State::Call(Call::of(self.names.clone()));
                return true;
            }
        }
        // Tags that are text may be what is asked for where no thoughts come first.
        let response = self.response.map(|it| it[0]).filter(|open| open.contains('|'));
        marks.extend(response);
        if marks.iter().any(|mark| mark.len() > text.len() && mark.starts_with(text)) {
            return false;
        }
        if response.is_some_and(|open| text.starts_with(open)) {
            self.state = State::Words { after: true };
        } else if thoughts && let Some(rest) = text.strip_prefix(self.thoughts[0]) {
            self.held = rest.to_owned();
            self.state = State::Thoughts { begun: false };
        } else {
            self.state = State::Words { after: false };
        }
        true
    }

    fn think(&mut self, begun: bool, parts: &mut Vec<Part>) -> bool {
        if !begun {
            self.held = self.held.trim_start().to_owned();
        }
        // Some open them again that the prompt has opened.
        let again = self.thoughts[0].trim_end();
        if !begun && self.prompted && !self.held.is_empty() {
            if self.held.len() < again.len() && again.starts_with(&self.held) {
                return false;
            }
            if let Some(rest) = self.held.strip_prefix(again) {
                self.held = rest.trim_start().to_owned();
            }
        }
        // Apertus calls from within its thoughts.
        let opening = self.style.filter(|it| *it == AnswerStyle::APERTUS).map(AnswerStyle::opening);
        let marks = [Some(self.thoughts[1]), opening];
        let marks: Vec<_> = marks.into_iter().flatten().collect();
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark)));
        if let Some((at, mark)) = found.min() {
            words(Part::Reasoning, self.held[..at].trim_end(), parts);
            self.held.drain(..at + mark.len());
            if Some(mark) == opening {
                self.opened = mark;
                self.state = State::Calls;
                return true;
            }
            self.held = self.held.trim_start().to_owned();
            // What follows may be nothing but calls.
            self.state = State::Words { after: true };
            if self.style == Some(AnswerStyle::Llama3) {
                self.state = State::Start { thoughts: false };
            }
            return true;
        }
        let before = parts.len();
        let more = self.show(Part::Reasoning, &marks, parts);
        self.state = State::Thoughts { begun: begun || parts.len() > before };
        more
    }

    /// Gives out what is held but for what may belong to one of `marks`, and white space before it.
    fn show(
        &mut self,
        part: impl Fn(String) -> Part,
        marks: &[&str],
        parts: &mut Vec<Part>,
    ) -> bool {
        let overlaps = marks.iter().map(|mark| overlap(&self.held, mark));
        let sure = self.held.len() - overlaps.max().unwrap_or_default();
        let sure = self.held[..sure].trim_end().len();
        let rest = self.held.split_off(sure);
        words(part, &self.held, parts);
        self.held = rest;
        false
    }

    fn speak(&mut self, after: bool, parts: &mut Vec<Part>) -> bool {
        if after {
            self.held = self.held.trim_start().to_owned();
            if self.held.is_empty() {
                return false;
            }
        }
        if after && let Some([open, close]) = self.response {
            if self.held.len() < open.len() && open.starts_with(&self.held) {
                return false;
            }
            self.response = None;
            if self.held.starts_with(open) {
                self.response_end = Some(close);
                self.held.drain(..open.len());
                return true;
            }
        }
        let opening = self.style.map(AnswerStyle::opening);
        let bare = self.style.and_then(AnswerStyle::bare_opening).filter(|_| self.names.is_some());
        let marks = [opening, self.response_end, bare];
        let marks: Vec<_> = marks.into_iter().flatten().collect();
        if marks.is_empty() {
            words(Part::Content, &std::mem::take(&mut self.held), parts);
            self.state = State::Words { after: false };
            return false;
        }
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark)));
        if let Some((at, mark)) = found.min() {
            if Some(mark) == bare {
                return self.bare_call(at, mark, parts);
            }
            words(Part::Content, self.held[..at].trim_end(), parts);
            self.held.drain(..at + mark.len());
            if Some(mark) == opening {
                self.opened = mark;
                self.state = State::Calls;
            } else {
                self.response_end = None;
                self.state = State::Words { after: true };
            }
            return true;
        }
        let before = parts.len();
        let more = self.show(Part::Content, &marks, parts);
        if parts.len() > before {
            self.state = State::Words { after: false };
        }
        more
    }
}

fn words(part: impl Fn(String) -> Part, text: &str, parts: &mut Vec<Part>) {
    if !text.is_empty() {
        parts.push(part(text.to_owned()));
    }
}

#[cfg(test)]
mod tests;
