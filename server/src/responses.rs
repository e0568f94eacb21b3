//! `POST /v1/responses` and `GET`, `DELETE /v1/responses/ID`: OpenAI's newer API.

mod input;
mod store;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use iree_llm::tools::Tools;
use serde_json::{Map, Value, json};
use text::{AnswerStyle, Part, Reply};
use xla_session::FinishReason;

use input::{add_item, take_input};
pub(crate) use store::Store;

use crate::answer::{About, Answer, End, Shape, Token, Usage, failed};
use crate::conversation::{Asked, Conversation, join_system, said};
use crate::fields::Fields;
use crate::sampling::Settings;
use crate::server::{Shared, unique_id};
use crate::tools::call_id;
use crate::{Problem, body, tools};

/// Types of tools that clients as Codex offer every model, and that this server does not run or has no form of calls for;
/// behind some stands a version.
const LEFT_OUT: [&str; 11] = [
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "tool_search",
    "web_search",
];

type Messages = Vec<Map<String, Value>>;

/// What a response says of the request, as it came, or what it means where it did not come.
const ECHOED: [(&str, &str); 10] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("reasoning", "{\"effort\": null, \"summary\": null}"),
    ("store", "true"),
    ("text", "{\"format\": {\"type\": \"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
];

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let given = body::read(request, shared.options.most_bytes).await?;
    let came = |name: &str| given.get(name).filter(|value| !value.is_null()).cloned();
    let echo = ECHOED.iter().map(|(name, absent)| {
        let absent = || serde_json::from_str(absent).unwrap_or_default();
        ((*name).to_owned(), came(name).unwrap_or_else(absent))
    });
    let mut echo: Map<String, Value> = echo.collect();
    let sampled = ["temperature", "top_p"].map(|name| (name, came(name)));
    let mut fields = Fields::new(given);
    let model = shared.model(&mut fields)?;
    for (name, came) in sampled {
        echo.insert(name.into(), came.unwrap_or_else(|| model.sampling()[name].clone()));
    }
    let mut messages = match fields.take::<String>("previous_response_id")? {
        None => Vec::new(),
        Some(id) => shared.responses.messages(&id).ok_or_else(|| {
            let message = format!(
                "is {id:?}, which is not here any more, or was made with `store`: false; send the \
                 whole conversation as `input`"
            );
            // Clients send all of it then.
            Problem::field("previous_response_id", message).with_code("previous_response_not_found")
        })?,
    };
    take_input(&mut fields, &shared.responses, &mut messages)?;
    // They are not handed on to the next response.
    let instructions = fields.take::<String>("instructions")?;
    let mut shown = messages.clone();
    if let Some(text) = instructions {
        shown.insert(0, said("system", text));
    }
    join_system(&mut shown);
    let tools = take_tools(&mut fields)?;
    take_format(&mut fields)?;
    let mut effort = None;
    if let Some(reasoning) = fields.take::<Map<String, Value>>("reasoning")? {
        let mut reasoning = Fields::new(reasoning);
        effort = reasoning.take("effort")?;
        // A summary may always be left out: thoughts come as they are.
        for summary in ["summary", "generate_summary"] {
            reasoning.take::<String>(summary)?;
        }
        reasoning.finish()?;
    }
    take_metadata(&mut fields)?;
    fields.only("truncation", &json!("disabled"));
    fields.only("background", &json!(false));
    take_include(&mut fields)?;
    let store = fields.take::<bool>("store")?.unwrap_or(true);
    let max_tokens = fields.take::<usize>("max_output_tokens")?;
    let mut conversation = Conversation::of(shown);
    conversation.take_variables(&mut fields)?;
    conversation.think("reasoning.effort", effort);
    let settings = Settings::take(&mut fields, &model)?;
    fields.finish()?;
    if settings.n != 1 {
        return Err(Problem::field("n", "must be 1: a response is one"));
    }
    let stream = settings.stream;
    let asked = Asked { conversation, settings, tools, max_tokens, logprobs: None };
    let name = model.name().to_owned();
    let mut shape = Output::new(echo);
    let (answers, prompt) = match asked.submit(&shared, model).await {
        Ok(answers) => answers,
        // Codex knows a full context by an event alone.
        Err(problem) if stream && problem.too_long().is_some() => {
            return Ok(failed(shape, &About::new(&name, 1, 0), &problem));
        }
        Err(problem) => return Err(problem),
    };
    shape.reply = Some(prompt.reply());
    shape.style = prompt.style();
    shape.kept = store.then(|| (shared.clone(), messages));
    if stream { Ok(answers.streamed(shape)) } else { answers.whole(shape).await }
}

