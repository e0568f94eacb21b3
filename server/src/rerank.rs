//! `POST /v1/rerank` and `/rerank`, in the form that vLLM, Jina and Cohere give them

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::Span;

use crate::cut::Cut;
use crate::fields::Fields;
use crate::server::{Shared, blocking, unique_id};
use crate::turns::Turns;
use crate::{Model, Problem, body, trace};

/// Where it is asked for.
pub(crate) const PATHS: [&str; 2] = ["/v1/rerank", "/rerank"];

/// Most documents of a request.
const MOST_DOCUMENTS: usize = 2048;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Field(Text),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    text: String,
}

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model(&mut fields)?;
    let query = fields.take::<String>("query")?;
    let query = query.ok_or_else(|| Problem::field("query", "is missing"))?;
    let documents = documents(&mut fields)?;
    let instruction = fields.take::<String>("instruction")?;
    // As vLLM has it, 0 is all.
    let top_n = fields.take::<usize>("top_n")?.filter(|it| *it > 0).unwrap_or(documents.len());
    let shown = fields.take::<bool>("return_documents")?.unwrap_or(false);
    let cut = Cut::take(&mut fields)?;
    fields.finish()?;
    if let Err(why) = model.llm.ranking() {
        let message = format!("{} ranks no documents: {why}", model.name());
        return Err(Problem::field("model", message));
    }

    let context = model.llm.context();
    let most = cut.most(context, context);

    trace::works("rerank", model.name());
    shared.check_open()?;
    let turns = Turns::take(&model, documents.len())?;
    let read = move |model: &Model| {
        let wrong = |error: &dyn std::fmt::Display| Problem::field("documents", error.to_string());
        let ranking = model.llm.ranking().map_err(|why| wrong(&why))?;
        if let (true, Some(instruction)) = (!ranking.takes_instruction(), &instruction) {
            let message =
                format!("is {instruction:?}: this model reads the query and the document alone");
            return Err(Problem::field("instruction", message));
        }
        // Before there are any documents it says whether there is room for one.
        ranking
            .request(instruction.as_deref(), &query, "", most)
            .map_err(|error| Problem::field("query", error.to_string()))?;
        let asked = documents.iter().map(|document| {
            let asked = ranking.request(instruction.as_deref(), &query, document, most);
            let asked = asked.map_err(|error| wrong(&error))?;
            // Before there are many: each has the query.
            model.room(&asked.0.prompt)?;
            Ok(asked)
        });
        Ok((asked.collect::<Result<Vec<_>, Problem>>()?, documents))
    };
    let (asked, documents) = blocking(&model, read).await?;
    let (requests, scores): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let count: usize = requests.iter().map(|it| it.prompt.len()).sum();
    let ended = turns.run(&model, requests).await?;
    trace::read(&Span::current(), count);

    let scores = scores.iter().zip(&ended).map(|(score, ended)| {
        score.probability(ended).map_err(|error| Problem::internal(error.to_string()))
    });
    let scores = scores.collect::<Result<Vec<_>, _>>()?;
    let mut ranks: Vec<_> = scores.into_iter().enumerate().collect();
    // Those that are as good stay in their order.
    ranks.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let results = ranks.iter().take(top_n).map(|&(index, score)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if shown {
            result["document"] = json!({"text": documents[index]});
        }
        result
    });
    let answer = json!({
        "id": format!("rerank-{}", unique_id()), "object": "list", "model": model.name(),
        "results": results.collect::<Value>(),
        "usage": {"prompt_tokens": count, "total_tokens": count},
    });
    Ok(body::json(StatusCode::OK, &answer))
}

/// The texts that are to be ranked.
fn documents(fields: &mut Fields) -> Result<Vec<String>, Problem> {
    const FIELD: &str = "documents";
    let given = fields.take::<Value>(FIELD)?;
    let given = given.ok_or_else(|| Problem::field(FIELD, "is missing"))?;
    let given: Vec<Document> = serde_json::from_value(given).map_err(|_| {
        Problem::field(FIELD, "must be a list of strings, or of objects with `text`")
    })?;
    if !(1..=MOST_DOCUMENTS).contains(&given.len()) {
        let message = format!("holds {} documents: give 1 to {MOST_DOCUMENTS}", given.len());
        return Err(Problem::field(FIELD, message));
    }
    let text = |document| match document {
        Document::Text(text) | Document::Field(Text { text }) => text,
    };
    Ok(given.into_iter().map(text).collect())
}
