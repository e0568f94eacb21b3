//! `POST /tokenize` and `/detokenize`, in the form that vLLM gives them

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::conversation::Conversation;
use crate::server::{Shared, blocking};
use crate::{Problem, body, completions, conversation, tools};

pub(crate) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model(&mut fields)?;
    let prompt = fields.take::<String>("prompt")?;
    let tokens = match prompt {
        Some(text) => {
            let special = fields.take::<bool>("add_special_tokens")?.unwrap_or(true);
            fields.finish()?;
            let encode = move |model: &crate::Model| {
                let tokens = model.llm.tokenizer().encode(&text, special);
                tokens.map_err(|error| Problem::field("prompt", error.to_string()))
            };
            blocking(&model, encode).await?
        }
        None => {
            let mut said = Conversation::take(&mut fields)?;
            let tools = tools::take(&mut fields)?;
            said.show(tools.as_ref());
            fields.finish()?;
            conversation::tokens(&model, said).await?
        }
    };
    let (count, most) = (tokens.len(), model.llm.context());
    let answer = json!({"count": count, "max_model_len": most, "tokens": tokens});
    Ok(body::json(StatusCode::OK, &answer))
}

pub(crate) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model(&mut fields)?;
    let tokens = fields.take::<Vec<u32>>("tokens")?;
    let tokens = tokens.ok_or_else(|| Problem::field("tokens", "is missing"))?;
    fields.finish()?;
    completions::check(&model, "tokens", &tokens)?;
    let decode = move |model: &crate::Model| {
        let text = model.llm.tokenizer().decode_all(&tokens);
        text.map_err(|error| Problem::field("tokens", error.to_string()))
    };
    let text = blocking(&model, decode).await?;
    Ok(body::json(StatusCode::OK, &json!({"prompt": text})))
}
