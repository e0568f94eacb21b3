//! Tools that a request lets the model call.

use iree_llm::tools::{ToolChoice, Tools};
use serde_json::{Map, Value};
use text::AnswerStyle;

use crate::Problem;
use crate::fields::Fields;
use crate::server::unique_id;

/// What `fields` say; `None` where nothing may be called.
///
/// # Errors
///
/// A tool is in a form that is not supported, or the one to call is not there.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Tools>, Problem> {
    let given = fields.take::<Vec<Map<String, Value>>>("tools")?.unwrap_or_default();
    let choice = fields.take::<Value>("tool_choice")?.unwrap_or_else(|| "auto".into());
    let parallel = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
    given.iter().cloned().try_for_each(check)?;
    let may = choice != "none";
    let choice = match choice.as_str() {
        Some("none" | "auto") if given.is_empty() => return Ok(None),
        Some("none" | "auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => {
            let name = choice["function"]["name"].as_str();
            let name = name.filter(|_| choice["type"] == "function").ok_or_else(|| {
                let known = "none, auto, required, {\"type\": \"function\", \"function\": \
                             {\"name\": \"…\"}}";
                Problem::field("tool_choice", format!("is {choice}; there are: {known}"))
            })?;
            ToolChoice::Named(name.to_owned())
        }
    };
    let given: Vec<_> = given.into_iter().map(Value::Object).collect();
    let tools = Tools::new(&given, &choice);
    let mut tools = tools.map_err(|error| Problem::field(error.field, error.message))?;
    if !parallel {
        tools.call_one();
    }
    Ok(may.then_some(tools))
}

/// Whether all that is said of a `tool` is understood.
fn check(tool: Map<String, Value>) -> Result<(), Problem> {
    let mut fields = Fields::new(tool);
    fields.take::<String>("type")?;
    let function = fields.take::<Map<String, Value>>("function")?;
    fields.finish()?;
    let mut function = Fields::new(function.unwrap_or_default());
    function.take::<String>("name")?;
    function.take::<String>("description")?;
    function.take::<bool>("strict")?;
    function.take::<Map<String, Value>>("parameters")?;
    function.finish()
}

/// What a call is known by. Templates of Mistral's take nine letters and digits.
pub(crate) fn call_id(style: Option<AnswerStyle>) -> String {
    let id = unique_id();
    match style.is_some_and(AnswerStyle::is_mistral) {
        true => id.chars().rev().take(9).collect(),
        false => format!("call_{id}"),
    }
}
