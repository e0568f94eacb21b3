//! Conversations: what has been said, as templates take it, and how it is answered.

use std::sync::Arc;
use std::time::Instant;

use iree_llm::tools::Tools;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use text::{ChatTemplate, Prompt, RenderOptions};

use crate::answer::Answers;
use crate::fields::Fields;
use crate::sampling::Settings;
use crate::server::Shared;
use crate::{Model, Problem, trace};

const KWARGS: &str = "chat_template_kwargs";
/// The field, and what templates call it.
const EFFORT: &str = "reasoning_effort";
/// What templates are told that know thinking and not thinking.
const THINKING: &str = "enable_thinking";
/// What others are told, as Granite's and DeepSeek's.
const THINKS: &str = "thinking";
/// What Seed-OSS' is told: the most tokens of thoughts.
const BUDGET: &str = "thinking_budget";
/// What a template is given by us.
const RESERVED: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token"];

/// A conversation that is to be answered.
pub(crate) struct Asked {
    pub conversation: Conversation,
    pub settings: Settings,
    pub tools: Option<Tools>,
    /// Without one, as many as there is room for.
    pub max_tokens: Option<usize>,
    pub logprobs: Option<usize>,
}

impl Asked {
    /// Lets it wait for its turn at `model`.
    ///
    /// # Errors
    ///
    /// Something of it is wrong, or there is no place.
    pub async fn submit(
        self,
        shared: &Shared,
        model: Arc<Model>,
    ) -> Result<(Answers, Prompt), Problem> {
        let Self { mut conversation, settings, mut tools, max_tokens, logprobs } = self;
        trace::works("chat", model.name());
        shared.check_open()?;
        let (places, arrived) = (model.places(settings.n)?, Instant::now());
        let template = template(&model)?;
        if tools.is_some() && template.call_style().is_none() {
            let message = format!(
                "the template of the model {:?} writes calls of tools in a way that is not understood here \
                 (docs/server.md has the list): take another model, or describe them in a message and ask for a `response_format`",
                model.name()
            );
            return Err(Problem::field("tools", message));
        }
        if conversation.options.continue_final_message && tools.is_some() {
            let message = "cannot be given where the answer goes on with the last message (`continue_final_message`, or one of \
                           the assistant's in Anthropic's API)";
            return Err(Problem::field("tools", message));
        }
        conversation.show(tools.as_ref());
        let (tokens, mut prompt) = rendered(&model, conversation).await?;
        if let Some(tools) = &mut tools {
            prompt = tools.called_in(template, prompt);
        }
        let (settings, form) = settings.with_form(&model, tools, Some(&prompt)).await?;
        let room = model.room(&tokens)?;
        let max_tokens = max_tokens.map_or(room, |it| it.min(room));
        let requests = settings.requests(&tokens, max_tokens, logprobs, form.as_ref())?;
        let events = model.submit(requests, places, arrived).await?;
        let tokens = [tokens, settings.answer].concat();
        let answers = Answers::new(model, vec![tokens], settings.n, events);
        Ok((answers, prompt))
    }
}

/// What has been said, and what else the template is told.
pub(crate) struct Conversation {
    messages: Vec<Map<String, Value>>,
    options: RenderOptions,
    /// Names of variables that the request says.
    kwargs: Vec<String>,
    /// How long to think, and the field that says so.
    effort: Option<(&'static str, Effort)>,
    /// The same, of no meaning to templates that do not know it.
    hint: Option<Effort>,
}

/// How long a model is to think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    #[serde(alias = "max")]
    XHigh,
}

impl Effort {
    /// As templates have it.
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
        }
    }
}

impl Conversation {
    /// What `fields` say.
    ///
    /// # Errors
    ///
    /// A message is in a form that is not supported.
    pub fn take(fields: &mut Fields) -> Result<Self, Problem> {
        let messages = fields.take::<Vec<Map<String, Value>>>("messages")?;
        let messages = messages.ok_or_else(|| Problem::field("messages", "is missing"))?;
        if messages.is_empty() {
            return Err(Problem::field("messages", "is empty: give at least one"));
        }
        let messages = messages.into_iter().enumerate();
        let messages = messages.map(|(at, it)| message(&format!("messages[{at}]"), it));
        let mut conversation = Self::of(messages.collect::<Result<_, _>>()?);
        let prompt = fields.take::<bool>("add_generation_prompt")?;
        conversation.options.add_generation_prompt = prompt.unwrap_or(true);
        if fields.take::<bool>("continue_final_message")?.unwrap_or(false) {
            if prompt == Some(true) {
                let message = "and `add_generation_prompt` contradict each other: give one of them";
                return Err(Problem::field("continue_final_message", message));
            }
            conversation.go_on()?;
        }
        conversation.take_variables(fields)?;
        conversation.think(EFFORT, fields.take(EFFORT)?);
        Ok(conversation)
    }

