//! The small model of this repository, asked as a program asks.

#![cfg(feature = "iree")]

mod encoders;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use iree_llm::xla_session::sample::SamplerOptions;
use iree_llm::xla_session::{EngineSession, FinishReason, Model, SessionOptions, generate_greedy};
use iree_llm::{Ask, Error, Files, Form, Llm, LlmOptions, Message, Part, Place, ToolChoice};
use serde_json::json;

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");

fn session() -> SessionOptions {
    SessionOptions {
        cache_dir: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
        weights_cache: false,
        ..SessionOptions::default()
    }
}

/// With graphs that tests share.
pub fn open(folder: &Path) -> Llm {
    let options = LlmOptions { session: session(), ..LlmOptions::default() };
    Llm::open_with(folder.to_str().unwrap(), &options).unwrap()
}

fn most(max_tokens: usize) -> Ask {
    Ask { max_tokens: Some(max_tokens), ..Ask::default() }
}

/// The model with another template, or none.
fn with_template(template: Option<&str>) -> (tempfile::TempDir, Llm) {
    let folder = tempfile::tempdir().unwrap();
    for file in Path::new(TALES).read_dir().unwrap() {
        let file: PathBuf = file.unwrap().path();
        std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("tokenizer_config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("chat_template").unwrap();
    std::fs::write(&path, config.to_string()).unwrap();
    if let Some(template) = template {
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    }
    let llm = open(folder.path());
    (folder, llm)
}

#[test]
fn a_prompt_is_gone_on_with_as_the_engine_does_it() {
    let llm = open(Path::new(TALES));
    assert_eq!(llm.name(), "tiny-tales");
    let prompt = llm.tokenizer().encode("Once upon a time", true).unwrap();
    let mut session =
        EngineSession::new(&Model::open(Path::new(TALES), &session()).unwrap(), None).unwrap();
    let tokens =
        generate_greedy(&mut session, &prompt, 40, &llm.config().eos_token_ids).unwrap().tokens;
    let expected = llm.tokenizer().decode(&[prompt.clone(), tokens.clone()].concat()).unwrap();

    let mut text = String::new();
    let mut response = llm.complete("Once upon a time", &most(40)).unwrap();
    let mut pieces = 0;
    for part in &mut response {
        let Part::Content(piece) = part.unwrap() else { panic!("no chat") };
        (text, pieces) = (text + &piece, pieces + 1);
    }
    assert_eq!(format!("Once upon a time{text}"), expected);
    assert!(pieces > 10);
    let end = response.end().unwrap();
    assert_eq!((end.timings.prompt_tokens, end.timings.tokens), (prompt.len(), tokens.len()));
    assert!(response.blocking_recv().is_none());
    let ids: Vec<_> = response.tokens().iter().map(|it| it.id).collect();
    assert_eq!(ids, tokens);

    // Many at once, on an executor.
    let other = llm.clone();
    pollster::block_on(async {
        let mut first = llm.complete("Once upon a time", &most(40)).unwrap();
        let second = other.complete("The old dog", &most(10)).unwrap();
        let mut awaited = String::new();
        while let Some(part) = first.recv().await {
            let Part::Content(piece) = part.unwrap() else { panic!("no chat") };
            awaited += &piece;
        }
        assert_eq!(awaited, text);
        let second = second.whole().await.unwrap();
        assert!(!second.content.is_empty() && second.reasoning.is_empty());
        assert!(second.end.timings.tokens <= 10);
    });
}

#[test]
fn an_answer_ends_where_it_is_to() {
    let llm = open(Path::new(TALES));
    let whole = llm.complete("Once upon a time", &most(40)).unwrap().blocking_whole().unwrap();
    let word = whole.content.split_whitespace().nth(5).unwrap().to_owned();
    let before = whole.content.split_once(&word).unwrap().0;
    let ask = Ask { stop: vec![word.clone()], ..most(40) };
    let stopped = llm.complete("Once upon a time", &ask).unwrap().blocking_whole().unwrap();
    assert_eq!((&*stopped.content, &stopped.end.stop), (before, &Some(word)));
    assert_eq!(stopped.end.reason, FinishReason::Stop);

    let drawn = |seed| {
        let sampling = Some(SamplerOptions { temperature: 1.5, seed, ..llm.recommended() });
        let ask = Ask { sampling, ..most(20) };
        llm.complete("Once upon a time", &ask).unwrap().blocking_whole().unwrap().content
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));

    // What nobody waits for is gone.
    let mut dropped = llm.complete("The old dog", &Ask::default()).unwrap();
    dropped.blocking_recv().unwrap().unwrap();
    drop(dropped);
    let began = Instant::now();
    while llm.worker().statistics().pages.held > 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_conversation_is_rendered_and_its_answer_read() {
    // It knows of thoughts, and of no tools.
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }} {% endfor %}\
                    {% if think %}<think>{% endif %}{# </think> #}";
    let (_folder, llm) = with_template(Some(template));
    let said = |messages: &[Message], ask: &Ask| {
        llm.chat(messages, ask).unwrap().blocking_whole().unwrap()
    };
    let once = [Message::new("user", "Once upon a time")];
    let plain = said(&once, &most(20));
    let alone = llm.complete("Once upon a time ", &most(20)).unwrap().blocking_whole().unwrap();
    assert_eq!(plain.content.trim(), alone.content.trim());
    assert_eq!((&*plain.reasoning, plain.calls.len()), ("", 0));

    // The prompt opens thoughts, and the model does not close them.
    let variables = [("think".to_owned(), true.into())].into();
    let thought = said(&once, &Ask { variables, ..most(20) });
    assert!(thought.content.is_empty() && !thought.reasoning.is_empty());

    // It goes on with what is there.
    let begun = [once[0].clone(), Message::new("assistant", "Once upon")];
    let goes_on = said(&begun, &Ask { continue_final_message: true, ..most(20) });
    let text = "Once upon a time Once upon";
    let expected = llm.complete(text, &most(20)).unwrap().blocking_whole().unwrap();
    assert_eq!(goes_on.content, expected.content);

    // And so does the conversation.
    let next = [json!(once[0]), plain.message(), json!({"role": "user", "content": "Go on."})];
    let next = llm.chat(&next, &most(5)).unwrap().blocking_whole().unwrap();
    assert!(next.end.timings.prompt_tokens > plain.end.timings.prompt_tokens);

    // What there is to call is told in words.
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let with_tools = said(&once, &Ask { tools: vec![tool], ..most(20) });
    assert!(with_tools.end.timings.prompt_tokens > plain.end.timings.prompt_tokens);
}

/// What Qwen2.5's template tells the model, which calls as that does.
fn caller() -> (tempfile::TempDir, Llm) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/chat_templates");
    let template = std::fs::read_to_string(format!("{folder}/qwen2.5.jinja")).unwrap();
    with_template(Some(&template))
}

