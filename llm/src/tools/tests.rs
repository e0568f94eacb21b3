mod accepts;
mod one_by_one;

use llguidance::api::TopLevelGrammar;
use serde_json::Map;
use text::THINK;

use super::*;
use crate::form::{Thinks, harmony};
use accepts::{accepts, special};

/// Those of a request with these `fields` of OpenAI's.
fn tools_of(fields: &Map<String, Value>) -> Tools {
    let choice = match fields.get("tool_choice") {
        None => ToolChoice::Auto,
        Some(choice) if choice == "required" => ToolChoice::Required,
        Some(choice) => ToolChoice::Named(choice["function"]["name"].as_str().unwrap().into()),
    };
    let mut tools = Tools::new(fields["tools"].as_array().unwrap(), &choice).unwrap();
    if fields.get("parallel_tool_calls") == Some(&false.into()) {
        tools.call_one();
    }
    tools
}

const PERHAPS: Thinks = Thinks::Perhaps(THINK);
const ALREADY: Thinks = Thinks::Already(THINK);

/// Whether an answer may be `text` with two tools, a byte a token; how much of it may be said if not.
fn check(style: AnswerStyle, more: Value, thinks: Thinks, text: &str) -> Result<(), String> {
    check_beside(None, &[], style, more, thinks, text)
}

/// The same, where the text may have a form of its own, and `marks` are special tokens.
fn check_beside(
    own: Option<Form>,
    marks: &[&str],
    style: AnswerStyle,
    more: Value,
    thinks: Thinks,
    text: &str,
) -> Result<(), String> {
    let parameters = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}},
        "required": ["x"], "additionalProperties": false, "$defs": {"y": {"enum": [1, 2]}}});
    let mut fields = json!({"tools": [
        {"type": "function", "function": {"name": "f", "parameters": parameters}},
        {"type": "function", "function": {"name": "g"}},
    ]});
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let Value::Object(fields) = fields else { unreachable!() };
    let tools = tools_of(&fields);
    let special = |text: &str| special(marks, text);
    let lark = tools.grammar(&special, style, (thinks, None), own.is_some()).unwrap();
    let grammar = match own {
        Some(own) => own.within(lark).grammar().clone(),
        None => TopLevelGrammar::from_lark(lark),
    };
    accepts(&grammar, marks, text)
}

const F: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 2}}\n</tool_call>";
const G: &str = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