    /// Lets the answer go on with the last message.
    ///
    /// # Errors
    ///
    /// That is none of the assistant's, or has no words.
    pub fn go_on(&mut self) -> Result<(), Problem> {
        let last = self.messages.last();
        let words = last.filter(|it| it["role"] == "assistant" && !it.contains_key("tool_calls"));
        if words.is_none_or(|it| it["content"].as_str().unwrap_or_default().trim().is_empty()) {
            let message = "must end with words of the assistant for an answer to go on with";
            return Err(Problem::field("messages", message));
        }
        self.options.continue_final_message = true;
        Ok(())
    }

    /// What else `fields` tell the template.
    ///
    /// # Errors
    ///
    /// It is not theirs to say.
    pub fn take_variables(&mut self, fields: &mut Fields) -> Result<(), Problem> {
        let variables = fields.take::<Map<String, Value>>(KWARGS)?;
        for (name, value) in variables.unwrap_or_default() {
            if RESERVED.contains(&name.as_str()) || name.ends_with("_token") {
                let message = format!("has {name:?}, which is not the request's to say");
                return Err(Problem::field(KWARGS, message));
            }
            self.kwargs.push(name.clone());
            self.options.variables.insert(name, value);
        }
        Ok(())
    }

    /// Lets the model think for so long if its template knows how.
    pub fn hint(&mut self, effort: Effort) {
        self.hint = Some(effort);
    }

    /// Lets the model think as long as `field` says.
    pub fn think(&mut self, field: &'static str, effort: Option<Effort>) {
        self.effort = effort.map(|effort| (field, effort));
    }

    /// `messages` in the form that templates know.
    pub fn of(messages: Vec<Map<String, Value>>) -> Self {
        let options = RenderOptions::prompt();
        Self { messages, options, kwargs: Vec::new(), effort: None, hint: None }
    }

    /// What the template is told beside what it is given, all of which it has to know.
    ///
    /// # Errors
    ///
    /// It does not.
    fn options(&self, template: &ChatTemplate) -> Result<RenderOptions, Problem> {
        let knows = |name: &str| template.mentions(name);
        let known = || match template.variables().collect::<Vec<_>>() {
            names if names.is_empty() => "it reads no variables".to_owned(),
            names => format!("it reads: {}", names.join(", ")),
        };
        if let Some(name) = self.kwargs.iter().find(|name| !knows(name)) {
            let message =
                format!("has {name:?}, which the model's template does not know; {}", known());
            return Err(Problem::field(KWARGS, message));
        }
        let mut options = self.options.clone();
        let mut say = |name: &str, value: Value| options.variables.insert(name.into(), value);
        if let Some(effort) = self.hint.filter(|_| knows(EFFORT)) {
            say(EFFORT, effort.name().into());
        }
        let Some((field, effort)) = self.effort else { return Ok(options) };
        let none = effort == Effort::None;
        let (by_effort, by_thinking) = (knows(EFFORT), none && knows(THINKING));
        if by_effort {
            say(EFFORT, effort.name().into());
        }
        if by_thinking {
            say(THINKING, false.into());
        }
        // Of prose, too, and of messages.
        let by_name = none && !by_thinking && template.variables().any(|it| it == THINKS);
        if by_name {
            say(THINKS, false.into());
        }
        let by_budget = none && !by_thinking && knows(BUDGET);
        if by_budget {
            say(BUDGET, 0.into());
        }
        if by_effort || by_thinking || by_name || by_budget || none && template.thoughts().is_none()
        {
            return Ok(options);
        }
        // Anthropic's says it in another way, and has no other variables.
        let message = if field == "thinking" {
            "cannot be \"disabled\": the model's template does not know how to leave thoughts out"
                .into()
        } else {
            format!(
                "is {:?}, and the model's template does not know how long to think; {}: give it that as \
                 `{KWARGS}`",
                effort.name(),
                known(),
            )
        };
        Err(Problem::field(field, message))
    }

    /// Lets the model think before it answers if its template knows how, for `budget` tokens if it knows that.
    pub fn think_first(&mut self, budget: Option<u64>) {
        let said = [(THINKING, Some(true.into())), (THINKS, Some(true.into()))];
        let said = said.into_iter().chain([(BUDGET, budget.map(Value::from))]);
        let said = said.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        self.options.variables.extend(said);
    }

    /// Tells the template of `tools`.
    pub fn show(&mut self, tools: Option<&Tools>) {
        self.options.tools = tools.map(Tools::values).unwrap_or_default();
    }
}

