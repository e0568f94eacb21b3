//! `/openapi.json` says what the server does: its fields, their types and bounds, and what comes back.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::rerank::named;
use crate::server::*;
use crate::support::mark;
use crate::tools::with_tools;

struct Document(Value);

/// What may be sent to a path, and what comes back.
struct Post<'a> {
    path: &'a str,
    operation: &'a Value,
    /// Objects, of which a request is one.
    schemas: Vec<&'a Value>,
    examples: Vec<&'a Map<String, Value>>,
}

impl Document {
    fn of(server: &Server) -> Self {
        Self(server.get("/openapi.json").json())
    }

    /// What `value` is, or refers to.
    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(place) => self.resolved(self.0.pointer(&place[1..]).unwrap()),
            None => value,
        }
    }

    fn paths(&self) -> &Map<String, Value> {
        self.0["paths"].as_object().unwrap()
    }

    fn posts(&self) -> Vec<Post<'_>> {
        let paths = self.paths().iter().filter(|(_, it)| !it["post"].is_null());
        let posts = paths.map(|(path, it)| {
            let operation = &it["post"];
            let body = &operation["requestBody"]["content"]["application/json"];
            let schema = self.resolved(&body["schema"]);
            let several = schema["anyOf"].as_array().map(|all| all.iter().collect());
            let examples = body["examples"].as_object().unwrap().values();
            Post {
                path,
                operation,
                schemas: several.unwrap_or_else(|| vec![schema]),
                examples: examples.map(|it| it["value"].as_object().unwrap()).collect(),
            }
        });
        posts.collect()
    }

    /// Whether `value` is as `schema` says; as far as the schemas of the document go, without patterns.
    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let schema = self.resolved(schema);
        let kind = |name: &Value| match name.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("the type {other}"),
        };
        let number = |name: &str| schema[name].as_f64();
        let items = || value.as_array().into_iter().flatten();
        let length = value.as_array().map(|it| it.len() as f64);
        let fields = || value.as_object().into_iter().flatten();
        let all = |(name, known): (&String, &Value)| match name.as_str() {
            "type" => known.as_array().map_or_else(|| kind(known), |all| all.iter().any(kind)),
            "const" => value == known,
            "enum" => known.as_array().unwrap().contains(value),
            "anyOf" => known.as_array().unwrap().iter().any(|it| self.fits(it, value)),
            "items" => items().all(|it| self.fits(known, it)),
            "minItems" => length.is_none_or(|n| n >= number(name).unwrap()),
            "maxItems" => length.is_none_or(|n| n <= number(name).unwrap()),
            "minLength" => value.as_str() != Some(""),
            "maxLength" => {
                let length = value.as_str().map_or(0, |it| it.chars().count());
                length as u64 <= known.as_u64().unwrap()
            }
            "minimum" => value.as_f64().is_none_or(|n| n >= number(name).unwrap()),
            "maximum" => value.as_f64().is_none_or(|n| n <= number(name).unwrap()),
            "maxProperties" => fields().count() as f64 <= number(name).unwrap(),
            "required" => {
                let names = || known.as_array().unwrap().iter();
                !value.is_object() || names().all(|it| value.get(it.as_str().unwrap()).is_some())
            }
            "properties" => fields()
                .all(|(name, it)| known.get(name).is_none_or(|schema| self.fits(schema, it))),
            "additionalProperties" => fields().all(|(name, it)| {
                let is_known = schema["properties"].get(name).is_some();
                is_known || known.as_bool().unwrap_or_else(|| self.fits(known, it))
            }),
            "description" | "default" | "pattern" | "propertyNames" => true,
            other => panic!("{other} in {schema}"),
        };
        schema.as_object().unwrap().iter().all(all)
    }
}

impl Post<'_> {
    /// The example that has the field `name`, or the first one.
    fn example(&self, schema: &Value, name: &str) -> Map<String, Value> {
        let properties = schema["properties"].as_object().unwrap();
        let mut good =
            self.examples.iter().filter(|it| it.keys().all(|key| properties.contains_key(key)));
        let first = good.clone().next().unwrap();
        (*good.find(|it| it.contains_key(name)).unwrap_or(first)).clone()
    }

    /// Sends `body`; what comes back is what the document says.
    #[track_caller]
    fn send(&self, server: &Server, document: &Document, body: &Map<String, Value>) -> Reply {
        let reply = server.post(self.path, &body.clone().into());
        let kind = match reply.head.split_once("content-type: ").unwrap().1 {
            kind if kind.starts_with("text/event-stream") => "text/event-stream",
            _ => "application/json",
        };
        let known = document.resolved(&self.operation["responses"][reply.status.to_string()]);
        let known = &known["content"][kind];
        assert!(!known.is_null(), "{} is not described: {} {body:?}", reply.status, self.path);
        let fits = kind != "application/json" || document.fits(&known["schema"], &reply.json());
        assert!(fits, "{} {body:?}: {}", self.path, reply.text);
        reply
    }
}

/// What is just below `least`, or above `most`: the numbers `bound` and `beyond`.
fn edges(schema: &Value) -> Vec<(Value, Value)> {
    let types = schema["type"].to_string();
    let edge = |name: &str, sign: i8| {
        let bound = &schema[name];
        let beyond = if types.contains("integer") {
            let number = bound.to_string().parse::<i128>().ok()? + i128::from(sign);
            serde_json::from_str(&number.to_string()).unwrap()
        } else {
            json!(bound.as_f64()? + f64::from(sign) * 1e-3)
        };
        Some((bound.clone(), beyond))
    };
    [edge("minimum", -1), edge("maximum", 1)].into_iter().flatten().collect()
}

