//! What coding agents send beside what they ask: Claude Code to Anthropic's API, Codex to OpenAI's.

use crate::server::*;
use crate::tools::with_tools;
use serde_json::{Value, json};

/// A tool as Zod 4 writes it for a record, and one whose pattern no automaton knows.
fn schemas() -> [Value; 2] {
    let record = json!({"type": "object", "properties": {
        "labels": {"type": "object", "propertyNames": {"type": "string"},
                   "additionalProperties": {"type": "string"}}},
        "required": ["labels"], "additionalProperties": false});
    let mail = json!({"type": "object", "properties": {
        "to": {"type": "string", "pattern": "^(?!\\.)[a-z.]+@[a-z]+$"}}, "required": ["to"]});
    [record, mail]
}

#[test]
fn claude_code_gets_its_answers_and_finds_its_prompts() {
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let system = |hash: &str| {
        let bill = format!("x-anthropic-billing-header: cc_version=2.1.154; cch={hash};");
        let mut words = json!([
            {"type": "text", "text": bill}, {"type": "text", "text": "You are brief, "},
            {"type": "text", "text": "and helpful.", "cache_control": {"type": "ephemeral"}}]);
        words[2]["text"] = format!("and helpful.{}", " Always.".repeat(40)).into();
        words
    };
    let tools: Vec<_> = schemas()
        .into_iter()
        .enumerate()
        .map(|(n, schema)| {
            json!({"name": format!("mcp__tool__{n}{}", "x".repeat(70)), "description": "A tool.",
                   "input_schema": schema, "defer_loading": false, "eager_input_streaming": true})
        })
        .collect();
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
        {"role": "system", "content": "Three."},
        {"role": "user", "content": "Four?"},
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "abc"}, {"type": "text", "text": "Five."}]},
        {"role": "system", "content": [{"type": "text", "text": "Six."}]},
        {"role": "user", "content": "Seven?"},
    ]);
    let ask = |hash: &str| {
        json!({
            "system": system(hash), "messages": messages, "tools": tools, "max_tokens": 3,
            "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        })
    };
    let path = "/v1/messages?beta=true";
    let first = server.post(path, &ask("01234"));
    assert_eq!(first.status, 200, "{}", first.text);
    let usage = server.post(path, &ask("abcde")).json()["usage"].clone();
    let [found, fresh] =
        ["cache_read_input_tokens", "input_tokens"].map(|it| usage[it].as_u64().unwrap());
    assert!(found > 64 && fresh <= 64, "{usage}");

    // It is what templates take: the system first, and user and assistant in turn.
    let mut count = ask("01234");
    count.as_object_mut().unwrap().remove("max_tokens");
    count.as_object_mut().unwrap().remove("tools");
    count.as_object_mut().unwrap().remove("thinking");
    let counted = server.post("/v1/messages/count_tokens", &count);
    let reminder = |text: &str| format!("<system-reminder>\n{text}\n</system-reminder>");
    let same = json!({"messages": [
        {"role": "system", "content": format!("You are brief, \nand helpful.{}", " Always.".repeat(40))},
        {"role": "user", "content": format!("One.\nTwo.\n{}\nFour?", reminder("Three."))},
        {"role": "assistant", "content": "Five."},
        {"role": "user", "content": format!("{}\nSeven?", reminder("Six."))},
    ]});
    let same = server.post("/tokenize", &same).json();
    assert_eq!(counted.json()["input_tokens"], same["count"], "{}", counted.text);

    // Leading ones are the system's.
    let leading = json!({"messages": [
        {"role": "system", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "C"}]});
    let same = json!({"messages": [{"role": "system", "content": "A\nB"}, {"role": "user", "content": "C"}]});
    let counted = server.post("/v1/messages/count_tokens", &leading).json();
    assert_eq!(counted["input_tokens"], server.post("/tokenize", &same).json()["count"]);

    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Bern", "Basel"]}},
                        "required": ["city"], "additionalProperties": false});
    let form = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}},
                      "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 99});
    let answer = server.post(path, &form).json();
    let said: Value = serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(["Bern", "Basel"].contains(&said["city"].as_str().unwrap()), "{answer}");

    // Titles and the like are asked of a model of Anthropic's.
    let mut title = form.clone();
    title["model"] = "claude-haiku-4-5".into();
    assert_eq!(server.post(path, &title).status, 200);
    title["model"] = "gpt-9".into();
    assert_eq!(server.post(path, &title).status, 404);

    // The model asked for it, and goes on without it.
    let seen = |content: Value| {
        json!({"messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content}]}]})
    };
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}});
    let line = json!({"type": "text", "text": "One."});
    let told = json!("One.\n[an image, which this model cannot see]");
    let [counted, same] = [json!([line, image]), told].map(|content| {
        let reply = server.post("/v1/messages/count_tokens", &seen(content));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    });
    assert_eq!(counted, same);

    // By these words clients know that they have to shorten the conversation.
    let long =
        json!({"max_tokens": 1, "messages": [{"role": "user", "content": "word ".repeat(3000)}]});
    let error = server.post(path, &long).json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    let numbers =
        message.strip_prefix("prompt is too long: ").and_then(|it| it.strip_suffix(" maximum"));
    let (needed, context) = numbers.and_then(|it| it.split_once(" tokens > ")).unwrap();
    let [needed, context] = [needed, context].map(|it| it.parse::<u32>().unwrap());
    assert!(needed > context, "{message}");

    // Clients that see this ask again without it.
    let mut thread = ask("0");
    thread["thread"] = json!({"type": "create"});
    let refused = server.post(path, &thread);
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!((refused.status, &refused.json()["error"]["details"]), (400, &details));

    for (more, name) in [
        (
            json!({"context_management": {"edits": [{"type": "compact_20260112"}]}}),
            "context_management",
        ),
        (json!({"output_config": {"format": {"type": "text"}}}), "output_config.format"),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "animal"}}}}),
            "output_config.format",
        ),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), "messages[0].role"),
    ] {
        let mut request = ask("0");
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post(path, &request);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(reply.status == 400 && message.starts_with(&format!("`{name}`")), "{message}");
    }
    server.is_empty();
}

