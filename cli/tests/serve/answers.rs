//! What is answered is what the model says, in any company and form.

use crate::server::*;
use crate::support;
use serde_json::{Value, json};

#[test]
fn a_request_has_its_tokens_alone_in_company_and_from_the_program() {
    let server = Server::start(&["--log", "off"]);
    let requests = [
        json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}),
        json!({"prompt": "One day, a cat", "max_tokens": 40, "temperature": 0}),
        json!({"prompt": "The dog", "max_tokens": 24, "temperature": 0.9, "top_k": 30, "seed": 7}),
        json!({"prompt": "Lily said", "max_tokens": 24, "temperature": 1.1, "top_p": 0.9, "seed": 8}),
        json!({"prompt": "Once upon a time", "max_tokens": 40, "stop": [" was", " the"], "temperature": 0}),
        json!({"prompt": "The sea", "max_tokens": 30, "presence_penalty": 0.7, "frequency_penalty": 0.5,
               "repeat_penalty": 1.1, "logit_bias": {"400": -3, "401": 1.5}, "seed": 3, "logprobs": 4}),
        json!({"prompt": [0, 583, 582], "max_tokens": 20, "min_p": 0.05, "seed": -9, "priority": -3}),
        json!({"prompt": ["A", "B"], "n": 2, "max_tokens": 9, "seed": 1, "echo": true}),
    ];
    let alone: Vec<_> = requests.iter().map(|it| server.complete(it)["choices"].clone()).collect();

    let flags: [&[&str]; 5] = [
        &["-p", "Once upon a time", "-n", "24"],
        &["-p", "One day, a cat", "-n", "40"],
        &["-p", "The dog", "-n", "24", "--temp", "0.9", "--top-k", "30", "--seed", "7"],
        &["-p", "Lily said", "-n", "24", "--temp", "1.1", "--top-p", "0.9", "--seed", "8"],
        &["-p", "Once upon a time", "-n", "40", "--stop", " was", "--stop", " the"],
    ];
    for (flags, choices) in flags.iter().zip(&alone) {
        let line = ["generate", "-m", TALES, "-q", "--json", "--kv-cache", "f32", "--raw"];
        let report = support::json(&[&line[..], flags].concat());
        assert_eq!(choices[0]["text"], report["text"], "{flags:?}");
    }
    let several = alone[7].as_array().unwrap();
    assert_eq!(several.len(), 4);
    for (choice, begins) in several.iter().zip(["A", "A", "B", "B"]) {
        assert!(choice["text"].as_str().unwrap().starts_with(begins), "{choice}");
    }
    assert_ne!(several[0]["text"], several[1]["text"], "answers of two seeds");

    std::thread::scope(|scope| {
        let together = |at: usize| {
            let (server, requests) = (&server, &requests);
            scope.spawn(move || server.complete(&requests[at])["choices"].clone())
        };
        let runs: Vec<_> = (0..24).map(|at| (at % 8, together(at % 8))).collect();
        for (at, run) in runs {
            assert_eq!(run.join().unwrap(), alone[at], "{}", requests[at]);
        }
    });

    for (request, choices) in requests.iter().zip(&alone) {
        let mut request = request.clone();
        request["stream"] = true.into();
        request["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let events = server.post("/v1/completions", &request).events();
        let tokens = |event: &Value| event["usage"]["completion_tokens"].as_u64().unwrap();
        let all = tokens(events.last().unwrap());
        assert!(all > 0, "{events:?}");
        // Each piece has those of its answer so far.
        let count = choices.as_array().unwrap().len();
        let told = (0..count).map(|index| {
            let own = events.iter().filter(|it| it["choices"][0]["index"] == index);
            let told: Vec<_> = own.map(tokens).collect();
            assert!(told.is_sorted(), "{told:?}");
            *told.last().unwrap()
        });
        assert_eq!(told.sum::<u64>(), all, "{request}");
        // And those of its prompt.
        let prompt = |event: &Value| event["usage"]["prompt_tokens"].as_u64().unwrap();
        let first = |index| events.iter().find(|it| it["choices"][0]["index"] == index).unwrap();
        let each: u64 = (0..count).map(|index| prompt(first(index))).sum();
        let prompts = each / request["n"].as_u64().unwrap_or(1);
        assert_eq!(prompts, prompt(events.last().unwrap()), "{request}");
        for (index, whole) in choices.as_array().unwrap().iter().enumerate() {
            let pieces: Vec<_> = events
                .iter()
                .flat_map(|it| it["choices"].as_array().unwrap())
                .filter(|it| it["index"] == index)
                .collect();
            let text: String = pieces.iter().map(|it| it["text"].as_str().unwrap()).collect();
            assert_eq!(text, whole["text"], "{request}");
            assert_eq!(pieces.last().unwrap()["finish_reason"], whole["finish_reason"]);
            let logprobs =
                pieces.iter().filter_map(|it| it["logprobs"]["token_logprobs"].as_array());
            let logprobs: Vec<_> = logprobs.flatten().cloned().collect();
            let expected = whole["logprobs"]["token_logprobs"].as_array();
            assert_eq!(logprobs, expected.cloned().unwrap_or_default());
        }
    }
    // Two names of one penalty, of the latest tokens and of all.
    let text = |more: Value| {
        let mut request = json!({"prompt": "The dog", "max_tokens": 40, "temperature": 0});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.complete(&request)["choices"][0]["text"].clone()
    };
    let all = text(json!({"repetition_penalty": 1.4}));
    assert_eq!(all, text(json!({"repeat_penalty": 1.4, "repeat_last_n": -1})));
    assert_ne!(all, text(json!({})));
    let both = json!({"prompt": "a", "repeat_penalty": 1, "repetition_penalty": 1});
    let error = server.post("/v1/completions", &both).error(400);
    assert_eq!(error["param"], "repetition_penalty");
    server.is_empty();
}