#[test]
fn calls_that_are_wanted_come_and_nothing_else() {
    let must = |style, more: Value, text: &str| {
        let mut fields = json!({"tool_choice": "required"});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check(style, fields, Thinks::Never, text)
    };
    let hermes = |text: &str| must(AnswerStyle::HERMES, json!({}), text);
    assert_eq!(hermes(F), Ok(()));
    assert_eq!(hermes(G), Ok(()));
    assert_eq!(hermes(&format!("{F}\n{G}")), Ok(()));
    assert_eq!(hermes("Hello"), Err(String::new()));
    assert_eq!(hermes(&F.replace('2', "3")), Err(F[..F.find('2').unwrap()].into()));
    assert_eq!(hermes(&F[..20]), Err(F[..20].into()));
    let one = json!({"parallel_tool_calls": false});
    assert_eq!(must(AnswerStyle::HERMES, one.clone(), F), Ok(()));
    assert_eq!(must(AnswerStyle::HERMES, one, &format!("{F}\n{G}")), Err(F.into()));
    let g = json!({"tool_choice": {"type": "function", "function": {"name": "g"}}});
    assert_eq!(must(AnswerStyle::HERMES, g.clone(), G), Ok(()));
    let name = F.find("f\"").unwrap();
    assert_eq!(must(AnswerStyle::HERMES, g, F), Err(F[..name].into()));
    let llama = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
    assert_eq!(must(AnswerStyle::Llama3, json!({}), llama), Ok(()));
    assert_eq!(must(AnswerStyle::Llama3, json!({}), &format!("{llama}; {llama}")), Ok(()));
    let list = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, \
                {\"name\": \"g\", \"arguments\": {}}]";
    assert_eq!(must(AnswerStyle::MISTRAL, json!({}), list), Ok(()));
    let coder = |text: &str| must(AnswerStyle::QWEN_CODER, json!({}), text);
    let f = "<tool_call>\n<function=f>\n<parameter=x>\n2\n</parameter>\n</function>\n</tool_call>";
    let g = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    assert_eq!(coder(&format!("{f}\n{g}")), Ok(()));
    assert_eq!(coder(&f.replace('2', "3")), Err(f[..f.find('2').unwrap()].into()));
    assert_eq!(coder("<tool_call>\n<function=f>\n</"), Err("<tool_call>\n<function=f>\n<".into()));
    assert_eq!(coder(F), Err("<tool_call>\n".into()));
    let two = "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}";
    assert_eq!(must(AnswerStyle::MistralArgs, json!({}), two), Ok(()));
}

#[test]
fn thoughts_may_come_first() {
    let must = |thinks, text: &str| {
        check(AnswerStyle::HERMES, json!({"tool_choice": "required"}), thinks, text)
    };
    let thought = format!("<think>\nHm </b>.\n</think>\n\n{F}");
    assert_eq!(must(PERHAPS, &thought), Ok(()));
    assert_eq!(must(PERHAPS, F), Ok(()));
    assert_eq!(must(ALREADY, &thought["<think>".len()..]), Ok(()));
    assert_eq!(must(Thinks::Never, &thought), Err("<t".into()));
}

#[test]
fn words_are_free_until_a_call_begins() {
    let auto = |style, text: &str| check(style, json!({}), Thinks::Never, text);
    for style in [AnswerStyle::HERMES, AnswerStyle::MISTRAL, AnswerStyle::MistralArgs] {
        for text in ["", "Any words, {\"x\": 3} or <tool and [TOOL\n.", "<think>a</think>\nb"] {
            assert_eq!(auto(style, text), Ok(()), "{style:?}: {text}");
        }
    }
    let said = format!("Let me look.\n{F}");
    assert_eq!(auto(AnswerStyle::HERMES, &said), Ok(()));
    assert_eq!(auto(AnswerStyle::HERMES, &format!("{said}\n{G}")), Ok(()));
    let wrong = said.replace('2', "3");
    assert_eq!(auto(AnswerStyle::HERMES, &wrong), Err(wrong[..wrong.find('3').unwrap()].into()));
    assert_eq!(auto(AnswerStyle::HERMES, "a <tool_call>no"), Err("a <tool_call>".into()));
    assert_eq!(
        auto(AnswerStyle::MISTRAL, "a [TOOL_CALLS] [{\"name\": \"h\""),
        Err("a [TOOL_CALLS] [{\"name\": \"".into())
    );
}

#[test]
fn a_call_within_thoughts_is_a_thought() {
    for marks in [&[][..], &["<tool_call>", "</tool_call>"], &THINK] {
        let auto = |thinks, text: &str| {
            check_beside(None, marks, AnswerStyle::HERMES, json!({}), thinks, text)
        };
        let quoted = if marks.contains(&"<tool_call>") { "call" } else { "<tool_call>no" };
        for (thinks, begin) in [(ALREADY, ""), (PERHAPS, "<think>")] {
            let thought = format!("{begin}Hm, {quoted}.\n");
            for said in ["", "\n\nWords.", &format!("\n\n{F}"), &format!("\nLook:\n{F}\n{G}")] {
                let text = format!("{thought}</think>{said}");
                assert_eq!(auto(thinks, &text), Ok(()), "{marks:?}: {text}");
            }
            assert_eq!(auto(thinks, &thought), Err(thought.clone()), "{marks:?}: they end");
            let wrong = format!("{thought}</think>\n{}", F.replace('2', "3"));
            let before = wrong[..wrong.find('3').unwrap()].to_owned();
            assert_eq!(auto(thinks, &wrong), Err(before), "{marks:?}");
        }
        for said in ["", " <thin", "Words.", F, &format!("Look:\n{F}")] {
            assert_eq!(auto(PERHAPS, said), Ok(()), "{marks:?}: {said}");
        }
    }
}

#[test]
fn thoughts_may_lie_between_special_tokens() {
    let must = |thinks, text: &str| {
        let more = json!({"tool_choice": "required"});
        check_beside(None, &THINK, AnswerStyle::HERMES, more, thinks, text)
    };
    let thought = format!("<think>\nHm.\n</think>\n\n{F}");
    assert_eq!(must(PERHAPS, &thought), Ok(()));
    assert_eq!(must(PERHAPS, F), Ok(()));
    assert_eq!(must(ALREADY, &thought["<think>".len()..]), Ok(()));
    for (form, text) in forms() {
        let thoughts = format!("Hm.\n</think>\n\n{text}");
        let form = ALREADY.before(&|text| special(&THINK, text), None, form);
        assert_eq!(accepts(form.grammar(), &THINK, &thoughts), Ok(()));
    }
}

/// JSON of a schema, an expression, and a grammar; each with a text that has its form.
fn forms() -> [(Form, &'static str); 3] {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}},
                        "required": ["name"], "additionalProperties": false});
    [
        (Form::json_schema(schema), "{\"name\": \"g\"}"),
        (Form::regex("[0-9]+ cats"), "12 cats"),
        (Form::lark("start: \"a\" call\ncall: /b+c/"), "abbc"),
    ]
}

