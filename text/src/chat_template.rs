//! A model's chat template: a conversation to the text that the model was trained on.
//!
//! Templates are Jinja, in the dialect that Hugging Face's transformers gives them: Python string
//! methods, `raise_exception`, `strftime_now`, loop controls, and trimmed blocks.

mod json;
mod methods;
mod past;
mod prompt;
mod python;
mod skills;
mod system;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use jiff::Zoned;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use serde::Serialize;

use crate::reply::{response_of, thoughts_of};
use crate::{AnswerStyle, Error, Result, THINK, Thoughts, Vocabulary, panics};

pub use json::dumps;
pub use prompt::Prompt;
use skills::Skills;

/// One turn of a conversation in words; turns with more than words are JSON objects in the form of
/// transformers (`tool_calls`, content in parts).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// "system", "user" or "assistant".
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// What `role` says.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What a template is told beside the messages; the default is nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// Whether the text ends where the answer begins.
    pub add_generation_prompt: bool,
    /// Whether the text ends with the words of the last message, for the answer to go on with; then there is no
    /// generation prompt.
    pub continue_final_message: bool,
    /// What the model may call, as JSON schemas in the form of transformers (`{"type": "function",
    /// "function": {"name", "description", "parameters"}}`); with none of them `tools` is none. Where a model has
    /// a template for them, that is rendered, as it is where a message has calls or is what came of one.
    pub tools: Vec<serde_json::Value>,
    /// What else a template takes: `enable_thinking`, `date_string`.
    pub variables: BTreeMap<String, serde_json::Value>,
}

impl RenderOptions {
    /// Nothing but where the answer begins.
    pub fn prompt() -> Self {
        Self { add_generation_prompt: true, ..Self::default() }
    }
}

/// A parsed template and the special tokens that it may name.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: Vec<(String, String)>,
    /// Found out when somebody asks, as other [`Skills`].
    skills: OnceLock<Skills>,
    takes_system: OnceLock<[bool; 2]>,
    takes_user_behind: OnceLock<[bool; 2]>,
    answer_style: Option<AnswerStyle>,
    thoughts: Option<Thoughts>,
    variables: BTreeSet<String>,
    /// Whether it looks for the tools in `xml_tools`, as SmolLM3's.
    takes_xml_tools: bool,
    /// Whether it is one for tools: a list of none is one, too.
    lists_tools: bool,
    /// What takes its place where there are tools.
    for_tools: Option<Box<Self>>,
    path: PathBuf,
}

/// The variables a template expects for special tokens.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What every template is given.
const GIVEN: [&str; 4] = ["messages", "add_generation_prompt", "tools", "documents"];

/// Files of templates.
const CHAT: &str = "chat_template.jinja";
const FOR_TOOLS: &str = "additional_chat_templates/tool_use.jinja";

/// Stands behind the words that an answer goes on with, as in transformers; templates that trim them take its
/// space away.
const HERE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Steps of a template before it counts as one that never ends: seconds. A long conversation takes
/// a thousandth of that.
const FUEL: u64 = 50_000_000;

impl ChatTemplate {
    /// The template of the model in `folder`: `chat_template.jinja`, with the one for tools in
    /// `additional_chat_templates/tool_use.jinja` if there is one; else the one in `tokenizer_config.json`, or
    /// the two of them if it has one for tools (`tool_use`); `None` when there is neither.
    ///
    /// # Errors
    ///
    /// A file cannot be read or parsed.
    pub fn from_dir(folder: &Path) -> Result<Option<Self>> {
        let config_path = folder.join("tokenizer_config.json");
        let config = match read(&config_path)? {
            Some(text) => match serde_json::from_str::<serde_json::Value>(&text) {
                Ok(config) => config,
                Err(error) => {
                    let message = format!("not valid JSON: {error}");
                    return Err(Error::ChatTemplate { path: config_path, message });
                }
            },
            None => serde_json::Value::Null,
        };
        let tokens = TOKENS.iter().filter_map(|&name| {
            let token = &config[name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name.to_owned(), text.to_owned()))
        });
        let tokens = tokens.collect();

