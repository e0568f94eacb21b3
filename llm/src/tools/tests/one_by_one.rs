//! Calls whose arguments stand between marks, each by itself.

use super::*;

/// The grammar of calls of a tool of these `parameters`.
fn grammar(style: AnswerStyle, parameters: &Value, strict: bool) -> TopLevelGrammar {
    let function = json!({"name": "f", "parameters": parameters, "strict": strict});
    let tool = json!({"type": "function", "function": function});
    let fields = json!({"tools": [tool], "tool_choice": "required"});
    let Value::Object(fields) = fields else { unreachable!() };
    let tools = tools_of(&fields);
    let lark = tools.grammar(&|_| None, style, (Thinks::Never, None), false).unwrap();
    TopLevelGrammar::from_lark(lark)
}

/// Whether a call of Qwen3-Coder's may have these `arguments`.
fn check(parameters: &Value, arguments: &[(&str, &str)]) -> bool {
    let one = |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let all: String = arguments.iter().map(one).collect();
    let text = format!("<tool_call>\n<function=f>\n{all}</function>\n</tool_call>");
    accepts(&grammar(AnswerStyle::QWEN_CODER, parameters, false), &[], &text).is_ok()
}

#[test]
fn arguments_one_by_one_are_text_or_json() {
    let parameters = json!({"type": "object", "required": ["path", "way"], "properties": {
        "path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}},
        "way": {"enum": ["a", "b \"c\""]}, "maybe": {"type": ["string", "null"]}, "kind": {"$ref": "#/$defs/kind"},
    }, "$defs": {"kind": {"enum": ["x", "y"], "type": "string"}}});
    let [path, way] = [("path", "x <y>\n</param>\n\n{\"z\""), ("way", "b \"c\"")];
    assert!(check(&parameters, &[path, way]));
    assert!(check(&parameters, &[path, ("lines", "[1, 2]"), way, ("maybe", "null")]));
    assert!(check(&parameters, &[("path", ""), way, ("maybe", "")]));
    assert!(!check(&parameters, &[path, ("lines", "[1, 2.5]"), way]));
    assert!(!check(&parameters, &[path, ("way", "c")]));
    assert!(check(&parameters, &[path, way, ("kind", "y")]));
    assert!(!check(&parameters, &[path, way, ("kind", "z")]));
    assert!(!check(&parameters, &[path]));
    assert!(!check(&parameters, &[path, way, ("other", "x")]));
    // Any object.
    assert!(check(&json!({"type": "object"}), &[("a", "x"), ("b", "[")]));
    assert!(!check(&json!({"type": "object", "additionalProperties": false}), &[("a", "x")]));
}

#[test]
fn a_name_of_an_argument_is_text() {
    let name = "<|end|>".repeat(1000);
    let parameters = json!({"type": "object", "required": [name], "properties": {(&*name): {"type": "integer"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let Value::Object(fields) = json!({"tools": [tool]}) else { unreachable!() };
    let tools = tools_of(&fields);
    let style = AnswerStyle::GLM;
    let special = |text: &str| special(&["<|end|>", "<arg_key>", "</arg_key>"], text);
    let lark = tools.grammar(&special, style, (Thinks::Never, None), false).unwrap();
    assert!(lark.contains("<[257]> \"<|end|><|end|>") && !lark.contains("<[256]>"), "{lark:.400}");
}

/// As strict schemas have it that may be left out.
#[test]
fn a_list_may_have_null_beside_its_texts() {
    for schema in [
        json!({"type": ["string", "null"], "enum": ["a", "b", null]}),
        json!({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}),
        json!({"oneOf": [{"$ref": "#/$defs/way"}, {"type": "null"}], "description": "Which."}),
    ] {
        let parameters = json!({"type": "object", "required": ["way"], "properties": {"way": schema},
            "$defs": {"way": {"type": "string", "enum": ["a", "b"]}}});
        for (value, good) in [("a", true), ("null", true), ("zzz", false), ("", false)] {
            assert_eq!(check(&parameters, &[("way", value)]), good, "{schema}: {value:?}");
        }
    }
    // One that may be any text may be any.
    let any = json!({"anyOf": [{"enum": ["a"]}, {"type": "string"}]});
    let parameters = json!({"type": "object", "properties": {"way": any}});
    assert!(check(&parameters, &[("way", "zzz")]));
}

#[test]
fn a_schema_may_have_a_name() {
    let args = json!({"type": "object", "required": ["n"], "additionalProperties": false,
        "properties": {"n": {"$ref": "#/definitions/N"}}});
    let parameters = json!({"$ref": "#/definitions/Args", "definitions": {"Args": args, "N": {"type": "integer"}}});
    assert!(check(&parameters, &[("n", "5")]));
    for wrong in [&[("n", "x")][..], &[], &[("n", "5"), ("m", "5")]] {
        assert!(!check(&parameters, wrong), "{wrong:?}");
    }
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let Value::Object(fields) = json!({"tools": [tool]}) else { unreachable!() };
    let tools = tools_of(&fields);
    // The template is shown what came, and calls are read by what it means.
    assert_eq!(tools.values()[0]["function"]["parameters"], parameters);
    assert_eq!(tools.schemas()[0].1["properties"]["n"], json!({"$ref": "#/definitions/N"}));
}

#[test]
fn a_reference_that_says_only_a_part_stays() {
    for parameters in [
        json!({"$ref": "#/$defs/Typo", "$defs": {}}),
        json!({"$ref": "https://example.com/a.json"}),
        json!({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}),
        json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}, "properties": {"b": {"type": "integer"}}}),
    ] {
        assert_eq!(argument::without_reference(&parameters), parameters);
        let grammar = grammar(AnswerStyle::QWEN_CODER, &parameters, true);
        let can_be = std::panic::catch_unwind(|| accepts(&grammar, &[], "")).is_ok();
        assert!(!can_be, "{parameters} is not kept to");
    }
}

#[test]
fn arguments_of_any_name_have_a_schema() {
    let parameters = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    assert!(check(&parameters, &[("a", "5"), ("b", "-1")]));
    assert!(!check(&parameters, &[("a", "x")]));
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    assert!(check(&texts, &[("a", "x")]));
    let listed = json!({"type": "object", "additionalProperties": {"enum": ["x", "y"]}});
    assert!(check(&listed, &[("a", "x")]) && !check(&listed, &[("a", "z")]));
}

/// What is said of all arguments together is not kept to one by one: who insists is told.
#[test]
fn what_cannot_be_kept_to_is_refused_where_it_is_insisted_on() {
    let either = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    for style in [AnswerStyle::QWEN_CODER, AnswerStyle::LFM2] {
        let is_kept = |parameters: &Value, strict| {
            let grammar = grammar(style, parameters, strict);
            std::panic::catch_unwind(|| accepts(&grammar, &[], "")).is_ok()
        };
        assert!(is_kept(&either, false) && !is_kept(&either, true), "{style:?}");
        let mut plain = either.clone();
        plain.as_object_mut().unwrap().remove("anyOf");
        plain["description"] = "Two numbers.".into();
        plain["x-order"] = json!(["a", "b"]);
        let mut more = plain.clone();
        more["required"] = json!(["a", "c"]);
        assert!(!is_kept(&more, true), "{style:?}: of `c` nothing is known");
        assert!(is_kept(&plain, true), "{style:?}");
    }
}
