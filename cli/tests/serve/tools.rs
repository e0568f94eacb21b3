//! Tools: called by OpenAI's chats, alone and beside a form of answers.

use crate::server::*;
use serde_json::{Value, json};

const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/chat_templates");

/// The model with a template that knows tools as `style` writes them; thoughts, too.
pub fn with_tools(style: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(format!("{TALES}/{name}"), folder.path().join(name)).unwrap();
    }
    let source = std::fs::read_to_string(format!("{TEMPLATES}/{style}.jinja")).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    folder
}

/// Two tools, one without arguments.
pub fn tools() -> Value {
    let city = json!({"type": "object", "properties": {
        "city": {"enum": ["Bern", "Zürich \"HB\""]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {
            "name": "get_weather", "description": "The weather of a city.", "parameters": city}},
        {"type": "function", "function": {"name": "get_time"}},
    ])
}

/// Checks a call, and returns its name and arguments.
#[track_caller]
pub fn called(call: &Value) -> (String, String) {
    assert_eq!(call["type"], "function");
    let [name, arguments] = ["name", "arguments"].map(|it| call["function"][it].as_str().unwrap());
    let given: Value = serde_json::from_str(arguments).unwrap();
    match name {
        "get_weather" => {
            assert!(["Bern", "Zürich \"HB\""].contains(&given["city"].as_str().unwrap()), "{call}");
            assert!((1..=9).contains(&given["days"].as_u64().unwrap()), "{call}");
            assert_eq!(given.as_object().unwrap().len(), 2, "{call}");
        }
        "get_time" => assert_eq!(given, json!({})),
        other => panic!("no tool is called {other:?}"),
    }
    (name.into(), arguments.into())
}

#[test]
fn tools_are_called_with_arguments_of_their_schemas() {
    let mut seen = std::collections::BTreeSet::new();
    for style in ["qwen2.5", "qwen3-coder", "llama3.2", "mistral-v0.3"] {
        let folder = with_tools(style);
        let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
        let ask = |more: Value| {
            let mut request = json!({"messages": [{"role": "user", "content": "Is it warm in Bern?"}],
                                     "tools": tools(), "max_tokens": 300});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            request
        };
        let path = "/v1/chat/completions";
        let answer = |more: Value| {
            let reply = server.post(path, &ask(more));
            assert_eq!(reply.status, 200, "{style}: {}", reply.text);
            reply.json()["choices"][0].clone()
        };
        let only = json!({"type": "function", "function": {"name": "get_time"}});
        let choice = answer(json!({"tool_choice": only, "temperature": 0}));
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{style}: {choice}");
        assert_eq!(called(&calls[0]).0, "get_time");
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], Value::Null);
        for seed in 0..6 {
            let more = json!({"tool_choice": "required", "temperature": 20, "seed": seed,
                              "parallel_tool_calls": false, "logprobs": true});
            let choice = answer(more.clone());
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(
                (calls.len(), &choice["finish_reason"]),
                (1, &json!("tool_calls")),
                "{choice}"
            );
            let call = called(&calls[0]);
            // The same in pieces.
            let mut streamed = ask(more);
            streamed["stream"] = true.into();
            let events = server.post(path, &streamed).events();
            let deltas = events.iter().map(|it| &it["choices"][0]["delta"]);
            let pieces: Vec<_> = deltas.filter_map(|it| it["tool_calls"].get(0)).collect();
            assert!(pieces.iter().all(|it| it["index"] == 0), "{pieces:?}");
            let names: Vec<_> =
                pieces.iter().filter_map(|it| it["function"]["name"].as_str()).collect();
            assert_eq!(names, [&call.0], "{style}");
            assert_eq!(pieces.iter().filter(|it| it["id"].is_string()).count(), 1);
            let arguments = pieces.iter().map(|it| it["function"]["arguments"].as_str().unwrap());
            assert_eq!(arguments.collect::<String>(), call.1, "{style}");
            let tokens = |it: &Value| it["logprobs"]["content"].as_array().map_or(0, Vec::len);
            assert_eq!(
                events.iter().map(|it| tokens(&it["choices"][0])).sum::<usize>(),
                tokens(&choice)
            );
            let last =
                events.iter().rev().find_map(|it| it["choices"][0]["finish_reason"].as_str());
            assert_eq!(last, Some("tool_calls"));
            seen.insert(call.0);
        }
        // What has been called, and what came of it, goes into the next prompt.
        let choice = answer(json!({"tool_choice": only, "temperature": 0}));
        let id = choice["message"]["tool_calls"][0]["id"].clone();
        let messages = json!([
            {"role": "user", "content": "What time is it?"}, choice["message"],
            {"role": "tool", "content": "noon", "tool_call_id": id},
        ]);
        let tokens = server.post("/tokenize", &json!({"messages": messages, "tools": tools()}));
        assert_eq!(tokens.status, 200, "{style}: {}", tokens.text);
        let count = |it: Value| it["count"].as_u64().unwrap();
        let without = server.post("/tokenize", &json!({"messages": messages}));
        assert!(
            count(tokens.json()) > count(without.json()) + 100,
            "{style}: tools are in the prompt"
        );
        answer(json!({"messages": messages, "temperature": 0, "max_tokens": 20}));
        // Left to itself, this model speaks.
        let free = answer(json!({"temperature": 0, "max_tokens": 20}));
        assert!(free["message"]["tool_calls"].is_null(), "{style}: {free}");
        assert_ne!(free["finish_reason"], "tool_calls", "{style}: {free}");
        // And with none to call as if there were none.
        let none = answer(json!({"tool_choice": "none", "temperature": 0, "max_tokens": 20}));
        let plain = answer(json!({"tools": [], "temperature": 0, "max_tokens": 20}));
        assert_eq!(none, plain, "{style}");
        let wrong = |more: Value| {
            let error = server.post(path, &ask(more)).error(400);
            error["param"].as_str().unwrap_or_default().to_owned()
        };
        let bad = json!({"type": "function", "function": {"name": "get_cats"}});
        assert_eq!(wrong(json!({"tool_choice": bad})), "tool_choice");
        assert_eq!(wrong(json!({"tool_choice": "any"})), "tool_choice");
        assert_eq!(wrong(json!({"tool_choice": "required", "tools": []})), "tool_choice");
        assert_eq!(wrong(json!({"tools": [{"type": "function"}]})), "tools[0].function");
        assert_eq!(wrong(json!({"tools": [tools()[0], tools()[0]]})), "tools");
        let odd =
            json!({"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}});
        assert_eq!(wrong(json!({"response_format": odd})), "response_format");
        assert_eq!(wrong(json!({"ignore_eos": true, "tool_choice": "required"})), "ignore_eos");
        let mut odd = tools()[0].clone();
        odd["function"]["parameters"]["properties"]["city"] = json!({"type": "no such type"});
        odd["function"]["strict"] = true.into();
        assert_eq!(wrong(json!({"tool_choice": "required", "tools": [odd]})), "tools");
    }
    assert_eq!(seen.len(), 2, "both are called by some seed");
    // A template that writes calls in a way of its own.
    let folder = with_tools("chatml");
    let source = "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let request = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools()});
    assert_eq!(server.post("/v1/chat/completions", &request).error(400)["param"], "tools");
}

#[test]
fn tools_are_described_where_a_template_knows_none() {
    let folder = with_tools("chatml");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let user = json!({"role": "user", "content": "Is it warm in Bern?"});
    let mut ask = json!({"messages": [user], "tools": tools(), "tool_choice": "required", "max_tokens": 300,
                         "temperature": 20, "seed": 1, "parallel_tool_calls": false});
    let answer = server.post("/v1/chat/completions", &ask).json();
    let message = &answer["choices"][0]["message"];
    let call = &message["tool_calls"][0];
    called(call);
    let result = json!({"role": "tool", "content": "noon", "tool_call_id": call["id"]});
    ask["messages"] = json!([user, message, result]);
    ask["tool_choice"] = "auto".into();
    let reply = server.post("/v1/chat/completions", &ask);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let tokens = |ask: &Value| server.post("/tokenize", ask).json()["count"].as_u64().unwrap();
    let without = json!({"messages": [user]});
    assert!(
        tokens(&json!({"messages": ask["messages"], "tools": tools()})) > tokens(&without) + 100
    );
}

/// Whether `text` is what the form in [`beside_a_form`] says.
fn is_of_form(text: &str) -> bool {
    ["{\"dog\": \"Rex\"}", "{\"dog\": \"Fly\"}"].contains(&text)
}

fn beside_a_form(more: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"dog": {"enum": ["Rex", "Fly"]}},
                        "required": ["dog"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let mut request = json!({"messages": [{"role": "user", "content": "A dog, or is it warm in Bern?"}],
        "tools": tools(), "response_format": format, "max_tokens": 300, "temperature": 20});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

#[test]
fn an_answer_beside_tools_is_calls_or_text_of_its_form() {
    for style in ["qwen2.5", "qwen3", "llama3.2", "mistral-v0.3"] {
        let folder = with_tools(style);
        let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
        let mut seen = [0, 0];
        for seed in 0..24 {
            let more = json!({"seed": seed, "parallel_tool_calls": false});
            let reply = server.post("/v1/chat/completions", &beside_a_form(more.clone()));
            assert_eq!(reply.status, 200, "{style}: {}", reply.text);
            let choice = reply.json()["choices"][0].clone();
            let message = &choice["message"];
            match message["tool_calls"].as_array() {
                Some(calls) => {
                    assert_eq!((calls.len(), &message["content"]), (1, &Value::Null), "{choice}");
                    called(&calls[0]);
                    assert_eq!(choice["finish_reason"], "tool_calls");
                }
                None if choice["finish_reason"] == "length" => {
                    // It has thought to the end.
                    assert!(message["reasoning_content"].is_string(), "{style}: {choice}");
                    continue;
                }
                None => {
                    let text = message["content"].as_str().unwrap();
                    assert!(is_of_form(text), "{style}: {choice}");
                    assert_eq!(choice["finish_reason"], "stop");
                }
            }
            seen[usize::from(message["tool_calls"].is_null())] += 1;
            // The other APIs give the same.
            let mut input = beside_a_form(more);
            let fields = input.as_object_mut().unwrap();
            fields.remove("parallel_tool_calls");
            fields.insert(
                "tool_choice".into(),
                json!({"type": "auto", "disable_parallel_tool_use": true}),
            );
            let known = tools();
            let plain = known.as_array().unwrap().iter().map(|tool| {
                let function = &tool["function"];
                json!({"name": function["name"], "description": function["description"],
                       "input_schema": function["parameters"]})
            });
            fields.insert("tools".into(), plain.collect());
            let answer = server.post("/v1/messages", &input).json();
            let block = answer["content"].as_array().unwrap().last().unwrap();
            match message["content"].as_str() {
                Some(text) => assert_eq!(block["text"], text, "{style}: {answer}"),
                None => assert_eq!(
                    block["name"], message["tool_calls"][0]["function"]["name"],
                    "{style}: {answer}"
                ),
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{style}: {seen:?}");
        for (choice, calls) in [("required", true), ("none", false)] {
            let more = json!({"seed": 1, "tool_choice": choice, "parallel_tool_calls": false});
            let choice = server.post("/v1/chat/completions", &beside_a_form(more)).json();
            let choice = &choice["choices"][0];
            assert_eq!(choice["message"]["tool_calls"].is_array(), calls, "{style}: {choice}");
            assert!(
                calls || is_of_form(choice["message"]["content"].as_str().unwrap()),
                "{choice}"
            );
        }
        // Responses have it as `text`.
        let format = beside_a_form(json!({}))["response_format"]["json_schema"]["schema"].clone();
        let known = tools();
        let flat = known.as_array().unwrap().iter().map(|tool| {
            let mut flat = tool["function"].clone();
            flat["type"] = "function".into();
            flat
        });
        let response = server.post(
            "/v1/responses",
            &json!({"input": "A dog!", "temperature": 0,
            "tools": flat.collect::<Value>(), "max_output_tokens": 300,
            "text": {"format": {"type": "json_schema", "name": "dog", "schema": format}}}),
        );
        assert_eq!(response.status, 200, "{style}: {}", response.text);
        for item in response.json()["output"].as_array().unwrap() {
            match item["type"].as_str() {
                Some("message") => {
                    assert!(is_of_form(item["content"][0]["text"].as_str().unwrap()), "{item}");
                }
                Some("function_call" | "reasoning") => {}
                other => panic!("{style}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_call_that_a_stop_string_cuts_off_is_none() {
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let user = json!([{"role": "user", "content": "Is it warm in Bern?"}]);
    let mut ask = json!({"messages": user, "tools": [tools()[0]], "tool_choice": "required", "stop": "days",
                         "temperature": 0, "parallel_tool_calls": false});
    let path = "/v1/chat/completions";
    let choice = server.post(path, &ask).json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    assert!(choice["message"]["tool_calls"].is_null(), "{choice}");
    ask["stream"] = true.into();
    let events = server.post(path, &ask).events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    // One that is whole is one, whatever stands behind it.
    ask["stream"] = false.into();
    ask["stop"] = "</tool_call>".into();
    let choice = server.post(path, &ask).json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    called(&choice["message"]["tool_calls"][0]);

    let function = tools()[0]["function"].clone();
    let tool = json!({"name": "get_weather", "input_schema": function["parameters"]});
    let mut ask = json!({"messages": user, "tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 300,
                     "stop_sequences": ["days"], "temperature": 0});
    let message = server.post("/v1/messages", &ask).json();
    assert_eq!([&message["stop_reason"], &message["stop_sequence"]], ["stop_sequence", "days"]);
    assert_eq!(message["content"], json!([]));
    ask["stream"] = true.into();
    let text = server.post("/v1/messages", &ask).text;
    assert!(text.contains("\"stop_reason\":\"stop_sequence\""), "{text}");

    let mut tool = function;
    tool["type"] = "function".into();
    let ask = json!({"input": "Is it warm?", "tools": [tool], "tool_choice": "required", "stop": "days",
                     "temperature": 0});
    let response = server.post("/v1/responses", &ask).json();
    assert_eq!((&response["status"], &response["output"]), (&json!("completed"), &json!([])));
}

#[test]
fn thoughts_may_lie_between_special_tokens() {
    let folder = with_tools("qwen3");
    let path = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("<|system|>", "<think>").replace("<|user|>", "</think>");
    std::fs::write(&path, text).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let ask = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0,
                     "logit_bias": {"3": 100}});
    let message = server.post("/v1/chat/completions", &ask).json()["choices"][0]["message"].clone();
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!(""), &json!("<think>"))
    );
    // They are counted, in streams too.
    let chat =
        json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0});
    let response = json!({"input": "Hi", "max_output_tokens": 2, "temperature": 0});
    for (bias, count) in [(json!({"3": 100}), 2), (json!({"4": 100}), 0)] {
        let usage = format!("_tokens_details\":{{\"reasoning_tokens\":{count}}}");
        for (path, ask) in [("/v1/chat/completions", &chat), ("/v1/responses", &response)] {
            let mut ask = ask.clone();
            ask["logit_bias"] = bias.clone();
            let whole = server.post(path, &ask).text;
            assert!(whole.contains(&usage), "{whole}");
            ask["stream"] = true.into();
            if path.ends_with("completions") {
                ask["stream_options"] = json!({"include_usage": true});
            }
            let pieces = server.post(path, &ask).text;
            assert!(pieces.contains(&usage), "{pieces}");
        }
    }
}

#[test]
fn calls_may_be_written_with_special_tokens() {
    let folder = with_tools("chatml");
    let path = folder.path().join("tokenizer.json");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let marks = ["<|tool_call>", "<tool_call|>", "<|\\\"|>"];
    for (old, new) in ["<|system|>", "<|user|>", "<|assistant|>"].into_iter().zip(marks) {
        text = text.replace(old, new);
    }
    std::fs::write(&path, text).unwrap();
    // As Gemma 4's, as far as this goes.
    let template = "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}\
                    {% for c in m.tool_calls %}<|tool_call>call:{{ c.function.name }}{% raw %}{{% endraw %}\
                    {% for k, v in c.function.arguments.items() %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}}<tool_call|>\
                    {% endfor %}{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let mut ask = json!({"messages": [{"role": "user", "content": "Is it warm?"}], "tools": tools(),
                         "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 300});
    for seed in 0..4 {
        (ask["seed"], ask["temperature"]) = (seed.into(), 20.into());
        let reply = server.post("/v1/chat/completions", &ask);
        assert_eq!(reply.status, 200, "{}", reply.text);
        let message = &reply.json()["choices"][0]["message"];
        assert_eq!(message["content"], Value::Null, "{message}");
        called(&message["tool_calls"][0]);
    }
}

#[test]
fn a_form_of_what_is_no_chat_has_no_marks_around_it() {
    let folder = with_tools("chatml");
    let path = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("<|system|>", "<|START_RESPONSE|>");
    std::fs::write(&path, text.replace("<|user|>", "<|END_RESPONSE|>")).unwrap();
    let template = "{# <|START_RESPONSE|><|END_RESPONSE|> #}{% for m in messages %}{{ m.content }}{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    for seed in 0..16 {
        let ask = json!({"prompt": "a", "guided_regex": "[ab]", "max_tokens": 40, "seed": seed,
                         "temperature": 100});
        let text = server.post("/v1/completions", &ask).json()["choices"][0]["text"].clone();
        assert!(text == "a" || text == "b", "{text}");
    }
}
