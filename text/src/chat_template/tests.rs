use jiff::civil;
use jiff::tz::TimeZone;

use super::*;
use crate::MISTRAL_THINK;

fn render(source: &str, messages: &[Message]) -> Result<String> {
    let tokens = vec![("bos_token".into(), "<s>".into()), ("eos_token".into(), "</s>".into())];
    let template = ChatTemplate::new(source.into(), tokens, "here".into(), Zoned::now)?;
    template.render(messages, &RenderOptions::prompt())
}

fn conversation() -> [Message; 2] {
    [Message::new("system", "Be kind & <short>."), Message::new("user", " Hi ")]
}

#[test]
fn blocks_are_trimmed_and_python_methods_work() {
    let source = "{{ bos_token }}\n{% for message in messages %}\n    \
                  {% if message['role'] == 'user' %}\n[{{ message.content.strip() | trim }}]\n    \
                  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}";
    assert_eq!(render(source, &conversation()).unwrap(), "<s>\n[Hi]\nA:");
}

#[test]
fn text_is_not_escaped_and_json_is_pythons() {
    let source = "{{ messages[0].content }}{{ messages | tojson }}";
    assert_eq!(
        render(source, &conversation()).unwrap(),
        "Be kind & <short>.[{\"role\": \"system\", \"content\": \"Be kind & <short>.\"}, \
         {\"role\": \"user\", \"content\": \" Hi \"}]"
    );
    let source = "{{ {'a': 1} | tojson(indent=2) }}";
    assert_eq!(render(source, &[]).unwrap(), "{\n  \"a\": 1\n}");
}

#[test]
fn loop_controls_generation_marks_and_absent_tools() {
    let source = "{%- for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\
                  {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}\
                  {% if tools is not none %}T{% endif %}{% if custom is defined %}C{% endif %}";
    assert_eq!(render(source, &conversation()).unwrap(), " Hi ");
}

#[test]
fn marks_of_generation_may_have_any_blanks() {
    let source =
        "a {%generation%}b{%-  endgeneration  -%} c\n{%+ generation %}d{% endgeneration +%}";
    let scopes = "a {%with%}b{%-  endwith  -%} c\n{%+ with %}d{% endwith +%}";
    assert_eq!(without_generation_marks(source), scopes);
    for other in ["{% set generation = 1 %}{{ generation }}{% if", "none", "{% generations %}%}"] {
        assert_eq!(without_generation_marks(other), other);
    }
    assert_eq!(render(source, &[]).unwrap(), "a bc\nd");
    for unbalanced in ["{% generation %}a", "a{% endgeneration %}"] {
        assert!(render(unbalanced, &[]).is_err(), "{unbalanced}");
    }
}

#[test]
fn a_template_is_read_as_pythons_jinja_reads_it() {
    for (source, expected) in [
        ("a\r\nb\rc{{ 'd\r\n' }}", "a\nb\ncd\n"),
        ("{{ nothing | length }}{{ nothing | count }}{{ [1, 2] | length }}", "002"),
        (
            "{% for a, b in nothing | items %}x{% endfor %}{% for a, b in {'c': 1} | items %}{{ a }}{% endfor %}",
            "c",
        ),
        (
            "{{ [' A '] | trim }}{{ ['a', 1.0] | upper }}{{ ' B ' | trim | lower }}",
            "[' A ']['A', 1.0]b",
        ),
        ("{{ ['a', none][:2] }}{{ ['a'] + [true] }}", "['a', None]['a', True]"),
    ] {
        assert_eq!(render(source, &[]).unwrap(), expected, "{source}");
    }
    let error = render("{{ 1 | length }}", &[]).unwrap_err().to_string();
    assert!(error.contains("no length"), "{error}");
}

/// minijinja panics there; jinja2 makes nothing of it.
#[test]
fn no_template_ends_a_program() {
    let error = render("{{ ''[::-1] }}", &[]).unwrap_err().to_string();
    assert!(error.contains("here") && error.contains("cannot be rendered"), "{error}");
}

#[test]
fn the_date_is_todays() {
    let year = render("{{ strftime_now('%d %b %Y') }}", &[]).unwrap();
    assert!(year.ends_with(&jiff::Zoned::now().year().to_string()), "{year}");
}