#[test]
fn tokens_of_a_prompt_are_as_likely_as_they_were_in_an_answer() {
    let server = Server::start(&["--log", "off"]);
    let ask = json!({"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "logprobs": 2,
                     "return_token_ids": true});
    let answer = server.complete(&ask)["choices"][0].clone();
    let begins = server.post("/tokenize", &json!({"prompt": "Once upon a time"})).json();
    let begins = begins["tokens"].as_array().unwrap();
    let all = [&begins[..], answer["token_ids"].as_array().unwrap()].concat();
    let count = all.len();
    // Twice, as the prefix cache has it then, and beside other answers.
    let ask = json!({"prompt": [all, begins], "max_tokens": 2, "n": 2, "temperature": 0, "logprobs": 2,
                     "echo": true});
    for _ in 0..2 {
        let choices = server.complete(&ask)["choices"].clone();
        for choice in [&choices[0], &choices[1]] {
            let logprobs = &choice["logprobs"];
            let numbers = logprobs["token_logprobs"].as_array().unwrap();
            assert_eq!((numbers.len(), &numbers[0]), (count + 2, &Value::Null));
            assert_eq!(logprobs["top_logprobs"][0], Value::Null);
            for name in ["token_logprobs", "top_logprobs", "tokens"] {
                let mine = &logprobs[name].as_array().unwrap()[begins.len()..count];
                assert_eq!(mine, answer["logprobs"][name].as_array().unwrap(), "{name}");
            }
            let tokens = logprobs["tokens"].as_array().unwrap();
            assert_eq!(tokens[0], "<|begin|>", "which the text has not");
            let text: String = tokens[1..].iter().map(|it| it.as_str().unwrap()).collect();
            assert_eq!(text, choice["text"].as_str().unwrap());
        }
        let short = choices[2]["logprobs"]["tokens"].as_array().unwrap();
        assert_eq!(short.len(), begins.len() + 2);
    }
    // All answers to a prompt have it in common, and it runs once.
    let ask = json!({"prompt": vec![7; 300], "max_tokens": 1, "n": 5, "logprobs": 1, "echo": true});
    let before = server.number("iree_llm_step_rows_total", "");
    let choices = server.complete(&ask)["choices"].clone();
    assert!(server.number("iree_llm_step_rows_total", "") - before < 600.0);
    for choice in choices.as_array().unwrap() {
        assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 301);
        let numbers = |choice: &Value| {
            choice["logprobs"]["token_logprobs"].as_array().unwrap()[..300].to_vec()
        };
        assert_eq!(numbers(choice), numbers(&choices[0]));
    }
    let none = json!({"prompt": [500], "max_tokens": 0, "echo": true, "logprobs": 1});
    let choice = server.complete(&none)["choices"][0].clone();
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null]));
    server.is_empty();
}

