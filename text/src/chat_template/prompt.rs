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
    /// `messages`, in the form of transformers, as a prompt: adapted to what the template takes, and
    /// [rendered](Self::render). Thoughts of earlier answers are their `reasoning_content`; parts of text are joined by
    /// lines, and arguments of calls may be the text of JSON.
    ///
    /// Where there are tools and [`Prompt::style`] is none, the template writes calls in a way that is not known here.
    ///
    /// # Errors
    ///
    /// Those of `render`; a message that is no object, or has other content than text; arguments of a call that are no object.
    pub fn prompt<M: Serialize>(&self, messages: &[M], options: &RenderOptions) -> Result<Prompt> {
        let failed = |message: &str| Error::ChatTemplate {
            path: self.path.clone(),
            message: format!("chat template: {message}"),
        };
        let messages = serde_json::to_value(messages).map_err(|it| failed(&it.to_string()))?;
        let mut messages: Vec<Map<String, Value>> =
            serde_json::from_value(messages).map_err(|it| failed(&format!("messages: {it}")))?;
        for (at, message) in messages.iter_mut().enumerate() {
            in_words(message).map_err(|it| failed(&format!("messages[{at}]: {it}")))?;
        }
        let mut options = options.clone();
        let style = if options.tools.is_empty() { self.answer_style() } else { self.call_style() };
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

    /// Whether they have begun already: the prompt has opened them, or what an answer goes on with has.
    pub fn is_thinking(&self) -> bool {
        let goes_on = || Reply::new(self.style, self.thoughts).behind(&self.begun).is_thinking();
        self.thinking || self.thoughts.is_some() && !self.begun.is_empty() && goes_on()
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
        let thoughts = self.thoughts.filter(|_| self.begun.is_empty() || self.is_thinking());
        let marks = thoughts.into_iter().chain(self.response_to_come()).flatten();
        let marks = marks.flat_map(|mark| tokenizer.special_tokens_in(mark));
        of_style.into_iter().chain(marks).collect()
    }
}

/// Makes one text of the content of `message`, and values of what its calls are given.
fn in_words(message: &mut Map<String, Value>) -> std::result::Result<(), String> {
    let content = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(_)) => return parse_arguments(message),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| {
                let text = part["text"].as_str().filter(|_| part["type"] == "text");
                text.map(str::to_owned).ok_or_else(|| format!("a part is no text: {part}"))
            };
            parts.iter().map(text).collect::<std::result::Result<Vec<_>, _>>()?.join("\n")
        }
        Some(other) => return Err(format!("its content is no text: {other}")),
    };
    message.insert("content".into(), content.into());
    parse_arguments(message)
}

fn parse_arguments(message: &mut Map<String, Value>) -> std::result::Result<(), String> {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        // Some say name and arguments without that it is a function.
        let function = match call.get("function") {
            Some(_) => &mut call["function"],
            None => call,
        };
        let Some(function) = function.as_object_mut() else {
            return Err(format!("a call is no object: {function}"));
        };
        let arguments = function.entry("arguments").or_insert(Value::Null);
        match arguments {
            Value::Object(_) => {}
            Value::Null => *arguments = Map::new().into(),
            Value::String(text) if text.trim().is_empty() => *arguments = Map::new().into(),
            Value::String(text) => match serde_json::from_str(text) {
                Ok(value @ Value::Object(_)) => *arguments = value,
                _ => return Err(format!("the arguments of a call are no object: {text}")),
            },
            other => return Err(format!("the arguments of a call are no object: {other}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Part, Vocabulary};

    fn template(source: &str) -> ChatTemplate {
        let of_file = Vocabulary { chat_template: Some(source.into()), ..Vocabulary::default() };
        ChatTemplate::from_vocabulary(&of_file, "here".as_ref()).unwrap().unwrap()
    }

    #[test]
    fn words_in_parts_are_not_lost() {
        let plain = template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let call =
            json!({"type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let parts =
            |text: &str| json!([{"type": "text", "text": text}, {"type": "text", "text": "!"}]);
        let messages = [
            json!({"role": "user", "content": parts("question")}),
            json!({"role": "assistant", "tool_calls": [call]}),
            json!({"role": "tool", "content": parts("result")}),
        ];
        let options = RenderOptions { tools: vec![tool], ..RenderOptions::prompt() };
        let prompt = plain.prompt(&messages, &options).unwrap();
        for part in ["question\n!", "result\n!", "\"arguments\": {\"x\": 1}", "\"name\":\"f\""] {
            assert!(prompt.text.contains(part), "{part}: {}", prompt.text);
        }
        let mut reply = prompt.reply();
        let mut told =
            reply.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
        told.extend(reply.finish());
        assert_eq!(told[0], Part::Call("f".into()));
        let image = [json!({"role": "user", "content": [{"type": "image"}]})];
        let error = plain.prompt(&image, &options).unwrap_err().to_string();
        assert!(error.contains("messages[0]: a part is no text"), "{error}");
        for (arguments, expected) in
            [(json!(""), true), (Value::Null, true), (json!("{\"x"), false)]
        {
            let call =
                json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
            let called = [messages[0].clone(), json!({"role": "assistant", "tool_calls": [call]})];
            let prompt = plain.prompt(&called, &options);
            let written = prompt.is_ok_and(|it| it.text.contains("\"arguments\": {}"));
            assert_eq!(written, expected);
        }
        let going = RenderOptions { continue_final_message: true, ..RenderOptions::default() };
        plain.prompt::<Value>(&[], &going).unwrap_err();
    }

    #[test]
    fn what_the_prompt_has_opened_is_read_so() {
        let thinks = template("{{ messages[0].content }}<think>\n{# </think> #}");
        let message = [json!({"role": "user", "content": "a"})];
        let prompt = thinks.prompt(&message, &RenderOptions::prompt()).unwrap();
        assert!(prompt.is_thinking() && prompt.style().is_none());
        let mut reply = prompt.reply();
        let mut told = reply.push("Hm.</think>Yes.");
        told.extend(reply.finish());
        assert_eq!(told, [Part::Reasoning("Hm.".into()), Part::Content("Yes.".into())]);
    }
}