/// A message in the form that templates know.
pub(crate) fn said(role: &str, content: String) -> Map<String, Value> {
    Map::from_iter([("role".into(), role.into()), ("content".into(), content.into())])
}

/// What a model is shown in place of a part of a tool's result that it cannot read. The user could be told so; a tool
/// was called by the model, and its result stays in the conversation.
const UNSEEN: [(&str, &str); 5] = [
    ("document", "[a document, which this model cannot read]"),
    ("image", "[an image, which this model cannot see]"),
    ("image_url", "[an image, which this model cannot see]"),
    ("input_file", "[a file, which this model cannot read]"),
    ("input_image", "[an image, which this model cannot see]"),
];

/// What a tool gave, which is at `at`: as [`texts`], each a line of its own, and of what is no text what it was.
///
/// # Errors
///
/// It is something else.
pub(crate) fn tool_result(at: &str, content: &Value, kinds: &[&str]) -> Result<String, Problem> {
    let unseen = |part: &Value| {
        let (_, words) = UNSEEN.iter().find(|(kind, _)| part["type"] == *kind)?;
        Some(json!({"type": kinds[0], "text": words}))
    };
    match content {
        Value::Array(parts) => {
            let parts = parts.iter().map(|part| unseen(part).unwrap_or_else(|| part.clone()));
            Ok(texts(at, &parts.collect(), kinds)?.join("\n"))
        }
        other => Ok(texts(at, other, kinds)?.join("\n")),
    }
}

/// The texts of `content`, which is at `at`: a string, or parts of one of the types `kinds`.
///
/// # Errors
///
/// It is something else.
pub(crate) fn texts<'a>(
    at: &str,
    content: &'a Value,
    kinds: &[&str],
) -> Result<Vec<&'a str>, Problem> {
    match content {
        Value::String(text) => Ok(vec![text]),
        Value::Array(parts) => {
            let texts = parts.iter().enumerate().map(|(n, part)| {
                let is_text = part["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
                part["text"].as_str().filter(|_| is_text).ok_or_else(|| {
                    let message = format!(
                        "is no text ({{\"type\": \"{}\", \"text\": \"…\"}}), and models here know nothing else",
                        kinds[0]
                    );
                    Problem::field(format!("{at}[{n}]"), message)
                })
            });
            texts.collect()
        }
        Value::Null => Err(Problem::field(at, "is missing: give a string or parts of text")),
        other => Err(Problem::field(at, format!("is {other}: give a string or parts of text"))),
    }
}

/// Makes one of the messages of the system that a conversation begins with: most templates take one.
pub(crate) fn join_system(messages: &mut Vec<Map<String, Value>>) {
    let count = messages.iter().take_while(|it| it["role"] == "system").count();
    if count > 1 {
        let system = messages.drain(..count);
        let texts: Vec<_> =
            system.map(|it| it["content"].as_str().unwrap_or_default().to_owned()).collect();
        messages.insert(0, said("system", texts.join("\n")));
    }
}

/// What clients call a message, in the form that templates know.
fn message(at: &str, message: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let field = |name: &str| format!("{at}.{name}");
    let is_result = message.get("role").is_some_and(|role| role == "tool");
    let mut known = Map::new();
    for (name, value) in message {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("role", Value::String(role)) => {
                let role = match role.as_str() {
                    // What newer models of OpenAI's call it.
                    "developer" => "system",
                    "system" | "user" | "assistant" | "tool" => &role,
                    _ => {
                        let message = format!(
                            "is {role:?}; there are: system, developer, user, assistant, tool"
                        );
                        return Err(Problem::field(field("role"), message));
                    }
                };
                known.insert(name, role.into());
            }
            ("content", Value::String(text)) => {
                known.insert(name, text.into());
            }
            // Each part is a line of its own, as vLLM and llama.cpp have it.
            ("content", parts @ Value::Array(_)) => {
                let text = match is_result {
                    true => tool_result(&field("content"), &parts, &["text"])?,
                    false => texts(&field("content"), &parts, &["text"])?.join("\n"),
                };
                known.insert(name, text.into());
            }
            ("tool_calls", Value::Array(calls)) => {
                let calls = calls.into_iter().enumerate();
                let calls = calls.map(|(n, it)| call(&field(&format!("tool_calls[{n}]")), &it));
                let calls = calls.collect::<Result<Vec<_>, _>>()?;
                if !calls.is_empty() {
                    known.insert(name, calls.into());
                }
            }
            // Some templates say who speaks, what a result belongs to, or what was thought.
            ("name" | "tool_call_id" | "reasoning_content", Value::String(text)) => {
                known.insert(name, text.into());
            }
            ("role" | "content" | "name" | "tool_call_id" | "reasoning_content", value) => {
                return Err(Problem::field(field(&name), format!("is {value}: give a string")));
            }
            ("tool_calls", value) => {
                return Err(Problem::field(field(&name), format!("is {value}: give a list")));
            }
            // What others call it.
            ("reasoning", Value::String(text)) => {
                known.entry("reasoning_content").or_insert_with(|| text.into());
            }
            // What VS Code says of a message for the service of others.
            ("cache_control" | "copilot_cache_control" | "cot_id" | "cot_summary", _) => {}
            // What clients send back as it came.
            ("refusal" | "annotations" | "audio" | "function_call", _)
                if known.get("role").is_none_or(|role| role == "assistant") => {}
            _ => {
                let message = "is not supported here; there are: role, content, name, tool_calls, \
                               tool_call_id, reasoning_content";
                return Err(Problem::field(field(&name), message));
            }
        }
    }
    if known.contains_key("tool_calls") {
        // What comes with calls alone; templates take words for granted.
        known.entry("content").or_insert_with(|| "".into());
    }
    for name in ["role", "content"] {
        if !known.contains_key(name) {
            return Err(Problem::field(field(name), "is missing"));
        }
    }
    for (name, role) in [("tool_calls", "assistant"), ("tool_call_id", "tool")] {
        if known.contains_key(name) && known["role"] != role {
            let message = format!("is for messages of the role {role:?}");
            return Err(Problem::field(field(name), message));
        }
    }
    Ok(known)
}