/// As clients have it that measure how likely the end of a text is (lm-eval).
#[test]
fn what_ends_an_answer_is_among_its_tokens_where_it_is_asked_how_likely_they_were() {
    let server = Server::start(&["--log", "off"]);
    let mut ask = json!({"prompt": "<|user|>Hi é \u{1f426}<|turn_end|>", "max_tokens": 1, "logprobs": 1,
                         "logit_bias": {"1": 100}, "temperature": 0, "seed": 1,
                         "return_token_ids": true});
    let answer = server.complete(&ask);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("stop")));
    assert_eq!(choice["logprobs"]["tokens"], json!(["<|end|>"]));
    assert_eq!(choice["token_ids"], json!([1]));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let mut streamed = ask.clone();
    streamed["stream"] = true.into();
    let events = server.post("/v1/completions", &streamed).events();
    assert_eq!(events[0]["choices"][0]["logprobs"], choice["logprobs"]);
    assert_eq!(events[0]["choices"][0]["token_ids"], json!([1]));
    assert_eq!(events[1]["choices"][0]["finish_reason"], "stop");
    // Who has that, and not its end, gets this.
    streamed["answer_token_ids"] = json!([1]);
    let events = server.post("/v1/completions", &streamed).events();
    assert_eq!((events.len(), &events[0]["choices"][0]["finish_reason"]), (1, &json!("stop")));

    ask["echo"] = true.into();
    let answer = server.complete(&ask);
    let choice = &answer["choices"][0];
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(choice["text"], ask["prompt"]);
    let of = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    assert_eq!([of("tokens").len(), of("token_logprobs").len()], [prompt + 1; 2]);
    // Each stands in the text where it is said to be, but for those that it has not.
    assert_eq!(of("tokens")[..2], [json!("<|begin|>"), json!("<|user|>")]);
    assert_eq!(of("text_offset")[..2], [0, 0]);
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    for (token, offset) in of("tokens").iter().zip(of("text_offset")).skip(1) {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        let there: String = text[offset..].iter().collect();
        assert!(
            token == "<|end|>" || token == "\u{fffd}" || there.starts_with(token),
            "{token:?} at {offset}"
        );
    }
    let error = of("text_offset").last().unwrap().as_u64().unwrap() as usize;
    assert_eq!(error, text.len());
    // What was chosen is among the likeliest, also where it is none of them.
    let ask = json!({"prompt": "a", "max_tokens": 9, "logprobs": 1, "temperature": 100, "seed": 1, "ignore_eos": true});
    let choice = server.complete(&ask)["choices"][0].clone();
    let tops = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    assert!(tops.iter().any(|it| it.as_object().unwrap().len() == 2), "{tops:?}");
    for (at, top) in tops.iter().enumerate() {
        let token = choice["logprobs"]["tokens"][at].as_str().unwrap();
        assert_eq!(top[token], choice["logprobs"]["token_logprobs"][at], "{token:?}");
    }
    // Chats have it too.
    let ask = json!({"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {"2": 100}, "logprobs": true});
    let choice = server.post("/v1/chat/completions", &ask).json()["choices"][0].clone();
    assert_eq!(choice["logprobs"]["content"][0]["token"], "<|turn_end|>", "{choice}");
}

#[test]
fn an_answer_is_as_long_as_there_is_memory_for() {
    let server = Server::start(&["--log", "off", "--kv-memory", "2"]);
    let most = server.get("/v1/models").json()["data"][0]["max_model_len"].as_u64().unwrap();
    assert!(most < 2048, "less than the model's context: {most}");
    let user = json!([{"role": "user", "content": "Hi"}]);
    let asked = [
        ("/v1/completions", json!({"prompt": "The sea", "max_tokens": 32000})),
        ("/v1/chat/completions", json!({"messages": user, "max_tokens": 32000})),
        ("/v1/messages", json!({"messages": user, "max_tokens": 32000})),
        ("/v1/responses", json!({"input": "Hi", "max_output_tokens": 32000})),
    ];
    for (path, mut ask) in asked {
        ask["ignore_eos"] = true.into();
        let reply = server.post(path, &ask);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        let usage = reply.json()["usage"].clone();
        let count =
            |names: [&str; 3]| -> u64 { names.iter().filter_map(|it| usage[*it].as_u64()).sum() };
        let read = count(["prompt_tokens", "input_tokens", "cache_read_input_tokens"]);
        // The last one takes no memory.
        assert_eq!(
            read + count(["completion_tokens", "output_tokens", ""]),
            most + 1,
            "{path}: {usage}"
        );
    }
    server.is_empty();
}

/// What `generation_config.json` says holds where nobody says anything else, in the server and in the program.
#[test]
fn answers_are_sampled_as_the_model_recommends() {
    let model = support::model();
    let folder = model.path().to_str().unwrap();
    let said = json!({"do_sample": true, "temperature": 0.6, "top_k": 1, "top_p": 0.9, "min_p": 0.05,
                      "repetition_penalty": 1.7});
    std::fs::write(model.path().join("generation_config.json"), said.to_string()).unwrap();
    let server = Server::of(&["-m", folder], &["--log", "off"]);
    let sampling = &server.get("/v1/models").json()["data"][0]["sampling"];
    let all =
        json!({"temperature": 0.6, "top_k": 1, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.7});
    assert_eq!(*sampling, all);
    let answer = |own: Value| {
        let mut ask =
            json!({"prompt": "Who is it?", "max_tokens": 24, "seed": 1, "ignore_eos": true});
        ask.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        server.complete(&ask)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let recommended = answer(json!({}));
    assert_eq!(
        recommended,
        answer(json!({"temperature": 0, "top_k": 0, "repetition_penalty": 1.7}))
    );
    let plain = answer(json!({"temperature": 0, "repetition_penalty": 1}));
    assert_ne!(recommended, plain);
    assert_ne!(recommended, answer(json!({"temperature": 1, "top_k": 0})));
    let response = server.post("/v1/responses", &json!({"input": "Who?", "top_p": 0.5})).json();
    assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.6), &json!(0.5)));

    let line =
        ["generate", "-m", folder, "-q", "--json", "--kv-cache", "f32", "--ignore-eos", "--raw"];
    let generate = |flags: &[&str]| {
        let flags = [&line[..], &["-p", "Who is it?", "-n", "24"], flags].concat();
        support::json(&flags)["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(generate(&[]), recommended);
    assert_eq!(generate(&["--generation-config", "none"]), plain);
    let server = Server::of(&["-m", folder], &["--log", "off", "--generation-config", "none"]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["sampling"]["temperature"], json!(1.0));
}

#[test]
fn chats_go_through_the_template_and_tokens_can_be_seen() {
    let model = support::model();
    let folder = model.path().to_str().unwrap();
    let server = Server::of(&["-m", folder, "-m", TALES], &["--log", "off"]);
    let names = server.get("/v1/models").json();
    let name = names["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(names["data"][1]["id"], "tiny-tales");
    assert_eq!(server.get(&format!("/v1/models/{name}")).json()["max_model_len"], 256);

    let parts = json!([{"type": "text", "text": "Who"}, {"type": "text", "text": "is it?"}]);
    let chat = json!({
        "model": name, "messages": [{"role": "user", "content": parts}], "max_completion_tokens": 9,
        "ignore_eos": true, "temperature": 0, "logprobs": true, "top_logprobs": 2, "user": "me",
    });
    let whole = server.post("/v1/chat/completions", &chat).json();
    let line = ["generate", "-m", folder, "-q", "--json", "--kv-cache", "f32", "--ignore-eos"];
    let report = support::json(&[&line[..], &["--chat", "-p", "Who\nis it?", "-n", "9"]].concat());
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], report["text"]);
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 9);
    assert_eq!(whole["usage"]["completion_tokens"], 9);
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let events = server.post("/v1/chat/completions", &streamed).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces = events.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str());
    assert_eq!(Value::from(pieces.collect::<String>()), report["text"]);

    let prompt = &report["prompt_tokens"];
    let tokens = json!({"model": name, "messages": [{"role": "user", "content": "Who\nis it?"}]});
    assert_eq!(&server.post("/tokenize", &tokens).json()["tokens"], prompt);
    let text = json!({"model": "tiny-tales", "prompt": "Once upon"});
    let tokens = server.post("/tokenize", &text).json()["tokens"].clone();
    let back = server.post("/detokenize", &json!({"model": "tiny-tales", "tokens": tokens}));
    assert_eq!(back.json()["prompt"], "<|begin|>Once upon");
    server.post("/tokenize", &json!({"prompt": "x"})).error(400);
    let error = server.post("/tokenize", &json!({"model": "x", "prompt": "x"})).error(404);
    assert!(error["message"].as_str().unwrap().contains(&format!("{name}, tiny-tales")));
    assert_eq!(server.get("/ready").status, 200);
    assert!(server.get("/version").json()["version"].is_string());
}

