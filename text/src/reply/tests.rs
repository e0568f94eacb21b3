mod one_by_one;

use super::*;

/// Pieces of one kind that follow each other, as one.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut whole: Vec<Part> = Vec::new();
    for part in parts {
        match (whole.last_mut(), part) {
            (Some(Part::Content(all)), Part::Content(more))
            | (Some(Part::Reasoning(all)), Part::Reasoning(more))
            | (Some(Part::Arguments(all)), Part::Arguments(more)) => *all += &more,
            (_, part) => whole.push(part),
        }
    }
    whole
}

fn run<'a>(mut reply: Reply, pieces: impl Iterator<Item = &'a str>) -> Vec<Part> {
    let mut parts: Vec<_> = pieces.flat_map(|piece| reply.push(piece)).collect();
    parts.extend(reply.finish());
    joined(parts)
}

/// That `text` has `expected` parts, however it is cut.
fn check(new: impl Fn() -> Reply, text: &str, expected: &[Part]) {
    assert_eq!(run(new(), std::iter::once(text)), expected, "{text:?}");
    let characters: Vec<_> =
        text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    assert_eq!(run(new(), characters.into_iter()), expected, "{text:?} by character");
    for (at, _) in text.char_indices() {
        let (a, b) = text.split_at(at);
        assert_eq!(run(new(), [a, b].into_iter()), expected, "{a:?} and {b:?}");
    }
}

fn content(text: &str) -> Part {
    Part::Content(text.into())
}

fn reasoning(text: &str) -> Part {
    Part::Reasoning(text.into())
}

fn call(name: &str, arguments: &str) -> [Part; 2] {
    [Part::Call(name.into()), Part::Arguments(arguments.into())]
}

fn style(style: AnswerStyle) -> impl Fn() -> Reply {
    move || Reply::new(Some(style), Some(THINK))
}

#[test]
fn words_are_what_they_are() {
    for text in ["", "  Hello,\n\nworld \n", "a <b> </think> {\"x\": 1} [TOOL] é–"] {
        let expected: Vec<_> = (!text.is_empty()).then(|| content(text)).into_iter().collect();
        for tools in
            [None, Some(AnswerStyle::HERMES), Some(AnswerStyle::MISTRAL), Some(AnswerStyle::Llama3)]
        {
            for thoughts in [None, Some(THINK), Some(MISTRAL_THINK)] {
                check(|| Reply::new(tools, thoughts), text, &expected);
            }
        }
    }
}

#[test]
fn thoughts_come_first() {
    let plain = || Reply::new(None, Some(THINK));
    check(
        plain,
        "<think>\nHm, <b>.\n</think>\n\nYes. ",
        &[reasoning("Hm, <b>."), content("Yes. ")],
    );
    check(plain, "<think>\n\n</think>\n\nYes.", &[content("Yes.")]);
    check(plain, "<think>never ends </thin", &[reasoning("never ends </thin")]);
    check(plain, "No <think>x</think>", &[content("No <think>x</think>")]);
    check(|| Reply::new(None, None), "<think>x</think>", &[content("<think>x</think>")]);
    check(
        || Reply::thinking(None, THINK),
        "Hm.\n</think>\nYes.",
        &[reasoning("Hm."), content("Yes.")],
    );
    let [name, arguments] = call("f", "{}");
    check(
        style(AnswerStyle::Llama3),
        "<think>a</think>\n{\"name\": \"f\", \"parameters\": {}}",
        &[reasoning("a"), name, arguments],
    );
}