#[test]
fn an_answer_is_calls_or_text_of_its_form() {
    let styles = [
        (AnswerStyle::HERMES, G, format!("{F}\n{G}")),
        (AnswerStyle::Llama3, "{\"name\": \"g\", \"parameters\": {}}", String::new()),
        (
            AnswerStyle::MISTRAL,
            "[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}]",
            String::new(),
        ),
        (AnswerStyle::MistralArgs, "[TOOL_CALLS]g[ARGS]{}", String::new()),
    ];
    for (style, call, two) in styles {
        for at in 0..forms().len() {
            let either = |text: &str| {
                let own = forms().into_iter().nth(at).map(|it| it.0);
                check_beside(own, &[], style, json!({}), PERHAPS, text)
            };
            let text = forms()[at].1;
            assert_eq!(either(text), Ok(()), "{style:?}");
            assert_eq!(either(call), Ok(()), "{style:?}");
            assert_eq!(either(&format!("<think>a</think>\n{text}")), Ok(()), "{style:?}");
            if !two.is_empty() {
                assert_eq!(either(&two), Ok(()), "{style:?}");
            }
            let wrong = call.replace("g", "h");
            let [wrong, both] = [wrong, format!("{text}{call}")].map(|it| either(&it));
            assert!(wrong.is_err() && both.is_err(), "{style:?}: {wrong:?} {both:?}");
            assert_eq!(either("Hello"), Err(String::new()), "{style:?}");
        }
    }
}

#[test]
fn a_form_begins_behind_thoughts_that_have_begun() {
    for (form, text) in forms() {
        let thoughts = format!("Hm.\n</think>\n\n{text}");
        let grammar = ALREADY.before(&|_| None, None, form).grammar().clone();
        assert_eq!(accepts(&grammar, &[], &thoughts), Ok(()));
        assert!(accepts(&grammar, &[], &thoughts[..thoughts.len() - 1]).is_err());
    }
    for (form, text) in forms() {
        assert_eq!(accepts(PERHAPS.before(&|_| None, None, form).grammar(), &[], text), Ok(()));
    }
}

