//! `/v1/rerank`: scores are what the model's "yes" has beside its "no".

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::server::*;
use crate::support;
use crate::tools::with_tools;

/// A name for `folder` by which it is taken for Qwen3-Reranker, whose older folders say nothing of it.
pub fn named(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("Qwen3-Reranker-tiny");
    std::os::unix::fs::symlink(folder.path(), &path).unwrap();
    path
}

const QUERY: &str = "Who ran home?";
const DOCUMENTS: [&str; 3] = ["The dog ran home.", "It was a cold night.", "The cat slept."];
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// As the model's card has it.
fn prompt(instruction: &str, query: &str, document: &str) -> String {
    format!(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
         provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
         {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
}

/// What the likelihoods of both words make of it, which are asked for as of any other text.
fn expected(server: &Server, instruction: &str, document: &str) -> f64 {
    let tokens = |text: &str| {
        let request = json!({"prompt": text, "add_special_tokens": false});
        server.post("/tokenize", &request).json()["tokens"].as_array().unwrap().clone()
    };
    let prompt = tokens(&prompt(instruction, QUERY, document));
    let [yes, no] = ["yes", "no"].map(|word| {
        let [id] = &tokens(word)[..] else { panic!("{word} is no token") };
        let with = [&prompt[..], std::slice::from_ref(id)].concat();
        let request = json!({"prompt": with, "echo": true, "logprobs": 0, "max_tokens": 0});
        let reply = server.post("/v1/completions", &request).json();
        let all = reply["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        all[prompt.len()].as_f64().unwrap()
    });
    1.0 / (1.0 + (no - yes).exp())
}

fn ranked(server: &Server, more: Value) -> Vec<(usize, f64)> {
    let mut request = json!({"query": QUERY, "documents": DOCUMENTS});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = server.post("/v1/rerank", &request);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let results = reply.json()["results"].as_array().unwrap().clone();
    let one = |it: &Value| {
        (it["index"].as_u64().unwrap() as usize, it["relevance_score"].as_f64().unwrap())
    };
    results.iter().map(one).collect()
}

#[test]
fn documents_are_ranked_by_how_likely_yes_is() {
    let folder = with_tools("qwen3");
    let server = Server::of(&["-m", named(&folder).to_str().unwrap()], &["--log", "off"]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["rerank"], true);
    let all = ranked(&server, json!({}));
    assert!(all.is_sorted_by(|one, other| one.1 >= other.1), "{all:?}");
    let mut indices: Vec<_> = all.iter().map(|it| it.0).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);
    for &(index, score) in &all {
        let expected = expected(&server, INSTRUCTION, DOCUMENTS[index]);
        assert!((score - expected).abs() < 1e-6, "{index}: {score} {expected}");
    }
    // Again, and one by one, they have the same scores.
    assert_eq!(ranked(&server, json!({})), all);
    for &(index, score) in &all {
        let alone = ranked(&server, json!({"documents": [{"text": DOCUMENTS[index]}]}));
        assert_eq!(alone, [(0, score)]);
    }
    let other = ranked(&server, json!({"instruction": "Find who is asleep."}));
    for &(index, score) in &other {
        let expected = expected(&server, "Find who is asleep.", DOCUMENTS[index]);
        assert!((score - expected).abs() < 1e-6, "{index}: {score} {expected}");
    }
    assert_eq!(ranked(&server, json!({"top_n": 2})), all[..2]);
    assert_eq!(ranked(&server, json!({"top_n": 9})), all);

    let request =
        json!({"query": QUERY, "documents": DOCUMENTS, "return_documents": true, "top_n": 1});
    let reply = server.post("/rerank", &request).json();
    let best = &reply["results"][0];
    assert_eq!(best["document"]["text"], DOCUMENTS[all[0].0]);
    assert!(reply["usage"]["total_tokens"].as_u64().unwrap() > 100, "{reply}");

    // More than run at once.
    let many: Vec<_> = (0..150).map(|at| format!("The dog ran {at} times.")).collect();
    let results = ranked(&server, json!({"documents": many}));
    assert_eq!(results.len(), 150);
    let one = results.iter().find(|it| it.0 == 140).unwrap().1;
    assert_eq!(ranked(&server, json!({"documents": [many[140]]})), [(0, one)]);

    let long = "The dog ran. ".repeat(2000);
    for (wrong, field) in [
        (json!({"documents": []}), "documents"),
        (json!({"documents": [7]}), "documents"),
        (json!({"documents": "a"}), "documents"),
        (json!({"query": 7}), "query"),
        (json!({"max_tokens_per_doc": 5}), "max_tokens_per_doc"),
    ] {
        let mut request = json!({"query": QUERY, "documents": DOCUMENTS});
        request.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        assert_eq!(server.post("/v1/rerank", &request).error(400)["param"], field, "{wrong}");
    }
    let request = json!({"query": QUERY, "documents": ["a", long]});
    let error = server.post("/v1/rerank", &request).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    server.is_empty();
}

#[test]
fn a_folder_says_by_which_words_and_in_which_form_it_ranks() {
    let folder = with_tools("qwen3");
    let by_name = Server::of(&["-m", named(&folder).to_str().unwrap()], &["--log", "off"]);
    let expected = ranked(&by_name, json!({}));
    drop(by_name);

    let said = with_tools("qwen3");
    let write = |name: &str, text: &str| {
        let path = said.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let ids = {
        let server = Server::of(&["-m", said.path().to_str().unwrap()], &["--log", "off"]);
        let error =
            server.post("/v1/rerank", &json!({"query": QUERY, "documents": DOCUMENTS})).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("ranks no documents"), "{message}");
        ["yes", "no"].map(|word| {
            let request = json!({"prompt": word, "add_special_tokens": false});
            server.post("/tokenize", &request).json()["tokens"][0].clone()
        })
    };
    let class = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore";
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": class},
    ]);
    write("modules.json", &modules.to_string());
    let score = json!({"true_token_id": ids[0], "false_token_id": ids[1]});
    write("1_LogitScore/config.json", &score.to_string());
    let prompts = json!({"prompts": {"query": INSTRUCTION}, "default_prompt_name": "query"});
    write("config_sentence_transformers.json", &prompts.to_string());
    let of = |role: &str| {
        format!(
            "{{{{ messages | selectattr('role', 'equalto', '{role}') | map(attribute='content') | first }}}}"
        )
    };
    // A template loses its last line's end.
    let template = prompt(&of("system"), &of("query"), &of("document")) + "\n";
    write("chat_template.jinja", &template);
    let server = Server::of(&["-m", said.path().to_str().unwrap()], &["--log", "off"]);
    assert_eq!(ranked(&server, json!({})), expected);
    // Its template knows no chats.
    assert_eq!(server.get("/v1/models").json()["data"][0]["chat"], false);
    drop(server);

    // "yes" alone.
    let score = json!({"true_token_id": ids[0], "false_token_id": null});
    write("1_LogitScore/config.json", &score.to_string());
    let server = Server::of(&["-m", said.path().to_str().unwrap()], &["--log", "off"]);
    assert_ne!(ranked(&server, json!({})), expected);
    drop(server);

    let score = json!({"true_token_id": 1 << 30, "false_token_id": null});
    write("1_LogitScore/config.json", &score.to_string());
    let server = Server::of(&["-m", said.path().to_str().unwrap()], &["--log", "off"]);
    let request = json!({"query": QUERY, "documents": DOCUMENTS});
    let error = server.post("/v1/rerank", &request).error(400);
    assert!(error["message"].as_str().unwrap().contains("1073741824"), "{error}");
}