#[test]
fn variables_are_those_that_only_whoever_asks_can_say() {
    let source = "{{ bos_token }}{% if messages and tools %}{% set x = 1 %}{{ x }}{% endif %}\
                  {% set ns = namespace(y=1) %}{% for m in messages %}{{ m.content }}{% endfor %}\
                  {% if enable_thinking is defined and not enable_thinking %}{{ date_string }}{% endif %}\
                  {% set depth = depth | default(1) %}{{ strftime_now('%Y') }}{{ raise_exception('a') }}";
    let template = ChatTemplate::new(source.into(), Vec::new(), "here".into(), Zoned::now).unwrap();
    assert_eq!(template.variables().collect::<Vec<_>>(), ["date_string", "enable_thinking"]);
    for known in ["date_string", "enable_thinking", "depth"] {
        assert!(template.mentions(known), "{known}");
    }
    assert!(!template.mentions("enable") && !template.mentions("thinking"));
}

#[test]
fn refusals_and_mistakes_name_the_file() {
    let error = render("{{ raise_exception('no system role') }}", &[]).unwrap_err().to_string();
    assert!(error.contains("here") && error.contains("no system role"), "{error}");
    let error = render("{% if %}", &[]).unwrap_err().to_string();
    assert!(error.contains("here"), "{error}");
}