#[test]
fn calls_in_harmony_are_messages() {
    let next = "<|end|><|start|>assistant";
    let thoughts = format!(
        "<|channel|>analysis<|message|>Hm <b>.\n{next}<|channel|>analysis<|message|>{next}"
    );
    let words = format!("<|channel|>commentary<|message|>Let me look.{next}");
    let text = "<|channel|>final<|message|>{\"name\": \"g\"}";
    let headers = [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f<|constrain|>json",
        " to=functions.f<|channel|>commentary json",
        " to=functions.f<|channel|>commentary",
    ];
    for marks in [AnswerStyle::Harmony.special_tokens().as_slice(), &[]] {
        let check = |own: bool, more: &Value, text: &str| {
            let own = own.then(|| forms().into_iter().next().unwrap().0);
            let style = AnswerStyle::Harmony;
            check_beside(own, marks, style, more.clone(), PERHAPS, text)
        };
        let (auto, must) = (json!({}), json!({"tool_choice": "required"}));
        for header in headers {
            let call = format!("{header}<|message|>{{\"x\": 2}}");
            for (own, more) in [(false, &auto), (false, &must), (true, &auto)] {
                assert_eq!(check(own, more, &call), Ok(()));
                assert_eq!(check(own, more, &format!("{thoughts}{call}")), Ok(()));
                let wrong = call.replace('2', "3");
                let before = wrong[..wrong.find('3').unwrap()].to_owned();
                assert_eq!(check(own, more, &wrong), Err(before));
                let wrong = call.replace("functions.f", "functions.h");
                let before = wrong[..wrong.find(".h").unwrap() + 1].to_owned();
                assert_eq!(check(own, more, &wrong), Err(before));
                // It ends the answer.
                assert_eq!(check(own, more, &format!("{call}{next}")), Err(call.clone()));
            }
            assert_eq!(check(false, &auto, &format!("{thoughts}{words}{call}")), Ok(()));
            assert!(check(false, &must, &format!("{words}{call}")).is_err());
            assert!(check(true, &auto, &format!("{words}{call}")).is_err());
        }
        for said in [text, "<|channel|>final<|message|>Any <|b|>,\nwords"] {
            assert_eq!(check(false, &auto, said), Ok(()));
            assert_eq!(check(false, &auto, &format!("{thoughts}{words}{said}")), Ok(()));
            assert!(check(false, &must, said).is_err());
        }
        assert_eq!(check(true, &auto, &format!("{thoughts}{text}")), Ok(()));
        assert!(check(true, &auto, "<|channel|>final<|message|>Words").is_err());
        assert!(check(false, &auto, "Words").is_err());
    }
}

#[test]
fn a_form_in_harmony_begins_behind_thoughts() {
    for marks in [AnswerStyle::Harmony.special_tokens().as_slice(), &[]] {
        for (form, text) in forms() {
            let form = harmony::with_form(&|text| special(marks, text), form);
            let check = |text: &str| accepts(form.grammar(), marks, text);
            let thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
            for final_ in ["<|channel|>final", "<|channel|>final <|constrain|>json"] {
                let said = format!("{final_}<|message|>{text}");
                assert_eq!(check(&said), Ok(()));
                assert_eq!(check(&format!("{thoughts}{thoughts}{said}")), Ok(()));
                assert!(check(&said[..said.len() - 1]).is_err());
            }
            assert!(check(text).is_err() && check(thoughts).is_err());
        }
    }
}

/// The arguments of the call `text`, as who reads answers tells them; null where they are no JSON.
fn read(style: AnswerStyle, text: &str) -> Value {
    let mut reply = text::Reply::new(Some(style), None);
    let mut parts = reply.push(text);
    parts.extend(reply.finish());
    let pieces = parts.into_iter().filter_map(|part| match part {
        text::Part::Arguments(text) => Some(text),
        _ => None,
    });
    serde_json::from_str(&pieces.collect::<String>()).unwrap_or_default()
}

