//! Tools that a request lets the model call, and the form that its calls are kept to.

use std::fmt::Write;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};
use text::{AnswerStyle, THINK, takes_text};

use crate::constraint::{Form, Forms, PART, Special, mark, quoted};
use crate::fields::Fields;
use crate::harmony;
use crate::server::unique_id;
use crate::thinks::Thinks;
use crate::{Model, Problem};

/// Whose form that of calls is.
const FIELD: &str = "tools";
/// White space, as a grammar has it.
const SPACES: &str = "[ \\n\\r\\t]*";
/// Most tools of a request.
const MOST_TOOLS: usize = 128;
/// Most characters of a tool's name, as Anthropic's API has it.
const LONGEST_NAME: usize = 128;

/// What may be called, and whether it must be.
pub(crate) struct Tools {
    tools: Vec<Tool>,
    must: bool,
    /// The one that may be called, if not all may.
    only: Option<usize>,
    parallel: bool,
}

struct Tool {
    name: String,
    /// As templates take it.
    value: Value,
    /// The schema of its arguments.
    parameters: Value,
    /// Whether they are kept to all of it.
    strict: bool,
}

impl Tools {
    /// What `fields` say; `None` where nothing may be called.
    ///
    /// # Errors
    ///
    /// A tool is in a form that is not supported, or the one to call is not there.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>, Problem> {
        let given = fields.take::<Vec<Map<String, Value>>>(FIELD)?.unwrap_or_default();
        let choice = fields.take::<Value>("tool_choice")?;
        let parallel = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
        if given.len() > MOST_TOOLS {
            let message = format!("has {} tools: give {MOST_TOOLS} at most", given.len());
            return Err(Problem::field("tools", message));
        }
        let mut tools: Vec<Tool> = Vec::new();
        for (at, tool) in given.into_iter().enumerate() {
            let tool = Tool::take(&format!("tools[{at}]"), tool)?;
            if tools.iter().any(|it| it.name == tool.name) {
                let message = format!("has two tools called {:?}", tool.name);
                return Err(Problem::field("tools", message));
            }
            tools.push(tool);
        }
        let wrong = |message: String| Problem::field("tool_choice", message);
        let choice = choice.unwrap_or_else(|| json!("auto"));
        let (must, only) = match choice.as_str() {
            Some("none") => return Ok(None),
            Some("auto") => (false, None),
            Some("required") => (true, None),
            _ => {
                let name = choice["function"]["name"].as_str();
                let name = name.filter(|_| choice["type"] == "function").ok_or_else(|| {
                    let known = "none, auto, required, {\"type\": \"function\", \"function\": \
                                 {\"name\": \"…\"}}";
                    wrong(format!("is {choice}; there are: {known}"))
                })?;
                let at = tools.iter().position(|tool| tool.name == name).ok_or_else(|| {
                    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
                    wrong(format!("names {name:?}; there are: {}", names.join(", ")))
                })?;
                (true, Some(at))
            }
        };
        if must && tools.is_empty() {
            return Err(wrong("is \"required\", but there are no `tools`".into()));
        }
        Ok((!tools.is_empty()).then_some(Self { tools, must, only, parallel }))
    }

    /// Lets arguments be any object where the rest of a schema cannot be kept to, as `can_be` says, and the
    /// request does not insist; all such, where it is too much together. Returns whether there are such tools.
    pub fn loosen(&mut self, forms: &Forms, can_be: impl Fn(&Form) -> bool) -> bool {
        let cannot_be = |tool: &&mut Tool| {
            let form = || TopLevelGrammar::from_json_schema(tool.parameters.clone());
            !forms.judge(&tool.parameters, || can_be(&Form::new(FIELD, form())))
        };
        let mut loose: Vec<_> = self.loose().collect();
        if loose.iter().any(&cannot_be) {
            loose.retain(cannot_be);
        }
        loose.iter_mut().for_each(|tool| tool.loosen());
        !loose.is_empty()
    }

    /// The same with those of which that is known.
    pub fn loosen_known(&mut self, forms: &Forms) {
        let known = self.loose().filter(|it| forms.verdict(&it.parameters) == Some(false));
        known.for_each(Tool::loosen);
    }

    /// Those that may be called, and on whose schemas the request does not insist.
    fn loose(&mut self) -> impl Iterator<Item = &mut Tool> {
        let callable = match self.only {
            Some(at) => &mut self.tools[at..=at],
            None => &mut self.tools[..],
        };
        callable.iter_mut().filter(|tool| !tool.strict)
    }

    /// Lets an answer have one call at most.
    pub fn call_one(&mut self) {
        self.parallel = false;
    }

    /// Whether it may have only one.
    pub fn is_single(&self) -> bool {
        !self.parallel || self.only.is_some()
    }

    /// Names of those that may be called.
    pub fn names(&self) -> Vec<String> {
        self.callable().iter().map(|tool| tool.name.clone()).collect()
    }

    /// The schemas of their arguments, as the request says them, by name.
    pub fn schemas(&self) -> Arc<[(String, Value)]> {
        let of = |tool: &Tool| (tool.name.clone(), tool.value["function"]["parameters"].clone());
        self.callable().iter().map(of).collect()
    }

    fn callable(&self) -> &[Tool] {
        match self.only {
            Some(at) => &self.tools[at..=at],
            None => &self.tools,
        }
    }

    /// As a template takes them.
    pub fn values(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.value.clone()).collect()
    }

    /// The form of an answer that is written in `style`, which `thinks` first, and is calls or text: that of
    /// the form `text`, if there is one. `None` where any text will do: calls of Llama 3 begin as JSON does.
    pub fn form(
        &self,
        model: &Model,
        style: AnswerStyle,
        thinks: Thinks,
        text: Option<Form>,
    ) -> Option<Form> {
        let special = |text: &str| model.tokenizer.special_token(text);
        let text = text.filter(|_| !self.must);
        let lark = self.grammar(&special, style, thinks, text.is_some())?;
        Some(match text {
            Some(text) => text.within(FIELD, lark),
            None => Form::new(FIELD, TopLevelGrammar::from_lark(lark)),
        })
    }

    /// As [`form`](Self::form), in Lark's language, for a tokenizer with `special` tokens; the text has a form
    /// of its `own` or none.
    fn grammar(
        &self,
        special: Special<'_>,
        style: AnswerStyle,
        thinks: Thinks,
        own: bool,
    ) -> Option<String> {
        if !self.must && !own && style == AnswerStyle::Llama3 {
            return None;
        }
        let mark = |text: &str| mark(special, text);
        let opening = mark(style.opening());
        // What stands before each call, between two, and behind the last one.
        let (open, between, close) = match style {
            AnswerStyle::Hermes | AnswerStyle::QwenCoder => {
                let open = format!("{opening} \"\\n\"");
                let close = format!("\"\\n\" {}", mark("</tool_call>"));
                (open.clone(), format!("{close} \"\\n\" {open}"), close)
            }
            AnswerStyle::Llama3 => (String::new(), quoted("; "), String::new()),
            AnswerStyle::Mistral => (format!("{opening} \" \"? \"[\""), quoted(", "), quoted("]")),
            AnswerStyle::MistralArgs => (opening.clone(), opening.clone(), String::new()),
            // A call is a message, and ends the answer.
            AnswerStyle::Harmony => Default::default(),
        };
        let callable = self.callable();
        let names: Vec<_> = (0..callable.len()).map(|at| format!("call{at}")).collect();
        let more = if self.is_single() { String::new() } else { format!("({between} call)*") };
        let calls_of_answer = |open: &str| format!("{open} call {more} {close}");
        let mut lark = String::new();
        if style != AnswerStyle::Harmony {
            lark += &thinks.rules(special, if self.must || own { "" } else { SPACES });
        }
        // What thoughts begin with are no words: a call in them is none.
        let no_thoughts = match thinks {
            Thinks::Perhaps => format!(" & ~/{SPACES}{}(.|\\n)*/", THINK[0]),
            Thinks::Never | Thinks::Already => String::new(),
        };
        let words = format!("/(.|\\n)*/{no_thoughts}");
        match (self.must || own, special(style.opening()).is_some()) {
            (strict, _) if style == AnswerStyle::Harmony => {
                let text = harmony::said(special, if own { PART } else { harmony::TEXT });
                let last = if self.must { "call".into() } else { format!("call | {text}") };
                lark += &harmony::answer(special, !strict, &last);
            }
            (true, _) => {
                let first = thinks.first(" SPACE");
                let text = if own { format!("| {PART}") } else { String::new() };
                let calls = calls_of_answer(&open);
                let _ = writeln!(lark, "start: {first} ({calls} {text})\nSPACE: /\\n*/");
            }
            (false, true) => {
                // No words have a special token in them.
                let (first, calls) = (thinks.first(""), calls_of_answer(&open));
                let _ = writeln!(lark, "start: {first} WORDS ({calls})?\nWORDS: {words}");
            }
            (false, false) => {
                let behind = open.strip_prefix(&opening).unwrap_or(&open);
                let (first, calls) = (thinks.first(""), calls_of_answer(behind));
                let until = style.opening().replace('[', "\\[").replace(']', "\\]");
                let _ = writeln!(
                    lark,
                    "start: {first} (words | until {calls})\nuntil[lazy]: UNTIL\n\
                     UNTIL: /(.|\\n)*{until}/{no_thoughts}\n\
                     words: WORDS\nWORDS: {words} & ~/(.|\\n)*{until}(.|\\n)*/"
                );
            }
        }
        let _ = writeln!(lark, "call: {}", names.join(" | "));
        if style == AnswerStyle::QwenCoder {
            lark += "argument[lazy]: /(.|\\n)*<\\/parameter>/\n";
            callable.iter().enumerate().for_each(|(at, tool)| lark += &tool.one_by_one(at));
            return Some(lark);
        }
        for (at, tool) in callable.iter().enumerate() {
            let Tool { name, parameters, .. } = tool;
            let (mut before, after) = match style {
                AnswerStyle::Llama3 => {
                    // In the pieces of other JSON: a text that has a form may begin in the same way.
                    let name = quoted(name);
                    let pieces = ["{", "\"name\"", ": ", &name, ", ", "\"parameters\"", ": "];
                    (pieces.map(quoted).join(" "), "}")
                }
                AnswerStyle::MistralArgs => (quoted(name), ""),
                AnswerStyle::Harmony => (harmony::call(special, name), ""),
                AnswerStyle::QwenCoder => unreachable!("its arguments come one by one"),
                AnswerStyle::Hermes | AnswerStyle::Mistral => {
                    (quoted(&format!("{{\"name\": \"{name}\", \"arguments\": ")), "}")
                }
            };
            if style == AnswerStyle::MistralArgs {
                let _ = write!(before, " {}", mark("[ARGS]"));
            }
            let after = if after.is_empty() { String::new() } else { quoted(after) };
            let _ = writeln!(lark, "call{at}: {before} %json {parameters} {after}");
        }
        Some(lark)
    }
}

