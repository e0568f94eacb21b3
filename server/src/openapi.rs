//! `GET /openapi.json`: what the endpoints take and give, in OpenAPI's words.
//!
//! The document is written by hand, as the parsers are: requests are no types of which it could be derived.
//! That both say the same is tested, here and against the program (`cli/tests/serve/openapi.rs`).

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use crate::server::Shared;
use crate::{Problem, body};

const DOCUMENT: &str = include_str!("openapi.json");

pub(crate) async fn answer(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let document = serde_json::from_str(DOCUMENT);
    let mut document: Value =
        document.map_err(|error| Problem::internal(format!("openapi.json: {error}")))?;
    document["info"]["version"] = shared.options.version.as_str().into();
    Ok(body::json(StatusCode::OK, &document))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fields::HARMLESS;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    #[test]
    fn every_route_is_described_and_no_other() {
        let document = document();
        let described: BTreeSet<_> =
            document["paths"].as_object().unwrap().keys().cloned().collect();
        let routes = crate::server::routes();
        let routes: BTreeSet<_> = routes.iter().map(|(path, _)| path.replace('*', "")).collect();
        assert_eq!(described, routes);
    }

    #[test]
    fn what_changes_no_answer_is_a_field_of_every_request() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let requests =
            schemas.iter().filter(|(_, it)| !it["properties"]["model"]["$ref"].is_null());
        assert_eq!(requests.clone().count(), 11);
        for (name, schema) in requests {
            let properties = schema["properties"].as_object().unwrap();
            for field in HARMLESS {
                assert!(properties.contains_key(field), "{name} has no {field}");
            }
            for (field, schema) in properties {
                let is_harmless = schema["$ref"] == "#/components/schemas/Harmless";
                assert!(!is_harmless || HARMLESS.contains(&field.as_str()), "{name}: {field}");
            }
        }
    }

    #[test]
    fn what_it_refers_to_is_there() {
        fn walk(document: &Value, at: &Value) {
            match at {
                Value::Object(fields) => {
                    if let Some(Value::String(place)) = fields.get("$ref") {
                        let found = document.pointer(place.strip_prefix('#').unwrap());
                        assert!(found.is_some(), "{place}");
                    }
                    fields.values().for_each(|it| walk(document, it));
                }
                Value::Array(items) => items.iter().for_each(|it| walk(document, it)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, &document);
    }
}