#[test]
fn models_say_whether_they_chat() {
    let model = support::model();
    std::fs::write(model.path().join("tokenizer_config.json"), "{}").unwrap();
    let server =
        Server::of(&["-m", model.path().to_str().unwrap(), "-m", TALES], &["--log", "off"]);
    let models = server.get("/v1/models").json()["data"].clone();
    assert_eq!([&models[0]["chat"], &models[1]["chat"]], [false, true]);
    let hello = [json!({"role": "user", "content": "Hello"})];
    let chat = json!({"model": models[0]["id"], "messages": hello});
    let error = server.post("/v1/chat/completions", &chat).error(400);
    assert!(error["message"].as_str().unwrap().contains("no chat template"), "{error}");
}

#[test]
fn embeddings_are_those_of_the_program_in_any_company_and_form() {
    let server = Server::start(&["--log", "off"]);
    let texts = ["A cat", "Once upon a time, there was a dog.", "A cat"];
    let embed = |body: Value| {
        let reply = server.post("/v1/embeddings", &body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let line = ["embed", "-q", "-m", TALES, "--kv-cache", "f32"];
    let printed = support::succeeds(&[&line[..], &texts].concat());
    let printed: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    let answer = std::thread::scope(|scope| {
        let beside = scope.spawn(|| server.complete(&json!({"prompt": "The sea", "seed": 1})));
        let answer = embed(json!({"input": texts, "user": "me"}));
        beside.join().unwrap();
        answer
    });
    let counts: u64 = printed.iter().map(|it| it["tokens"].as_u64().unwrap()).sum();
    assert_eq!(answer["usage"], json!({"prompt_tokens": counts, "total_tokens": counts}));
    assert_eq!(answer["data"].as_array().unwrap().len(), 3);
    for (at, printed) in printed.iter().enumerate() {
        let data = &answer["data"][at];
        assert_eq!((&data["index"], &data["object"]), (&json!(at), &json!("embedding")));
        assert_eq!(data["embedding"], printed["embedding"], "{}", texts[at]);
    }

    let tokens = &server.post("/tokenize", &json!({"prompt": texts[1]})).json()["tokens"];
    let width = answer["data"][1]["embedding"].as_array().unwrap().len();
    let request = json!({"input": tokens, "encoding_format": "base64", "dimensions": width});
    let data = embed(request)["data"][0]["embedding"].as_str().unwrap().to_owned();
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data).unwrap();
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
    let expected = answer["data"][1]["embedding"].as_array().unwrap().iter();
    let expected: Vec<_> = expected.map(|it| it.as_f64().unwrap() as f32).collect();
    assert_eq!(numbers, expected);
    // Fewer numbers are the first ones, of length 1 again.
    let first = embed(json!({"input": texts[1], "dimensions": 3}));
    let first = first["data"][0]["embedding"].as_array().unwrap().iter();
    let first: Vec<_> = first.map(|it| it.as_f64().unwrap() as f32).collect();
    let length = numbers[..3].iter().map(|it| it * it).sum::<f32>().sqrt();
    assert_eq!(first.len(), 3);
    assert!(first.iter().zip(&numbers).all(|(a, b)| (a - b / length).abs() < 1e-6), "{first:?}");
    // More than run at once.
    let many = embed(json!({"input": vec!["A cat"; 150]}));
    let many = many["data"].as_array().unwrap();
    assert!(many.len() == 150 && many.iter().all(|it| it["embedding"] == many[0]["embedding"]));

    for (request, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": [99999]}), "input"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": width + 1}), "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "temperature": 1}), "temperature"),
    ] {
        let error = server.post("/v1/embeddings", &request).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    let long = json!({"input": vec![5; 5000]});
    let error = server.post("/v1/embeddings", &long).error(400);
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    // Also behind many, none of which runs then.
    let before = server.number("iree_llm_step_rows_total", "");
    let mut long = vec![vec![5; 3]; 100];
    long.push(vec![5; 5000]);
    let error = server.post("/v1/embeddings", &json!({"input": long})).error(400);
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    assert_eq!(server.number("iree_llm_step_rows_total", ""), before);
    server.is_empty();
}