impl Tool {
    /// The rule of call number `at` and of its arguments, where these are written one by one: in the order of the
    /// schema. What is text is held to a list of values at most.
    fn one_by_one(&self, at: usize) -> String {
        let Self { name, parameters, .. } = self;
        let (mut call, mut rules) = (quoted(&format!("<function={name}>\n")), String::new());
        let properties = parameters["properties"].as_object().filter(|it| !it.is_empty());
        if properties.is_none() && parameters["additionalProperties"] != false {
            call += " (\"<parameter=\" /[^<>\\n]+/ \">\\n\" argument \"\\n\")*";
        }
        for (number, (key, property)) in properties.into_iter().flatten().enumerate() {
            let needed =
                parameters["required"].as_array().is_some_and(|it| it.contains(&json!(key)));
            let _ = write!(call, " argument{at}_{number}{}", if needed { "" } else { "?" });
            let begin = quoted(&format!("<parameter={key}>\n"));
            let meant = resolved(property, parameters);
            let only = std::slice::from_ref(&meant["const"]);
            let values = meant["enum"].as_array().map_or(only, Vec::as_slice);
            let is_listed = !values.is_empty() && values.iter().all(Value::is_string);
            let value = match (is_listed, takes_text(parameters, key)) {
                (true, _) => {
                    let values = values.iter().filter_map(Value::as_str).map(quoted);
                    let values = values.collect::<Vec<_>>().join(" | ");
                    format!("({values}) \"\\n</parameter>\"")
                }
                (false, true) => "argument".into(),
                (false, false) => {
                    let mut schema = property.clone();
                    for shared in ["$defs", "definitions", "x-guidance"] {
                        if let (Some(schema), Some(all)) =
                            (schema.as_object_mut(), parameters.get(shared))
                        {
                            schema.insert(shared.into(), all.clone());
                        }
                    }
                    format!("%json {schema} \"\\n</parameter>\"")
                }
            };
            let _ = writeln!(rules, "argument{at}_{number}: {begin} {value} \"\\n\"");
        }
        format!("call{at}: {call} \"</function>\"\n{rules}")
    }