#[test]
fn hermes() {
    let style = style(AnswerStyle::HERMES);
    let [name, arguments] =
        call("get_weather", "{\"city\": \"Zü}rich\\\"\", \"days\": [1, {\"a\": 2}]}");
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zü}rich\\\"\", \
                \"days\": [1, {\"a\": 2}]}}\n</tool_call>";
    check(&style, text, &[name.clone(), arguments.clone()]);
    let said = format!("<think>\nLook.\n</think>\n\nLet me see.\n{text}\n{text}\n");
    let [a, b, c, d] = [&name, &arguments, &name, &arguments].map(Clone::clone);
    check(&style, &said, &[reasoning("Look."), content("Let me see."), a, b, c, d]);
    // The arguments first, as a string, none at all, and a list.
    let [a, b] = call("f", "{\"x\": 1}");
    let [c, d] = call("g", "{}");
    let [e, f] = call("h", "{}");
    let [g, h] = call("i", "{\"y\": 2}");
    check(
        &style,
        "<tool_call>[{\"arguments\": {\"x\": 1} , \"name\": \"f\"}, {\"name\": \"g\"}, {\"name\": \"h\", \
         \"arguments\": null}, {\"name\": \"i\", \"arguments\": \"{\\\"y\\\": 2}\"}]</tool_call> Done.",
        &[a, b, c, d, e, f, g, h, content("Done.")],
    );
    let empty = "<tool_call>\n{\"name\": \"f\", \"arguments\": \"\"}\n</tool_call>";
    check(&style, empty, &call("f", "{}"));
}

#[test]
fn llama() {
    let style = style(AnswerStyle::Llama3);
    let [name, arguments] = call("f", "{\"x\": 1}");
    let text = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
    check(&style, text, &[name.clone(), arguments.clone()]);
    check(&style, &format!("<|python_tag|>{text}"), &[name.clone(), arguments.clone()]);
    let [a, b] = [&name, &arguments].map(Clone::clone);
    check(&style, &format!("{text}; {text}"), &[name.clone(), arguments.clone(), a, b]);
    check(&style, &format!("I call <|python_tag|>{text}"), &[content("I call"), name, arguments]);
    // JSON that is no call, code, and what is cut off.
    for text in ["{\"x\": {\"name\": \"f\"}}", "{\"x\": 1} and more", "{\"name\"", "{ x }"] {
        check(&style, text, &[content(text)]);
    }
    check(&style, "<|python_tag|>print(1)", &[content("<|python_tag|>print(1)")]);
}

#[test]
fn objects_are_calls_of_tools_that_there_are() {
    let names = ["f".to_owned(), "g".to_owned()];
    let style = || Reply::new(Some(AnswerStyle::Llama3), Some(THINK)).of_tools(&names);
    for text in [
        "{\"name\": \"Bob\", \"age\": 3}",
        "{\"type\": \"function\", \"name\": 3, \"parameters\": {}} or <|python_tag|",
        "{\"answer\": {\"name\": \"f\"}, \"name\": \"f\"}",
    ] {
        check(style, text, &[content(text)]);
    }
    let [name, arguments] = call("f", "{\"x\": 1}");
    let text = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
    let two = [&name, &arguments, &name, &arguments].map(Clone::clone);
    check(style, &format!("{text}; {text}"), &two);
    let more = "{\"name\": \"Bob\"}";
    check(style, &format!("{text}; {more}"), &[name.clone(), arguments.clone(), content(more)]);
    // What says that it is a call is one.
    let other = "<|python_tag|>{\"name\": \"h\", \"parameters\": {}}";
    check(style, other, &call("h", "{}"));
    // It is told that it is words as soon as that is certain.
    let mut reply = style();
    assert_eq!(reply.push("{\"name\": \"Bo"), []);
    assert_eq!(joined(reply.push("b\", \"a")), [content("{\"name\": \"Bob\", \"a")]);
    assert_eq!(joined(style().push("{\"age\":")), [content("{\"age\":")]);

    let one = || style().with_one_call();
    check(one, &format!("{text}; {text}"), &two[..2]);
    check(one, &format!("I call <|python_tag|>{text} so."), &[content("I call"), name, arguments]);
}

#[test]
fn the_first_arguments_count() {
    let [name, arguments] = call("f", "{\"x\": \"é\"}");
    for more in ["{}", "{\"much\": \"longer\"}", "null", "1"] {
        let text = format!(
            "{{\"name\": \"f\", \"parameters\": {{\"x\": \"é\"}}, \"arguments\": {more}, \"name\": \"g\"}}"
        );
        check(style(AnswerStyle::Llama3), &text, &[name.clone(), arguments.clone()]);
    }
}