/// A server whose model knows tools, and what it says of itself.
fn started() -> (tempfile::TempDir, Server, Document) {
    let folder = with_tools("qwen3");
    mark(folder.path());
    let path = named(&folder);
    let model = ["-m", path.to_str().unwrap()];
    let server = Server::of(&model, &["--log", "off", "--context", "384"]);
    let document = Document::of(&server);
    (folder, server, document)
}

#[test]
fn paths_have_the_methods_that_are_described_and_examples_are_answered() {
    let (_folder, server, document) = started();
    assert_eq!(document.0["info"]["version"], server.get("/version").json()["version"]);
    for (path, methods) in document.paths() {
        let place = path.replace(['{', '}'], "");
        let reply = server.raw("PATCH", &place, "text/plain", b"");
        reply.error(405);
        let allowed = reply.head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        let allowed: BTreeSet<_> = allowed.split(',').filter(|it| *it != "head").collect();
        let known = methods.as_object().unwrap().keys().map(String::as_str);
        assert_eq!(allowed, known.filter(|it| *it != "parameters").collect(), "{path}");
        if !methods["get"].is_null() {
            let reply = server.get(&place);
            let known = &methods["get"]["responses"][reply.status.to_string()];
            let content = document.resolved(known)["content"].as_object().unwrap();
            let (kind, known) = content.iter().next().unwrap();
            let is_that = reply.head.contains(&format!("content-type: {kind}"));
            assert!(is_that, "{path}: {}", reply.head);
            let text = json!(reply.text);
            let value = if kind == "application/json" { reply.json() } else { text };
            assert!(document.fits(&known["schema"], &value), "{path}: {}", reply.text);
        }
    }
    let posts = document.posts();
    assert_eq!(posts.len(), 11);
    for post in posts {
        for example in &post.examples {
            let value = Value::Object((*example).clone());
            let described = post.schemas.iter().any(|schema| document.fits(schema, &value));
            assert!(described, "{}: {value}", post.path);
            assert_eq!(post.send(&server, &document, example).status, 200, "{value}");
        }
    }
}

#[test]
fn fields_are_those_that_are_described() {
    let (_folder, server, document) = started();
    for post in document.posts() {
        for schema in &post.schemas {
            let schema = document.resolved(schema);
            let properties = schema["properties"].as_object().unwrap();
            let mut body = post.example(schema, "");
            body.insert("no_such_field".into(), 1.into());
            let error = post.send(&server, &document, &body).json()["error"].clone();
            let (_, names) =
                error["message"].as_str().unwrap().split_once("; there are: ").unwrap();
            // Those without effect are not among them.
            let harmless = |name: &str| properties[name]["$ref"] == "#/components/schemas/Harmless";
            let known = properties.keys().map(String::as_str).filter(|name| !harmless(name));
            assert_eq!(
                names.split(", ").collect::<BTreeSet<_>>(),
                known.collect(),
                "{}",
                post.path
            );

            let required = schema["required"].as_array().unwrap();
            for name in required {
                let name = name.as_str().unwrap();
                let mut body = post.example(schema, name);
                body.remove(name).unwrap();
                assert_eq!(post.send(&server, &document, &body).status, 400, "no {name}");
            }
            // All that may be null is, at once.
            let mut body = post.example(schema, "");
            body.retain(|name, _| required.contains(&json!(name)));
            for (name, field) in properties {
                if document.fits(field, &Value::Null) {
                    body.insert(name.clone(), Value::Null);
                }
            }
            assert_eq!(post.send(&server, &document, &body).status, 200, "{body:?}");
        }
    }
}

#[test]
fn types_and_bounds_are_those_that_are_described() {
    let (_folder, server, document) = started();
    let anything = json!([
        null, true, 7, -7, 0.5, "no such thing", "", [], [[]], [null], [true], {}, {"no_such_field": 1},
    ]);
    for post in document.posts() {
        for schema in &post.schemas {
            let schema = document.resolved(schema);
            for (name, field) in schema["properties"].as_object().unwrap() {
                let field = document.resolved(field);
                let send = |value: &Value| {
                    let mut body = post.example(schema, name);
                    for most in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
                        body.entry(most).and_modify(|it| *it = 1.into());
                    }
                    body.insert(name.clone(), value.clone());
                    let reply = post.send(&server, &document, &body);
                    let what = format!("{}: {name}: {value}: {}", post.path, reply.text);
                    (reply, what)
                };
                let beyond = edges(field).into_iter().map(|(_, beyond)| beyond);
                let others = anything.as_array().unwrap().iter().cloned();
                for value in beyond.chain(others).filter(|it| !document.fits(field, it)) {
                    let (reply, what) = send(&value);
                    assert_eq!(reply.status, 400, "{what}");
                    let error = &reply.json()["error"];
                    let unknown = error["code"] == "unknown_parameter" && error["param"] == **name;
                    assert!(!unknown, "{what}");
                }
                let named = field["enum"].as_array().into_iter().flatten().cloned();
                for value in edges(field).into_iter().map(|(bound, _)| bound).chain(named) {
                    assert!(document.fits(field, &value), "{name}: {value}");
                    let (reply, what) = send(&value);
                    assert_ne!(reply.status, 400, "{what}");
                }
            }
        }
    }
    server.is_empty();
}
