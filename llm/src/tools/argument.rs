//! Arguments that are written one by one: what each may be, by the schema of all.

use serde_json::{Value, json};

/// What an argument of the schema `property` is written as where it is one of a list that has texts: those as they are,
/// and numbers, truth values and null as JSON. The schema is a part of that of all `parameters`.
pub(super) fn listed(property: &Value, parameters: &Value) -> Option<Vec<String>> {
    let schema = resolved(property, parameters);
    let mut listed = values(schema).to_vec();
    if listed.is_empty() {
        let several = ["anyOf", "oneOf"].iter().find_map(|key| schema[key].as_array());
        for one in several.into_iter().flatten() {
            let one = resolved(one, parameters);
            match values(one) {
                [] if one["type"] == "null" => listed.push(Value::Null),
                [] => return None,
                values => listed.extend_from_slice(values),
            }
        }
    }
    let is_list = listed.iter().any(Value::is_string)
        && !listed.iter().any(|it| it.is_object() || it.is_array());
    let written = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    is_list.then(|| listed.iter().map(written).collect())
}

/// The rule of call number `at` of a tool that cannot be kept to: `parameters` say something of all arguments together
/// that no form of arguments one by one has.
pub(super) fn impossible(parameters: &Value, at: usize) -> Option<String> {
    const OF_ALL: [&str; 20] = [
        "$ref",
        "allOf",
        "anyOf",
        "const",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "enum",
        "if",
        "maxProperties",
        "minProperties",
        "not",
        "oneOf",
        "patternProperties",
        "propertyNames",
        "then",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
    ];
    let named = parameters["properties"].as_object();
    let is_named =
        |key: &Value| key.as_str().is_some_and(|it| named.is_some_and(|all| all.contains_key(it)));
    let mut needed = parameters["required"].as_array().into_iter().flatten();
    let key = match OF_ALL.into_iter().find(|key| parameters.get(key).is_some()) {
        Some(key) => key,
        None if needed.any(|key| !is_named(key)) => "required",
        None => return None,
    };
    Some(format!("call{at}: unsupported_keyword_{}\n", key.replace('$', "")))
}

/// Keys of a schema that are for people, or of ours.
const WORDS: [&str; 6] = ["title", "description", "default", "examples", "$comment", "x-guidance"];

/// The values that `schema` lists.
pub(super) fn values(schema: &Value) -> &[Value] {
    let only = schema.get("const").map_or(&[][..], std::slice::from_ref);
    schema["enum"].as_array().map_or(only, Vec::as_slice)
}

/// Whether `schema` says nothing that holds a value to more than `kept`: what else it has are words for people.
pub(super) fn says_only(schema: &Value, kept: &[&str]) -> bool {
    let keys = schema.as_object().into_iter().flatten().map(|it| it.0.as_str());
    keys.into_iter().all(|key| WORDS.contains(&key) || kept.contains(&key))
}

/// How much of a grammar the schemas of a tool may make, bytes: one that refers to others has all of them with it,
/// and one of alternatives those of each, so that a small schema may say a lot.
pub(super) struct Room(Option<usize>);

impl Room {
    /// As much as a request may have.
    const BYTES: usize = 8 << 20;
    /// What a schema takes that is written out, beside what it has with it.
    const EACH: usize = 1 << 10;
    /// Arguments of a tool: llguidance keeps 2000 states, of which each that may come next takes two or three.
    const ARGUMENTS: usize = 500;

    /// For a tool with so many `arguments`.
    pub fn new(arguments: usize) -> Self {
        Self((arguments <= Self::ARGUMENTS).then_some(Self::BYTES))
    }

    /// Takes `bytes` of it, and returns whether it was enough, then and before.
    pub fn take(&mut self, bytes: usize) -> bool {
        self.0 = self.0.and_then(|left| left.checked_sub(bytes));
        self.0.is_some()
    }

    /// Takes what another schema does.
    pub fn take_one(&mut self) -> bool {
        self.take(Self::EACH)
    }

    /// The `rules` of call number `at` that have been made in it; where it was not enough, one that no grammar can
    /// be made of: the tool cannot be kept to.
    pub fn rules(self, at: usize, rules: String) -> String {
        match self.0 {
            Some(_) => rules,
            None => format!("call{at}: schemas_that_say_too_much\n"),
        }
    }
}

/// JSON of the schema `property`, as a grammar has it, where there is `room` for it.
pub(super) fn json_of(property: &Value, parameters: &Value, room: &mut Room) -> String {
    alone(property, parameters, room).map(|schema| format!("%json {schema}")).unwrap_or_default()
}

/// `property` by itself, with what it may refer to in `parameters`; `None` where there is no `room` for it.
fn alone(property: &Value, parameters: &Value, room: &mut Room) -> Option<Value> {
    if !room.take_one() {
        return None;
    }
    let mut schema = referring(property);
    if schema == true {
        schema = json!({});
    }
    let Some(all) = schema.as_object_mut() else { return Some(schema) };
    if Some(&*all) != property.as_object() && property != true {
        let mut whole = referring(parameters);
        whole.as_object_mut().map(|it| it.remove("x-guidance"));
        if !room.take(whole.to_string().len()) {
            return None;
        }
        all.insert("$defs".into(), json!({"parameters": whole}));
    }
    if let Some(guidance) = parameters.get("x-guidance") {
        all.insert("x-guidance".into(), guidance.clone());
    }
    Some(schema)
}

/// `schema`, with references to a part of all parameters as [`alone`] has those.
fn referring(schema: &Value) -> Value {
    let one = |(key, value): (&String, &Value)| {
        let to = value.as_str().filter(|_| key == "$ref").and_then(|it| it.strip_prefix('#'));
        let value =
            to.map_or_else(|| referring(value), |to| format!("#/$defs/parameters{to}").into());
        (key.clone(), value)
    };
    match schema {
        Value::Object(all) => Value::Object(all.iter().map(one).collect()),
        Value::Array(all) => all.iter().map(referring).collect(),
        other => other.clone(),
    }
}

/// The arguments that `parameters` name, with their schemas, and whether each has to be there.
pub(super) fn arguments(parameters: &Value) -> Vec<(&String, &Value, bool)> {
    let needed =
        |key: &String| parameters["required"].as_array().is_some_and(|it| it.contains(&json!(key)));
    let properties = parameters["properties"].as_object().into_iter().flatten();
    // `false` is what may not be there.
    let properties = properties.filter(|(_, schema)| **schema != false);
    properties.map(|(key, schema)| (key, schema, needed(key))).collect()
}

/// `parameters` without a reference at their top, as writers of schemas make them that give each type a name. One that
/// leads nowhere, or that says only a part, stays.
pub(super) fn without_reference(parameters: &Value) -> Value {
    let meant = resolved(parameters, parameters);
    let is_whole = meant.is_object() && meant.get("$ref").is_none();
    if !is_whole
        || !says_only(parameters, &["$ref", "$defs", "definitions", "$schema", "$id", "type"])
    {
        return parameters.clone();
    }
    let (mut all, beside) = (meant.clone(), parameters.as_object().into_iter().flatten());
    for (key, value) in beside.filter(|it| it.0 != "$ref") {
        all[key] = value.clone();
    }
    all
}

/// What `schema` means, a part of `root` that may be found elsewhere in it.
pub(super) fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..16 {
        let to = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
        let Some(next) = to.and_then(|to| root.pointer(to)) else { break };
        schema = next;
    }
    schema
}
