//! Arguments that are written one by one: what each may be, by the schema of all.

use serde_json::{Value, json};

/// What an argument is, as far as it is more than JSON of its schema.
pub(super) enum Argument {
    /// One of these texts.
    Listed(Vec<String>),
    /// One of a type that stands for itself: `string`, `boolean`, `null`.
    Plain(String),
    Json,
}

/// What the schema `property` of an argument says, a part of that of all `parameters`.
pub(super) fn argument(property: &Value, parameters: &Value) -> Argument {
    let meant = resolved(property, parameters);
    let only = std::slice::from_ref(&meant["const"]);
    let values = meant["enum"].as_array().map_or(only, Vec::as_slice);
    let texts: Vec<_> = values.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if !texts.is_empty() && texts.len() == values.len() {
        return Argument::Listed(texts);
    }
    // Words for people, which hold it to nothing.
    let says = |key: &str| !["type", "title", "description", "default", "examples"].contains(&key);
    match (meant["type"].as_str(), meant.as_object()) {
        (Some(kind @ ("string" | "boolean" | "null")), Some(schema))
            if !schema.keys().any(|key| says(key)) =>
        {
            Argument::Plain(kind.into())
        }
        _ => Argument::Json,
    }
}

/// `property` by itself, with what it may refer to in `parameters`.
pub(super) fn alone(property: &Value, parameters: &Value) -> Value {
    let mut schema = property.clone();
    for shared in ["$defs", "definitions", "x-guidance"] {
        if let (Some(schema), Some(all)) = (schema.as_object_mut(), parameters.get(shared)) {
            schema.insert(shared.into(), all.clone());
        }
    }
    schema
}

/// The arguments that `parameters` name, with their schemas, and whether each has to be there.
pub(super) fn arguments(parameters: &Value) -> Vec<(&String, &Value, bool)> {
    let needed =
        |key: &String| parameters["required"].as_array().is_some_and(|it| it.contains(&json!(key)));
    let properties = parameters["properties"].as_object().into_iter().flatten();
    properties.map(|(key, schema)| (key, schema, needed(key))).collect()
}

/// What `schema` means, a part of `root` that may be found elsewhere in it.
fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..16 {
        let to = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
        let Some(next) = to.and_then(|to| root.pointer(to)) else { break };
        schema = next;
    }
    schema
}
