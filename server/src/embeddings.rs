//! `POST /v1/embeddings`

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use iree_llm::Vectors;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use text::StopStrings;
use tokio::sync::OwnedSemaphorePermit;
use tracing::Span;
use xla_session::batching;
use xla_session::pooling::normalize;

use crate::completions::Prompts;
use crate::fields::Fields;
use crate::requests::{Asked, Event};
use crate::server::{Shared, blocking};
use crate::{Model, Problem, body, trace};

/// Inputs that run at once; those of one request that are more run in turns of so many.
const AT_ONCE: usize = 64;

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
    let fields = body::read(request, shared.options.most_bytes).await?;
    let mut fields = Fields::new(fields);
    let model = shared.model(&mut fields)?;
    let input = Prompts::take(&mut fields, "input")?;
    let encoding = fields.take::<Encoding>("encoding_format")?.unwrap_or_default();
    let width = fields.take::<usize>("dimensions")?.unwrap_or(model.llm.config().hidden_size);
    if width == 0 || width > model.llm.config().hidden_size {
        let message = format!(
            "is {width}: embeddings of this model have 1 to {}",
            model.llm.config().hidden_size
        );
        return Err(Problem::field("dimensions", message));
    }
    fields.finish()?;
    if input.has_empty_text() {
        return Err(Problem::field("input", "is empty: give at least one character"));
    }
    let vectors_of = model.llm.vectors().map_err(|why| {
        Problem::field("model", format!("{} makes no embeddings: {why}", model.name()))
    })?;

    trace::works("embeddings", model.name());
    shared.check_open()?;
    let at_once = AT_ONCE.min(model.most_requests);
    let mut places = Some(model.places(input.count().min(at_once))?);
    let _turns = model.takes_turns();
    let (inputs, _) = blocking(&model, move |model| input.tokens(model, false)).await?;
    // What is found in its turn only would make all before it for nothing.
    for input in &inputs {
        model.room(input)?;
    }
    let count: usize = inputs.iter().map(Vec::len).sum();
    let mut vectors = Vec::with_capacity(inputs.len());
    while vectors.len() < inputs.len() {
        let rest = &inputs[vectors.len()..];
        let places = match places.take() {
            Some(places) => places,
            // It has been let in: what has run already is not to be for nothing.
            None => model.wait_for_places(at_once.min(rest.len())).await?,
        };
        vectors
            .extend(embed(&model, &rest[..places.num_permits()], vectors_of, width, places).await?);
    }
    trace::read(&Span::current(), count);
    // Beside the thread that serves: there may be a million numbers.
    let write = move |model: &Model| {
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

/// The vector of each of `inputs`, its first `width` numbers; they run together in as many `places`.
async fn embed(
    model: &Model,
    inputs: &[Vec<u32>],
    Vectors { pooling, normalized }: Vectors,
    width: usize,
    places: OwnedSemaphorePermit,
) -> Result<Vec<Vec<f32>>, Problem> {
    let requests = inputs.iter().map(|input| {
        let (prompt, pooling) = (input.clone(), Some(pooling));
        let request = batching::Request { prompt, pooling, ..batching::Request::default() };
        let (stops, failure) = (StopStrings::default(), Arc::default());
        Asked { request, stops, shown: Vec::new(), failure, timeout: None }
    });
    let mut events = model.submit(requests.collect(), places, Instant::now()).await?;
    let mut vectors = vec![Vec::new(); inputs.len()];
    let mut left = inputs.len();
    let stopped = || Problem::internal("the model stopped before there was an embedding");
    while left > 0 {
        match events.next().await {
            Some((index, Event::Ended { ended, .. })) => {
                let mut vector = ended.vector.ok_or_else(stopped)?;
                vector.truncate(width);
                if normalized {
                    normalize(&mut vector);
                }
                vectors[index] = vector;
                left -= 1;
            }
            Some((_, Event::Failed(problem))) => return Err(problem),
            Some((_, Event::Begun { .. } | Event::Token { .. })) => {}
            None => return Err(stopped()),
        }
    }
    Ok(vectors)
}
