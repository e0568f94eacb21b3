//! `GET /v1/models` and `/v1/models/NAME`

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::server::Shared;
use crate::{Model, Problem, body};

pub(crate) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let models: Vec<_> = shared.models.iter().map(|model| entry(model)).collect();
    body::json(StatusCode::OK, &json!({"object": "list", "data": models}))
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|rejection| Problem::path(&rejection))?;
    Ok(body::json(StatusCode::OK, &entry(&*shared.named(&name)?)))
}

fn entry(model: &Model) -> Value {
    json!({
        "id": model.name(), "object": "model", "created": model.created, "owned_by": "iree-llm",
        "max_model_len": model.llm.context(), "chat": model.llm.template().is_some(),
        "embeddings": model.llm.vectors().is_ok(), "infill": model.llm.infill().is_ok(), "rerank": model.llm.ranking().is_ok(), "sampling": model.sampling(),
    })
}