        let path = folder.join(CHAT);
        if let Some(source) = read(&path)? {
            let for_tools = read(&folder.join(FOR_TOOLS))?;
            return Self::of_two(source, for_tools, tokens, path).map(Some);
        }
        // Either one template or a list of named ones.
        let (source, for_tools) = match &config["chat_template"] {
            serde_json::Value::Array(all) => {
                let named = |name: &str| all.iter().find(|it| it["name"] == name);
                let source = |it: &serde_json::Value| it["template"].as_str().map(str::to_owned);
                let default = named("default").or(all.first());
                (default.and_then(source), named("tool_use").and_then(source))
            }
            template => (template.as_str().map(str::to_owned), None),
        };
        source.map(|source| Self::of_two(source, for_tools, tokens, config_path)).transpose()
    }

    /// The template that `vocabulary`, which is from the file `source`, has; `None` when it has
    /// none.
    ///
    /// # Errors
    ///
    /// It cannot be parsed.
    pub fn from_vocabulary(vocabulary: &Vocabulary, source: &Path) -> Result<Option<Self>> {
        let Some(template) = vocabulary.chat_template.clone() else { return Ok(None) };
        let (for_tools, tokens) = (vocabulary.tool_template.clone(), vocabulary.special_texts());
        Self::of_two(template, for_tools, tokens, source.to_owned()).map(Some)
    }

    /// The template of the model in `folder`.
    ///
    /// # Errors
    ///
    /// As [`from_dir`](Self::from_dir), or the model has no template.
    pub fn require(folder: &Path) -> Result<Self> {
        Self::from_dir(folder)?.ok_or_else(|| Error::NoChatTemplate { folder: folder.to_owned() })
    }

    /// `source`, and `for_tools` in its place where there are tools.
    fn of_two(
        source: String,
        for_tools: Option<String>,
        tokens: Vec<(String, String)>,
        path: PathBuf,
    ) -> Result<Self> {
        let new = |source| Self::new(source, tokens.clone(), path.clone(), Zoned::now);
        let for_tools = for_tools.map(new).transpose()?;
        let for_tools = for_tools.map(|it| Box::new(Self { lists_tools: true, ..it }));
        Ok(Self { for_tools, ..new(source)? })
    }

    fn new(
        source: String,
        tokens: Vec<(String, String)>,
        path: PathBuf,
        now: fn() -> Zoned,
    ) -> Result<Self> {
        // As jinja2 reads a template.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source = without_generation_marks(&source);
        let answer_style = AnswerStyle::of_answers(&source);
        let thoughts = thoughts_of(&source).or(answer_style.map(|_| THINK));
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(methods::call);
        environment.set_formatter(python::format);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: String| strftime(&format, &now()));
        environment.add_filter("tojson", json::tojson);
        environment.add_filter("string", python::string);
        environment.add_filter("trim", python::trim);
        environment.add_filter("upper", python::upper);
        environment.add_filter("lower", python::lower);
        environment.add_filter("join", python::join);
        environment.add_filter("replace", python::replace);
        environment.add_filter("sum", python::sum);
        environment.add_filter("length", python::length);
        environment.add_filter("count", python::length);
        environment.add_filter("items", python::items);
        environment.add_test("number", python::is_number);
        environment.add_test("iterable", python::has_items);
        environment.add_test("sequence", python::has_items);
        if let Err(error) = environment.add_template_owned("chat", source) {
            return Err(failed(path, &error));
        }
        let named = environment.get_template("chat").map(|it| it.undeclared_variables(false));
        let mut variables: BTreeSet<String> = named.into_iter().flatten().collect();
        let takes_xml_tools = variables.contains("xml_tools") && !variables.contains("tools");
        let given = environment.globals().map(|(name, _)| name).chain(TOKENS).chain(GIVEN);
        let given: Vec<String> = given.map(str::to_owned).collect();
        variables.retain(|name| !given.contains(name));
        Ok(Self {
            environment,
            tokens,
            skills: OnceLock::new(),
            takes_system: OnceLock::new(),
            takes_user_behind: OnceLock::new(),
            answer_style,
            thoughts,
            variables,
            takes_xml_tools,
            lists_tools: false,
            for_tools: None,
            path,
        })
    }

    /// What is rendered where there are tools.
    fn with_tools(&self) -> &Self {
        self.for_tools.as_deref().unwrap_or(self)
    }

    /// What is rendered of `messages`, with `tools` or without.
    fn of_messages(&self, messages: &Value, tools: bool) -> &Self {
        let called = |message: Value| {
            let part = |name: &str| message.get_attr(name).ok();
            part("tool_calls").is_some_and(|it| it.is_true())
                || part("role").is_some_and(|it| it.as_str() == Some("tool"))
        };
        // Calls there have been may stay where there are no tools any more.
        let knows = tools || messages.try_iter().is_ok_and(|mut it| it.any(called));
        if knows { self.with_tools() } else { self }
    }

    /// How the model writes answers without calls; `None` where those are text, behind thoughts if there are any.
    pub fn answer_style(&self) -> Option<AnswerStyle> {
        self.answer_style
    }

    /// What thoughts stand between, if answers may begin with some (`<think>`, or a channel for them).
    pub fn thoughts(&self) -> Option<Thoughts> {
        self.thoughts.or(self.with_tools().thoughts)
    }

    /// What words of an answer may begin and end with, as those of Granite 3.3 behind thoughts
    /// (`<response></response>`), and Cohere's.
    pub fn response(&self) -> Option<Thoughts> {
        let source = self.environment.get_template("chat");
        source.ok().and_then(|it| response_of(it.source()))
    }

    /// The variables that it reads, beside those that every template is given: `enable_thinking`. One that it
    /// reads only to set it may not be among them.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.variables.union(&self.with_tools().variables).map(String::as_str)
    }

    /// Whether it has the word `name`, as it must to read a variable of that name.
    pub fn mentions(&self, name: &str) -> bool {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let mentions = |source: &str| source.split(|c| !is_part(c)).any(|word| word == name);
        let templates = [self, self.with_tools()].map(|it| it.environment.get_template("chat"));
        templates.into_iter().flatten().any(|it| mentions(it.source()))
    }

    /// The text of a conversation: [`Message`]s, or anything else that serializes as transformers'
    /// messages do.
    ///
    /// It holds its special tokens as text: encode it without adding any.
    ///
    /// # Errors
    ///
    /// The template refuses the conversation or fails, or leaves out the words that are to be gone on with.
    pub fn render<M: Serialize>(&self, messages: &[M], options: &RenderOptions) -> Result<String> {
        let all = Value::from_serialize(messages);
        let it = self.of_messages(&all, !options.tools.is_empty());
        if options.continue_final_message {
            return it.render_up_to_last_words(messages, options);
        }
        it.render_all(all, options)
    }

    /// As transformers does it: the end of the last words is where the mark behind them comes out.
    fn render_up_to_last_words<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions,
    ) -> Result<String> {
        let failed = |message: &str| Error::ChatTemplate {
            path: self.path.clone(),
            message: format!("chat template: {message}"),
        };
        let mut messages = serde_json::to_value(messages).map_err(|it| failed(&it.to_string()))?;
        let content = messages.as_array_mut().and_then(|it| it.last_mut());
        let Some(serde_json::Value::String(words)) = content.map(|last| &mut last["content"])
        else {
            return Err(failed("the last message has no words to go on with"));
        };
        words.push_str(HERE);
        let options = RenderOptions { add_generation_prompt: false, ..options.clone() };
        let mut text = self.render_all(Value::from_serialize(&messages), &options)?;
        let Some(end) = text.rfind(HERE.trim_end()) else {
            return Err(failed("it leaves out the words of the last message"));
        };
        let is_trimmed = !text[end..].starts_with(HERE);
        text.truncate(end);
        if is_trimmed {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    fn render_all(&self, messages: Value, options: &RenderOptions) -> Result<String> {
        let tools = (self.lists_tools || !options.tools.is_empty()).then_some(&options.tools);
        let tools = Value::from_serialize(tools);
        let xml_tools = self.takes_xml_tools.then(|| ("xml_tools", tools.clone()));
        let tokens = self.tokens.iter().map(|(name, text)| (name.as_str(), Value::from(text)));
        let known = [
            ("messages", messages),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            ("tools", tools),
            ("documents", Value::from(())),
        ];
        let given = options.variables.iter();
        let given = given.map(|(name, value)| (name.as_str(), Value::from_serialize(value)));
        let variables: Value = tokens.chain(known).chain(xml_tools).chain(given).collect();
        let template = self.environment.get_template("chat");
        // minijinja 2.24 panics on `[][::-1]`.
        let render = || template.and_then(|template| template.render(variables));
        match panics::catch(render) {
            Ok(rendered) => rendered.map_err(|error| failed(self.path.clone(), &error)),
            Err(panic) => {
                let message = format!("chat template: it cannot be rendered: {panic}");
                Err(Error::ChatTemplate { path: self.path.clone(), message })
            }
        }
    }
}

/// `source` with scopes in place of transformers' own marks for training, which are scopes of variables, and put
/// nothing into the text.
fn without_generation_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inner, behind)) = tag.split_once("%}") else { break };
        let inner = match inner.trim_matches(['-', '+']).trim() {
            "generation" | "endgeneration" => &inner.replace("generation", "with"),
            _ => inner,
        };
        text.extend([before, "{%", inner, "%}"]);
        rest = behind;
    }
    text + rest
}

/// The text of a file, if it is there.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

fn failed(path: PathBuf, error: &minijinja::Error) -> Error {
    Error::ChatTemplate { path, message: format!("chat template: {error:#}") }
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime(format: &str, time: &Zoned) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, time)
        .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

#[cfg(test)]
mod tests;
