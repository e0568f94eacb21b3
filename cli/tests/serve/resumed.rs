//! Answers that go on: behind what another server has given, or behind words of the conversation.

use crate::conversations::with_tools;
use crate::server::*;
use serde_json::{Value, json};

/// What a client has of an answer: the ids of its tokens, and what they have made certain.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    ids: Vec<Value>,
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    logprobs: Vec<Value>,
    reason: Value,
}

impl Seen {
    /// After each piece with ids, from `self` on; the last is all of it.
    fn reading(mut self, events: &[Value]) -> Vec<Self> {
        let mut all = Vec::new();
        for choice in events.iter().flat_map(|it| it["choices"].as_array().unwrap()) {
            let delta = &choice["delta"];
            for text in [&choice["text"], &delta["content"]] {
                self.text += text.as_str().unwrap_or_default();
            }
            self.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            if let Some(call) = delta["tool_calls"].get(0) {
                let function = &call["function"];
                if let Some(name) = function["name"].as_str() {
                    self.calls.push((name.into(), String::new()));
                }
                assert_eq!(call["index"], self.calls.len() - 1);
                let arguments = function["arguments"].as_str().unwrap();
                self.calls.last_mut().unwrap().1 += arguments;
            }
            for logprobs in [&choice["logprobs"]["token_logprobs"], &choice["logprobs"]["content"]]
            {
                self.logprobs.extend(logprobs.as_array().cloned().unwrap_or_default());
            }
            self.reason = choice["finish_reason"].clone();
            if let Some(ids) = choice["token_ids"].as_array() {
                self.ids.extend(ids.clone());
                all.push(self.clone());
            }
        }
        all.push(self);
        all
    }
}

fn with(request: &Value, more: Value) -> Value {
    let mut request = request.clone();
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// What comes of `request`, streamed by `first`, and by `second` behind any part of it.
fn goes_on_at_any_token(first: &Server, second: &Server, path: &str, request: &Value) -> Seen {
    let streamed = with(request, json!({"stream": true, "return_token_ids": true}));
    let seen = Seen::default().reading(&first.post(path, &streamed).events());
    let whole = seen.last().unwrap();
    assert!(whole.ids.len() > 5 && whole.reason.is_string(), "{request}: {whole:?}");
    for cut in [0, 1, seen.len() / 3, seen.len() / 2, seen.len() - 3, seen.len() - 2] {
        let had = &seen[cut];
        let reply = second.post(path, &with(&streamed, json!({"answer_token_ids": had.ids})));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let went_on = had.clone().reading(&reply.events());
        assert_eq!(went_on.last().unwrap(), whole, "{request} from {}", had.ids.len());
    }
    // Whole answers have them, too.
    let answer = first.post(path, &with(request, json!({"return_token_ids": true}))).json();
    assert_eq!(answer["choices"][0]["token_ids"], json!(whole.ids));
    whole.clone()
}

/// Sampled, kept to a form, with tools and thoughts, at any token: the rest is what the first would have
/// said.
#[test]
fn an_answer_goes_on_with_another_server() {
    let folder = with_tools("qwen3");
    let models = ["-m", folder.path().to_str().unwrap()];
    let first = Server::of(&models, &["--log", "off"]);
    let second = Server::of(&models, &["--log", "off", "--parallel", "3", "--threads", "1"]);
    let chat = json!([{"role": "user", "content": "Is it warm in Bern?"}]);
    let schema = json!({"type": "object", "properties": {
        "city": {"enum": ["Bern", "Zürich \"HB\""]}, "days": {"type": "integer"}},
        "required": ["city", "days"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": schema}});
    let (text, talk) = ("/v1/completions", "/v1/chat/completions");
    let requests = [
        (text, json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0})),
        (
            text,
            json!({"prompt": "The sea", "max_tokens": 30, "presence_penalty": 0.7, "seed": 3,
                      "frequency_penalty": 0.5, "repeat_penalty": 1.1, "logprobs": 2}),
        ),
        // Half characters, and stop strings that begin and do not come.
        (
            text,
            json!({"prompt": "é", "max_tokens": 60, "temperature": 30, "seed": 2, "stop": ["\u{fffd}\u{fffd}\u{fffd}", " xyz"]}),
        ),
        (
            text,
            json!({"prompt": "Once upon a time", "max_tokens": 60, "stop": [" wanted to"], "temperature": 0}),
        ),
        (text, json!({"prompt": "The animal", "max_tokens": 80, "seed": 4, "guided_json": schema})),
        (talk, json!({"messages": chat, "max_tokens": 50, "seed": 5, "logprobs": true})),
    ];
    for (path, request) in requests {
        goes_on_at_any_token(&first, &second, path, &request);
    }
    let folder = with_tools("qwen2.5");
    let model = ["-m", folder.path().to_str().unwrap()];
    let [one, other] = [0; 2].map(|_| Server::of(&model, &["--log", "off"]));
    let calls = json!({"messages": chat, "max_tokens": 200, "temperature": 1.4, "seed": 6, "tools": [tool],
                       "tool_choice": "required"});
    let calls = goes_on_at_any_token(&one, &other, talk, &calls);
    assert!(!calls.calls.is_empty(), "{calls:?}");
    let ask = |more: Value| with(&json!({"prompt": "a", "stream": true, "seed": 1}), more);
    for (request, param) in [
        (ask(json!({"answer_token_ids": [5], "stream": false})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "seed": null})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "n": 2})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [99999]})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "prompt": ["a", "b"]})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "guided_regex": "[0-9]+"})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": vec![500; 5000]})), "answer_token_ids"),
    ] {
        let error = first.post(text, &request).error(400);
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{error}");
    }
    first.is_empty();
    second.is_empty();
}