/// The grammar of calls in `style` of one tool with `parameters`, where calls have to come.
fn must(style: AnswerStyle, parameters: &Value) -> TopLevelGrammar {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let Value::Object(fields) = json!({"tools": [tool], "tool_choice": "required"}) else {
        unreachable!()
    };
    let tools = tools_of(&fields);
    TopLevelGrammar::from_lark(
        tools.grammar(&|_| None, style, (Thinks::Never, None), false).unwrap(),
    )
}

#[test]
fn calls_between_marks_are_as_they_are_written() {
    let (x, none) = (json!({"x": 2}), json!({}));
    for style in AnswerStyle::marked() {
        let [one, two] = [&[("f", &x)][..], &[("f", &x), ("g", &none)]]
            .map(|calls| format!("Look:\n{}", style.written(calls).unwrap()));
        let tokens = style.special_tokens();
        let answer = |marks: &[&str], more: Value, text: &str| {
            check_beside(None, marks, style, more, Thinks::Never, text)
        };
        assert_eq!(answer(&[], json!({}), &two), Ok(()), "{style:?}");
        let wrong = two.replace("2", "3");
        let before = wrong[..wrong.find('3').unwrap()].to_owned();
        assert_eq!(answer(&tokens, json!({}), &wrong), Err(before), "{style:?}");
        let one_call = json!({"parallel_tool_calls": false});
        assert_eq!(answer(&tokens, one_call.clone(), &one), Ok(()), "{style:?}");
        assert!(answer(&tokens, one_call, &two).is_err(), "{style:?}");
        let must = json!({"tool_choice": "required"});
        let calls = two.strip_prefix("Look:\n").unwrap();
        assert_eq!(answer(&tokens, must.clone(), calls), Ok(()), "{style:?}");
        assert!(answer(&tokens, must, &two).is_err(), "{style:?}");
    }
}

#[test]
fn arguments_of_gemma_are_as_it_writes_them() {
    let parameters = json!({"type": "object", "required": ["way"], "properties": {
        "way": {"enum": ["a", "b \"c\""]}, "path": {"type": "string"}, "few": {"type": "integer", "maximum": 9},
        "deep": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
        "any": {}, "meta": {"type": "object", "properties": {"a:b": {"type": "string"}}},
    }});
    let grammar = must(AnswerStyle::GEMMA, &parameters);
    let of = |arguments: &str| {
        let arguments = arguments.replace('\'', text::GEMMA_TEXT);
        let call = format!("<|tool_call>call:f{{{arguments}}}<tool_call|>");
        let is_one = accepts(&grammar, &[], &call).is_ok();
        assert!(!is_one || read(AnswerStyle::GEMMA, &call).is_object());
        is_one
    };
    for good in [
        "way:'a'",
        "any:{b c:['x',1,null]},deep:[{x:true},{}],few:7,path:'x \"y\" <|\n',way:'b \"c\"'",
        "meta:{\"a:b\": \"x\"},way:'a'",
    ] {
        assert!(of(good), "{good}");
    }
    for wrong in [
        "",
        "path:'x'",
        "way:'c'",
        "few:12,way:'a'",
        "deep:[{y:1}],way:'a'",
        "way:'a',path:'x'",
        "meta:{a:b:'x'},way:'a'",
    ] {
        assert!(!of(wrong), "{wrong}");
    }
}

#[test]
fn apertus_calls_from_within_its_thoughts() {
    let thinks = Thinks::Perhaps(["<|inner_prefix|>", "<|inner_suffix|>"]);
    let style = AnswerStyle::APERTUS;
    let marks =
        [style.special_tokens().as_slice(), &["<|inner_prefix|>", "<|inner_suffix|>"]].concat();
    let call = style.written(&[("g", &json!({}))]).unwrap();
    for more in [json!({}), json!({"tool_choice": "required"})] {
        let answer = |text: &str| check_beside(None, &marks, style, more.clone(), thinks, text);
        for before in ["", "<|inner_prefix|>Hm.", "<|inner_prefix|>Hm.<|inner_suffix|>"] {
            assert_eq!(answer(&format!("{before}{call}")), Ok(()), "{before}");
        }
        assert!(answer("<|inner_prefix|>Hm.").is_err());
    }
}