#[test]
fn a_schema_is_kept_to_as_far_as_it_can_be_or_refused_where_it_must_be() {
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let known = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 3}},
                       "required": ["n"], "additionalProperties": false});
    let [record, mail] = schemas();
    let ask = |choice: &str, strict: bool| {
        let tool = |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}});
        json!({
            "tools": [tool("known", &known), tool("record", &record), tool("mail", &mail)],
            "tool_choice": {"type": "function", "function": {"name": choice}}, "max_tokens": 400,
            "temperature": 3, "seed": 4, "messages": [{"role": "user", "content": "Go."}],
        })
    };
    let path = "/v1/chat/completions";
    let arguments = |choice: &str| -> String {
        let reply = server.post(path, &ask(choice, false));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let call = &reply.json()["choices"][0]["message"]["tool_calls"][0]["function"];
        call["arguments"].as_str().unwrap().to_owned()
    };
    // One that cannot be kept to leaves the others as they are, whether or not they are cut off.
    let known: Value = serde_json::from_str(&arguments("known")).unwrap();
    assert!((1..=3).contains(&known["n"].as_i64().unwrap()), "{known}");
    let record = arguments("record");
    assert!(record.starts_with("{\"labels\": {"), "{record}");
    let mail = arguments("mail");
    assert!(mail.starts_with('{'), "{mail}");
    for name in ["record", "mail"] {
        let reply = server.post(path, &ask(name, true));
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["param"]), (400, &json!("tools")), "{name}: {error}");
    }
    assert_eq!(server.post(path, &ask("known", true)).status, 200);
    server.is_empty();
}