/// As a prompt of the template's text would have it.
#[test]
fn an_answer_goes_on_behind_words_of_the_conversation() {
    let folder = with_tools("qwen3");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let said = |words: &str| json!([{"role": "user", "content": "Tell a story."}, {"role": "assistant", "content": words}]);
    let ask = |words: &str, more: Value| {
        let plain = json!({"messages": said(words), "max_tokens": 12, "temperature": 0});
        with(&with(&plain, json!({"continue_final_message": true})), more)
    };
    let path = "/v1/chat/completions";
    let chat = server.post(path, &ask("Once upon a", json!({})));
    assert_eq!(chat.status, 200, "{}", chat.text);
    let text = chat.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let prompt = "<|im_start|>user\nTell a story.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nOnce upon a";
    let tokens = json!({"messages": said("Once upon a"), "continue_final_message": true});
    let tokens = server.post("/tokenize", &tokens).json()["tokens"].clone();
    let same = json!({"prompt": prompt, "add_special_tokens": false});
    assert_eq!(server.post("/tokenize", &same).json()["tokens"], tokens);
    let completion = json!({"prompt": tokens, "max_tokens": 12, "temperature": 0});
    assert_eq!(server.complete(&completion)["choices"][0]["text"], text.as_str());
    // Anthropic's API says it by a last message of the assistant's.
    let message = json!({"messages": said("Once upon a"), "max_tokens": 12, "temperature": 0});
    let message = server.post("/v1/messages", &message).json();
    assert_eq!(message["content"], json!([{"type": "text", "text": text}]));

    // Thoughts that have begun go on.
    let thoughts = server.post(path, &ask("<think>\nOnce upon a", json!({}))).json();
    let message = &thoughts["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|it| !it.is_empty()), "{message}");

    for (request, param) in [
        (ask("Once", json!({"add_generation_prompt": true})), "continue_final_message"),
        (ask(" ", json!({})), "messages"),
        (ask("Once", json!({"messages": [{"role": "user", "content": "Hi"}]})), "messages"),
        (
            ask("Once", json!({"tools": [{"type": "function", "function": {"name": "f"}}]})),
            "continue_final_message",
        ),
    ] {
        let error = server.post(path, &request).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    server.is_empty();
}