#[test]
fn words_of_cohere_may_be_in_a_response() {
    let response = ["<|START_RESPONSE|>", "<|END_RESPONSE|>"];
    let tool = json!({"type": "function", "function": {"name": "g"}});
    let Value::Object(fields) = json!({"tools": [tool]}) else { unreachable!() };
    let tools = tools_of(&fields);
    let style = AnswerStyle::COHERE;
    let marks = [style.special_tokens().as_slice(), &response, &text::COHERE_THINK].concat();
    let (thinks, special) =
        (Thinks::Perhaps(text::COHERE_THINK), |text: &str| special(&marks, text));
    let lark = tools.grammar(&special, style, (thinks, Some(response)), false).unwrap();
    let grammar = TopLevelGrammar::from_lark(lark);
    let call = style.written(&[("g", &json!({}))]).unwrap();
    let thought = "<|START_THINKING|>Hm.<|END_THINKING|>";
    for good in [
        format!("{thought}<|START_RESPONSE|>Yes.<|END_RESPONSE|>"),
        format!("{thought}{call}"),
        "Yes.".into(),
    ] {
        assert_eq!(accepts(&grammar, &marks, &good), Ok(()), "{good}");
    }
    assert!(accepts(&grammar, &marks, "<|END_RESPONSE|>").is_err());
    // Marks that are text are no words behind thoughts alone.
    for (thinks, is_taken) in [(ALREADY, true), (PERHAPS, false), (Thinks::Never, false)] {
        let (form, said) = forms().into_iter().next().unwrap();
        let form = thinks.before(&special, Some(["<response>", "</response>"]), form);
        let thoughts = if is_taken { "Hm.</think>" } else { "" };
        assert_eq!(accepts(form.grammar(), &marks, &format!("{thoughts}{said}")), Ok(()));
        let text = format!("{thoughts}<response>{said}</response>");
        assert_eq!(accepts(form.grammar(), &marks, &text).is_ok(), is_taken, "{thinks:?}");
    }
    let (form, said) = forms().into_iter().next().unwrap();
    let form = ALREADY.before(&special, Some(response), form);
    let text = format!("Hm.</think><|START_RESPONSE|>{said}<|END_RESPONSE|>");
    assert_eq!(accepts(form.grammar(), &marks, &text), Ok(()));
}

#[test]
fn arguments_of_python_are_its_literals() {
    let parameters = json!({"type": "object", "required": ["way"], "properties": {
        "path": {"type": "string", "description": "Where."}, "way": {"enum": ["a", "it's \"b\""]},
        "deep": {"type": "boolean"}, "lines": {"type": "array", "items": {"type": "integer"}},
        "few": {"type": "integer", "minimum": 0, "maximum": 9}, "short": {"type": "string", "maxLength": 3},
    }});
    let of = |parameters: &Value, arguments: &str| {
        let text = format!("<|tool_call_start|>[f({arguments})]<|tool_call_end|>");
        let is_one = accepts(&must(AnswerStyle::LFM2, parameters), &[], &text).is_ok();
        assert!(!is_one || read(AnswerStyle::LFM2, &text).is_object(), "{text}");
        is_one
    };
    for good in [
        "way=\"a\"",
        "way='it\\'s \"b\"'",
        "way=\"it's \\\"b\\\"\"",
        "path='x \\'y\\' \"z\"', way='a', deep=True, lines=[1, 2]",
        "path=\"\", way=\"a\", few=7, short=\"abc\"",
        "way=\"a\", deep=false",
    ] {
        assert!(of(&parameters, good), "{good}");
    }
    for wrong in [
        "",
        "path='x'",
        "way='c'",
        "way='a', lines=[1.5]",
        "way='a', few=12",
        "way='a', short=\"abcd\"",
        "way='a', other=1",
        "deep=True, way='a'",
        "way='a',",
        "way='a' path='x'",
    ] {
        assert!(!of(&parameters, wrong), "{wrong}");
    }
    let optional =
        json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "number"}}});
    for good in ["", "a=None", "b=-2.5", "a=None, b=1"] {
        assert!(of(&optional, good), "{good}");
    }
    let any = json!({"type": "object"});
    assert!(of(&any, "") && of(&any, "a='x', b_1=[1, {\"c\": null}]") && !of(&any, "1"));
    let none = json!({"type": "object", "additionalProperties": false});
    assert!(of(&none, "") && !of(&none, "a=1"));
}

