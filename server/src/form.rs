//! The form of an answer that a request asks for.

use iree_llm::form::{Form, FormError};
use serde_json::{Map, Value};

use crate::Problem;
use crate::fields::Fields;

/// What `fields` ask for; `None` where any text will do.
///
/// # Errors
///
/// There are two of them, or one is of another type.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Form>, Problem> {
    let given = [
        response_format(fields)?,
        fields
            .take::<Value>("guided_json")?
            .map(|schema| {
                // vLLM's clients send it as text, too.
                let parsed = schema.as_str().map(serde_json::from_str).transpose();
                let wrong = |error| Problem::field("guided_json", format!("is no JSON: {error}"));
                Ok(json("guided_json", parsed.map_err(wrong)?.unwrap_or(schema)))
            })
            .transpose()?,
        fields
            .take::<String>("guided_regex")?
            .map(|expression| Form::regex(&expression).called("guided_regex")),
        fields
            .take::<String>("guided_grammar")?
            .map(|grammar| Form::lark(grammar).called("guided_grammar")),
    ];
    let mut given = given.into_iter().flatten();
    let (first, second) = (given.next(), given.next());
    if let (Some(first), Some(second)) = (&first, second) {
        let message = format!("and `{}` ask for two forms: give one of them", first.name());
        return Err(Problem::field(second.name(), message));
    }
    Ok(first)
}

/// JSON of `schema`, as the field `field` asks for it.
pub(crate) fn json(field: &'static str, schema: Value) -> Form {
    Form::json_schema(schema).called(field)
}

fn response_format(fields: &mut Fields) -> Result<Option<Form>, Problem> {
    const FIELD: &str = "response_format";
    let Some(format) = fields.take::<Map<String, Value>>(FIELD)? else { return Ok(None) };
    let wrong = |message: String| Problem::field(FIELD, message);
    let mut format = Fields::new(format);
    let kind = format.take::<String>("type")?.unwrap_or_default();
    let form = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Form::json_object().called(FIELD)),
        "json_schema" => {
            let given = format.take::<Map<String, Value>>("json_schema")?;
            let mut given = Fields::new(given.unwrap_or_default());
            let schema = given.take::<Value>("schema")?;
            let schema =
                schema.ok_or_else(|| wrong("has no `json_schema.schema`: give one".into()))?;
            // A name changes nothing, and every schema is kept to strictly.
            for name in ["name", "description", "strict"] {
                given.take::<Value>(name)?;
            }
            given.finish()?;
            Some(json(FIELD, schema))
        }
        _ => {
            let known = "text, json_object, json_schema";
            return Err(wrong(format!("has the type {kind:?}; there are: {known}")));
        }
    };
    format.finish()?;
    Ok(form)
}

/// What is wrong with the form of a field.
pub(crate) fn problem(error: FormError) -> Problem {
    match error.internal {
        true => Problem::internal(error.to_string()),
        false => Problem::field(error.name, error.message),
    }
}