#[test]
fn mistral() {
    let style = style(AnswerStyle::MISTRAL);
    let [name, arguments] = call("f", "{\"x\": \"[]\"}");
    let two = [&name, &arguments, &name, &arguments].map(Clone::clone);
    let list = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": \"[]\"}}, \
                {\"name\": \"f\", \"arguments\": {\"x\": \"[]\"}, \"id\": \"123456789\"}]";
    check(&style, list, &two);
    check(&style, "[TOOL_CALLS]f[ARGS]{\"x\": \"[]\"}[TOOL_CALLS]f{\"x\": \"[]\"}", &two);
    check(&style, "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"x\": \"[]\"}", &two[..2]);
    check(&style, "So: [TOOL_CALLS] no", &[content("So:[TOOL_CALLS] no")]);
}

#[test]
fn harmony() {
    let plain = || Reply::new(Some(AnswerStyle::Harmony), Some(THINK)).of_tools(&[]);
    let next = "<|end|><|start|>assistant";
    check(
        plain,
        &format!(
            "<|channel|>analysis<|message|>Hm é, 1 <| 2.\n{next}<|channel|>final<|message|> Yes.\n<|return|>"
        ),
        &[reasoning("Hm é, 1 <| 2.\n"), content(" Yes.\n")],
    );
    // A preamble is said. Messages of a kind stay apart, and channels that begin anew count.
    check(
        plain,
        &format!(
            "<|channel|>analysis<|message|>a{next}<|channel|>analysis<|message|>{next}\
             <|channel|>commentary to=assistant<|channel|>analysis<|message|>b{next}\
             <|channel|>commentary<|message|>c{next}<|channel|>final <|constrain|>json<|message|>d"
        ),
        &[reasoning("a\n\nb"), content("c\n\nd")],
    );
    // Tools that are not there.
    check(
        plain,
        &format!(
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{}}{next} to=python<|channel|>\
             commentary code<|message|>1{next}<|channel|>final<|message|>Yes."
        ),
        &[reasoning("{}\n\n1"), content("Yes.")],
    );
    // What is cut off in thoughts, in a header, and in what may be a mark.
    check(plain, "<|channel|>analysis<|message|>Hm", &[reasoning("Hm")]);
    check(
        plain,
        &format!("<|channel|>analysis<|message|>Hm{next}<|channel|>fi"),
        &[reasoning("Hm")],
    );
    check(plain, "<|channel|>final<|message|>Yes<|en", &[content("Yes<|en")]);
    check(plain, "<|channel|>final<|message|>", &[]);
    // No message at all, as where an answer goes on within one, and text behind a message that has no header.
    check(plain, "  Yes, <|b|>.\n<|return|>", &[content("  Yes, <|b|>.\n")]);
    check(
        plain,
        "<|channel|>analysis<|message|>Hm<|end|>\nYes",
        &[reasoning("Hm"), content("\nYes")],
    );
    check(plain, "", &[]);
}

#[test]
fn calls_in_harmony() {
    let names = ["f".to_owned(), "get.it-1".to_owned()];
    let style = || Reply::new(Some(AnswerStyle::Harmony), Some(THINK)).of_tools(&names);
    let thoughts = "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant";
    let arguments = "{\"x\": \"ü}<\"}";
    let [call, with] = call("get.it-1", arguments);
    for header in [
        "<|channel|>commentary to=functions.get.it-1 <|constrain|>json",
        "<|channel|>commentary to=functions.get.it-1<|constrain|>json",
        " to=functions.get.it-1<|channel|>commentary json",
        "<|channel|>analysis to=functions.get.it-1 code",
    ] {
        let text = format!("{thoughts}{header}<|message|>{arguments}");
        let expected = [reasoning("Look."), call.clone(), with.clone()];
        check(style, &text, &expected);
        check(style, &format!("{text}<|call|>"), &expected);
        let more = format!("{text}<|call|><|start|>assistant<|channel|>final<|message|>Done.");
        check(|| style().with_one_call(), &more, &expected);
        check(style, &more, &[&expected[..], &[content("Done.")]].concat());
    }
    // It is told as it comes, as soon as it is certain.
    let mut reply = style();
    assert_eq!(
        reply.push("<|channel|>commentary to=functions.f<|message|>"),
        [Part::Call("f".into())]
    );
    assert_eq!(reply.push("{\"x\": [1"), [Part::Arguments("{\"x\": [1".into())]);
    assert_eq!(reply.finish(), []);
}