    /// Lets its arguments be any object.
    fn loosen(&mut self) {
        tracing::debug!(
            "the schema of the tool {:?} cannot be kept to: any object does",
            self.name
        );
        self.parameters = Form::written(json!({"type": "object"}));
    }

    fn take(at: &str, tool: Map<String, Value>) -> Result<Self, Problem> {
        let value = Value::Object(tool.clone());
        let wrong = |name: &str, message: String| Problem::field(format!("{at}.{name}"), message);
        let mut fields = Fields::new(tool);
        let kind = fields.take::<String>("type")?;
        if kind.as_deref() != Some("function") {
            return Err(wrong("type", "must be \"function\": no others are supported".into()));
        }
        let function = fields.take::<Map<String, Value>>("function")?;
        let function = function.ok_or_else(|| wrong("function", "is missing".into()))?;
        fields.finish()?;
        let mut function = Fields::new(function);
        let name = function.take::<String>("name")?.unwrap_or_default();
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(known) {
            let message =
                format!("is {name:?}: give 1 to {LONGEST_NAME} of a-z, A-Z, 0-9, _, - and .");
            return Err(wrong("function.name", message));
        }
        function.take::<String>("description")?;
        let strict = function.take::<bool>("strict")?.unwrap_or(false);
        let parameters = function.take::<Map<String, Value>>("parameters")?;
        function.finish()?;
        // No parameters are none that could be given.
        let mut parameters = parameters.map_or_else(
            || json!({"type": "object", "properties": {}, "additionalProperties": false}),
            Value::Object,
        );
        if parameters["type"].is_null() {
            parameters["type"] = "object".into();
        }
        if parameters["type"] != "object" {
            let message = format!("has the type {}: arguments are an object", parameters["type"]);
            return Err(wrong("function.parameters", message));
        }
        let mut parameters = Form::written(parameters);
        if !strict && let Some(form) = parameters["x-guidance"].as_object_mut() {
            // Without what is not understood of it: what clients say of their tools is more than a form.
            form.entry("lenient").or_insert(true.into());
        }
        Ok(Self { name, value, parameters, strict })
    }
}

