//! How long models think, and the APIs that have conversations of another form.

use crate::server::*;
use crate::tools::{tools, with_tools};
use serde_json::{Value, json};

#[test]
fn how_long_to_think_is_said_to_templates_that_know_it() {
    let ask = |server: &Server, more: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/tokenize", &request)
    };
    let text = |server: &Server, more: Value| {
        let tokens = ask(server, more).json()["tokens"].clone();
        let reply = server.post("/detokenize", &json!({"tokens": tokens})).json();
        reply["prompt"].as_str().unwrap().to_owned()
    };
    let param = |server: &Server, more: Value| ask(server, more).error(400)["param"].clone();
    let effort = |effort: &str| json!({"reasoning_effort": effort});

    let folder = with_tools("qwen3");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let off = text(&server, json!({"chat_template_kwargs": {"enable_thinking": false}}));
    assert_eq!(text(&server, effort("none")), off);
    assert_ne!(text(&server, json!({})), off);
    let message = ask(&server, effort("high")).error(400);
    assert_eq!(message["param"], "reasoning_effort");
    let said = message["message"].as_str().unwrap();
    assert!(said.contains("it reads: ") && said.contains("enable_thinking"), "{said}");
    assert_eq!(param(&server, effort("much")), "reasoning_effort");
    let unknown = json!({"chat_template_kwargs": {"enable_thought": false}});
    assert_eq!(param(&server, unknown), "chat_template_kwargs");

    // One that does not think does so for no time at all.
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    assert_eq!(text(&server, effort("none")), text(&server, json!({})));
    assert_eq!(param(&server, effort("low")), "reasoning_effort");

    let source = "{{ reasoning_effort | default('medium') }}: {{ messages[0].content }}";
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    assert_eq!(text(&server, json!({})), "medium: Hi");
    for name in ["none", "minimal", "low", "medium", "high", "xhigh"] {
        assert_eq!(text(&server, effort(name)), format!("{name}: Hi"));
    }
    let response = json!({"input": "Hi", "reasoning": {"effort": "high"}, "max_output_tokens": 1});
    let usage = server.post("/v1/responses", &response).json()["usage"].clone();
    assert_eq!(usage["input_tokens"], ask(&server, effort("high")).json()["count"]);

    // As Granite's, and Seed-OSS'.
    let source =
        "{{ thinking | default('as it likes') }}, {{ thinking_budget | default('for ever') }}";
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    for (thinking, same) in [
        (
            json!({"type": "enabled", "budget_tokens": 512}),
            json!({"thinking": true, "thinking_budget": 512}),
        ),
        (json!({"type": "adaptive", "display": "summarized"}), json!({"thinking": true})),
    ] {
        let message =
            json!({"messages": [{"role": "user", "content": "Hi"}], "thinking": thinking});
        let counted = server.post("/v1/messages/count_tokens", &message).json();
        let same = ask(&server, json!({"chat_template_kwargs": same})).json();
        assert_eq!(counted["input_tokens"], same["count"], "{thinking}");
        assert_ne!(counted["input_tokens"], ask(&server, json!({})).json()["count"], "{thinking}");
    }
}

