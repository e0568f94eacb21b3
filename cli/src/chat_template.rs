//! A model's chat template: a conversation to the text that the model was trained on.
//!
//! Templates are Jinja, in the dialect that Hugging Face's transformers gives them: Python string
//! methods, `raise_exception`, `strftime_now`, loop controls, and trimmed blocks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use serde::Serialize;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// "system", "user" or "assistant".
    pub role: &'static str,
    /// The text.
    pub content: String,
}

impl Message {
    /// What `role` says.
    pub fn new(role: &'static str, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// A parsed template and the special tokens that it may name.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: Vec<(String, String)>,
    path: PathBuf,
}

/// The variables a template expects for special tokens.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ChatTemplate {
    /// The template of the model in `folder`: `chat_template.jinja`, else the one in
    /// `tokenizer_config.json`; `None` when there is neither.
    ///
    /// # Errors
    ///
    /// A file cannot be read or parsed.
    pub fn from_dir(folder: &Path) -> Result<Option<Self>> {
        let config_path = folder.join("tokenizer_config.json");
        let config = match std::fs::read_to_string(&config_path) {
            Ok(text) => serde_json::from_str::<serde_json::Value>(&text)
                .with_context(|| format!("{}: not valid JSON", config_path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => serde_json::Value::Null,
            Err(error) => return Err(error).context(config_path.display().to_string()),
        };
        let tokens = TOKENS.iter().filter_map(|&name| {
            let token = &config[name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name.to_owned(), text.to_owned()))
        });
        let tokens = tokens.collect();

        let path = folder.join("chat_template.jinja");
        match std::fs::read_to_string(&path) {
            Ok(source) => return Self::new(source, tokens, path).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(path.display().to_string()),
        }
        // Either one template or a list of named ones.
        let source = match &config["chat_template"] {
            serde_json::Value::Array(named) => named
                .iter()
                .find(|it| it["name"] == "default")
                .or(named.first())
                .and_then(|it| it["template"].as_str()),
            template => template.as_str(),
        };
        source.map(|source| Self::new(source.to_owned(), tokens, config_path)).transpose()
    }

    /// The template of the model in `folder`.
    ///
    /// # Errors
    ///
    /// As [`from_dir`](Self::from_dir), or the model has no template.
    pub fn require(folder: &Path) -> Result<Self> {
        Self::from_dir(folder)?.ok_or_else(|| {
            anyhow!(
                "{}: the model has no chat template (chat_template.jinja, or chat_template in \
                 tokenizer_config.json): use `generate --raw`",
                folder.display()
            )
        })
    }

    fn new(source: String, tokens: Vec<(String, String)>, path: PathBuf) -> Result<Self> {
        // Marks of transformers' own for training; they put nothing into the text.
        let source = ["generation", "endgeneration"].iter().fold(source, |source, tag| {
            source
                .replace(&format!("{{%- {tag} -%}}"), "{#- -#}")
                .replace(&format!("{{%- {tag} %}}"), "{#- #}")
                .replace(&format!("{{% {tag} -%}}"), "{# -#}")
                .replace(&format!("{{% {tag} %}}"), "{# #}")
        });
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned("chat", source)
            .map_err(|e| anyhow!("{}: chat template: {e:#}", path.display()))?;
        Ok(Self { environment, tokens, path })
    }

    /// The text of a conversation; with `generation_prompt` it ends where the answer begins.
    ///
    /// It holds its special tokens as text: encode it without adding any.
    ///
    /// # Errors
    ///
    /// The template refuses the conversation or fails.
    pub fn render(&self, messages: &[Message], generation_prompt: bool) -> Result<String> {
        let mut variables: Vec<(&str, Value)> = self
            .tokens
            .iter()
            .map(|(name, text)| (name.as_str(), Value::from(text.as_str())))
            .collect();
        variables.push(("messages", Value::from_serialize(messages)));
        variables.push(("add_generation_prompt", Value::from(generation_prompt)));
        variables.push(("tools", Value::from(())));
        variables.push(("documents", Value::from(())));
        let template = self.environment.get_template("chat").map_err(|e| anyhow!("{e:#}"))?;
        template
            .render(variables.into_iter().collect::<Value>())
            .map_err(|e| anyhow!("{}: chat template: {e:#}", self.path.display()))
    }
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: String) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
        .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

/// Python's `json.dumps`: no HTML escapes, a space after commas and colons.
fn tojson(value: Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    // transformers passes these on to `json.dumps`; none changes what a template writes usually.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        let _ = options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let mut json = Vec::new();
    let result = match indent {
        Some(width) => {
            let spaces = " ".repeat(width);
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, pretty))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Python)),
    };
    result.map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&json).into_owned()))
}