#[test]
fn what_opens_thoughts_may_come_again() {
    let new = || Reply::thinking(None, THINK);
    check(new, "<think>\nHm.\n</think>\n\nYes.", &[reasoning("Hm."), content("Yes.")]);
    check(new, "\n<think>Hm.", &[reasoning("Hm.")]);
    check(new, "<thin", &[reasoning("<thin")]);
    check(new, "Hm <think> hm.</think>Yes.", &[reasoning("Hm <think> hm."), content("Yes.")]);
}

#[test]
fn what_is_cut_off_is_told_as_far_as_it_goes() {
    let style = style(AnswerStyle::HERMES);
    check(&style, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1", &{
        call("f", "{\"x\": [1")
    });
    let text = "<tool_call>\n{\"name\": \"f";
    check(&style, text, &[content("<tool_call>{\"name\": \"f")]);
    check(&style, "a <tool_call>", &[content("a<tool_call>")]);
    check(&style, "a <tool", &[content("a <tool")]);
    check(&style, "<tool_call>print</tool_call>", &[content("<tool_call>print</tool_call>")]);
}

#[test]
fn calls_of_python() {
    let new = style(AnswerStyle::LFM2);
    let text = "<|tool_call_start|>[f(city=\"Z\u{fc}'rich\", days=[1, (2.5, -3)], deep={'a': True, 2: None,}, \
                none=null), g()]<|tool_call_end|>Done.";
    let json = "{\"city\": \"Z\u{fc}'rich\", \"days\": [1, [2.5, -3]], \"deep\": {\"a\": true, \"2\": null}, \
                \"none\": null}";
    let [a, b] = call("f", json);
    let [c, d] = call("g", "{}");
    check(&new, text, &[a, b, c, d, content("Done.")]);
    let lines =
        "So:\n<function_calls>\nf(x='a\\'b\\n\\x41\\u00e9\\d', y = 1_000,)\ng()\n</function_calls>";
    let json = "{\"x\": \"a'b\\nA\u{e9}\\\\d\", \"y\": 1000}";
    let [a, b] = call("f", json);
    let [c, d] = call("g", "{}");
    check(style(AnswerStyle::OLMO3), lines, &[content("So:"), a.clone(), b.clone(), c, d]);
    check(|| style(AnswerStyle::OLMO3)().with_one_call(), lines, &[content("So:"), a, b]);
    // Without keys, and what is no literal.
    let odd = "<|tool_call_start|>[f(\"a\", 2, x=print)]<|tool_call_end|>";
    check(&new, odd, &call("f", "{\"0\": \"a\", \"1\": 2, \"x\": \"print\"}"));
    // It is told as it comes, and as far as it goes.
    let mut reply = new();
    assert_eq!(reply.push("<|tool_call_start|>[f("), [Part::Call("f".into())]);
    assert_eq!(reply.push("x='a"), [Part::Arguments("{\"x\": \"a".into())]);
    assert!(reply.is_in_call());
    assert_eq!(reply.finish(), []);
    for words in ["<|tool_call_start|>[f", "<|tool_call_start|>f x"] {
        let expected = words.replace('[', "");
        check(&new, words, &[content(&expected)]);
    }
}