/// What is to be said beside the answer: of thoughts that are shown nothing is hidden, and tools of the server's
/// have said nothing.
fn take_include(fields: &mut Fields) -> Result<(), Problem> {
    let include = fields.take::<Vec<String>>("include")?.unwrap_or_default();
    match include.iter().find(|it| it.starts_with("message.")) {
        Some(it) => Err(Problem::field("include", format!("has {it:?}, which there is not here"))),
        None => Ok(()),
    }
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|rejection| Problem::path(&rejection))?;
    let response = shared.responses.response(&id).ok_or_else(|| lost(&id))?;
    Ok(body::json(StatusCode::OK, &response))
}

pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|rejection| Problem::path(&rejection))?;
    if !shared.responses.remove(&id) {
        return Err(lost(&id));
    }
    Ok(body::json(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true})))
}

fn lost(id: &str) -> Problem {
    Problem::request(format!("there is no response {id:?} here")).with_status(StatusCode::NOT_FOUND)
}

/// They lie flatter than in chats, and say the same.
fn take_tools(fields: &mut Fields) -> Result<Option<Tools>, Problem> {
    let mut same = Map::new();
    let tools = fields.take::<Vec<Map<String, Value>>>("tools")?.unwrap_or_default();
    let mut functions = Vec::new();
    for (n, mut tool) in tools.into_iter().enumerate() {
        // In the order in which they came: the model reads them.
        match tool.shift_remove("type").as_ref().and_then(Value::as_str) {
            Some("function") => {
                tool.retain(|_, value| !value.is_null());
                functions.push(json!({"type": "function", "function": tool}));
            }
            // The model is not told of them, as if it never called one.
            Some(kind) if LEFT_OUT.contains(&kind) || kind.starts_with("web_search_") => {}
            kind => {
                let known = LEFT_OUT.join(", ");
                let message = format!(
                    "is {kind:?}: there are functions; left out, as nothing is run by the server, are {known}"
                );
                return Err(Problem::field(format!("tools[{n}].type"), message));
            }
        }
    }
    same.insert("tools".into(), functions.into());
    match fields.take::<Value>("tool_choice")? {
        Some(Value::Object(choice)) => {
            let choice =
                json!({"type": choice.get("type"), "function": {"name": choice.get("name")}});
            same.insert("tool_choice".into(), choice);
        }
        Some(choice) => {
            same.insert("tool_choice".into(), choice);
        }
        None => {}
    }
    if let Some(parallel) = fields.take::<bool>("parallel_tool_calls")? {
        same.insert("parallel_tool_calls".into(), parallel.into());
    }
    tools::take(&mut Fields::new(same))
}

/// They come back with the response, which is kept: so they are what OpenAI lets them be.
fn take_metadata(fields: &mut Fields) -> Result<(), Problem> {
    let given = fields.take::<HashMap<String, String>>("metadata")?.unwrap_or_default();
    let short = |(key, value): (&String, &String)| {
        key.chars().count() <= 64 && value.chars().count() <= 512
    };
    if given.len() > 16 || !given.iter().all(short) {
        let message = "must be at most 16 strings, of 512 characters, with names of 64";
        return Err(Problem::field("metadata", message));
    }
    Ok(())
}

/// `text.format` is `response_format`, flatter.
fn take_format(fields: &mut Fields) -> Result<(), Problem> {
    let Some(text) = fields.take::<Map<String, Value>>("text")? else { return Ok(()) };
    let mut text = Fields::new(text);
    if let Some(mut format) = text.take::<Map<String, Value>>("format")? {
        if format.get("type").is_some_and(|kind| kind == "json_schema") {
            format.shift_remove("type");
            format = Map::from_iter([
                ("type".into(), "json_schema".into()),
                ("json_schema".into(), format.into()),
            ]);
        }
        fields.insert("response_format", format.into())?;
    }
    text.only("verbosity", &json!("medium"));
    text.finish()
}

/// An answer, whose parts are items.
struct Output {
    id: String,
    echo: Map<String, Value>,
    /// How tools are called.
    style: Option<AnswerStyle>,
    /// What tells the parts apart; `None` before the beginning and behind the end.
    reply: Option<Reply>,
    /// Tokens of thoughts.
    thoughts: usize,
    items: Vec<Value>,
    /// Whether the last of them goes on.
    is_open: bool,
    /// How many there have been.
    events: usize,
    ended: Option<FinishReason>,
    /// Where it is kept, and what has been said before it.
    kept: Option<(Arc<Shared>, Messages)>,
}

/// Where an item of the type `kind` has its words: the type of its part, and what its events are called.
fn part_of(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "message" => Some(("output_text", "response.output_text")),
        "reasoning" => Some(("reasoning_text", "response.reasoning_text")),
        _ => None,
    }
}

