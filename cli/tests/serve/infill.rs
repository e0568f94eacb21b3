//! Filling in: `suffix` of completions, and `/infill` as llama.vim and llama.vscode ask it.

use serde_json::{Value, json};

use crate::server::*;
use crate::support::mark;
use crate::tools::with_tools;

/// A server whose model has marks.
fn started(flags: &[&str]) -> (tempfile::TempDir, Server) {
    let folder = with_tools("qwen3");
    mark(folder.path());
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], flags);
    (folder, server)
}

fn tokens(server: &Server, text: &str) -> Value {
    server.post("/tokenize", &json!({"prompt": text})).json()["tokens"].clone()
}

#[test]
fn a_suffix_is_filled_in_up_to_a_mark() {
    let (_folder, server) = started(&["--log", "off"]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["infill"], true);
    let ask = |request: Value| {
        let reply = server.post("/v1/completions", &request);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let place = json!({"prompt": ["The dog ran", "One day"], "suffix": " home.", "max_tokens": 12,
                       "temperature": 0});
    let filled = ask(place.clone());
    for (at, before) in ["The dog ran", "One day"].into_iter().enumerate() {
        let text = format!("<|fim_prefix|>{before}<|fim_suffix|> home.<|fim_middle|>");
        let prompt = tokens(&server, &text);
        let plain = ask(json!({"prompt": prompt, "max_tokens": 12, "temperature": 0}));
        assert_eq!(filled["choices"][at]["text"], plain["choices"][0]["text"], "{before}");
    }

    let pad = tokens(&server, "<|fim_pad|>")[1].to_string();
    let likely = json!({pad: 100});
    let mut padded = place.clone();
    padded["logit_bias"] = likely.clone();
    let choice = ask(padded.clone())["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("stop")));
    padded["ignore_eos"] = true.into();
    assert_eq!(ask(padded)["choices"][0]["finish_reason"], "length");
    let plain = ask(json!({"prompt": "One day", "max_tokens": 3, "logit_bias": likely}));
    assert_eq!(plain["choices"][0]["finish_reason"], "length");

    let streamed = json!({"prompt": "One day", "suffix": " home.", "max_tokens": 12,
                          "temperature": 0, "stream": true});
    let events = server.post("/v1/completions", &streamed).events();
    let text: String = events.iter().filter_map(|it| it["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, filled["choices"][1]["text"]);

    for (request, field) in [
        (json!({"prompt": "a", "suffix": "b", "echo": true}), "echo"),
        (json!({"prompt": [5, 6], "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "suffix": 7}), "suffix"),
    ] {
        let error = server.post("/v1/completions", &request).error(400);
        assert_eq!(error["param"], field, "{error}");
    }
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "suffix": "b"});
    let error = server.post("/v1/chat/completions", &chat).error(400);
    assert_eq!(error["code"], "unsupported_parameter");
    server.is_empty();
}

#[test]
fn a_model_without_marks_says_so() {
    let server = Server::start(&["--log", "off"]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["infill"], false);
    // As some clients say that there is none.
    let empty = json!({"prompt": "a", "suffix": "", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &empty).status, 200);
    for (path, request) in [
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"})),
        ("/infill", json!({"input_prefix": "a"})),
    ] {
        let error = server.post(path, &request).error(400);
        assert_eq!(error["code"], "unsupported_parameter", "{path}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("no marks for filling in"), "{message}");
    }
    server.is_empty();
}

/// What llama.vim and llama.vscode say with every request.
fn plugin(more: &Value) -> Value {
    let mut request = json!({
        "id_slot": 0, "input_prefix": "One day\n", "input_suffix": " home.\n", "input_extra": [],
        "prompt": "the dog", "n_predict": 12, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"], "stream": false, "cache_prompt": true,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 60000, "model": "",
    });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

#[test]
fn plugins_of_editors_are_answered_as_llama_server_does() {
    let (_folder, server) = started(&["--log", "off", "--context", "512"]);
    let ask = |more: Value| {
        let reply = server.post("/infill", &plugin(&more));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let filled = ask(json!({}));
    let same = json!({"prompt": "One day\nthe dog", "suffix": " home.\n", "max_tokens": 12,
                      "temperature": 0});
    let same = server.post("/v1/completions", &same).json();
    assert_eq!(filled["content"], same["choices"][0]["text"]);
    assert_eq!(filled["tokens_evaluated"], same["usage"]["prompt_tokens"]);
    assert_eq!(filled["tokens_predicted"], same["usage"]["completion_tokens"]);
    assert_eq!((&filled["stop"], &filled["truncated"]), (&json!(true), &json!(false)));
    assert_eq!(filled["generation_settings"]["n_ctx"], 512);
    // Where nothing else is chosen, llama.vscode asks for this.
    assert_eq!(ask(json!({"model": "google/gemini-2.5-flash"}))["content"], filled["content"]);
    assert!(filled["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0, "{filled}");

    // As llama.vim has what it reads named.
    let named = ask(json!({"response_fields": ["content", "timings/predicted_n", "no/such"]}));
    let tokens = &filled["tokens_predicted"];
    assert_eq!(named, json!({"content": filled["content"], "timings/predicted_n": tokens}));

    // What it sends while nobody types is found by what follows.
    let files: Vec<_> = (0..4)
        .map(|at| json!({"filename": format!("{at}.txt"), "text": "One day the cat. ".repeat(8), "time": 1.5}))
        .collect();
    let prepare = json!({"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0,
                         "input_extra": files, "samplers": [], "response_fields": [""]});
    assert_eq!(ask(prepare), json!({}));
    let found = ask(json!({"input_extra": files}));
    let [cached, run] = ["cache_n", "prompt_n"].map(|it| found["timings"][it].as_u64().unwrap());
    assert!(cached > 100 && run < 64, "{found}");

    // More than there is room for: the same of them, whatever stands around the place.
    let more = [files.clone(), files.clone()].concat();
    let prepare = json!({"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0,
                         "input_extra": more});
    assert_eq!(ask(prepare)["truncated"], true);
    let found = ask(json!({"input_extra": more, "n_predict": 128}));
    let [cached, run] = ["cache_n", "prompt_n"].map(|it| found["timings"][it].as_u64().unwrap());
    assert!(cached > 100 && run < 64, "{found}");

    let long = "The cat and the dog. ".repeat(100);
    let cut = ask(json!({"input_prefix": long, "input_extra": files}));
    assert_eq!(cut["truncated"], true);
    assert_eq!(cut["tokens_evaluated"].as_u64().unwrap() + 12, 512 + 1, "{cut}");

    let several = ask(json!({"n_cmpl": 3}));
    assert_eq!(several.as_array().unwrap().len(), 3);
    let stopped = ask(json!({"stop": ["e"], "n_predict": 40}));
    let content = filled["content"].as_str().unwrap();
    assert!(content.contains('e'), "{content}");
    assert_eq!(stopped["content"], content.split('e').next().unwrap());
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!("e")));

    let streamed = server.post("/infill", &plugin(&json!({"stream": true})));
    let events: Vec<Value> = streamed
        .text
        .split("\n\n")
        .filter_map(|it| serde_json::from_str(it.strip_prefix("data: ")?).ok())
        .collect();
    let text: String = events.iter().filter_map(|it| it["content"].as_str()).collect();
    assert_eq!(text, content);
    let last = events.last().unwrap();
    assert_eq!(last["has_new_line"], content.contains('\n'));
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), tokens));
    server.is_empty();
}

#[test]
fn lines_of_what_is_filled_in_are_as_they_are_asked_for() {
    let (_folder, server) = started(&["--log", "off"]);
    let forced = |text: &str, more: Value| {
        let mut request = plugin(&json!({"guided_regex": text, "n_predict": 64}));
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post("/infill", &request);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let answer = reply.json();
        (answer["content"].as_str().unwrap().to_owned(), answer["stop_type"].clone())
    };
    let text = "x\n  y\n z";
    assert_eq!(forced(text, json!({})), (text.into(), json!("eos")));
    assert_eq!(forced(text, json!({"n_indent": 1})).0, text);
    assert_eq!(forced(text, json!({"n_indent": 2})), ("x\n  y\n".into(), json!("limit")));
    // No time: the first line's end is the answer's.
    assert_eq!(forced(text, json!({"t_max_predict_ms": 1e-6})), ("x\n".into(), json!("limit")));
    server.is_empty();
}
