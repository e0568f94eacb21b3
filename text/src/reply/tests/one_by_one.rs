//! Calls whose arguments stand between marks, each by itself.

use super::*;

#[test]
fn arguments_one_by_one_are_what_their_schemas_say() {
    let schema = serde_json::json!({"type": "object", "properties": {
        "path": {"type": "string"}, "lines": {"type": "array"}, "deep": {"$ref": "#/$defs/n"},
        "all": {"type": "boolean"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "way": {"enum": ["a", "b"]},
    }, "$defs": {"n": {"type": "integer"}}});
    let schemas: std::sync::Arc<[_]> = [("edit".to_owned(), schema)].into();
    let new = || Reply::new(Some(AnswerStyle::QWEN_CODER), Some(THINK)).of_schemas(schemas.clone());
    let of = |arguments: &[(&str, &str)]| {
        let one =
            |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let all: String = arguments.iter().map(one).collect();
        format!("<tool_call>\n<function=edit>\n{all}</function>\n</tool_call>")
    };
    let text = of(&[
        ("path", "a \"b\"\n\n</param> \\é\n"),
        ("lines", "[1,\n {\"x\": 2}]"),
        ("deep", "7"),
        ("all", "True"),
        ("maybe", "null"),
        ("way", "b"),
        ("other", "5"),
    ]);
    let arguments = "{\"path\": \"a \\\"b\\\"\\n\\n</param> \\\\é\\n\", \"lines\": [1,\n {\"x\": 2}], \
                     \"deep\": 7, \"all\": true, \"maybe\": null, \"way\": \"b\", \"other\": \"5\"}";
    assert!(serde_json::from_str::<serde_json::Value>(arguments).is_ok());
    check(new, &text, &call("edit", arguments));
    check(new, &of(&[]), &call("edit", "{}"));
    let maybe = of(&[("maybe", "nullify"), ("deep", "seven"), ("path", "")]);
    let arguments = "{\"maybe\": \"nullify\", \"deep\": \"seven\", \"path\": \"\"}";
    check(new, &maybe, &call("edit", arguments));
    // Lists of Python's are lists, and what is none is text.
    for (value, said) in [("['a', None]", "[\"a\",null]"), ("[a", "\"[a\"")] {
        check(new, &of(&[("lines", value)]), &call("edit", &format!("{{\"lines\": {said}}}")));
    }
    // A text that may be null keeps its spaces, and a mark within a string of JSON ends nothing.
    let spaced = of(&[("maybe", "    return x\n"), ("lines", "[1]")]);
    check(new, &spaced, &call("edit", "{\"maybe\": \"    return x\\n\", \"lines\": [1]}"));
    let marked = "[{\"old\": \"</parameter>\", \"new\": \"\"}]";
    let arguments = format!("{{\"lines\": {marked}, \"way\": \"a\"}}");
    check(new, &of(&[("lines", marked), ("way", "a")]), &call("edit", &arguments));
    for (value, said) in [("[\"a", "\"[\\\"a\""), ("", "\"\""), ("tru", "\"tru\"")] {
        let arguments = format!("{{\"lines\": {said}, \"deep\": 7}}");
        check(new, &of(&[("lines", value), ("deep", "7")]), &call("edit", &arguments));
        check(new, &of(&[("lines", value)]), &call("edit", &format!("{{\"lines\": {said}}}")));
    }
    // Text that is JSON stays text where the schema has no such JSON.
    for (value, said) in [("5", "\"5\""), ("{}", "\"{}\""), ("True", "\"True\""), ("null", "null")]
    {
        check(new, &of(&[("maybe", value)]), &call("edit", &format!("{{\"maybe\": {said}}}")));
    }
    // Behind thoughts and words; several; and only the first.
    let two = format!("<think>Hm.</think>\n\nLook:\n{}\n{}", of(&[("way", "a")]), of(&[]));
    let [first, with] = call("edit", "{\"way\": \"a\"}");
    let begun = [reasoning("Hm."), content("Look:"), first, with];
    check(new, &two, &[&begun[..], &call("edit", "{}")].concat());
    check(|| new().with_one_call(), &two, &begun);
    // Text is told as it comes; what is cut off as far as it goes.
    let mut reply = new();
    assert_eq!(reply.push("<tool_call>\n<function=edit>"), [Part::Call("edit".into())]);
    assert!(reply.is_in_call());
    let told = reply.push("\n<parameter=path>\nfn main() {\n    x\n</para");
    assert_eq!(told, [Part::Arguments("{\"path\": \"fn main() {\\n    x".into())]);
    assert!(reply.lacks_end());
    assert_eq!(reply.finish(), []);
    check(new, "<tool_call>\n<func", &[content("<tool_call>\n<func")]);
    check(new, "<tool_call>{}</tool_call>", &[content("<tool_call>{}</tool_call>")]);
    // Without schemas all are text.
    let text = of(&[("deep", "7")]);
    check(style(AnswerStyle::QWEN_CODER), &text, &call("edit", "{\"deep\": \"7\"}"));
}

/// Of a tool that there is; all else is words.
#[test]
fn a_call_of_qwen_coders_needs_no_opening() {
    let names = ["glob".to_owned()];
    let new = || Reply::new(Some(AnswerStyle::QWEN_CODER), Some(THINK)).of_tools(&names);
    let bare = "<function=glob>\n<parameter=pattern>\n*.md\n</parameter>\n</function>";
    let [name, arguments] = call("glob", "{\"pattern\": \"*.md\"}");
    for behind in ["", "\n</tool_call>"] {
        let text = format!("I'll look.\n\n{bare}{behind}");
        check(new, &text, &[content("I'll look."), name.clone(), arguments.clone()]);
        check(new, &format!("{bare}{behind}"), &[name.clone(), arguments.clone()]);
    }
    for words in [
        "Write `<function=NAME>` and <function=",
        "a <function=rm>\n</function> b",
        "<function=glo",
    ] {
        check(new, words, &[content(words)]);
    }
    // Without tools there are no calls.
    check(style(AnswerStyle::QWEN_CODER), bare, &[content(bare)]);
}
