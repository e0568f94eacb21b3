//! Answers in harmony, as gpt-oss writes them.

use crate::server::*;
use crate::tools::{called, tools, with_tools};
use serde_json::{Value, json};

const TEMPLATE: &str = "\
{%- for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description + '\\n' }}{% endfor %}
{%- for m in messages %}<|start|>{{ m.role }}
{%- if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}
{%- if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}";

/// The model with a template in harmony, and its special tokens under the names of harmony's.
fn in_harmony() -> tempfile::TempDir {
    let folder = with_tools("qwen2.5");
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer = std::fs::read_to_string(&path).unwrap();
    let names = ["begin", "system", "user", "assistant", "turn_end"];
    for (old, new) in names.iter().zip(["start", "channel", "message", "constrain", "return"]) {
        tokenizer = tokenizer.replace(&format!("<|{old}|>"), &format!("<|{new}|>"));
    }
    std::fs::write(path, tokenizer).unwrap();
    std::fs::write(folder.path().join("generation_config.json"), "{\"eos_token_id\": 2}").unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

#[test]
fn channels_are_told_apart_and_forms_are_those_of_the_last() {
    let folder = in_harmony();
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let path = "/v1/chat/completions";
    let tokens = |text: &str| {
        server.post("/tokenize", &json!({"prompt": text, "add_special_tokens": false})).json()["tokens"].clone()
    };
    let token = |text: &str| {
        let tokens = tokens(text);
        tokens.as_array().unwrap().last().unwrap().to_string()
    };
    // The model has not learned any of it: it is led to a channel by the first letter of its name.
    let ask = |first: &str, more: Value| {
        let mut request = json!({
            "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 60, "temperature": 0,
            "logit_bias": {token(first): 90, token("<|channel|>"): 90, token("<|message|>"): 90},
        });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let choice = |request: &Value| server.post(path, request).json()["choices"][0].clone();

    let form = json!({"guided_regex": "[0-9]{3} dogs"});
    let answer = choice(&ask("f", form.clone()));
    let content = answer["message"]["content"].as_str().unwrap();
    assert!(content.ends_with(" dogs") && content.len() == 8, "{answer}");
    assert!(answer["message"]["reasoning_content"].is_null(), "{answer}");
    assert_eq!(answer["finish_reason"], "stop");
    let events =
        server.post(path, &ask("f", json!({"guided_regex": "[0-9]{3} dogs", "stream": true})));
    let streamed: String = events
        .events()
        .iter()
        .filter_map(|it| it["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(streamed, content);

    // Thoughts without an end.
    let answer = choice(&ask("a", form));
    assert_eq!(answer["message"]["content"], "", "{answer}");
    let thoughts = answer["message"]["reasoning_content"].as_str().unwrap();
    assert!(thoughts.starts_with("aa") && !thoughts.contains("analysis"), "{answer}");
    assert_eq!(answer["finish_reason"], "length");

    let answer = choice(&ask("c", json!({"tools": tools(), "tool_choice": "required"})));
    assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
    let calls = answer["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 1, "{answer}");
    called(&calls[0]);

    // One that goes on does so in the message that has begun.
    let said = json!([
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "Once upon a"},
    ]);
    let more =
        json!({"messages": said, "continue_final_message": true, "guided_regex": " (cat|dog)s"});
    let answer = choice(&ask("f", more));
    let content = answer["message"]["content"].as_str().unwrap();
    assert!([" cats", " dogs"].contains(&content), "{answer}");
    let text = "<|start|>user<|message|>Who?<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>\
                <|start|>assistant<|channel|>final<|message|>Once upon a";
    let more = json!({"messages": said, "continue_final_message": true});
    assert_eq!(server.post("/tokenize", &more).json()["tokens"], tokens(text));
}

/// The model with a `template` that knows two marks, which are special tokens of it.
fn with_marks(marks: [&str; 2], template: &str) -> tempfile::TempDir {
    let folder = with_tools("qwen2.5");
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer = std::fs::read_to_string(&path).unwrap();
    for (old, new) in ["<|system|>", "<|user|>"].iter().zip(marks) {
        tokenizer = tokenizer.replace(old, new);
    }
    std::fs::write(path, tokenizer).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

/// As Command R7B's template opens it.
#[test]
fn words_that_the_prompt_has_opened_have_no_marks() {
    let marks = ["<|START_RESPONSE|>", "<|END_RESPONSE|>"];
    let template = "{#- <|END_RESPONSE|> #}{%- for m in messages %}{{ m.content }}{% endfor %}\
                    {%- if add_generation_prompt %}<|START_RESPONSE|>{% endif %}";
    let folder = with_marks(marks, template);
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let end = json!({"prompt": marks[1], "add_special_tokens": false});
    let end = server.post("/tokenize", &end).json()["tokens"][0].to_string();
    let mut ask = json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2,
                         "temperature": 0, "logit_bias": {end: 100}});
    let answer = server.post("/v1/chat/completions", &ask).json()["choices"][0].clone();
    assert_eq!(answer["message"]["content"], "", "{answer}");
    ask.as_object_mut().unwrap().remove("logit_bias");
    ask["max_tokens"] = 40.into();
    ask["guided_regex"] = "[0-9]{3} dogs".into();
    let answer = server.post("/v1/chat/completions", &ask).json()["choices"][0].clone();
    let content = answer["message"]["content"].as_str().unwrap();
    assert!(content.ends_with(" dogs") && content.len() == 8, "{answer}");
}

#[test]
fn thoughts_that_a_message_has_begun_end_at_their_mark() {
    let marks = ["[THINK]", "[/THINK]"];
    let template = "{#- [THINK] [/THINK] #}{%- for m in messages %}{{ m.content }}{% endfor %}";
    let folder = with_marks(marks, template);
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let said = json!({"prompt": "[/THINK]Once", "add_special_tokens": false});
    let said = server.post("/tokenize", &said).json()["tokens"].clone();
    let most = said.as_array().unwrap().len() + 4;
    let reply = server.post(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "[THINK]Let me"}],
                "add_generation_prompt": false, "continue_final_message": true, "temperature": 0, "stream": true,
                "max_tokens": most, "answer_token_ids": said, "ignore_eos": true}),
    );
    let deltas: Vec<_> =
        reply.events().iter().map(|it| it["choices"][0]["delta"].clone()).collect();
    assert!(
        deltas.iter().any(|it| it["content"].as_str().is_some_and(|it| !it.is_empty())),
        "{}",
        reply.text
    );
    assert!(deltas.iter().all(|it| it["reasoning_content"].is_null()), "{}", reply.text);
}