#[test]
fn files_in_order_and_token_forms() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ChatTemplate::from_dir(folder.path()).unwrap().is_none());
    let error = ChatTemplate::require(folder.path()).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja"), "{error}");
    let config = serde_json::json!({
        "bos_token": {"content": "<b>", "special": true},
        "eos_token": null,
        "chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},
        ],
    });
    let path = folder.path().join("tokenizer_config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let none: [Message; 0] = [];
    let text = |folder| {
        let template = ChatTemplate::require(folder).unwrap();
        template.render(&none, &RenderOptions::default()).unwrap()
    };
    assert_eq!(text(folder.path()), "<b>");
    std::fs::write(folder.path().join("chat_template.jinja"), "J{{ bos_token }}").unwrap();
    assert_eq!(text(folder.path()), "J<b>");
    let additional = folder.path().join("additional_chat_templates");
    std::fs::create_dir(&additional).unwrap();
    std::fs::write(additional.join("tool_use.jinja"), "T{{ bos_token }}").unwrap();
    let options = RenderOptions { tools: vec![serde_json::json!({})], ..RenderOptions::default() };
    let template = ChatTemplate::require(folder.path()).unwrap();
    assert_eq!(template.render(&none, &options).unwrap(), "T<b>");
    assert_eq!(text(folder.path()), "J<b>");
    std::fs::write(&path, "{").unwrap();
    let error = ChatTemplate::from_dir(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn a_template_for_tools_is_asked_and_rendered_where_there_are_tools() {
    let default = "{{ messages[0].content }}{{ depth }}";
    let tool_use = "{% if messages[1] and messages[1].tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}\
                    {% for call in (messages | last).tool_calls or [] %}<tool_call>\
                    {\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\
                    </tool_call>{% endfor %}{{ tools | length }} {{ date }}</think>";
    let folder = tempfile::tempdir().unwrap();
    let named =
        |name: &str, template: &str| serde_json::json!({"name": name, "template": template});
    let config = serde_json::json!({
        "chat_template": [named("tool_use", tool_use), named("default", default)],
    });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let of_file = Vocabulary {
        chat_template: Some(default.into()),
        tool_template: Some(tool_use.into()),
        ..Vocabulary::default()
    };
    let written = tempfile::tempdir().unwrap();
    let config = of_file.tokenizer_config().to_string();
    std::fs::write(written.path().join("tokenizer_config.json"), config).unwrap();
    let here = Path::new("here");
    for template in [
        ChatTemplate::require(folder.path()).unwrap(),
        ChatTemplate::from_vocabulary(&of_file, here).unwrap().unwrap(),
        ChatTemplate::require(written.path()).unwrap(),
    ] {
        let render = |tools: Vec<serde_json::Value>| {
            let options = RenderOptions { tools, ..RenderOptions::prompt() };
            template.render(&[Message::new("user", "Hi")], &options).unwrap()
        };
        assert_eq!(render(vec![]), "Hi");
        assert_eq!(render(vec![serde_json::json!({})]), "1 </think>");
        // Calls that there have been, too.
        let call = serde_json::json!({"function": {"name": "f", "arguments": {}}});
        let called = serde_json::json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let result = serde_json::json!({"role": "tool", "content": "1"});
        let past = |last| template.render(&[last], &RenderOptions::default()).unwrap();
        let written = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>0 </think>";
        assert_eq!([past(&called), past(&result)], [written, "0 </think>"]);
        assert_eq!(template.tool_style(), Some(AnswerStyle::HERMES));
        assert!(template.thoughts().is_some() && !template.takes_several_calls());
        assert_eq!(template.variables().collect::<Vec<_>>(), ["date", "depth"]);
        assert!(template.mentions("date") && template.mentions("depth"));
    }
}

#[derive(serde::Deserialize)]
struct Case {
    template: String,
    name: String,
    messages: Vec<serde_json::Value>,
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    tools: Vec<serde_json::Value>,
    variables: BTreeMap<String, serde_json::Value>,
    expected: Expected,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Expected {
    Text(String),
    Error(String),
}

#[test]
fn templates_say_whether_an_answer_may_have_several_calls() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    let templates =
        [("llama3.2", false), ("qwen2.5", true), ("qwen3", true), ("mistral-v0.3", true)];
    for (name, several) in templates {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(source, Vec::new(), name.into(), Zoned::now).unwrap();
        assert_eq!(template.takes_several_calls(), several, "{name}");
    }
    // As gpt-oss has it: no more than the first.
    let source = "{% for m in messages %}{% if m.tool_calls %}<|start|>assistant to=functions.\
                  {{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
                  {{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% endif %}{% endfor %}{{ tools }}";
    let template = ChatTemplate::new(source.into(), Vec::new(), "here".into(), Zoned::now).unwrap();
    assert!(!template.takes_several_calls() && template.thoughts().is_some());
    let styles = [template.tool_style(), template.answer_style()];
    assert_eq!(styles, [Some(AnswerStyle::Harmony); 2]);
}

/// What transformers makes of the same (`make_expected.py`).
#[test]
fn families_templates_give_the_text_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    let cases = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
    let now = || civil::date(2024, 7, 26).at(9, 5, 3, 0).to_zoned(TimeZone::UTC).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let path = folder.join(format!("{}.jinja", case.template));
        let source = std::fs::read_to_string(&path).unwrap();
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let tokens = tokens.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
        let template = ChatTemplate::new(source, tokens, path, now).unwrap();
        let options = RenderOptions {
            add_generation_prompt: case.add_generation_prompt,
            continue_final_message: case.continue_final_message,
            tools: case.tools.clone(),
            variables: case.variables.clone(),
        };
        let rendered = template.render(&case.messages, &options).map_err(|e| e.to_string());
        let (same, expected) = match &case.expected {
            Expected::Text(expected) => (rendered.as_ref() == Ok(expected), expected),
            Expected::Error(expected) => {
                (rendered.as_ref().is_err_and(|error| error.contains(expected)), expected)
            }
        };
        if !same {
            let found = rendered.unwrap_or_else(|error| error);
            wrong.push(format!(
                "{}, {}:\nexpected:\n{expected}\nfound:\n{found}\n",
                case.template, case.name
            ));
        }
    }
    assert!(cases.len() > 60, "{} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn of(source: &str) -> ChatTemplate {
    ChatTemplate::new(source.into(), Vec::new(), "here".into(), Zoned::now).unwrap()
}

#[test]
fn templates_say_how_calls_are_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    for (name, style) in [
        ("qwen2.5", Some(AnswerStyle::HERMES)),
        ("qwen3", Some(AnswerStyle::HERMES)),
        ("qwen3-coder", Some(AnswerStyle::QWEN_CODER)),
        ("smollm3", Some(AnswerStyle::HERMES)),
        ("llama3.2", Some(AnswerStyle::Llama3)),
        ("mistral-v0.3", Some(AnswerStyle::MISTRAL)),
        ("chatml", None),
        ("llama3", None),
        ("mistral-v0.1", None),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        assert_eq!(of(&source).tool_style(), style, "{name}");
    }
    // By the calls that they write, whatever else they say.
    let writing = |call: &str| {
        let source = format!(
            "{{{{ tools }}}} in <tool_call></tool_call>{{% for m in messages %}}{{{{ m.content }}}}\
             {{% for c in m.tool_calls %}}{call}{{% endfor %}}{{% endfor %}}"
        );
        of(&source).tool_style()
    };
    let json =
        "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}";
    for (call, style) in [
        (format!("<tool_calls>[{json}]</tool_calls>"), Some(AnswerStyle::APRIEL)),
        (format!("<TOOLCALL>[{json}]</TOOLCALL>"), Some(AnswerStyle::NEMOTRON)),
        (format!("<|tool_call|>[{json}]"), Some(AnswerStyle::GRANITE)),
        (format!("<tool_call>\n{json}\n</tool_call>"), Some(AnswerStyle::HERMES)),
        (
            "<function_calls>{{ c.function.name }}(x='y')</function_calls>".into(),
            Some(AnswerStyle::OLMO3),
        ),
        // As MiniMax' has it, and as nobody.
        ("]<[x]>[<tool_call>]<[x]>[<invoke name=\"{{ c.function.name }}\">".into(), None),
        (json.into(), None),
    ] {
        assert_eq!(writing(&call), style, "{call}");
    }
    // By their words, where they leave calls out.
    for (words, style) in [
        ("respond with <|tool_call|> and a list", Some(AnswerStyle::GRANITE)),
        ("respond with <tool_call> and a list", Some(AnswerStyle::GRANITE_31)),
        ("List of tools: ", Some(AnswerStyle::LFM2)),
        ("<|tool|>{{ messages[0].tools }}<|/tool|>", Some(AnswerStyle::PHI4)),
        ("<｜tool▁calls▁begin｜>", Some(AnswerStyle::DEEPSEEK)),
        ("[TOOL_CALLS] [ARGS]", Some(AnswerStyle::MistralArgs)),
        ("within <tool_call></tool_call>", Some(AnswerStyle::HERMES)),
        ("within <tool_call><arg_key></tool_call>", None),
        ("", None),
    ] {
        let template = of(&format!(
            "{{{{ tools }}}} {words} {{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"
        ));
        assert_eq!(template.tool_style(), style, "{words}");
        assert!(template.leaves_out_calls());
    }
    let source =
        "{% if tools %}{{ tools }}{% endif %}<|start|>assistant<|channel|>final<|message|>";
    assert_eq!(of(source).tool_style(), Some(AnswerStyle::Harmony));
    let without = of(&source.replace("tools", "no"));
    assert_eq!((without.tool_style(), without.answer_style()), (None, Some(AnswerStyle::Harmony)));
}

#[test]
fn templates_say_whether_arguments_are_to_be_text() {
    for (arguments, as_text) in [
        ("{{ c.function.arguments | tojson }}", false),
        ("{{ c.function.arguments }}", true),
        ("{{ '' + c.function.arguments }}", true),
        (
            "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
            false,
        ),
    ] {
        let source = format!(
            "{{{{ tools }}}}{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls %}}<tool_call>\
             {{\"name\": \"{{{{ c.function.name }}}}\", \"arguments\": {arguments}}}</tool_call>\n\
             {{% endfor %}}{{% endfor %}}"
        );
        let template = of(&source);
        assert_eq!(template.tool_style(), Some(AnswerStyle::HERMES), "{arguments}");
        assert_eq!(template.wants_arguments_as_text(), as_text, "{arguments}");
        assert!(template.takes_several_calls() && !template.leaves_out_calls(), "{arguments}");
    }
}

#[test]
fn templates_say_whether_they_take_what_the_system_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    for (name, takes) in [
        ("mistral-v0.1", [false, false]),
        ("mistral-v0.3", [true, false]),
        ("llama3.2", [true, true]),
        ("chatml", [true, true]),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let tokens = vec![("eos_token".to_owned(), "</s>".to_owned())];
        let template = ChatTemplate::new(source, tokens, name.into(), Zoned::now).unwrap();
        assert_eq!(template.takes_system(), takes, "{name}");
    }
    let silent = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
    assert_eq!(of(silent).takes_system(), [false; 2]);
    assert_eq!(of("{{ raise_exception('never') }}").takes_system(), [true; 2]);
    // Each of two by itself.
    let takes = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let two = ChatTemplate::of_two(silent.into(), Some(takes.into()), Vec::new(), "here".into());
    let (template, talk) = (two.unwrap(), [Message::new("system", "S"), Message::new("user", "a")]);
    assert_eq!(template.say_as_user(&talk, false)[0]["content"], "S\n\na");
    assert_eq!(template.say_as_user(&talk, true).len(), 2);
}

