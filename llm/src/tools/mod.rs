//! Tools that a model may call, and the form that its calls are kept to.

mod argument;
mod calls;
mod grammar;
mod literals;
mod one_by_one;

use std::sync::Arc;

use serde_json::{Value, json};
use text::{AnswerStyle, ChatTemplate, Prompt};

use crate::form::{Form, Forms};

/// What the form of calls is called.
const NAME: &str = "tools";
/// Most tools of a request.
const MOST_TOOLS: usize = 512;
/// Most characters of a tool's name, as Anthropic's API has it.
const LONGEST_NAME: usize = 128;

/// Whether tools are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes: it may answer in words.
    #[default]
    Auto,
    /// At least one of them is.
    Required,
    /// The one of this name is, once.
    Named(String),
}

/// What is wrong with tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {message}")]
#[non_exhaustive]
pub struct ToolError {
    /// Where it stands: `tools[2].function.name`, `tool_choice`.
    pub field: String,
    /// What is wrong: "is …: give …".
    pub message: String,
}

impl ToolError {
    fn new(field: impl Into<String>, message: String) -> Self {
        Self { field: field.into(), message }
    }
}

/// What may be called, and whether it must be. Arguments are kept to the schemas of tools, as far as the way in which a model
/// writes calls has a form for that; those of a tool with `"strict": true` to all of its schema, or there is an error.
#[derive(Debug, Clone)]
pub struct Tools {
    tools: Vec<Tool>,
    must: bool,
    /// The one that may be called, if not all may.
    only: Option<usize>,
    several: bool,
}

#[derive(Debug, Clone)]
struct Tool {
    name: String,
    /// As templates take it.
    value: Value,
    /// The schema of its arguments.
    parameters: Value,
    /// Whether they are kept to all of it.
    strict: bool,
}

impl Tools {
    /// `tools` in OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`.
    ///
    /// # Errors
    ///
    /// There is none, or too many; one is in another form, or called as another; the one to call is not there.
    pub fn new(tools: &[Value], choice: &ToolChoice) -> Result<Self, ToolError> {
        if tools.len() > MOST_TOOLS {
            let message = format!("has {} tools: give {MOST_TOOLS} at most", tools.len());
            return Err(ToolError::new("tools", message));
        }
        let mut known: Vec<Tool> = Vec::new();
        for (at, tool) in tools.iter().enumerate() {
            let tool = Tool::new(&format!("tools[{at}]"), tool)?;
            if known.iter().any(|it| it.name == tool.name) {
                let message = format!("has two tools called {:?}", tool.name);
                return Err(ToolError::new("tools", message));
            }
            known.push(tool);
        }
        if known.is_empty() {
            let message = "asks for a call, but there are no `tools`".into();
            return Err(ToolError::new("tool_choice", message));
        }
        let only = match choice {
            ToolChoice::Auto | ToolChoice::Required => None,
            ToolChoice::Named(name) => {
                let at = known.iter().position(|tool| tool.name == *name).ok_or_else(|| {
                    let names: Vec<_> = known.iter().map(|tool| tool.name.as_str()).collect();
                    let message = format!("names {name:?}; there are: {}", names.join(", "));
                    ToolError::new("tool_choice", message)
                })?;
                Some(at)
            }
        };
        let must = *choice != ToolChoice::Auto;
        Ok(Self { tools: known, must, only, several: true })
    }

    /// Lets an answer have one call at most.
    pub fn call_one(&mut self) {
        self.several = false;
    }

    /// Whether it may have only one.
    fn is_single(&self) -> bool {
        !self.several || self.only.is_some()
    }

    /// The schemas of their arguments, as they were given, by name.
    fn schemas(&self) -> Arc<[(String, Value)]> {
        let of = |tool: &Tool| {
            let parameters = &tool.value["function"]["parameters"];
            (tool.name.clone(), argument::without_reference(parameters))
        };
        self.callable().iter().map(of).collect()
    }

