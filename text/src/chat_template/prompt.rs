//! What a conversation is as a prompt, and how the answers to it are read.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{AnswerStyle, ChatTemplate, Error, RenderOptions, Reply, Result, Thoughts, Tokenizer};

/// A conversation in the text that the model was trained on, and what its template says of how it answers.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// With its special tokens: [`Tokenizer::encode_chat`] makes tokens of it.
    pub text: String,
    style: Option<AnswerStyle>,
    /// What may stand around thoughts and around words.
    thoughts: Option<Thoughts>,
    response: Option<Thoughts>,
    /// Whether the text ends where thoughts have begun.
    thinking: bool,
    /// What may be called, and the schemas of its arguments.
    schemas: Arc<[(String, Value)]>,
    /// Whether there may be several calls.
    several: bool,
    /// What the last message has of the answer.
    begun: String,
}

impl ChatTemplate {
    /// `messages`, in the form of transformers, as a prompt: [adapted](Self::adapt) to the template, and
    /// [rendered](Self::render). Thoughts of earlier answers are their `reasoning_content`.
    ///
    /// # Errors
    ///
    /// Those of `render`; a message that is no object; tools, where calls are written in a way that is not known.
    pub fn prompt<M: Serialize>(&self, messages: &[M], options: &RenderOptions) -> Result<Prompt> {
        let failed = |message: &str| Error::ChatTemplate {
            path: self.path.clone(),
            message: format!("chat template: {message}"),
        };
        let messages = serde_json::to_value(messages).map_err(|it| failed(&it.to_string()))?;
        let mut messages: Vec<Map<String, Value>> =
            serde_json::from_value(messages).map_err(|it| failed(&format!("messages: {it}")))?;
        let mut options = options.clone();
        let style = if options.tools.is_empty() { self.answer_style() } else { self.call_style() };
        if !options.tools.is_empty() && style.is_none() {
            return Err(failed("it writes calls of tools in a way that is not understood here"));
        }
        let function = |tool: &Value| {
            let name = tool.pointer("/function/name")?.as_str()?.to_owned();
            Some((name, tool.pointer("/function/parameters").cloned().unwrap_or_default()))
        };
        let schemas: Arc<[_]> = options.tools.iter().filter_map(function).collect();
        let several = schemas.is_empty() || self.takes_several_calls();
        let goes_on = options.continue_final_message;
        let last = messages.last().filter(|_| goes_on).and_then(|it| it.get("content"));
        let begun = last.and_then(Value::as_str).unwrap_or_default().to_owned();
        self.adapt(&mut messages, goes_on, &mut options.tools);
        let text = self.render(&messages, &options)?;
        let is_open = |marks: Option<Thoughts>| {
            marks.is_some_and(|[open, _]| text.trim_end().ends_with(open))
        };
        let (thoughts, response) = (self.thoughts(), self.response());
        Ok(Prompt {
            style,
            thoughts,
            thinking: is_open(thoughts) && !goes_on,
            // What the prompt has opened comes no more.
            response: response.filter(|_| !is_open(response)),
            schemas,
            several,
            begun,
            text,
        })
    }
}

impl Prompt {
    /// The same, where only tools of these names may be called, whose arguments have these schemas, and only once unless
    /// there may be `several` calls.
    #[must_use]
    pub fn calling(self, schemas: Arc<[(String, Value)]>, several: bool) -> Self {
        Self { schemas, several, ..self }
    }

    /// How tools are called, if there are any, or else how answers are written that are more than text.
    pub fn style(&self) -> Option<AnswerStyle> {
        self.style
    }

    /// What thoughts stand between, if an answer may have some.
    pub fn thoughts(&self) -> Option<Thoughts> {
        self.thoughts
    }

    /// Whether they have begun already.
    pub fn is_thinking(&self) -> bool {
        self.thinking
    }

    /// What may stand around what is said, if that has not begun already.
    pub fn response(&self) -> Option<Thoughts> {
        self.response
    }

    /// The same, where nothing of the answer is there: one that goes on is in it already, if it is in one.
    pub fn response_to_come(&self) -> Option<Thoughts> {
        self.response.filter(|_| self.begun.is_empty())
    }

    /// What the last message has of the answer.
    pub fn begun(&self) -> &str {
        &self.begun
    }

    /// What tells the parts of an answer apart.
    pub fn reply(&self) -> Reply {
        let reply = match self.thoughts.filter(|_| self.thinking) {
            Some(thoughts) => Reply::thinking(self.style, thoughts),
            None => Reply::new(self.style, self.thoughts),
        };
        let callable: Vec<_> = self.schemas.iter().map(|(name, _)| name.clone()).collect();
        let reply = reply.of_tools(&callable).of_schemas(self.schemas.clone());
        let reply = reply.in_response(self.response);
        let reply = if self.several { reply } else { reply.with_one_call() };
        reply.behind(&self.begun)
    }

    /// The special tokens that the text of an answer must have, for
    /// [`Detokenizer::showing`](crate::Detokenizer::showing).
    pub fn special_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let of_style = self.style.map(|it| it.special_ids(tokenizer)).unwrap_or_default();
        // Those of thoughts and of the response that have not begun come no more behind what has.
        let thinks = || Reply::new(self.style, self.thoughts).behind(&self.begun).is_thinking();
        let thoughts = self.thoughts.filter(|_| self.begun.is_empty() || thinks());
        let marks = thoughts.into_iter().chain(self.response_to_come()).flatten();
        let marks = marks.flat_map(|mark| tokenizer.special_tokens_in(mark));
        of_style.into_iter().chain(marks).collect()
    }
}
