//! Tools that a request lets the model call, and the form that its calls are kept to.

mod argument;
mod calls;
mod grammar;
mod literals;
mod one_by_one;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use text::AnswerStyle;

use crate::Problem;
use crate::fields::Fields;
use crate::server::unique_id;
use iree_llm::form::{Form, Forms};

/// Whose form that of calls is.
const FIELD: &str = "tools";
/// Most tools of a request.
const MOST_TOOLS: usize = 128;
/// Most characters of a tool's name, as Anthropic's API has it.
const LONGEST_NAME: usize = 128;

/// What may be called, and whether it must be.
pub(crate) struct Tools {
    tools: Vec<Tool>,
    must: bool,
    /// The one that may be called, if not all may.
    only: Option<usize>,
    parallel: bool,
}

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
    /// What `fields` say; `None` where nothing may be called.
    ///
    /// # Errors
    ///
    /// A tool is in a form that is not supported, or the one to call is not there.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>, Problem> {
        let given = fields.take::<Vec<Map<String, Value>>>(FIELD)?.unwrap_or_default();
        let choice = fields.take::<Value>("tool_choice")?;
        let parallel = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
        if given.len() > MOST_TOOLS {
            let message = format!("has {} tools: give {MOST_TOOLS} at most", given.len());
            return Err(Problem::field("tools", message));
        }
        let mut tools: Vec<Tool> = Vec::new();
        for (at, tool) in given.into_iter().enumerate() {
            let tool = Tool::take(&format!("tools[{at}]"), tool)?;
            if tools.iter().any(|it| it.name == tool.name) {
                let message = format!("has two tools called {:?}", tool.name);
                return Err(Problem::field("tools", message));
            }
            tools.push(tool);
        }
        let wrong = |message: String| Problem::field("tool_choice", message);
        let choice = choice.unwrap_or_else(|| json!("auto"));
        let (must, only) = match choice.as_str() {
            Some("none") => return Ok(None),
            Some("auto") => (false, None),
            Some("required") => (true, None),
            _ => {
                let name = choice["function"]["name"].as_str();
                let name = name.filter(|_| choice["type"] == "function").ok_or_else(|| {
                    let known = "none, auto, required, {\"type\": \"function\", \"function\": \
                                 {\"name\": \"…\"}}";
                    wrong(format!("is {choice}; there are: {known}"))
                })?;
                let at = tools.iter().position(|tool| tool.name == name).ok_or_else(|| {
                    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
                    wrong(format!("names {name:?}; there are: {}", names.join(", ")))
                })?;
                (true, Some(at))
            }
        };
        if must && tools.is_empty() {
            return Err(wrong("is \"required\", but there are no `tools`".into()));
        }
        Ok((!tools.is_empty()).then_some(Self { tools, must, only, parallel }))
    }

    /// Lets arguments be any object where the rest of a schema cannot be kept to in `style`, as `can_be` says, and the
    /// request does not insist; all such, where it is too much together. Returns whether there are such tools.
    pub fn loosen(
        &mut self,
        forms: &Forms,
        style: AnswerStyle,
        can_be: impl Fn(&Form) -> bool,
    ) -> bool {
        let cannot_be = |tool: &&mut Tool| {
            let form = || grammar::of_arguments(tool, style).called(FIELD);
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
    pub fn loosen_known(&mut self, forms: &Forms) {
        let known = self.loose().filter(|it| forms.verdict(&it.parameters) == Some(false));
        known.for_each(Tool::loosen);
    }

    /// Those that may be called, and on whose schemas the request does not insist.
    fn loose(&mut self) -> impl Iterator<Item = &mut Tool> {
        let callable = match self.only {
            Some(at) => &mut self.tools[at..=at],
            None => &mut self.tools[..],
        };
        callable.iter_mut().filter(|tool| !tool.strict)
    }

    /// Lets an answer have one call at most.
    pub fn call_one(&mut self) {
        self.parallel = false;
    }

    /// Whether it may have only one.
    pub fn is_single(&self) -> bool {
        !self.parallel || self.only.is_some()
    }

    /// The schemas of their arguments, as the request says them, by name.
    pub fn schemas(&self) -> Arc<[(String, Value)]> {
        let of = |tool: &Tool| {
            let parameters = &tool.value["function"]["parameters"];
            (tool.name.clone(), argument::without_reference(parameters))
        };
        self.callable().iter().map(of).collect()
    }

    fn callable(&self) -> &[Tool] {
        match self.only {
            Some(at) => &self.tools[at..=at],
            None => &self.tools,
        }
    }

    /// As a template takes them.
    pub fn values(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.value.clone()).collect()
    }
}

impl Tool {
    /// Lets its arguments be any object.
    fn loosen(&mut self) {
        tracing::debug!(
            "the schema of the tool {:?} cannot be kept to: any object does",
            self.name
        );
        self.parameters = Form::written(json!({"type": "object"}));
    }

    fn take(at: &str, tool: Map<String, Value>) -> Result<Self, Problem> {
        let value = Value::Object(tool.clone());
        let wrong = |name: &str, message: String| Problem::field(format!("{at}.{name}"), message);
        let mut fields = Fields::new(tool);
        let kind = fields.take::<String>("type")?;
        if kind.as_deref() != Some("function") {
            return Err(wrong("type", "must be \"function\": no others are supported".into()));
        }
        let function = fields.take::<Map<String, Value>>("function")?;
        let function = function.ok_or_else(|| wrong("function", "is missing".into()))?;
        fields.finish()?;
        let mut function = Fields::new(function);
        let name = function.take::<String>("name")?.unwrap_or_default();
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(known) {
            let message =
                format!("is {name:?}: give 1 to {LONGEST_NAME} of a-z, A-Z, 0-9, _, - and .");
            return Err(wrong("function.name", message));
        }
        function.take::<String>("description")?;
        let strict = function.take::<bool>("strict")?.unwrap_or(false);
        let parameters = function.take::<Map<String, Value>>("parameters")?;
        function.finish()?;
        // No parameters are none that could be given.
        let mut parameters = parameters.map_or_else(
            || json!({"type": "object", "properties": {}, "additionalProperties": false}),
            Value::Object,
        );
        parameters = argument::without_reference(&parameters);
        if parameters["type"].is_null() {
            parameters["type"] = "object".into();
        }
        if parameters["type"] != "object" {
            let message = format!("has the type {}: arguments are an object", parameters["type"]);
            return Err(wrong("function.parameters", message));
        }
        let mut parameters = Form::written(parameters);
        if !strict && let Some(form) = parameters["x-guidance"].as_object_mut() {
            // Without what is not understood of it: what clients say of their tools is more than a form.
            form.entry("lenient").or_insert(true.into());
        }
        Ok(Self { name, value, parameters, strict })
    }
}

/// What a call is known by. Templates of Mistral's take nine letters and digits.
pub(crate) fn call_id(style: Option<AnswerStyle>) -> String {
    let id = unique_id();
    match style.is_some_and(AnswerStyle::is_mistral) {
        true => id.chars().rev().take(9).collect(),
        false => format!("call_{id}"),
    }
}

#[cfg(test)]
mod tests;