#[test]
fn arguments_of_python_are_as_it_writes_them() {
    let of = |schema: Value, argument: &str| {
        let parameters = json!({"type": "object", "properties": {
            "p": schema, "q": {"type": "integer", "maximum": 9},
        }, "$defs": {"d": {"enum": ["b", 1, null]}, "node": {"type": ["array", "null"], "items": {"$ref": "#/$defs/node"}}}});
        let text = format!("<|tool_call_start|>[f({argument})]<|tool_call_end|>");
        let is_one = accepts(&must(AnswerStyle::LFM2, &parameters), &[], &text).is_ok();
        assert!(!is_one || read(AnswerStyle::LFM2, &text).is_object(), "{text}");
        is_one
    };
    let kinds = json!({"type": ["string", "null"]});
    let any_of =
        json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "P"});
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let truths = json!({"type": "array", "items": {"type": "boolean"}});
    let short = json!({"type": "string", "minLength": 1, "maxLength": 2});
    for (schema, good, wrong) in [
        (json!({"type": "string"}), "\"a\nb\\\nc\"", "1"),
        (json!({"type": "string"}), "'a\nb'", "'a"),
        (kinds.clone(), "None", "1"),
        (kinds, "'x'", "True"),
        (any_of.clone(), "None", "1"),
        (any_of, "'x'", "[]"),
        (texts, "['a', \"b\"]", "[1]"),
        (truths, "[True, false]", "['a']"),
        (json!({"type": "array"}), "['a', {'b': None}]", "{}"),
        (json!({"type": "object", "additionalProperties": true}), "{'a': 1, \"b\": [True]}", "[]"),
        (short.clone(), "'a\\n'", "'abc'"),
        (short, "\"a\"", "\"\""),
        (json!(true), "{'a': None}", "x"),
        (json!({"description": "Any."}), "True", "x"),
        (json!({"$ref": "#/properties/q"}), "7", "12"),
        (json!({"$ref": "#/$defs/d"}), "'b'", "2"),
        (json!({"$ref": "#/$defs/d"}), "None", "'c'"),
        (
            json!({"type": "array", "items": {"$ref": "#/properties/q"}, "maxItems": 1}),
            "[7]",
            "[7, 7]",
        ),
        (json!({"$ref": "#/$defs/node"}), "[None]", "[1]"),
        (json!(false), "", "1"),
    ] {
        let argument = |it: &str| if it.is_empty() { String::new() } else { format!("p={it}") };
        assert!(of(schema.clone(), &argument(good)), "{schema}: {good}");
        assert!(!of(schema.clone(), &argument(wrong)), "{schema}: {wrong}");
    }
}