impl Output {
    /// One that has not begun, of a request with the fields `echo`.
    fn new(echo: Map<String, Value>) -> Self {
        Self {
            id: format!("resp_{}{}", unique_id(), unique_id()),
            echo,
            style: None,
            reply: None,
            thoughts: 0,
            items: Vec::new(),
            is_open: false,
            events: 0,
            ended: None,
            kept: None,
        }
    }

    fn event(&mut self, kind: &str, mut value: Value) -> String {
        value["type"] = kind.into();
        value["sequence_number"] = self.events.into();
        self.events += 1;
        format!("event: {kind}\ndata: {value}\n\n")
    }

    /// An event of the last item.
    fn of_item(&mut self, kind: &str, mut value: Value) -> String {
        let index = self.items.len().saturating_sub(1);
        value["output_index"] = index.into();
        value["item_id"] = self.items[index]["id"].clone();
        self.event(kind, value)
    }

    fn open(&mut self, item: Value, events: &mut Vec<String>) {
        self.close("completed", events);
        let index = self.items.len();
        self.items.push(item);
        self.is_open = true;
        let item = self.items[index].clone();
        let added = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.added", added));
    }

    fn close(&mut self, status: &str, events: &mut Vec<String>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let index = self.items.len() - 1;
        self.items[index]["status"] = status.into();
        let item = self.items[index].clone();
        if is_cut(&item) {
            // Clients make a call that they hear is done.
            return;
        }
        match part_of(item["type"].as_str().unwrap_or_default()) {
            Some((_, name)) => {
                let part = &item["content"][0];
                let done = json!({"content_index": 0, "text": part["text"], "logprobs": []});
                events.push(self.of_item(&format!("{name}.done"), done));
                let done = json!({"content_index": 0, "part": part});
                events.push(self.of_item("response.content_part.done", done));
            }
            None => {
                let done = json!({"arguments": item["arguments"], "name": item["name"]});
                events.push(self.of_item("response.function_call_arguments.done", done));
            }
        }
        let done = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", done));
    }

    /// More words or thoughts, in an item that goes on or a new one.
    fn add(&mut self, kind: &str, more: &str, events: &mut Vec<String>) {
        let Some((part, name)) = part_of(kind) else { return };
        if !self.is_open || self.items.last().is_none_or(|item| item["type"] != kind) {
            let item = match kind {
                "message" => json!({
                    "id": format!("msg_{}", unique_id()), "type": kind, "status": "in_progress",
                    "role": "assistant", "content": [],
                }),
                _ => json!({
                    "id": format!("rs_{}", unique_id()), "type": kind, "status": "in_progress",
                    "summary": [], "content": [],
                }),
            };
            self.open(item, events);
            let mut begun = json!({"type": part, "text": ""});
            if kind == "message" {
                begun["annotations"] = json!([]);
                begun["logprobs"] = json!([]);
            }
            if let Some(item) = self.items.last_mut() {
                item["content"] = json!([begun]);
            }
            let added = json!({"content_index": 0, "part": begun});
            events.push(self.of_item("response.content_part.added", added));
        }
        if let Some(Value::String(text)) =
            self.items.last_mut().map(|item| &mut item["content"][0]["text"])
        {
            *text += more;
        }
        let delta = json!({"content_index": 0, "delta": more, "logprobs": []});
        events.push(self.of_item(&format!("{name}.delta"), delta));
    }