#[test]
fn tools_are_called_as_their_schemas_say() {
    let (_folder, llm) = caller();
    let schema = json!({"type": "object", "properties": {"town": {"enum": ["Bern", "Oslo"]}},
                        "required": ["town"], "additionalProperties": false});
    let function = |name: &str, parameters: &serde_json::Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let once = [Message::new("user", "Is it warm in Oslo?")];
    let ask = Ask {
        tools: vec![function("weather", &schema), function("time", &schema)],
        tool_choice: ToolChoice::Required,
        one_call: true,
        ..most(100)
    };
    let called = |ask: &Ask| {
        let answer = llm.chat(&once, ask).unwrap().blocking_whole().unwrap();
        let [call] = &answer.calls[..] else { panic!("{answer:?}") };
        let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
        assert!(["Bern", "Oslo"].contains(&arguments["town"].as_str().unwrap()), "{arguments}");
        call.name.clone()
    };
    assert!(["weather", "time"].contains(&&*called(&ask)));
    for name in ["weather", "time"] {
        assert_eq!(
            called(&Ask { tool_choice: ToolChoice::Named(name.into()), ..ask.clone() }),
            name
        );
    }

    // Calls, or JSON of a form.
    let form = Form::json_schema(json!({"const": {"town": "Rome"}}));
    let both = Ask { tool_choice: ToolChoice::Auto, form: Some(form), ..ask.clone() };
    let answer = llm.chat(&once, &both).unwrap().blocking_whole().unwrap();
    match &answer.calls[..] {
        [] => assert_eq!(answer.content.trim(), "{\"town\": \"Rome\"}"),
        [call] => assert!(call.is_whole() && answer.content.trim().is_empty(), "{answer:?}"),
        _ => panic!("{answer:?}"),
    }

    let wrong = |ask: Ask| llm.chat(&once, &ask).map(drop).unwrap_err();
    let tools = [
        (vec![json!({"name": "f"})], ToolChoice::Auto, "tools[0].type"),
        (vec![function("f g", &schema)], ToolChoice::Auto, "tools[0].function.name"),
        (vec![function("f", &schema); 2], ToolChoice::Auto, "has two tools called \"f\""),
        (vec![function("f", &schema)], ToolChoice::Named("g".into()), "there are: f"),
        (Vec::new(), ToolChoice::Required, "there are no `tools`"),
    ];
    for (tools, tool_choice, message) in tools {
        let error = wrong(Ask { tools, tool_choice, ..most(5) });
        assert!(matches!(error, Error::Tools(_)), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    let odd = json!({"type": "object", "properties": {"x": {"type": "animal"}}});
    let mut strict = function("f", &odd);
    strict["function"]["strict"] = true.into();
    let error = wrong(Ask { tools: vec![strict], ..most(5) });
    assert!(matches!(error, Error::Form(_)), "{error}");
    // Without that any object will do.
    let loose = Ask { tools: vec![function("f", &odd)], ..ask.clone() };
    let answer = llm.chat(&once, &Ask { max_tokens: Some(30), ..loose });
    assert_eq!(answer.unwrap().blocking_whole().unwrap().calls[0].name, "f");
    wrong(Ask { ignore_eos: true, ..ask.clone() });
    let begun = [once[0].clone(), Message::new("assistant", "Well")];
    let goes_on = Ask { continue_final_message: true, ..ask };
    assert!(llm.chat(&begun, &goes_on).map(drop).is_err());
}

#[test]
fn what_stands_between_two_texts_is_filled_in() {
    let (folder, llm) = with_template(None);
    let place = Place { prefix: "One day", suffix: " home.", ..Place::default() };
    let error = llm.fill_in(&place, &most(8)).map(drop).unwrap_err();
    assert!(error.to_string().contains("no marks for filling in"), "{error}");
    drop(llm);

    // In place of bytes that no text has.
    let path = folder.path().join("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let marks = [("ø", "<|fim_prefix|>"), ("ù", "<|fim_suffix|>"), ("ú", "<|fim_middle|>")];
    for (byte, mark) in marks {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove(byte).unwrap();
        vocab.insert(mark.into(), id.clone());
        json["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }));
    }
    std::fs::write(&path, json.to_string()).unwrap();
    let llm = open(folder.path());
    let filled = llm.fill_in(&place, &most(8)).unwrap().blocking_whole().unwrap();
    let text = "<|fim_prefix|>One day<|fim_suffix|> home.<|fim_middle|>";
    let written = llm.complete(text, &most(8)).unwrap().blocking_whole().unwrap();
    assert_eq!(filled.content, written.content);
    let end = llm.infill().unwrap().ends()[0];
    let sampling =
        Some(SamplerOptions { logit_bias: vec![(end, 100.0)], ..SamplerOptions::default() });
    let ended = llm.fill_in(&place, &Ask { sampling, ..most(8) }).unwrap();
    let ended = ended.blocking_whole().unwrap();
    assert_eq!((&*ended.content, ended.end.reason), ("", FinishReason::Eos));
}

#[test]
fn tokens_come_with_how_likely_they_were() {
    // The answer has a handle of the model, too.
    let asked = {
        let llm = open(Path::new(TALES));
        let prompt = llm.tokenizer().encode("Once upon a time", true).unwrap();
        llm.complete_tokens(prompt, &Ask { likelihood: Some(3), ..most(5) }).unwrap()
    };
    assert_eq!(asked.into_iter().filter(|part| part.is_ok()).count(), 5);
    let llm = open(Path::new(TALES));
    let mut response =
        llm.complete("Once upon a time", &Ask { likelihood: Some(3), ..most(5) }).unwrap();
    while response.blocking_recv().is_some() {}
    for token in response.tokens() {
        let likelihood = token.likelihood.as_ref().unwrap();
        assert_eq!(likelihood.top.len(), 3);
        assert_eq!(likelihood.top[0], (token.id, likelihood.logprob));
    }
    assert_eq!(response.tokens().len(), 5);
}

#[test]
fn a_text_becomes_a_vector() {
    let llm = open(Path::new(TALES));
    let [one, same, other] =
        ["a dog", "a dog", "the king"].map(|text| pollster::block_on(llm.embed(text)).unwrap());
    assert_eq!(one.len(), llm.config().hidden_size);
    assert_eq!(one, same);
    assert_eq!(llm.blocking_embed("a dog").unwrap(), one);
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!((product(&one, &one) - 1.0).abs() < 1e-4);
    assert!(product(&one, &other) < 0.999);
}

#[test]
fn what_cannot_be_says_why() {
    let error = |error: Error| error.to_string();
    let missing = Llm::open("no model of this name").unwrap_err();
    assert!(matches!(missing, Error::Model(_)), "{missing}");
    let file = Path::new(TALES).join("config.json");
    let wrong = Files::here(&file).map(|_| ()).unwrap_err();
    assert!(error(wrong).contains("is a file"));
    assert_eq!(Files::here(Path::new("nowhere/at/all")).unwrap(), None);

    let llm = open(Path::new(TALES));
    let (_folder, silent) = with_template(None);
    let no_chat = silent.chat(&[Message::new("user", "a")], &most(1)).map(|_| ()).unwrap_err();
    assert!(error(no_chat).contains("no chat template"));
    let long = "dog ".repeat(3000);
    let full = llm.complete(&long, &most(1)).map(|_| ()).unwrap_err();
    assert!(error(full).contains("do not fit the context of 2048"));
    let hot = SamplerOptions { temperature: -1.0, ..SamplerOptions::default() };
    let ask = Ask { sampling: Some(hot), ..most(1) };
    let hot = llm.complete("a", &ask).map(|_| ()).unwrap_err();
    assert!(error(hot).contains("temperature is -1"));
    let empty = Ask { stop: vec![String::new()], ..most(1) };
    llm.complete("a", &empty).map(|_| ()).unwrap_err();

    let endless = Ask { ignore_eos: true, ..Ask::default() };
    let cut = llm.complete("The old dog", &endless).unwrap();
    llm.worker().cut_off();
    assert!(error(cut.blocking_whole().unwrap_err()).contains("has stopped"));
    let late = llm.complete("a", &most(1)).unwrap().blocking_whole().unwrap_err();
    assert!(error(late).contains("has stopped"));
}

#[test]
fn an_answer_is_kept_to_its_form() {
    let llm = open(Path::new(TALES));
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"], "additionalProperties": false});
    let ask = |form| Ask { form: Some(form), ..most(60) };
    let once = [Message::new("user", "Who lived under the leaves?")];
    let json = llm.chat(&once, &ask(Form::json_schema(schema))).unwrap().blocking_whole().unwrap();
    let value: serde_json::Value = serde_json::from_str(&json.content).unwrap();
    assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
    let word = llm.complete("The colour is", &ask(Form::regex(" (blue|green)\\."))).unwrap();
    let word = word.blocking_whole().unwrap().content;
    assert!([" blue.", " green."].contains(&word.as_str()), "{word}");

    let impossible = llm.chat(&once, &ask(Form::json_schema(json!({"type": "animal"}))));
    let error = impossible.map(drop).unwrap_err();
    assert!(matches!(error, Error::Form(_)), "{error}");
    assert!(error.to_string().starts_with("the form cannot be kept to"), "{error}");
    // Thoughts go before it.
    let template =
        "{{ bos_token }}{% for m in messages %}{{ m.content }} {% endfor %}<think>{# </think> #}";
    let (_folder, thinker) = with_template(Some(template));
    let form = Form::lark("start: \"yes\" | \"no\"");
    let answer = thinker.chat(&once, &Ask { max_tokens: Some(20), ..ask(form) }).unwrap();
    let answer = answer.blocking_whole().unwrap();
    assert!(answer.content.is_empty() && !answer.reasoning.is_empty());
}