#[test]
fn tools_are_loosened_that_are_at_fault_in_their_style() {
    let can_be = |form: &Form| {
        let form = std::panic::AssertUnwindSafe(form);
        std::panic::catch_unwind(|| accepts(form.grammar(), &[], "")).is_ok()
    };
    // Nothing is in the list: as one of all arguments it is left out.
    let odd = json!({"type": "object", "properties": {"x": {"enum": []}}});
    let good = json!({"type": "object", "properties": {"x": {"enum": ["a"]}}});
    for style in [AnswerStyle::LFM2, AnswerStyle::QWEN_CODER] {
        let tools = json!({"tools": [
            {"type": "function", "function": {"name": "f", "parameters": odd}},
            {"type": "function", "function": {"name": "g", "parameters": good}},
        ]});
        let Value::Object(fields) = tools else { unreachable!() };
        let mut tools = tools_of(&fields);
        assert!(tools.loosen(&Forms::of_tales(), style, can_be));
        let is_loose = |it: &Tool| it.parameters["properties"].is_null();
        assert_eq!(
            tools.tools.iter().map(is_loose).collect::<Vec<_>>(),
            [true, false],
            "{style:?}"
        );
    }
}

#[test]
fn thoughts_of_mistral_come_first() {
    let thinks = Thinks::Perhaps(text::MISTRAL_THINK);
    for marks in [&[][..], &["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"]] {
        let answer = |more: Value, text: &str| {
            check_beside(None, marks, AnswerStyle::MistralArgs, more, thinks, text)
        };
        let call = "[TOOL_CALLS]g[ARGS]{}";
        for text in [call.to_owned(), format!("[THINK]Hm [T].[/THINK]{call}")] {
            assert_eq!(answer(json!({}), &text), Ok(()));
            assert_eq!(answer(json!({"tool_choice": "required"}), &text), Ok(()));
        }
        assert_eq!(answer(json!({}), "[THINK]Hm[/THINK]Words."), Ok(()));
        assert!(answer(json!({}), "[THINK]Hm").is_err());
    }
}

#[test]
fn a_schema_that_says_too_much_cannot_be_kept_to() {
    let node = json!({"$ref": "#/$defs/node"});
    let object = |arguments: Map<String, Value>, node: Value| json!({"type": "object", "properties": arguments, "$defs": {"node": node}});
    // Alternatives of alternatives; what every argument has with it; and arguments, many, but plain ones.
    let one = Map::from_iter([("x".into(), node.clone())]);
    let wide = object(one, json!({"anyOf": vec![node.clone(); 60]}));
    let several =
        |count, schema: Value| (0..count).map(move |at| (format!("x{at}"), schema.clone()));
    let node = json!({"type": "object", "items": node});
    let long = object(several(200, node).collect(), json!({"description": "a".repeat(100_000)}));
    let plain = object(several(500, json!({"type": "string"})).collect(), json!({}));
    let many = object(several(501, json!({"type": "string"})).collect(), json!({}));
    for style in [AnswerStyle::LFM2, AnswerStyle::QWEN_CODER] {
        for (parameters, text, is_kept) in [
            (&wide, "", style == AnswerStyle::QWEN_CODER),
            (&long, "", false),
            (&many, "", false),
            (&plain, "x1='a', x498=\"b\"", true),
        ] {
            let tool =
                json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
            let Value::Object(fields) = json!({"tools": [tool], "tool_choice": "required"}) else {
                unreachable!()
            };
            let tools = tools_of(&fields);
            let lark = tools.grammar(&|_| None, style, (Thinks::Never, None), false).unwrap();
            assert_eq!(lark.contains("say_too_much"), !is_kept, "{style:?}");
            let grammar = TopLevelGrammar::from_lark(lark);
            let can_be = std::panic::catch_unwind(|| accepts(&grammar, &[], "")).is_ok();
            assert_eq!(can_be, is_kept, "{style:?}");
            if style == AnswerStyle::LFM2 && is_kept {
                let call = format!("<|tool_call_start|>[f({text})]<|tool_call_end|>");
                assert_eq!(accepts(&grammar, &[], &call), Ok(()));
            }
        }
    }
}