    fn tell(&mut self, parts: Vec<Part>) -> Vec<String> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                Part::Content(text) => self.add("message", &text, &mut events),
                Part::Reasoning(text) => self.add("reasoning", &text, &mut events),
                Part::Call(name) => {
                    let call_id = call_id(self.style);
                    let item = json!({
                        "id": format!("fc_{}", unique_id()), "type": "function_call",
                        "status": "in_progress", "call_id": call_id, "name": name, "arguments": "",
                    });
                    self.open(item, &mut events);
                }
                Part::Arguments(text) => {
                    if let Some(Value::String(arguments)) =
                        self.items.last_mut().map(|item| &mut item["arguments"])
                    {
                        *arguments += &text;
                    }
                    let delta = json!({"delta": text});
                    events.push(self.of_item("response.function_call_arguments.delta", delta));
                }
            }
        }
        events
    }

    /// What `text` says, of which `tokens` made it certain.
    fn read(&mut self, text: &str, tokens: &[Token]) -> Vec<Part> {
        let parts = self.reply.as_mut().map(|reply| reply.push(text)).unwrap_or_default();
        if self.reply.as_ref().is_some_and(Reply::is_thinking) {
            self.thoughts += tokens.len();
        }
        parts
    }

    /// The response as it is now.
    fn response(&self, about: &About, usage: Option<&Usage>) -> Value {
        let (status, why) = match (usage, self.ended) {
            (None, _) => ("in_progress", Value::Null),
            (_, Some(FinishReason::Length | FinishReason::Context)) => {
                ("incomplete", json!({"reason": "max_output_tokens"}))
            }
            _ => ("completed", Value::Null),
        };
        let usage = usage.map(|usage| {
            let (input, output) = (usage.prompt_tokens(), usage.tokens);
            json!({
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens()},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": self.thoughts},
                "total_tokens": input + output,
            })
        });
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": about.created, "status": status,
            "error": null, "incomplete_details": why, "model": about.model, "output": self.items,
            "truncation": "disabled", "usage": usage,
        });
        if let Value::Object(fields) = &mut response {
            fields.extend(self.echo.clone());
        }
        response
    }

    /// Keeps it for those that go on from it.
    fn keep(&mut self, response: &Value) {
        let Some((shared, mut messages)) = self.kept.take() else { return };
        for item in self.items.iter().filter(|item| !is_cut(item)) {
            // What we have written ourselves. A call that is no JSON is nothing that a template takes, and is left out
            // of what follows, as one is that was cut off.
            let _ = add_item("output", item, &mut messages);
        }
        shared.responses.keep(&self.id, &messages, response);
    }
}

impl Shape for Output {
    fn begin(&mut self, about: &About) -> Vec<String> {
        let response = self.response(about, None);
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": response})))
            .into()
    }

    fn resume(&mut self, _: usize, text: &str, tokens: &[Token]) {
        drop(self.read(text, tokens));
    }

    fn piece(&mut self, _: &About, _: usize, text: &str, tokens: &[Token]) -> Vec<String> {
        let parts = self.read(text, tokens);
        self.tell(parts)
    }

    fn end(&mut self, _: &About, _: usize, end: &End) -> Vec<String> {
        let cut = end.cuts_call(self.reply.as_ref());
        let parts = self.reply.take().map(Reply::finish).unwrap_or_default();
        let mut events = self.tell(parts);
        self.ended = Some(end.reason);
        let full = matches!(end.reason, FinishReason::Length | FinishReason::Context);
        if cut {
            // Nobody is to make it, or to hear that it is done.
            self.is_open = false;
            self.items.pop();
        } else {
            self.close(if full { "incomplete" } else { "completed" }, &mut events);
        }
        events
    }

    fn finish(&mut self, about: &About, usage: &Usage) -> Vec<String> {
        let response = self.response(about, Some(usage));
        self.keep(&response);
        let kind = format!("response.{}", response["status"].as_str().unwrap_or_default());
        vec![self.event(&kind, json!({"response": response}))]
    }

    fn fail(&mut self, about: &About, problem: &Problem) -> Vec<String> {
        let error = &problem.json()["error"];
        let code = error["code"].as_str().or(error["type"].as_str());
        let mut response = self.response(about, None);
        response["status"] = "failed".into();
        response["error"] = json!({"code": code, "message": error["message"]});
        // Some clients read the one, some the other.
        let error = json!({"code": code, "message": error["message"], "param": null});
        vec![
            self.event("error", error),
            self.event("response.failed", json!({"response": response})),
        ]
    }

    /// An event, as some clients count no comments and give up.
    fn still_there(&mut self, about: &About) -> String {
        let response = self.response(about, None);
        self.event("response.in_progress", json!({"response": response}))
    }

    fn whole(&mut self, about: &About, answers: Vec<Answer>, usage: &Usage) -> Value {
        for answer in answers {
            for (text, token) in answer.pieces() {
                self.piece(about, 0, text, token);
            }
            self.end(about, 0, &answer.end);
        }
        let response = self.response(about, Some(usage));
        self.keep(&response);
        response
    }
}

/// Whether `item` is a call that was cut off in its arguments.
fn is_cut(item: &Value) -> bool {
    let is_whole = |text: &str| serde_json::from_str::<Map<String, Value>>(text).is_ok();
    item["type"] == "function_call"
        && item["status"] == "incomplete"
        && !item["arguments"].as_str().is_some_and(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_has_stays_in_its_order() {
        let tool = json!({"type": "function", "name": "f", "description": "Does.", "parameters": {"type": "object"},
                          "strict": false});
        let Value::Object(fields) = json!({"tools": [tool]}) else { unreachable!() };
        let tools = take_tools(&mut Fields::new(fields)).unwrap().unwrap();
        let shown = tools.values().remove(0);
        let names: Vec<_> = shown["function"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["name", "description", "parameters", "strict"]);
    }
}