#[test]
fn however_much_the_system_says_is_said_by_the_user() {
    let template = of("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}");
    let mut talk = vec![Message::new("system", "S"); 200_000];
    talk.push(Message::new("user", "a"));
    let said = template.say_as_user(&talk, false);
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["content"].as_str().unwrap().len(), 3 * 200_000 + 1);
    let parts = serde_json::json!([{"type": "text", "text": "a"}]);
    let talk = ["S", "T"].map(|it| serde_json::json!({"role": "system", "content": it}));
    let user = serde_json::json!({"role": "user", "content": parts});
    let said = template.say_as_user(&[&talk[..], &[user]].concat(), false);
    let texts =
        said[0]["content"].as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), "STa");
}

#[test]
fn templates_say_what_thoughts_are_called() {
    let named = |name: &str| {
        let source = format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% if m.tool_calls %}}{{{{ m.tool_plan }}}}{{% else %}}\
             {{{{ m.{name} }}}}{{% endif %}}{{% endfor %}}"
        );
        [false, true].map(|calls| of(&source).thoughts_name(calls))
    };
    assert_eq!(named("thinking"), [Some("thinking"), Some("tool_plan")]);
    assert_eq!(named("other"), [None, Some("tool_plan")]);
}

#[test]
fn templates_say_whether_words_stand_before_calls() {
    let call = "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}";
    for (source, before) in [
        (format!("{{{{ m.content }}}}{call}"), true),
        (format!("{call}{{{{ m.content }}}}"), false),
        (format!("{call}{{{{ m.content if not m.tool_calls }}}}"), false),
        ("{{ m.content }}".into(), true),
    ] {
        let template = of(&format!("{{% for m in messages %}}{source}{{% endfor %}}"));
        assert_eq!(template.takes_words_before_calls(), before, "{source}");
    }
}