/// A call in the form that templates know: with arguments as an object.
pub(crate) fn call(at: &str, call: &Value) -> Result<Value, Problem> {
    let wrong = |name: &str, message: &str| Problem::field(format!("{at}.{name}"), message);
    let function = &call["function"];
    let name = function["name"].as_str();
    let name = name.ok_or_else(|| wrong("function.name", "is missing: give a string"))?;
    let arguments = match &function["arguments"] {
        Value::Null => json!({}),
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| wrong("function.arguments", &format!("is no JSON: {error}")))?,
        given => given.clone(),
    };
    if !arguments.is_object() {
        return Err(wrong("function.arguments", "is no object of JSON"));
    }
    let mut known = json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    match &call["id"] {
        Value::Null => {}
        Value::String(id) => known["id"] = id.as_str().into(),
        other => return Err(wrong("id", &format!("is {other}: give a string"))),
    }
    Ok(known)
}

/// The tokens of `conversation`, up to where the answer begins.
///
/// # Errors
///
/// The model has no template, or it refuses the conversation.
pub(crate) async fn tokens(
    model: &Arc<Model>,
    conversation: Conversation,
) -> Result<Vec<u32>, Problem> {
    Ok(rendered(model, conversation).await?.0)
}

/// As [`tokens`], and what they are of.
async fn rendered(
    model: &Arc<Model>,
    conversation: Conversation,
) -> Result<(Vec<u32>, Prompt), Problem> {
    crate::server::blocking(model, move |model| {
        let template = template(model)?;
        let options = conversation.options(template)?;
        let prompt = template.prompt(&conversation.messages, &options).map_err(|error| {
            let message = match error {
                // Where its file lies is nobody else's business.
                text::Error::ChatTemplate { message, .. } => message,
                other => other.to_string(),
            };
            Problem::field("messages", message)
        })?;
        let tokens = model.llm.tokenizer().encode_chat(&prompt.text);
        let tokens = tokens.map_err(|error| Problem::field("messages", error.to_string()))?;
        Ok((tokens, prompt))
    })
    .await
}

fn template(model: &Model) -> Result<&ChatTemplate, Problem> {
    model.llm.template().ok_or_else(|| {
        let name = model.name();
        Problem::request(format!("the model {name:?} has no chat template: use /v1/completions"))
    })
}

#[cfg(test)]
mod tests {
    use text::Vocabulary;

    use super::*;

    #[test]
    fn thoughts_are_left_out_by_the_variable_that_a_template_has() {
        for (variable, expected) in [
            ("enable_thinking", Some(false.into())),
            ("thinking", Some(false.into())),
            ("thinking_budget", Some(0.into())),
            ("other", None),
        ] {
            let source = format!(
                "{{% if {variable} %}}Write your thinking in <think></think>.{{% endif %}}"
            );
            let of_file = Vocabulary { chat_template: Some(source), ..Vocabulary::default() };
            let template = ChatTemplate::from_vocabulary(&of_file, "here".as_ref());
            let mut conversation = Conversation::of(Vec::new());
            conversation.think(EFFORT, Some(Effort::None));
            let options = conversation.options(&template.unwrap().unwrap());
            let said = options.ok().and_then(|it| it.variables.get(variable).cloned());
            assert_eq!(said, expected, "{variable}");
        }
    }
}