    /// As a template takes them.
    pub fn values(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.value.clone()).collect()
    }

    /// `prompt` of the `template`, whose answer may call these; only once, where the template has no room for several calls.
    #[must_use]
    pub fn called_in(&mut self, template: &ChatTemplate, prompt: Prompt) -> Prompt {
        if !template.takes_several_calls() {
            self.call_one();
        }
        prompt.calling(self.schemas(), !self.is_single())
    }

    /// Whether there is no answer but one that is kept to them.
    pub(crate) fn insist(&self) -> bool {
        self.must || self.callable().iter().any(|it| it.strict)
    }

    /// Lets arguments be any object where the rest of a schema cannot be kept to in `style`, as `can_be` says, and the
    /// tool does not insist; all such, where it is too much together. Returns whether there are such tools.
    pub(crate) fn loosen(
        &mut self,
        forms: &Forms,
        style: AnswerStyle,
        can_be: impl Fn(&Form) -> bool,
    ) -> bool {
        let cannot_be = |tool: &&mut Tool| {
            let form = || grammar::of_arguments(tool, style).called(NAME);
            !forms.judge(&tool.parameters, || can_be(&form()))
        };
        let mut loose: Vec<_> = self.loose().collect();
        if loose.iter().any(&cannot_be) {
            loose.retain(cannot_be);
        }
        loose.iter_mut().for_each(|tool| tool.loosen());
        !loose.is_empty()
    }

    /// The same with those of which that is known.
    pub(crate) fn loosen_known(&mut self, forms: &Forms) {
        let known = self.loose().filter(|it| forms.verdict(&it.parameters) == Some(false));
        known.for_each(Tool::loosen);
    }

    /// Those that may be called, and do not insist on their schemas.
    fn loose(&mut self) -> impl Iterator<Item = &mut Tool> {
        let callable = match self.only {
            Some(at) => &mut self.tools[at..=at],
            None => &mut self.tools[..],
        };
        callable.iter_mut().filter(|tool| !tool.strict)
    }

    fn callable(&self) -> &[Tool] {
        match self.only {
            Some(at) => &self.tools[at..=at],
            None => &self.tools,
        }
    }
}

impl Tool {
    /// The one at `at`.
    fn new(at: &str, value: &Value) -> Result<Self, ToolError> {
        let wrong =
            |name: &str, message: String| Err(ToolError::new(format!("{at}.{name}"), message));
        if value["type"] != "function" {
            return wrong("type", "must be \"function\": no others are supported".into());
        }
        let function = &value["function"];
        if !function.is_object() {
            return wrong("function", "is missing".into());
        }
        let name = function["name"].as_str().unwrap_or_default();
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(known) {
            let message =
                format!("is {name:?}: give 1 to {LONGEST_NAME} of a-z, A-Z, 0-9, _, - and .");
            return wrong("function.name", message);
        }
        // No parameters are none that could be given.
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let mut parameters = match &function["parameters"] {
            Value::Null => none,
            parameters @ Value::Object(_) => argument::without_reference(parameters),
            other => return wrong("function.parameters", format!("is {other}: give a schema")),
        };
        if parameters["type"].is_null() {
            parameters["type"] = "object".into();
        }
        if parameters["type"] != "object" {
            let message = format!("has the type {}: arguments are an object", parameters["type"]);
            return wrong("function.parameters", message);
        }
        let mut parameters = Form::written(parameters);
        let strict = function["strict"] == true;
        if !strict && let Some(form) = parameters["x-guidance"].as_object_mut() {
            // Without what is not understood of it: what clients say of their tools is more than a form.
            form.entry("lenient").or_insert(true.into());
        }
        Ok(Self { name: name.to_owned(), value: value.clone(), parameters, strict })
    }

    /// Lets its arguments be any object.
    fn loosen(&mut self) {
        tracing::debug!(
            "the schema of the tool {:?} cannot be kept to: any object does",
            self.name
        );
        self.parameters = Form::written(json!({"type": "object"}));
    }
}

#[cfg(test)]
mod tests;