#[test]
fn templates_say_how_they_are_told_of_tools() {
    let said = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for (source, shows, of_system) in [
        (said.to_owned(), false, false),
        (format!("{said}{{{{ tools }}}}"), true, false),
        (format!("{{{{ messages[0].tools }}}}{said}"), false, true),
    ] {
        let template = of(&source);
        assert_eq!(template.shows_tools(), shows, "{source}");
        assert_eq!(template.takes_tools_of_system(), of_system, "{source}");
    }
}

#[test]
fn templates_say_whether_they_know_tools() {
    for (source, knows) in [
        ("{{ messages[0].content }}", false),
        ("{{ messages[0].content }}{{ tools }}", true),
        ("{{ messages[0].content }}{{ (messages | last).tool_calls[0].function.name }}", true),
    ] {
        assert_eq!(of(source).knows_tools(), knows, "{source}");
    }
}

#[test]
fn templates_say_what_thoughts_stand_between() {
    let mistral = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                   {% for p in m.content %}{{ '[THINK]' + p.thinking + '[/THINK]' if p.type == 'thinking' }}{% endfor %}\
                   {% endif %}{% endfor %}";
    let [parts, words, none] = [mistral, "[THINK] and [/THINK]", "a"].map(of);
    assert_eq!(
        [&parts, &words, &none].map(|it| it.thoughts()),
        [Some(MISTRAL_THINK), Some(MISTRAL_THINK), None]
    );
    assert_eq!([parts, words, none].map(|it| it.takes_thought_parts()), [true, false, false]);
    assert_eq!(of("</think>").thoughts(), Some(THINK));
}
