//! `POST /v1/embeddings`

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::Span;
use xla_session::batching;

use crate::completions::Prompts;
use crate::cut::Cut;
use crate::server::{Shared, blocking};
use crate::turns::Turns;
use crate::{Model, Problem, body, trace};

/// How numbers are written.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    /// Of the bytes of f32, lowest first.
    Base64,
}

/// A vector in an answer. Not a [`serde_json::Value`]: its numbers have twice the digits.
#[derive(Serialize)]
#[serde(untagged)]
enum Numbers<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Embedding<'a> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'a>,
}

#[derive(Serialize)]
struct Embeddings<'a> {
    object: &'static str,
    data: Vec<Embedding<'a>>,
    model: &'a str,
    usage: Value,
}

impl Encoding {
    fn of(self, vector: &[f32]) -> Numbers<'_> {
        match self {
            Self::Float => Numbers::Float(vector),
            Self::Base64 => {
                let bytes: Vec<_> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Numbers::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model(&mut fields)?;
    let input = Prompts::take(&mut fields, "input")?;
    let encoding = fields.take::<Encoding>("encoding_format")?.unwrap_or_default();
    let dimensions = fields.take::<usize>("dimensions")?;
    let cut = Cut::take(&mut fields)?;
    fields.finish()?;
    if input.has_empty_text() {
        return Err(Problem::field("input", "is empty: give at least one character"));
    }
    let vectors_of = model.llm.vectors().map_err(|why| {
        Problem::field("model", format!("{} makes no embeddings: {why}", model.name()))
    })?;

    let all = vectors_of.width(model.llm.config().hidden_size);
    let width = dimensions.unwrap_or(all);
    if !(1..=all).contains(&width) {
        let message = format!("is {width}: embeddings of this model have 1 to {all}");
        return Err(Problem::field("dimensions", message));
    }
    let (vectors_of, context) = (vectors_of.clone(), model.llm.context());
    let most = cut.most(vectors_of.most_tokens(context), context);

    trace::works("embeddings", model.name());
    shared.check_open()?;
    let turns = Turns::take(&model, input.count())?;
    let of = vectors_of.clone();
    let read = move |model: &Model| input.tokens(model, false, Some((&of, most)));
    let (inputs, _) = blocking(&model, read).await?;
    let count: usize = inputs.iter().map(Vec::len).sum();
    let pooling = Some(vectors_of.pooling);
    let requests = inputs.into_iter().map(|prompt| batching::Request {
        prompt,
        pooling,
        ..batching::Request::default()
    });
    let ended = turns.run(&model, requests.collect()).await?;
    trace::read(&Span::current(), count);
    // Beside the thread that serves: there may be a million numbers.
    let write = move |model: &Model| {
        let vectors = ended.into_iter().map(|ended| {
            let stopped = || Problem::internal("the model stopped before there was an embedding");
            Ok(vectors_of.finish(ended.vector.ok_or_else(stopped)?, Some(width)))
        });
        let vectors = vectors.collect::<Result<Vec<_>, Problem>>()?;
        let data = vectors.iter().enumerate().map(|(index, vector)| {
            let embedding = encoding.of(vector);
            Embedding { object: "embedding", index, embedding }
        });
        let answer = Embeddings {
            object: "list",
            data: data.collect(),
            model: model.name(),
            usage: json!({"prompt_tokens": count, "total_tokens": count}),
        };
        Ok(body::json(StatusCode::OK, &answer))
    };
    blocking(&model, write).await
}