#[test]
fn codex_is_answered() {
    let folder = with_tools("qwen2.5");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let text = |kind: &str, text: &str| json!([{"type": kind, "text": text}]);
    let shell = json!({"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                       "required": ["command"], "additionalProperties": false});
    let ask = json!({
        "instructions": "You are a coding agent.", "stream": true, "store": false,
        "tool_choice": "auto", "parallel_tool_calls": false, "max_output_tokens": 8,
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199", "client_metadata": {"x-codex-installation-id": "1"},
        "input": [
            {"type": "message", "role": "developer", "content": text("input_text", "Ask before you write.")},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "<environment/>"}, {"type": "input_text", "text": "Hello."}]},
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs.", "strict": false, "parameters": shell},
            {"type": "web_search", "external_web_access": true}, {"type": "custom", "name": "apply_patch"},
            {"type": "namespace", "name": "mcp", "tools": []}, {"type": "image_generation"},
        ],
    });
    let path = "/v1/responses";
    let reply = server.post(path, &ask);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let last = reply.text.lines().rev().find(|line| line.starts_with("event: ")).unwrap();
    assert!(["event: response.completed", "event: response.incomplete"].contains(&last), "{last}");

    // The same conversation in the other API, with the one tool that there is.
    let function =
        json!({"name": "shell", "description": "Runs.", "strict": false, "parameters": shell});
    let same = json!({
        "messages": [
            {"role": "system", "content": "You are a coding agent.\nAsk before you write."},
            {"role": "user", "content": "<environment/>\nHello."}],
        "tools": [{"type": "function", "function": function}],
    });
    let event =
        reply.text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let event: Value = serde_json::from_str(event).unwrap();
    let usage = &event["response"]["usage"];
    assert_eq!(usage["input_tokens"], server.post("/tokenize", &same).json()["count"]);

    // A context that is full is told by an event, and others by the error alone.
    let mut long = ask.clone();
    long["input"] = json!("word ".repeat(3000));
    let reply = server.post(path, &long);
    let events = |reply: &Reply| -> Vec<Value> {
        let data = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    };
    let told = events(&reply);
    let kinds: Vec<_> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["response.created", "response.in_progress", "error", "response.failed"]);
    let failed = &told[3]["response"];
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["error"]["code"], "context_length_exceeded", "{failed}");
    long["stream"] = false.into();
    let error = server.post(path, &long).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(
        error["message"].as_str().unwrap().starts_with("This model's maximum context length is ")
    );
    let mut late =
        json!({"input": "Hello.", "stream": true, "timeout": 0.1, "max_output_tokens": 2000});
    late["ignore_eos"] = true.into();
    let (reply, _) = server.post_late(path, &late);
    let failed = events(&reply).pop().unwrap();
    assert_eq!(
        (&failed["type"], &failed["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("timeout")),
        "{}",
        reply.text
    );

    // What it looked at is an image.
    let seen = |output: Value| {
        let mut seen = ask.clone();
        seen["stream"] = false.into();
        seen["input"] = json!([
            {"type": "message", "role": "user", "content": "Look."},
            {"type": "function_call", "call_id": "a", "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": output}]);
        let reply = server.post(path, &seen);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["usage"]["input_tokens"].clone()
    };
    let image = json!([{"type": "input_image", "image_url": "data:image/png;base64,iVBO"}]);
    let chat = |content: Value| {
        let call = json!({"id": "a", "type": "function", "function": {"name": "shell", "arguments": "{}"}});
        let request = json!({"messages": [
            {"role": "user", "content": "Look."}, {"role": "assistant", "tool_calls": [call]},
            {"content": content, "role": "tool", "tool_call_id": "a"}]});
        server.post("/tokenize", &request).json()["count"].clone()
    };
    let part = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}]);
    assert_eq!(chat(part), chat(json!("[an image, which this model cannot see]")));
    assert_eq!(seen(image), seen(json!("[an image, which this model cannot see]")));

    for (more, name) in [
        (json!({"include": ["message.output_text.logprobs"]}), "include"),
        (json!({"tools": [{"type": "of_tomorrow"}]}), "tools[0].type"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice"),
    ] {
        let mut request = ask.clone();
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post(path, &request);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(name)),
            "{}",
            reply.text
        );
    }
    server.is_empty();
}

/// As of VS Code 1.127, whose messages have keys for the service of others.
#[test]
fn copilot_is_answered() {
    let folder = with_tools("qwen3");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let ask = |assistant: Value, user: Value| {
        json!({"max_tokens": 4, "reasoning_effort": null, "prompt_cache_options": {"mode": "implicit"}, "messages": [
            {"role": "system", "content": "Be brief.", "copilot_cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": "One?"}, assistant, user]})
    };
    let tokens = |request: &Value| {
        let reply = server.post("/v1/chat/completions", request);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["usage"]["prompt_tokens"].clone()
    };
    let marked = ask(
        json!({"role": "assistant", "content": "Two.", "cot_id": "7e", "cot_summary": "…", "reasoning": "Three."}),
        json!({"role": "user", "content": "Four?", "copilot_cache_control": {"type": "ephemeral"}}),
    );
    let plain = ask(
        json!({"role": "assistant", "content": "Two.", "reasoning_content": "Three."}),
        json!({"role": "user", "content": "Four?"}),
    );
    assert_eq!(tokens(&marked), tokens(&plain));
}
