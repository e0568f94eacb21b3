//! Answers in harmony, OpenAI's format that gpt-oss writes: messages, each behind a header that says what it is.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`; the prompt has
//! the first `<|start|>assistant`. `analysis` are thoughts, `final` is what is said, and `commentary` calls, where
//! the header says to whom (`to=functions.NAME`, before the channel or behind it), or else words before them. As
//! OpenAI's cookbook has it (`articles/openai-harmony.md`).

use super::Part;
use crate::stop_strings::overlap;

/// What stands around messages and in their headers: special tokens.
pub(super) const MARKS: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
];

/// What stands behind a message.
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
const MESSAGE: &str = "<|message|>";
const RECIPIENT: &str = "to=";
/// What a call is addressed to, before its name.
const FUNCTIONS: &str = "functions.";

/// Tells the messages of an answer apart.
#[derive(Debug, Default)]
pub(super) struct Harmony {
    place: Place,
    /// What the last message was that has said something.
    last: Option<Kind>,
    /// What there has been.
    told: Vec<Kind>,
    /// Whether all words become one text, and all thoughts.
    pub joined: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Before a message.
    #[default]
    Between,
    Header,
    Message {
        kind: Kind,
        begun: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thoughts,
    Words,
    Arguments,
}

impl Harmony {
    /// Takes what is certain from the front of `held`; calls are those of `names`, or of any where those are
    /// not known. Returns whether there is more to do with the rest.
    pub fn advance(
        &mut self,
        held: &mut String,
        names: Option<&[String]>,
        parts: &mut Vec<Part>,
    ) -> bool {
        match self.place {
            Place::Between => self.begin(held),
            Place::Header => {
                let Some(end) = held.find(MESSAGE) else { return false };
                let (kind, name) = read(&held[..end], names);
                held.drain(..end + MESSAGE.len());
                parts.extend(name.map(Part::Call));
                self.place = Place::Message { kind, begun: false };
                true
            }
            Place::Message { kind, begun } => {
                let end = MARKS.iter().filter_map(|mark| held.find(mark)).min();
                let unsure = || MARKS.iter().map(|mark| overlap(held, mark)).max().unwrap_or(0);
                let sure = end.unwrap_or_else(|| held.len() - unsure());
                self.tell(kind, begun, &held[..sure], parts);
                held.drain(..sure);
                if end.is_some() {
                    self.place = Place::Between;
                }
                end.is_some()
            }
        }
    }

    /// No more comes than `held`.
    pub fn finish(mut self, held: &str, parts: &mut Vec<Part>) {
        match self.place {
            // A header without a message says nothing.
            Place::Header => {}
            Place::Between => self.tell(Kind::Words, false, held.trim_end(), parts),
            Place::Message { kind, begun } => self.tell(kind, begun, held, parts),
        }
    }

    /// Whether thoughts may follow.
    pub fn is_thinking(&self) -> bool {
        matches!(self.place, Place::Message { kind: Kind::Thoughts, .. })
    }

    /// Whether arguments may follow.
    pub fn is_in_call(&self) -> bool {
        matches!(self.place, Place::Message { kind: Kind::Arguments, .. })
    }

    /// Whether a call has just ended.
    pub fn is_behind_call(&self) -> bool {
        self.place == Place::Between && self.last == Some(Kind::Arguments)
    }

    /// Finds what comes before a message. What has no header is said: so does an answer begin that goes on with
    /// one, or is none in harmony.
    fn begin(&mut self, held: &mut String) -> bool {
        let text = held.trim_start();
        let mut starts = MARKS.iter().chain([&RECIPIENT]);
        if let Some(rest) = ENDS.iter().find_map(|end| text.strip_prefix(end)) {
            *held = rest.to_owned();
            return true;
        }
        if starts.clone().any(|it| it.len() > text.len() && it.starts_with(text)) {
            return false;
        }
        self.place = if starts.any(|it| text.starts_with(it)) {
            Place::Header
        } else {
            Place::Message { kind: Kind::Words, begun: false }
        };
        true
    }

    fn tell(&mut self, kind: Kind, begun: bool, text: &str, parts: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        // Two messages of a kind that become one text stay two paragraphs.
        let goes_on = self.last == Some(kind) || self.joined && self.told.contains(&kind);
        let gap = if !begun && goes_on { "\n\n" } else { "" };
        parts.push(match kind {
            Kind::Thoughts => Part::Reasoning(format!("{gap}{text}")),
            Kind::Words => Part::Content(format!("{gap}{text}")),
            Kind::Arguments => Part::Arguments(text.to_owned()),
        });
        self.place = Place::Message { kind, begun: true };
        self.last = Some(kind);
        if !self.told.contains(&kind) {
            self.told.push(kind);
        }
    }
}

/// What a message behind `header` is, and what it calls.
fn read(header: &str, names: Option<&[String]>) -> (Kind, Option<String>) {
    // What comes before was cut off.
    let header = header.rsplit("<|start|>").next().unwrap_or_default();
    let words = || header.split(|c: char| c.is_whitespace() || c == '<');
    // gpt-oss begins some headers anew: the last channel counts.
    let channel = words().filter_map(|word| word.strip_prefix("|channel|>")).next_back();
    let recipient = words().filter_map(|word| word.strip_prefix(RECIPIENT)).next_back();
    let name = recipient.and_then(|it| it.strip_prefix(FUNCTIONS));
    let name = name.filter(|&name| names.is_none_or(|names| names.iter().any(|it| it == name)));
    match (channel, recipient) {
        (Some("final"), _) => (Kind::Words, None),
        _ if name.is_some() => (Kind::Arguments, name.map(str::to_owned)),
        // To a tool that is not there: nobody else has a use for it.
        (Some("analysis"), _) | (_, Some(_)) => (Kind::Thoughts, None),
        _ => (Kind::Words, None),
    }
}