/// Encoders, of vectors and of ranks, are served as other models are, and what they cannot do is refused.
#[test]
fn encoders_are_served() {
    let folder =
        |name: &str| format!("{}/../xla-session/tests/encoders/{name}", env!("CARGO_MANIFEST_DIR"));
    let (vectors, ranks) = (folder("bert-f32"), folder("xlm-roberta-classifier-f32"));
    let server = Server::of(&["-m", &vectors, "-m", &ranks], &["--log", "off"]);
    let post = |path: &str, more: Value| {
        let mut request = json!({"model": "xlm-roberta-classifier-f32"});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(path, &request)
    };
    let documents = json!({"query": "w20 w30", "documents": ["w40 w50", "w70 w80"]});
    let reply = post("/v1/rerank", documents.clone());
    assert_eq!(reply.status, 200, "{}", reply.text);
    let printed = ["rank", "-q", "-m", &ranks, "--query", "w20 w30", "w40 w50", "w70 w80"];
    let printed = support::succeeds(&printed);
    for (result, line) in reply.json()["results"].as_array().unwrap().iter().zip(printed.lines()) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&result["index"], &result["relevance_score"]),
            (&line["index"], &line["score"])
        );
    }
    let long = json!({"query": "w20 w30", "documents": ["w60 ".repeat(400)]});
    post("/v1/rerank", long.clone()).error(400);
    for most in [-1, 100] {
        let mut cut = long.clone();
        cut["truncate_prompt_tokens"] = most.into();
        let reply = post("/v1/rerank", cut);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let expected = if most < 0 { 318 } else { most };
        assert_eq!(reply.json()["usage"]["prompt_tokens"], expected);
    }
    for wrong in [0, -2] {
        let mut cut = long.clone();
        cut["truncate_prompt_tokens"] = wrong.into();
        let error = post("/v1/rerank", cut).error(400);
        assert_eq!(error["param"], "truncate_prompt_tokens");
    }

    let named = |more: Value| {
        let mut request = documents.clone();
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post("/v1/rerank", request).error(400)["param"].clone()
    };
    assert_eq!(named(json!({"instruction": "Find it."})), "instruction");
    let query = "w20 ".repeat(400);
    assert_eq!(named(json!({"query": query, "truncate_prompt_tokens": -1})), "query");
    let models = server.get("/v1/models").json()["data"].clone();
    for (at, can) in ["embeddings", "rerank"].into_iter().enumerate() {
        let says = [0, 1].map(|model| models[model][can] == true);
        assert_eq!(says, [at == 0, at == 1], "{can}: {models}");
        assert!(models[at]["chat"] == false && models[at]["infill"] == false);
    }

    let embed = |model: &str, more: Value| {
        let mut request = json!({"model": model, "input": ["w20 w30", "w60 ".repeat(400)]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/embeddings", &request)
    };
    embed("bert-f32", json!({})).error(400);
    let reply = embed("bert-f32", json!({"truncate_prompt_tokens": -1}));
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.json()["usage"]["prompt_tokens"], 324);
    let error = embed("xlm-roberta-classifier-f32", json!({})).error(400);
    assert!(error["message"].as_str().unwrap().contains("has no vectors"), "{error}");
    for (path, more) in [
        ("/v1/completions", json!({"prompt": "w20"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "w20"}]})),
    ] {
        post(path, more).error(400);
    }
    server.is_empty();
}