#[test]
fn messages_are_answered_as_anthropic_has_them() {
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let path = "/v1/messages";
    let user = json!([{"role": "user", "content": "Tell me of a dog."}]);
    let ask = |more: Value| {
        let mut request = json!({"messages": user, "max_tokens": 40, "temperature": 0});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let answer = |more: Value| {
        let reply = server.post(path, &ask(more));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let whole = answer(json!({}));
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    let chat = json!({"messages": user, "max_tokens": 40, "temperature": 0});
    let chat = server.post("/v1/chat/completions", &chat).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    let reasons = json!({"stop": "end_turn", "length": "max_tokens"});
    let reason = chat["choices"][0]["finish_reason"].as_str().unwrap();
    assert_eq!(whole["stop_reason"], reasons[reason]);
    let usage = |it: &Value| {
        ["input_tokens", "cache_read_input_tokens", "output_tokens"]
            .map(|name| it[name].as_u64().unwrap())
    };
    let [fresh, cached, tokens] = usage(&whole["usage"]);
    assert_eq!(json!(fresh + cached), chat["usage"]["prompt_tokens"]);
    assert_eq!(json!(tokens), chat["usage"]["completion_tokens"]);
    let count = server.post("/v1/messages/count_tokens", &json!({"messages": user})).json();
    assert_eq!(count, json!({"input_tokens": fresh + cached}));

    // Its events, each with its name, and in their order.
    let streamed = |more: Value| {
        let mut request = ask(more);
        request["stream"] = true.into();
        let reply = server.post(path, &request);
        let events = reply.text.split("\n\n").filter(|it| !it.is_empty()).map(|event| {
            let (name, data) =
                event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            data
        });
        events.collect::<Vec<_>>()
    };
    let kinds = |events: &[Value]| {
        let mut kinds: Vec<_> =
            events.iter().map(|it| it["type"].as_str().unwrap().to_owned()).collect();
        kinds.dedup();
        kinds
    };
    let events = streamed(json!({}));
    let order = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), order);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], json!(fresh + cached));
    let pieces: String = events.iter().filter_map(|it| it["delta"]["text"].as_str()).collect();
    assert_eq!(pieces, text);
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);

    let word = text.split_whitespace().nth(2).unwrap();
    let stopped = answer(json!({"stop_sequences": ["no such words", word]}));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(word))
    );
    let before = &text[..text.find(word).unwrap()];
    assert_eq!(stopped["content"][0]["text"].as_str().unwrap().trim_end(), before.trim_end());

    let tools: Vec<_> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let function = &tool["function"];
            let schema = match &function["parameters"] {
                Value::Null => json!({"type": "object"}),
                schema => schema.clone(),
            };
            json!({"name": function["name"], "description": "A tool.", "input_schema": schema})
        })
        .collect();
    let more = json!({"tools": tools, "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 200});
    let called = answer(more.clone());
    assert_eq!(called["stop_reason"], "tool_use");
    let block = &called["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("get_weather")));
    assert!((1..=9).contains(&block["input"]["days"].as_u64().unwrap()), "{block}");
    let events = streamed(more);
    assert_eq!(kinds(&events), order);
    assert_eq!(events[1]["content_block"]["name"], "get_weather");
    let input: String =
        events.iter().filter_map(|it| it["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), block["input"]);

    // What was called and what came of it says the same as in the other API.
    let talk = json!([
        {"role": "user", "content": [{"type": "text", "text": "Is it warm?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, block]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "20 degrees"},
            {"type": "text", "text": "Well?"}]},
    ]);
    let request = json!({"system": [{"type": "text", "text": "Be brief."}], "messages": talk});
    let count = server.post("/v1/messages/count_tokens", &request).json();
    let arguments = block["input"].to_string();
    let call = json!({"id": block["id"], "type": "function",
                      "function": {"name": "get_weather", "arguments": arguments}});
    let same = json!({"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": block["id"], "content": "20 degrees"},
        {"role": "user", "content": "Well?"},
    ]});
    assert_eq!(count["input_tokens"], server.post("/tokenize", &same).json()["count"]);

    // So does a turn that comes in several messages.
    let mut parts = request.clone();
    let parted = parts["messages"].as_array_mut().unwrap();
    parted[1] = json!({"role": "assistant", "content": "I look."});
    parted.insert(2, json!({"role": "assistant", "content": [block]}));
    let counted = server.post("/v1/messages/count_tokens", &parts).json();
    assert_eq!(counted["input_tokens"], count["input_tokens"]);
    // Words behind a call are an answer to go on with.
    let words = json!({"messages": [{"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": [block]}, {"role": "assistant", "content": "It"}]});
    assert_eq!(server.post("/v1/messages/count_tokens", &words).status, 200);

    let [mut failed, mut same] = [request, same];
    failed["messages"][2]["content"][0]["is_error"] = true.into();
    same["messages"][3]["content"] = "Error: 20 degrees".into();
    let count = server.post("/v1/messages/count_tokens", &failed).json();
    assert_eq!(count["input_tokens"], server.post("/tokenize", &same).json()["count"]);

    for (more, expected) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]}),
            "messages",
        ),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "messages[0].content[0]",
        ),
        (json!({"tool_choice": {"type": "some"}}), "tool_choice"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "tools[0].type",
        ),
        (json!({"tempature": 1}), "tempature"),
        (json!({"thinking": {"type": "enabled", "budget": 9}}), "budget"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": "many"}}), "budget_tokens"),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "is_error": "true"}]}]}),
            "messages[0].content[0].is_error",
        ),
    ] {
        let reply = server.post(path, &ask(more));
        let error = reply.json();
        assert_eq!((reply.status, &error["type"]), (400, &json!("error")), "{error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("`{expected}`: ")), "{message}");
    }
    let lost = server.post(path, &ask(json!({"model": "nobody"})));
    assert_eq!((lost.status, &lost.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[test]
fn responses_go_on_from_each_other() {
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let path = "/v1/responses";
    let ask = |more: Value| {
        let mut request =
            json!({"input": "Tell me of a dog.", "max_output_tokens": 30, "temperature": 0});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let answer = |more: Value| {
        let reply = server.post(path, &ask(more));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let text_of =
        |response: &Value| response["output"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    let first = answer(json!({"metadata": {"a": "b"}}));
    let user = json!({"role": "user", "content": "Tell me of a dog."});
    let chat = json!({"messages": [user], "max_tokens": 30, "temperature": 0});
    let chat = server.post("/v1/chat/completions", &chat).json();
    let text = text_of(&first);
    assert_eq!(chat["choices"][0]["message"]["content"], text);
    let ends = json!({"stop": "completed", "length": "incomplete"});
    assert_eq!(first["status"], ends[chat["choices"][0]["finish_reason"].as_str().unwrap()]);
    assert_eq!(first["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(first["metadata"], json!({"a": "b"}));
    let place = format!("{path}/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&place).json(), first);

    let streamed = |more: Value| {
        let mut request = ask(more);
        request["stream"] = true.into();
        let reply = server.post(path, &request);
        let events = reply.text.split("\n\n").filter(|it| !it.is_empty()).map(|event| {
            let (name, data) =
                event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            data
        });
        let events: Vec<_> = events.collect();
        assert!(events.iter().enumerate().all(|(n, it)| it["sequence_number"] == n), "{events:?}");
        events
    };
    let kinds = |events: &[Value]| {
        let mut kinds: Vec<_> = events
            .iter()
            .map(|it| it["type"].as_str().unwrap()["response.".len()..].to_owned())
            .collect();
        kinds.dedup();
        kinds
    };
    let events = streamed(json!({}));
    let last = first["status"].as_str().unwrap();
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            last
        ]
    );
    let pieces: String = events
        .iter()
        .filter(|it| it["type"] == "response.output_text.delta")
        .map(|it| it["delta"].as_str().unwrap())
        .collect();
    assert_eq!(pieces, text);
    assert_eq!(text_of(&events.last().unwrap()["response"]), text);

    // The next one has the conversation before it, but not its instructions.
    let count = |messages: Value| {
        let reply = server.post("/tokenize", &json!({"messages": messages}));
        reply.json()["count"].clone()
    };
    let brief = answer(json!({"instructions": "Be brief."}));
    let system = json!({"role": "system", "content": "Be brief."});
    assert_eq!(brief["usage"]["input_tokens"], count(json!([system, user])));
    let next = answer(json!({"input": "And of a cat?", "previous_response_id": first["id"]}));
    let told = json!({"role": "assistant", "content": text});
    let cat = json!({"role": "user", "content": "And of a cat?"});
    assert_eq!(next["usage"]["input_tokens"], count(json!([user, told, cat])));
    assert_eq!(next["previous_response_id"], first["id"]);
    let unknown = server.post(path, &ask(json!({"previous_response_id": "resp_0"}))).error(400);
    assert_eq!(unknown["code"], "previous_response_not_found", "clients send all of it then");
    let kept = json!([user, {"type": "item_reference", "id": first["output"][0]["id"]}, cat]);
    assert_eq!(text_of(&answer(json!({"input": kept}))), text_of(&next));
    let twice = json!([user, kept[1], kept[1], cat]);
    assert_eq!(server.post(path, &ask(json!({"input": twice}))).error(400)["param"], "input[2].id");
    let items = json!([{"role": "user", "content": [{"type": "input_text", "text": "Tell me of a dog."}]},
        first["output"][0], {"type": "message", "role": "user", "content": "And of a cat?"}]);
    assert_eq!(text_of(&answer(json!({"input": items}))), text_of(&next));

    let format = json!({"format": {"type": "json_schema", "name": "light", "schema": {
        "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
        "additionalProperties": false}}});
    let kept: Value = serde_json::from_str(&text_of(&answer(json!({"text": format})))).unwrap();
    assert!(kept["on"].is_boolean());

    let tools: Vec<_> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let mut tool = tool["function"].clone();
            tool["type"] = "function".into();
            tool
        })
        .collect();
    let more = json!({"tools": tools, "tool_choice": {"type": "function", "name": "get_weather"},
                      "max_output_tokens": 200});
    let called = answer(more.clone());
    let tokens = called["usage"]["output_tokens"].as_u64().unwrap();
    let call = &called["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{call}");
    let events = streamed(more.clone());
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"}]);
    let after = answer(json!({"input": result, "previous_response_id": called["id"]}));
    let function = json!({"name": call["name"], "arguments": call["arguments"]});
    let same = json!([user, {"role": "assistant", "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "20 degrees"}]);
    assert_eq!(after["usage"]["input_tokens"], count(same));

    // Nobody is told to make a call of half its arguments.
    let mut halves = 0;
    for most in tokens / 2..tokens {
        let mut half = more.clone();
        half["max_output_tokens"] = most.into();
        let events = streamed(half);
        let arguments: String = events.iter().filter_map(|it| it["delta"].as_str()).collect();
        let is_whole = serde_json::from_str::<Value>(&arguments).is_ok();
        halves += usize::from(!arguments.is_empty() && !is_whole);
        let told = kinds(&events);
        let is_done = told.iter().any(|it| it == "output_item.done");
        assert_eq!(is_done, is_whole, "{arguments}: {told:?}");
    }
    assert!(halves > 0);

    // What is cut off in its call is kept too.
    let mut cut = more;
    cut["max_output_tokens"] = (tokens - 3).into();
    let cut = answer(cut);
    assert_eq!(cut["status"], "incomplete", "{cut}");
    let kept = server.get(&format!("{path}/{}", cut["id"].as_str().unwrap()));
    assert_eq!((kept.status, kept.json()["status"].as_str()), (200, Some("incomplete")));

    let gone = answer(json!({"store": false}));
    for (more, status, param) in [
        (json!({"previous_response_id": gone["id"]}), 400, "previous_response_id"),
        (json!({"previous_response_id": "resp_0"}), 400, "previous_response_id"),
        (
            json!({"input": [{"type": "item_reference", "id": gone["output"][0]["id"]}]}),
            400,
            "input[0].id",
        ),
        (json!({"input": null}), 400, "input"),
        (json!({"input": []}), 400, "input"),
        (json!({"input": [{"type": "input_image"}]}), 400, "input[0]"),
        (json!({"tools": [{"type": "of_tomorrow"}]}), 400, "tools[0].type"),
        (json!({"reasoning": {"effort": "high"}}), 400, "reasoning.effort"),
        (json!({"truncation": "auto"}), 400, "truncation"),
        (json!({"metadata": [0, 0]}), 400, "metadata"),
        (json!({"metadata": {"a": 1}}), 400, "metadata"),
        (json!({"metadata": {"a": "b".repeat(513)}}), 400, "metadata"),
        (
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
            400,
            "include_obfuscation",
        ),
        (json!({"max_tokens": 3}), 400, "max_tokens"),
    ] {
        assert_eq!(server.post(path, &ask(more)).error(status)["param"], param);
    }
    assert_eq!(server.raw("DELETE", &place, "text/plain", b"").json()["deleted"], true);
    server.get(&place).error(404);
}