struct Python;

impl serde_json::ser::Formatter for Python {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String> {
        let tokens = vec![("bos_token".into(), "<s>".into()), ("eos_token".into(), "</s>".into())];
        ChatTemplate::new(source.into(), tokens, "here".into())?.render(messages, true)
    }

    fn conversation() -> [Message; 2] {
        [Message::new("system", "Be kind & <short>."), Message::new("user", " Hi ")]
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let source = "{{ bos_token }}\n{% for message in messages %}\n    \
                      {% if message['role'] == 'user' %}\n[{{ message.content.strip() | trim }}]\n    \
                      {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}";
        assert_eq!(render(source, &conversation()).unwrap(), "<s>\n[Hi]\nA:");
    }

    #[test]
    fn text_is_not_escaped_and_json_is_pythons() {
        let source = "{{ messages[0].content }}{{ messages | tojson }}";
        assert_eq!(
            render(source, &conversation()).unwrap(),
            "Be kind & <short>.[{\"role\": \"system\", \"content\": \"Be kind & <short>.\"}, \
             {\"role\": \"user\", \"content\": \" Hi \"}]"
        );
        let source = "{{ {'a': 1} | tojson(indent=2) }}";
        assert_eq!(render(source, &[]).unwrap(), "{\n  \"a\": 1\n}");
    }

    #[test]
    fn loop_controls_generation_marks_and_absent_tools() {
        let source = "{%- for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\
                      {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}\
                      {% if tools is not none %}T{% endif %}{% if custom is defined %}C{% endif %}";
        assert_eq!(render(source, &conversation()).unwrap(), " Hi ");
    }

    #[test]
    fn the_date_is_todays() {
        let year = render("{{ strftime_now('%d %b %Y') }}", &[]).unwrap();
        assert!(year.ends_with(&jiff::Zoned::now().year().to_string()), "{year}");
    }

    #[test]
    fn refusals_and_mistakes_name_the_file() {
        let error = render("{{ raise_exception('no system role') }}", &[]).unwrap_err().to_string();
        assert!(error.contains("here") && error.contains("no system role"), "{error}");
        let error = render("{% if %}", &[]).unwrap_err().to_string();
        assert!(error.contains("here"), "{error}");
    }

    #[test]
    fn files_in_order_and_token_forms() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ChatTemplate::from_dir(folder.path()).unwrap().is_none());
        let error = ChatTemplate::require(folder.path()).unwrap_err().to_string();
        assert!(error.contains("--raw"), "{error}");
        let config = serde_json::json!({
            "bos_token": {"content": "<b>", "special": true},
            "eos_token": null,
            "chat_template": [
                {"name": "tool_use", "template": "tools"},
                {"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},
            ],
        });
        let path = folder.path().join("tokenizer_config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let text = |folder| ChatTemplate::require(folder).unwrap().render(&[], false).unwrap();
        assert_eq!(text(folder.path()), "<b>");
        std::fs::write(folder.path().join("chat_template.jinja"), "J{{ bos_token }}").unwrap();
        assert_eq!(text(folder.path()), "J<b>");
        std::fs::write(&path, "{").unwrap();
        let error = ChatTemplate::from_dir(folder.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }
}