/// Vectors without a module that the model has would be others.
#[test]
fn a_model_whose_vectors_are_made_in_another_way_makes_none_and_answers() {
    let folder = support::model();
    let modules = r#"[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]"#;
    std::fs::write(folder.path().join("modules.json"), modules).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let error = server.post("/v1/embeddings", &json!({"input": "a"})).error(400);
    assert_eq!(error["param"], "model", "{error}");
    assert!(error["message"].as_str().unwrap().contains("models.Dense"), "{error}");
    server.complete(&json!({"prompt": "a", "max_tokens": 1}));
}

/// Places that others take meanwhile are waited for: nothing that has run is for nothing.
#[test]
fn inputs_that_were_let_in_all_get_their_vectors() {
    let server = Server::start(&["--log", "off", "--parallel", "2", "--queue", "2"]);
    let read = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    // Each begins with the four places that there are, and comes again until it gets them.
    let embed = || loop {
        let input: Vec<_> = (0..30).map(|it| format!("A cat and {it} dogs")).collect();
        let reply = server.post("/v1/embeddings", &json!({"input": input}));
        if reply.status == 200 {
            let reply = reply.json();
            assert_eq!(reply["data"].as_array().unwrap().len(), 30);
            break read(&reply);
        }
        assert_eq!(reply.error(429)["code"], "queue_full");
    };
    let ask = json!({"prompt": "The sea", "max_tokens": 4});
    let chat = || {
        let replies = (0..100).map(|_| server.post("/v1/completions", &ask));
        replies.filter(|it| it.status == 200).map(|it| read(&it.json())).sum::<u64>()
    };
    let all: u64 = std::thread::scope(|scope| {
        let beside = scope.spawn(chat);
        let all: Vec<_> = (0..3).map(|_| scope.spawn(embed)).collect();
        all.into_iter().chain([beside]).map(|it| it.join().unwrap()).sum()
    });
    server.is_empty();
    assert_eq!(server.number("vllm:prompt_tokens_total", ""), all as f64);
}