#[test]
fn texts_and_keys_of_python() {
    for (arguments, json) in [
        // Escapes that end too soon.
        (r#"p="D:\xa""#, r#"{"p": "D:\\xa"}"#),
        (r#"p="C:\u", q="\U12\n""#, r#"{"p": "C:\\u", "q": "\\U12\n"}"#),
        (r#"p="\xg\u12\"""#, r#"{"p": "\\xg\\u12\""}"#),
        // Octal ones.
        (r#"p="\033[1m\0\18""#, r#"{"p": "\u001b[1m\u0000\u00018"}"#),
        // Halves of characters.
        (r#"p="\ud83d\ude00\ud83d", q="\ude00\ud83da""#, r#"{"p": "😀�", "q": "��a"}"#),
        ("p=\"a\nb\\\nc\"", r#"{"p": "a\nbc"}"#),
        // Keys that are no names.
        ("filter[x]=1, x:y = 2, a b='c'", r#"{"filter[x]": 1, "x:y": 2, "a b": "c"}"#),
    ] {
        let text = format!("<|tool_call_start|>[f({arguments})]<|tool_call_end|>Done.");
        let [name, given] = call("f", json);
        check(style(AnswerStyle::LFM2), &text, &[name, given, content("Done.")]);
    }
}

#[test]
fn names_of_arguments_are_those_of_the_schema() {
    let schema = serde_json::json!({"properties": {"a=b": {}, "a:b,": {}, "a": {}, "x)": {}}});
    let schemas: std::sync::Arc<[_]> = [("f".to_owned(), schema)].into();
    let json = "{\"a=b\": 1, \"a\": \"x)\", \"x)\": [2], \"a:b,\": null}";
    let python = "<|tool_call_start|>[f(a=b=1, a='x)', x)=[2], a:b,=None)]<|tool_call_end|>";
    let gemma = "<|tool_call>call:f{a=b:1, a:<|\"|>x)<|\"|>, x):[2], a:b,:null}<tool_call|>";
    for (style, text) in [(AnswerStyle::LFM2, python), (AnswerStyle::GEMMA, gemma)] {
        let new = || Reply::new(Some(style), None).of_schemas(schemas.clone());
        check(new, text, &call("f", json));
    }
}

#[test]
fn calls_between_marks_are_read_as_they_are_written() {
    let arguments = serde_json::json!({"x": "\u{fc} ['\"\n", "y": [1, {"z": null}], "a": true});
    let schema = serde_json::json!({"properties": {"x": {"type": "string"}, "y": {"type": "array"},
        "a": {"type": "boolean"}}});
    let schemas: std::sync::Arc<[_]> = [("f".to_owned(), schema)].into();
    let none = serde_json::json!({});
    for style in AnswerStyle::marked() {
        let text = style.written(&[("f", &arguments), ("g", &none)]).unwrap();
        let text = format!("Look:\n{text}");
        let new = || Reply::new(Some(style), Some(THINK)).of_schemas(schemas.clone());
        let parts = run(new(), std::iter::once(text.as_str()));
        assert_eq!(parts.len(), 5, "{style:?}: {text}: {parts:?}");
        assert_eq!(parts[0], content("Look:"), "{style:?}");
        assert_eq!(parts[1], Part::Call("f".into()), "{style:?}");
        let Part::Arguments(json) = &parts[2] else { panic!("{style:?}: {parts:?}") };
        assert_eq!(serde_json::from_str::<serde_json::Value>(json).unwrap(), arguments);
        assert_eq!(parts[3..], call("g", "{}"), "{style:?}");
        assert!(text.ends_with(style.closing()), "{style:?}");
        check(new, &text, &parts);
        check(|| new().with_one_call(), &text, &parts[..3]);
        // It is told as it comes.
        let mut reply = new();
        let at = text.find("['").unwrap();
        let told = joined(reply.push(&text[..at]));
        assert!(told.len() == 3 && reply.is_in_call(), "{style:?}: {told:?}");
        // What is none is said.
        if !style.closing().is_empty() {
            let words = format!("{}?{}b", style.opening(), style.closing());
            check(new, &words, &[content(&words)]);
            check(new, &format!("{}{}b", style.opening(), style.closing()), &[content("b")]);
        }
    }
    let text = AnswerStyle::GRANITE.written(&[("f", &none)]);
    assert_eq!(text.as_deref(), Some("<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]"));
    let text = AnswerStyle::LFM2.written(&[("f", &arguments)]);
    let expected = "<|tool_call_start|>[f(x=\"\u{fc} ['\\\"\\n\", y=[1, {\"z\": null}], a=True)]<|tool_call_end|>";
    assert_eq!(text.as_deref(), Some(expected));
    assert_eq!(AnswerStyle::Llama3.written(&[("f", &none)]), None);
}

#[test]
fn words_in_a_response_are_said() {
    for ([open, close], [think, thought], style) in [
        (RESPONSES[0], THINK, None),
        (RESPONSES[0], THINK, Some(AnswerStyle::GRANITE)),
        (RESPONSES[1], COHERE_THINK, Some(AnswerStyle::COHERE)),
    ] {
        let new = || Reply::new(style, Some([think, thought])).in_response(Some([open, close]));
        let thoughts = format!("{think}Hm.{thought}\n");
        let said = [reasoning("Hm."), content("a <b> </re>\nc")];
        check(new, &format!("{thoughts}{open}\na <b> </re>\nc\n{close}\n"), &said);
        check(new, &format!("{thoughts}{open}a <b> </re>\nc"), &said);
        check(new, &format!("{thoughts}a <b> </re>\nc"), &said);
        check(new, &format!("{thoughts}{}", &open[..5]), &[reasoning("Hm."), content(&open[..5])]);
        let alone = format!("{open}a <b> </re>\nc{close}");
        match open.contains('|') {
            true => check(new, &alone, &said[1..]),
            false => check(new, &alone, &[content(&alone)]),
        }
        let within = format!("a{open}b{close}");
        check(new, &within, &[content(&within)]);
        let without = || Reply::new(style, Some([think, thought]));
        let written = format!("{open}a{close}");
        check(without, &format!("{thoughts}{written}"), &[reasoning("Hm."), content(&written)]);
    }
}

#[test]
fn thoughts_of_mistral() {
    let new = || Reply::new(Some(AnswerStyle::MistralArgs), Some(MISTRAL_THINK));
    let text = "[THINK]Hm [T].[/THINK]Yes.[TOOL_CALLS]f[ARGS]{}";
    let [name, arguments] = call("f", "{}");
    check(new, text, &[reasoning("Hm [T]."), content("Yes."), name, arguments]);
    check(new, "<think>a</think>", &[content("<think>a</think>")]);
}

#[test]
fn calls_of_gemma() {
    let new = || Reply::new(Some(AnswerStyle::GEMMA), Some(GEMMA_THINK));
    let text = "<|channel>thought\nHm <b>.\n<channel|>Look:<|tool_call>call:f{city:<|\"|>Z\u{fc}\\n \"<b>\", {'<|\"|>,\
                days:[1,-2.5,{deep key:true, x:[]}],none:null}<tool_call|><|tool_call>call:g.h{}<tool_call|>";
    let json = "{\"city\": \"Z\u{fc}\\\\n \\\"<b>\\\", {'\", \"days\": [1, -2.5, {\"deep key\": true, \"x\": []}], \
                \"none\": null}";
    let [a, b] = call("f", json);
    let [c, d] = call("g.h", "{}");
    check(new, text, &[reasoning("Hm <b>."), content("Look:"), a, b, c, d]);
    check(new, "<|channel>thought\n<channel|>Yes.", &[content("Yes.")]);
    check(
        || Reply::thinking(None, GEMMA_THINK),
        "Hm.<channel|>Yes.",
        &[reasoning("Hm."), content("Yes.")],
    );
    // As in JSON, and as Jinja writes nothing.
    let odd = "<|tool_call>call:f{<|\"|>a<|\"|>:\"b\\n\", \"c\": None}<tool_call|>";
    check(new, odd, &call("f", "{\"a\": \"b\\n\", \"c\": null}"));
    // It is told as it comes, and as far as it goes.
    let mut reply = new();
    assert_eq!(reply.push("<|tool_call>call:f{"), [Part::Call("f".into())]);
    assert_eq!(reply.push("x:<|\"|>a<|\""), [Part::Arguments("{\"x\": \"a".into())]);
    assert!(reply.is_in_call());
    assert_eq!(reply.finish(), []);
    for words in ["<|tool_call>call:f", "<|tool_call>f{x:1}<tool_call|>"] {
        check(new, words, &[content(words)]);
    }
}

#[test]
fn calls_of_glm() {
    let schema = serde_json::json!({"properties": {"n": {"type": "integer"}}});
    let schemas: std::sync::Arc<[_]> = [("f".to_owned(), schema)].into();
    let json = "{\"city\": \" Z\u{fc}\\n</arg_\", \"n\": 7}";
    for (style, line) in [(AnswerStyle::GLM, "\n"), (AnswerStyle::GLM_47, "")] {
        let new = || Reply::thinking(Some(style), THINK).of_schemas(schemas.clone());
        let text = format!(
            "Hm.</think>{line}Look:{line}<tool_call>f{line}<arg_key>city</arg_key>{line}<arg_value> Z\u{fc}\n</arg_\
             </arg_value>{line}<arg_key>n</arg_key>{line}<arg_value>7</arg_value>{line}</tool_call>{line}\
             <tool_call>g{line}</tool_call>"
        );
        let [a, b] = call("f", json);
        let [c, d] = call("g", "{}");
        check(new, &text, &[reasoning("Hm."), content("Look:"), a, b, c, d]);
    }
    let new = style(AnswerStyle::GLM);
    check(&new, "<think></think>\nYes.", &[content("Yes.")]);
    check(
        &new,
        "<tool_call>{\"x\": 1}</tool_call>",
        &[content("<tool_call>{\"x\": 1}</tool_call>")],
    );
}

#[test]
fn calls_of_cohere() {
    let new = || {
        let reply = Reply::new(Some(AnswerStyle::COHERE), Some(COHERE_THINK));
        reply.in_response(Some(RESPONSES[1]))
    };
    let text = "<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \
                \"tool_name\": \"f\", \"parameters\": {\"x\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \
                \"g\", \"parameters\": {}}\n]<|END_ACTION|>";
    let [a, b] = call("f", "{\"x\": 1}");
    let [c, d] = call("g", "{}");
    check(new, text, &[reasoning("I will look."), a, b, c, d]);
    let text = "<|START_RESPONSE|>It is <b>.<|END_RESPONSE|>";
    check(new, text, &[content("It is <b>.")]);
}

#[test]
fn calls_with_a_name_before_json() {
    let [a, b] = call("f", "{\"x\": 1}");
    let [c, d] = call("g", "{}");
    let text = "Look:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": 1}\n```\
                <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>\
                <｜tool▁calls▁end｜>";
    let all = [content("Look:"), a, b, c, d];
    check(style(AnswerStyle::DEEPSEEK), text, &all);
    let [x, none] = [serde_json::json!({"x": 1}), serde_json::json!({})];
    let written = AnswerStyle::DEEPSEEK.written(&[("f", &x), ("g", &none)]);
    assert_eq!(written.as_deref(), text.strip_prefix("Look:"));
    let text = "Look:<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": 1}\
                <|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
                <|tool_calls_section_end|>";
    check(style(AnswerStyle::KIMI), text, &all);
    // Apertus calls from within its thoughts, too.
    let text =
        "<|inner_prefix|>Hm.<|tools_prefix|>[{\"f\": {\"x\": 1}}, {\"g\": {}}]<|tools_suffix|>";
    let all = [&[reasoning("Hm.")], &all[1..]].concat();
    let new = || Reply::new(Some(AnswerStyle::APERTUS), Some(APERTUS_THINK));
    check(new, text, &all);
    check(new, &text.replace("<|tools_p", "<|inner_suffix|><|tools_p"), &all);
}

/// What an answer goes on with is another's, also what may have been a mark.
#[test]
fn what_was_there_before_is_not_told_again() {
    let cases: [(Option<Thoughts>, &str, &str, &[Part]); 7] = [
        (Some(MISTRAL_THINK), "[", " to evening.", &[content(" to evening.")]),
        (Some(MISTRAL_THINK), "[", "[1]]", &[content("[1]]")]),
        (Some(THINK), "<", "think>Hm.</think>Yes.", &[reasoning("Hm."), content("Yes.")]),
        (Some(THINK), "<think>Let ", "me.</think>Yes.", &[reasoning("me."), content("Yes.")]),
        (Some(THINK), "<think>Hm.</thi", "nk>Yes.", &[content("Yes.")]),
        (Some(THINK), "<think>a </thi", "s", &[reasoning("s")]),
        (None, "Hello ", "world", &[content("world")]),
    ];
    for (thoughts, begun, text, expected) in cases {
        check(|| Reply::new(None, thoughts).behind(begun), text, expected);
    }
    let harmony = || Reply::new(Some(AnswerStyle::Harmony), None);
    check(|| harmony().behind("t"), "ching.", &[content("ching.")]);
    check(|| harmony().behind("a <"), " else.", &[content(" else.")]);
}