/// What `schema` means, a part of `root` that may be found elsewhere in it.
fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..16 {
        let to = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
        let Some(next) = to.and_then(|to| root.pointer(to)) else { break };
        schema = next;
    }
    schema
}

/// What a call is known by. Templates of Mistral's take nine letters and digits.
pub(crate) fn call_id(style: Option<AnswerStyle>) -> String {
    let id = unique_id();
    match style {
        Some(AnswerStyle::Mistral | AnswerStyle::MistralArgs) => id.chars().rev().take(9).collect(),
        _ => format!("call_{id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::tests::{accepts, special};

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
        let tools = Tools::take(&mut Fields::new(fields)).unwrap().unwrap();
        let special = |text: &str| special(marks, text);
        let lark = tools.grammar(&special, style, thinks, own.is_some()).unwrap();
        let grammar = match own {
            Some(own) => own.within(FIELD, lark).grammar().clone(),
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
        let hermes = |text: &str| must(AnswerStyle::Hermes, json!({}), text);
        assert_eq!(hermes(F), Ok(()));
        assert_eq!(hermes(G), Ok(()));
        assert_eq!(hermes(&format!("{F}\n{G}")), Ok(()));
        assert_eq!(hermes("Hello"), Err(String::new()));
        assert_eq!(hermes(&F.replace('2', "3")), Err(F[..F.find('2').unwrap()].into()));
        assert_eq!(hermes(&F[..20]), Err(F[..20].into()));
        let one = json!({"parallel_tool_calls": false});
        assert_eq!(must(AnswerStyle::Hermes, one.clone(), F), Ok(()));
        assert_eq!(must(AnswerStyle::Hermes, one, &format!("{F}\n{G}")), Err(F.into()));
        let g = json!({"tool_choice": {"type": "function", "function": {"name": "g"}}});
        assert_eq!(must(AnswerStyle::Hermes, g.clone(), G), Ok(()));
        let name = F.find("f\"").unwrap();
        assert_eq!(must(AnswerStyle::Hermes, g, F), Err(F[..name].into()));
        let llama = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
        assert_eq!(must(AnswerStyle::Llama3, json!({}), llama), Ok(()));
        assert_eq!(must(AnswerStyle::Llama3, json!({}), &format!("{llama}; {llama}")), Ok(()));
        let list = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, \
                    {\"name\": \"g\", \"arguments\": {}}]";
        assert_eq!(must(AnswerStyle::Mistral, json!({}), list), Ok(()));
        let coder = |text: &str| must(AnswerStyle::QwenCoder, json!({}), text);
        let f =
            "<tool_call>\n<function=f>\n<parameter=x>\n2\n</parameter>\n</function>\n</tool_call>";
        let g = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
        assert_eq!(coder(&format!("{f}\n{g}")), Ok(()));
        assert_eq!(coder(&f.replace('2', "3")), Err(f[..f.find('2').unwrap()].into()));
        assert_eq!(
            coder("<tool_call>\n<function=f>\n</"),
            Err("<tool_call>\n<function=f>\n<".into())
        );
        assert_eq!(coder(F), Err("<tool_call>\n".into()));
        let two = "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}";
        assert_eq!(must(AnswerStyle::MistralArgs, json!({}), two), Ok(()));
    }

    #[test]
    fn arguments_one_by_one_are_text_or_json() {
        let parameters = json!({"type": "object", "required": ["path", "way"], "properties": {
            "path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}},
            "way": {"enum": ["a", "b \"c\""]}, "maybe": {"type": ["string", "null"]}, "kind": {"$ref": "#/$defs/kind"},
        }, "$defs": {"kind": {"enum": ["x", "y"], "type": "string"}}});
        let check = |parameters: &Value, arguments: &[(&str, &str)]| {
            let one =
                |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
            let all: String = arguments.iter().map(one).collect();
            let text = format!("<tool_call>\n<function=f>\n{all}</function>\n</tool_call>");
            let tool =
                json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
            let Value::Object(fields) = json!({"tools": [tool], "tool_choice": "required"}) else {
                unreachable!()
            };
            let tools = Tools::take(&mut Fields::new(fields)).unwrap().unwrap();
            let lark =
                tools.grammar(&|_| None, AnswerStyle::QwenCoder, Thinks::Never, false).unwrap();
            accepts(&TopLevelGrammar::from_lark(lark), &[], &text).is_ok()
        };
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
    fn thoughts_may_come_first() {
        let must = |thinks, text: &str| {
            check(AnswerStyle::Hermes, json!({"tool_choice": "required"}), thinks, text)
        };
        let thought = format!("<think>\nHm </b>.\n</think>\n\n{F}");
        assert_eq!(must(Thinks::Perhaps, &thought), Ok(()));
        assert_eq!(must(Thinks::Perhaps, F), Ok(()));
        assert_eq!(must(Thinks::Already, &thought["<think>".len()..]), Ok(()));
        assert_eq!(must(Thinks::Never, &thought), Err("<t".into()));
    }

    #[test]
    fn words_are_free_until_a_call_begins() {
        let auto = |style, text: &str| check(style, json!({}), Thinks::Never, text);
        for style in [AnswerStyle::Hermes, AnswerStyle::Mistral, AnswerStyle::MistralArgs] {
            for text in ["", "Any words, {\"x\": 3} or <tool and [TOOL\n.", "<think>a</think>\nb"] {
                assert_eq!(auto(style, text), Ok(()), "{style:?}: {text}");
            }
        }
        let said = format!("Let me look.\n{F}");
        assert_eq!(auto(AnswerStyle::Hermes, &said), Ok(()));
        assert_eq!(auto(AnswerStyle::Hermes, &format!("{said}\n{G}")), Ok(()));
        let wrong = said.replace('2', "3");
        assert_eq!(
            auto(AnswerStyle::Hermes, &wrong),
            Err(wrong[..wrong.find('3').unwrap()].into())
        );
        assert_eq!(auto(AnswerStyle::Hermes, "a <tool_call>no"), Err("a <tool_call>".into()));
        assert_eq!(
            auto(AnswerStyle::Mistral, "a [TOOL_CALLS] [{\"name\": \"h\""),
            Err("a [TOOL_CALLS] [{\"name\": \"".into())
        );
    }

    #[test]
    fn a_call_within_thoughts_is_a_thought() {
        for marks in [&[][..], &["<tool_call>", "</tool_call>"], &THINK] {
            let auto = |thinks, text: &str| {
                check_beside(None, marks, AnswerStyle::Hermes, json!({}), thinks, text)
            };
            let quoted = if marks.contains(&"<tool_call>") { "call" } else { "<tool_call>no" };
            for (thinks, begin) in [(Thinks::Already, ""), (Thinks::Perhaps, "<think>")] {
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
                assert_eq!(auto(Thinks::Perhaps, said), Ok(()), "{marks:?}: {said}");
            }
        }
    }

    #[test]
    fn thoughts_may_lie_between_special_tokens() {
        let must = |thinks, text: &str| {
            let more = json!({"tool_choice": "required"});
            check_beside(None, &THINK, AnswerStyle::Hermes, more, thinks, text)
        };
        let thought = format!("<think>\nHm.\n</think>\n\n{F}");
        assert_eq!(must(Thinks::Perhaps, &thought), Ok(()));
        assert_eq!(must(Thinks::Perhaps, F), Ok(()));
        assert_eq!(must(Thinks::Already, &thought["<think>".len()..]), Ok(()));
        for (form, text) in forms() {
            let thoughts = format!("Hm.\n</think>\n\n{text}");
            let form = Thinks::Already.before(&|text| special(&THINK, text), form);
            assert_eq!(accepts(form.grammar(), &THINK, &thoughts), Ok(()));
        }
    }

    /// JSON of a schema, an expression, and a grammar; each with a text that has its form.
    fn forms() -> [(Form, &'static str); 3] {
        let form = |fields: Value| {
            let Value::Object(fields) = fields else { unreachable!() };
            Form::take(&mut Fields::new(fields)).unwrap().unwrap()
        };
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}},
                            "required": ["name"], "additionalProperties": false});
        let schema = json!({"type": "json_schema", "json_schema": {"schema": schema}});
        [
            (form(json!({"response_format": schema})), "{\"name\": \"g\"}"),
            (form(json!({"guided_regex": "[0-9]+ cats"})), "12 cats"),
            (form(json!({"guided_grammar": "start: \"a\" call\ncall: /b+c/"})), "abbc"),
        ]
    }

    #[test]
    fn an_answer_is_calls_or_text_of_its_form() {
        let styles = [
            (AnswerStyle::Hermes, G, format!("{F}\n{G}")),
            (AnswerStyle::Llama3, "{\"name\": \"g\", \"parameters\": {}}", String::new()),
            (
                AnswerStyle::Mistral,
                "[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}]",
                String::new(),
            ),
            (AnswerStyle::MistralArgs, "[TOOL_CALLS]g[ARGS]{}", String::new()),
        ];
        for (style, call, two) in styles {
            for at in 0..forms().len() {
                let either = |text: &str| {
                    let own = forms().into_iter().nth(at).map(|it| it.0);
                    check_beside(own, &[], style, json!({}), Thinks::Perhaps, text)
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
            let grammar = Thinks::Already.before(&|_| None, form).grammar().clone();
            assert_eq!(accepts(&grammar, &[], &thoughts), Ok(()));
            assert!(accepts(&grammar, &[], &thoughts[..thoughts.len() - 1]).is_err());
        }
        for (form, text) in forms() {
            assert_eq!(
                accepts(Thinks::Perhaps.before(&|_| None, form).grammar(), &[], text),
                Ok(())
            );
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
        for marks in [AnswerStyle::Harmony.special_tokens(), &[]] {
            let check = |own: bool, more: &Value, text: &str| {
                let own = own.then(|| forms().into_iter().next().unwrap().0);
                let style = AnswerStyle::Harmony;
                check_beside(own, marks, style, more.clone(), Thinks::Perhaps, text)
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
        for marks in [AnswerStyle::Harmony.special_tokens(), &[]] {
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
}