/// Of a form, whatever the model would say, alone and in company, and in pieces.
#[test]
fn answers_keep_to_their_form() {
    let server = Server::start(&["--log", "off"]);
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
            "kind": {"enum": ["cat", "dog", "bird \u{1f426}"]},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 2},
        },
        "required": ["name", "legs", "kind", "friends"],
        "additionalProperties": false,
        "$defs": {"friend": {"type": "object", "properties": {"good": {"type": "boolean"}},
                             "required": ["good"], "additionalProperties": false}},
    });
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}});
    let keeps = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        let object = value.as_object().unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), ["name", "legs", "kind", "friends"]);
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!(value["legs"].as_u64().unwrap() <= 8, "{text}");
        assert!(
            ["cat", "dog", "bird \u{1f426}"].contains(&value["kind"].as_str().unwrap()),
            "{text}"
        );
        let friends = value["friends"].as_array().unwrap();
        assert!(friends.len() <= 2, "{text}");
        for friend in friends {
            assert!(
                friend["good"].is_boolean() && friend.as_object().unwrap().len() == 1,
                "{text}"
            );
        }
    };
    let request = |seed: u64| {
        let temperature = [0.0, 1.0, 1.5][seed as usize % 3];
        json!({"prompt": "The animal", "max_tokens": 400, "temperature": temperature, "seed": seed,
                "response_format": format, "logprobs": 1})
    };
    let alone: Vec<_> =
        (0..6).map(|seed| server.complete(&request(seed))["choices"].clone()).collect();
    for choices in &alone {
        keeps(choices[0]["text"].as_str().unwrap());
        assert_eq!(choices[0]["finish_reason"], "stop");
    }
    assert_ne!(alone[1], alone[2]);
    std::thread::scope(|scope| {
        let together = |seed| {
            scope.spawn({
                let request = request(seed);
                let server = &server;
                move || server.complete(&request)
            })
        };
        let runs: Vec<_> = (0..6).map(together).collect();
        let free = json!({"prompt": "Once upon a time", "max_tokens": 60, "seed": 1});
        server.complete(&free);
        for (run, alone) in runs.into_iter().zip(&alone) {
            assert_eq!(run.join().unwrap()["choices"], *alone);
        }
    });
    let streamed = |logprobs: Option<u32>| {
        let mut streamed = request(4);
        streamed["stream"] = true.into();
        streamed["logprobs"] = logprobs.into();
        let before = server.number("iree_llm_steps_total", "");
        let events = server.post("/v1/completions", &streamed).events();
        let texts = events.iter().filter_map(|it| it["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), alone[4][0]["text"].as_str().unwrap());
        server.number("iree_llm_steps_total", "") - before
    };
    // What the form leaves no choice about takes no steps of its own, unless each token is looked at.
    let (together, one_by_one) = (streamed(None), streamed(Some(1)));
    assert!(together < 0.8 * one_by_one, "{together} {one_by_one}");

    let of = |name: &str, value: Value, n: usize| {
        let mut request = json!({"prompt": "One day", "max_tokens": 200, "seed": 5, "n": n});
        request[name] = value;
        let answer = server.complete(&request);
        let choices = answer["choices"].as_array().unwrap().clone();
        choices.into_iter().map(|it| it["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for text in of("guided_regex", json!("[0-9]{3}-(a|b){2}"), 4) {
        let (digits, letters) = text.split_once('-').unwrap_or_else(|| panic!("{text}"));
        assert!(digits.len() == 3 && digits.bytes().all(|it| it.is_ascii_digit()), "{text}");
        assert!(letters.len() == 2 && letters.bytes().all(|it| b"ab".contains(&it)), "{text}");
    }
    let grammar = "start: animal (\" and \" animal)?\nanimal: \"a cat\" | \"two dogs\"";
    for text in of("guided_grammar", json!(grammar), 3) {
        let mut animals = text.split(" and ");
        assert!(animals.all(|it| ["a cat", "two dogs"].contains(&it)), "{text}");
    }
    keeps(&of("guided_json", schema.to_string().into(), 1)[0]);
    let three = of(
        "guided_json",
        json!({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 3}),
        1,
    );
    assert_eq!(three, ["[null, null, null]"]);

    for (name, value, part) in [
        ("response_format", json!({"type": "json_schema"}), "json_schema.schema"),
        ("response_format", json!({"type": "xml"}), "there are: text"),
        ("response_format", json!({"type": "text", "strict": 1}), "strict"),
        ("guided_json", json!({"type": "animal"}), "cannot be kept to"),
        (
            "guided_json",
            json!({"type": "object", "propertyNames": {"minLength": 3}}),
            "cannot be kept to",
        ),
        (
            "guided_json",
            json!({"type": "string", "minLength": 5, "maxLength": 3}),
            "cannot be kept to",
        ),
        ("guided_json", json!("{"), "no JSON"),
        ("guided_regex", json!("(a"), "cannot be kept to"),
        ("guided_regex", json!(5), "string"),
        ("guided_grammar", json!("start: nothing"), "cannot be kept to"),
        // No error of its grammar, but more than can be worked out.
        ("guided_grammar", json!("start: \"a\"~1000000"), "cannot be kept to"),
    ] {
        let mut request = json!({"prompt": "a"});
        request[name] = value;
        let error = server.post("/v1/completions", &request).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{request}: {error}");
    }
    for (name, value) in [("guided_regex", json!("a")), ("ignore_eos", json!(true))] {
        let mut request = json!({"prompt": "a", "guided_json": {}});
        request[name] = value;
        assert_eq!(server.post("/v1/completions", &request).error(400)["param"], name);
    }
    server.is_empty();
}

/// Gemma 3's smallest models have no row for the token of images.
#[test]
fn a_form_needs_no_more_tokens_than_the_model_has() {
    let folder = crate::tools::with_tools("qwen2.5");
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut more = added[0].clone();
    more["content"] = "<image>".into();
    more["id"] = 1536.into();
    added.push(more);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let ask = |regex: &str| {
        let answer =
            server.complete(&json!({"prompt": "a", "guided_regex": regex, "max_tokens": 40}));
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert!(ask("[0-9]{3}").bytes().all(|it| it.is_ascii_digit()));
    assert_eq!(ask("<image>"), "<image>");
}

/// A smaller model guesses for all that run.
#[test]
fn answers_are_the_same_whatever_a_draft_model_says() {
    let plain = Server::start(&["--speculate", "off"]);
    let drafting = Server::start(&["--speculate", "3", "--draft-model", TALES]);
    let asked = |at: u64| {
        let prompt: Vec<_> = (0..60 + 50 * at).map(|it| 3 + (it * 7 + at) % 1400).collect();
        let mut body = json!({"prompt": prompt, "max_tokens": 40, "seed": at, "logprobs": 2});
        if at.is_multiple_of(2) {
            body["temperature"] = 0.into();
        }
        body
    };
    let choices = |server: &Server, at| server.complete(&asked(at))["choices"].clone();
    std::thread::scope(|scope| {
        let (choices, drafting) = (&choices, &drafting);
        let asked = (0..5).map(|at| (at, scope.spawn(move || choices(drafting, at))));
        for (at, answer) in asked.collect::<Vec<_>>() {
            assert_eq!(answer.join().unwrap(), choices(&plain, at), "request {at}");
        }
    });
    let [drafted, accepted] = ["draft", "accepted"]
        .map(|kind| drafting.number(&format!("vllm:spec_decode_num_{kind}_tokens_total"), ""));
    assert!(drafted > 100.0 && 2.0 * accepted > drafted, "{accepted} of {drafted}");
}
