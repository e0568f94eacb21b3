//! Conversations as a template takes them that does not know all that they have: calls, results, thoughts, tools.

mod harmony;

use serde_json::{Map, Value, json};

use super::dumps;
use crate::{AnswerStyle, ChatTemplate};

impl ChatTemplate {
    /// How calls are written: as it says, or in the way that most models know where it knows no tools.
    pub fn call_style(&self) -> Option<AnswerStyle> {
        self.tool_style().or_else(|| self.knows_none().then_some(AnswerStyle::HERMES))
    }

    fn knows_none(&self) -> bool {
        !self.knows_tools() && self.answer_style().is_none()
    }

    /// Changes `messages` and `tools` to what the template takes: where it leaves out calls they are among the words, as the
    /// model has written them, where thoughts are parts of what is said or have another name they are such, as words are that
    /// it has no place for before calls, where it knows no tools or shows none they are words, too, what it does not
    /// take of the system the user says, and what user or assistant say twice is said once where it wants turns. The answer `goes_on` with the last of the messages, or does not.
    pub(super) fn adapt(
        &self,
        messages: &mut Vec<Map<String, Value>>,
        goes_on: bool,
        tools: &mut Vec<Value>,
    ) {
        if self.answer_style() == Some(AnswerStyle::Harmony) {
            harmony::take_back(messages, tools);
            *messages = self.say_as_user(messages, !tools.is_empty());
            return;
        }
        self.shorten_ids(messages);
        let style = self.call_style();
        let writes = self.knows_none() || self.leaves_out_calls();
        // What an answer goes on with are words.
        let parted = messages.len().saturating_sub(usize::from(goes_on));
        for (at, message) in messages.iter_mut().enumerate() {
            if let (Some(style), Some(calls)) =
                (style.filter(|_| writes), message.get("tool_calls"))
                && let Some(written) = written(style, calls)
            {
                let words = text(message);
                let words = match words.is_empty() {
                    true => written,
                    false => format!("{words}\n{written}"),
                };
                message.insert("content".into(), words.into());
                message.remove("tool_calls");
            }
            if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut)
                && self.wants_arguments_as_text()
            {
                for call in calls {
                    if let Some(arguments) = call.pointer_mut("/function/arguments") {
                        *arguments = dumps(arguments).into();
                    }
                }
            }
            let calls = message.contains_key("tool_calls");
            let name = self.thoughts_name(calls);
            if calls
                && name.is_some()
                && !self.takes_words_before_calls()
                && !text(message).is_empty()
            {
                let words = message.insert("content".into(), "".into());
                let thoughts = message.remove("reasoning_content");
                let all = [thoughts, words].into_iter().flatten();
                let all: Vec<_> = all.filter_map(|it| Some(it.as_str()?.to_owned())).collect();
                message.insert("reasoning_content".into(), all.join("\n\n").into());
            }
            let Some(thoughts) = message.remove("reasoning_content") else { continue };
            let name = name.unwrap_or("reasoning_content");
            // By this name clients give them, and of no words they say that nothing was thought, so that templates do not
            // look for thoughts in the words. By others they are ours to leave out.
            if thoughts == "" && name != "reasoning_content" {
                continue;
            }
            if self.takes_thought_parts() && at < parted && thoughts != "" {
                let mut parts = vec![json!({"type": "thinking", "thinking": thoughts})];
                let words = text(message);
                if !words.is_empty() {
                    parts.push(json!({"type": "text", "text": words}));
                }
                message.insert("content".into(), parts.into());
            } else {
                message.insert(name.into(), thoughts);
            }
        }
        if self.knows_none() {
            say_results(messages);
        }
        if self.takes_tools_of_system() {
            give_to_system(messages, tools);
        } else if !self.shows_tools()
            && let Some(style) = style
        {
            describe(messages, tools, style);
        }
        *messages = self.say_as_user(messages, !tools.is_empty());
        self.take_turns(messages, !tools.is_empty());
    }
}

/// A message of `role` that says `text`.
fn said(role: &str, text: String) -> Map<String, Value> {
    Map::from_iter([("role".into(), role.into()), ("content".into(), text.into())])
}

/// What a message says in words.
fn text(message: &Map<String, Value>) -> &str {
    message.get("content").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn role(message: &Map<String, Value>) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// What a tool is, in the form of transformers.
fn function(mut tool: Value) -> Value {
    tool.get_mut("function").map(Value::take).unwrap_or_default()
}

/// Gives the message of the system `tools`, in the text of JSON.
fn give_to_system(messages: &mut Vec<Map<String, Value>>, tools: &mut Vec<Value>) {
    if tools.is_empty() {
        return;
    }
    let functions = std::mem::take(tools).into_iter().map(function).collect();
    if messages.first().is_none_or(|it| role(it) != "system") {
        // As Phi-4-mini's makers have it.
        messages.insert(0, said("system", "You are a helpful assistant with some tools.".into()));
    }
    messages[0].insert("tools".into(), dumps(&functions).into());
}

/// Says what has come of calls in the words of the user, for a template that knows nothing of them. Many want users and
/// assistants by turns.
fn say_results(messages: &mut Vec<Map<String, Value>>) {
    let mut all: Vec<Map<String, Value>> = Vec::new();
    let mut is_result = false;
    for mut message in std::mem::take(messages) {
        let was_result = std::mem::replace(&mut is_result, role(&message) == "tool");
        if is_result {
            let words = format!("<tool_response>\n{}\n</tool_response>", text(&message));
            message = said("user", words);
        }
        let is_joined = (was_result || is_result) && role(&message) == "user";
        match all.last_mut().filter(|last| is_joined && role(last) == "user") {
            Some(last) => {
                let both = format!("{}\n{}", text(last), text(&message));
                last.insert("content".into(), both.into());
            }
            None => all.push(message),
        }
    }
    *messages = all;
}

/// Says in `messages` what `tools` there are and how they are called, in `style`, for a template that shows none.
fn describe(messages: &mut Vec<Map<String, Value>>, tools: &mut Vec<Value>, style: AnswerStyle) {
    let call = style.written(&[("…", &json!({"…": "…"}))]);
    let Some(call) = call.filter(|_| !tools.is_empty()) else { return };
    let tools: Vec<_> = tools.drain(..).map(|it| function(it).to_string()).collect();
    let results = match style == AnswerStyle::HERMES {
        true => "What comes of it is told in <tool_response></tool_response>. ",
        false => "",
    };
    let about = format!(
        "You can call these functions, each of them given as JSON:\n<tools>\n{}\n</tools>\n\
         To call one, answer with its name and arguments, one call after another if there are several:\n\
         {call}\n{results}Where no function helps, answer in words.",
        tools.join("\n")
    );
    let mut first = messages.iter_mut();
    let Some(first) = first.find(|it| matches!(role(it), "system" | "user")) else {
        return messages.insert(0, said("system", about));
    };
    let words = text(first);
    let words = match role(first) == "system" {
        true => format!("{words}\n\n{about}"),
        false => format!("{about}\n\n{words}"),
    };
    first.insert("content".into(), words.into());
}

/// The `calls` of a message, in the form that templates know, as `style` has them.
fn written(style: AnswerStyle, calls: &Value) -> Option<String> {
    let calls = calls.as_array()?.iter().map(|call| &call["function"]);
    let calls = calls.map(|it| Some((it["name"].as_str()?, &it["arguments"])));
    style.written(&calls.collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use crate::{RenderOptions, Vocabulary};

    use super::*;

    /// What a template of these lines makes of an answer with words, thoughts and a call.
    fn rendered(source: &str) -> String {
        let of_file = Vocabulary { chat_template: Some(source.into()), ..Vocabulary::default() };
        let template = ChatTemplate::from_vocabulary(&of_file, "here".as_ref()).unwrap().unwrap();
        let call = json!({"function": {"name": "f", "arguments": {"x": [1, "a"]}}});
        let answer = json!([{"role": "assistant", "content": "b", "reasoning_content": "c", "tool_calls": [call]}]);
        let mut messages: Vec<Map<String, Value>> = serde_json::from_value(answer).unwrap();
        template.adapt(&mut messages, false, &mut Vec::new());
        template.render(&messages, &RenderOptions::default()).unwrap()
    }

    #[test]
    fn what_a_template_leaves_out_is_said() {
        let said = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let call = "<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments }}}</tool_call>";
        let raw = format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls %}}{call}{{% endfor %}}{{% endfor %}}"
        );
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a\"]}}</tool_call>";
        assert_eq!(rendered(&raw), format!("b{call}"));
        let granite = format!("{said}{{# tools <|tool_call|> #}}");
        let call = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a\"]}}]";
        assert_eq!(rendered(&granite), format!("b\n{call}"));
        let lfm2 = format!("{said}{{# tools List of tools: #}}");
        let call = "<|tool_call_start|>[f(x=[1, \"a\"])]<|tool_call_end|>";
        assert_eq!(rendered(&lfm2), format!("b\n{call}"));
        let hermes =
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a\"]}}\n</tool_call>";
        assert_eq!(rendered(said), format!("b\n{hermes}"));
        assert_eq!(rendered(&format!("{said}{{# tools #}}")), "b");
        let parts = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                     {% for p in m.content %}{{ '[THINK]' + p.thinking + '[/THINK]' if p.thinking else p.text }}\
                     {% endfor %}{% endif %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}";
        assert_eq!(rendered(parts), "[THINK]c[/THINK]bf");
        let plan = "{% for m in messages %}{{ m.tool_plan }}{{ m.content }}{{ m.tool_calls and '!' }}{% endfor %}";
        assert_eq!(rendered(&format!("{plan}{{# tools #}}")), "cb!");
        let behind = "{% for m in messages %}{{ m.thinking }}{% for c in m.tool_calls %}{{ c.function.name }}\
                      {% endfor %}{{ m.content }}{% endfor %}";
        assert_eq!(rendered(behind), "c\n\nbf");
    }

    #[test]
    fn thoughts_of_no_words_are_left_out_under_other_names_than_their_clients_have() {
        const OTHER: &str = "{% for m in messages %}{% if m.thinking is defined %}<think>{{ m.thinking }}</think>\
                             {% endif %}{{ m.content }}{% endfor %}";
        const SAME: &str = "{% for m in messages %}{% if m.reasoning_content is string %}<{{ m.reasoning_content }}>\
                            {% endif %}{{ m.content }}{% endfor %}";
        let cases = [
            (OTHER, "", "b"),
            (OTHER, "c", "<think>c</think>b"),
            (SAME, "", "<>b"),
            (SAME, "c", "<c>b"),
        ];
        for (source, thoughts, expected) in cases {
            let of_file =
                Vocabulary { chat_template: Some(source.into()), ..Vocabulary::default() };
            let template =
                ChatTemplate::from_vocabulary(&of_file, "here".as_ref()).unwrap().unwrap();
            let answer =
                json!([{"role": "assistant", "content": "b", "reasoning_content": thoughts}]);
            let mut messages: Vec<Map<String, Value>> = serde_json::from_value(answer).unwrap();
            template.adapt(&mut messages, false, &mut Vec::new());
            assert_eq!(template.render(&messages, &RenderOptions::default()).unwrap(), expected);
        }
    }

    fn said_by(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    /// Who says what in `messages` once a template of these lines takes them.
    fn taken(source: &str, messages: &[[&str; 2]], tools: bool) -> Vec<[String; 2]> {
        let of_file = Vocabulary { chat_template: Some(source.into()), ..Vocabulary::default() };
        let template = ChatTemplate::from_vocabulary(&of_file, "here".as_ref()).unwrap().unwrap();
        let messages: Value = messages.iter().map(|[role, text]| said_by(role, text)).collect();
        let mut messages: Vec<Map<String, Value>> = serde_json::from_value(messages).unwrap();
        let mut tools =
            vec![json!({"type": "function", "function": {"name": "f"}}); usize::from(tools)];
        template.adapt(&mut messages, false, &mut tools);
        let said = |it: &Map<String, Value>| {
            [&it["role"], &it["content"]].map(|it| it.as_str().unwrap().into())
        };
        messages.iter().map(said).collect()
    }

    #[test]
    fn what_the_system_says_is_said_by_the_user_where_a_template_refuses_it() {
        let takes = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let refuses = format!(
            "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{takes}"
        );
        let [s, a, b] = [["system", "S"], ["assistant", "a"], ["user", "b"]];
        let silent = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
        for (given, expected) in [
            (&[s, b][..], &[["user", "S\n\nb"]][..]),
            (&[s, a, b], &[a, ["user", "S\n\nb"]]),
            (&[s, ["system", "T"], b, a], &[["user", "S\n\nT\n\nb"], a]),
            (&[s, a], &[["user", "S"], a]),
            (&[b, a], &[b, a]),
        ] {
            assert_eq!(taken(&refuses, given, false), expected);
            assert_eq!(taken(silent, given, false), expected);
            assert_eq!(taken(takes, given, false), given);
        }
        // Where it takes what is said first.
        let first = "{{ messages[0].content if messages[0].role == 'system' }}".to_owned() + silent;
        assert_eq!(taken(&first, &[s, ["system", "T"], b], false), [s, ["user", "T\n\nb"]]);
        let harmony = first.replace("{{ messages", "<|channel|>{{ messages");
        assert_eq!(taken(&harmony, &[s, b, s, b], false), [s, b, ["user", "S\n\nb"]]);
        // And what is said of tools.
        for (source, role) in [(takes, "system"), (&refuses, "user")] {
            let all = taken(source, &[a], true);
            assert!(all[0][0] == role && all[0][1].contains("{\"name\":\"f\"}"), "{all:?}");
            assert_eq!(all[1..], [a]);
        }
        let results = "b\n<tool_response>\n1\n</tool_response>\nc";
        assert_eq!(taken(takes, &[b, ["tool", "1"], ["user", "c"]], false), [["user", results]]);
    }

    #[test]
    fn tools_are_told_where_a_template_has_them() {
        let phi = "{% for m in messages %}{{ m.content }}{% if m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}\
                   {% endfor %}";
        let (source, user) = (Some(phi.into()), said_by("user", "a"));
        let of_file = Vocabulary { chat_template: source, ..Vocabulary::default() };
        let template = ChatTemplate::from_vocabulary(&of_file, "here".as_ref()).unwrap().unwrap();
        let tool = json!({"type": "function", "function": {"name": "f"}});
        for (system, expected) in [
            (None, "You are a helpful assistant with some tools."),
            (Some(said_by("system", "S")), "S"),
        ] {
            let all = system.into_iter().chain([user.clone()]).collect();
            let mut messages: Vec<Map<String, Value>> = serde_json::from_value(all).unwrap();
            let mut tools = vec![tool.clone()];
            template.adapt(&mut messages, false, &mut tools);
            let text = template.render(&messages, &RenderOptions::default()).unwrap();
            assert_eq!(text, format!("{expected}<|tool|>[{{\"name\": \"f\"}}]<|/tool|>a"));
            assert!(tools.is_empty());
        }
        // One that writes calls, and does not say to what.
        let silent = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<｜tool▁calls▁begin｜>\
                      <｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}\
                      <｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}{% endfor %}";
        let all = taken(silent, &[["user", "a"], ["tool", "1"]], true);
        assert!(all[0][1].contains("\n{\"name\":\"f\"}\n"), "{all:?}");
        assert!(all[0][1].contains("begin｜>…<｜tool▁sep｜>{"), "{all:?}");
        assert_eq!(all[1..], [["tool", "1"]]);
    }

    #[test]
    fn tools_are_words_where_a_template_knows_none() {
        let message = said_by;
        let after = |system: bool| {
            let said = [
                message("system", "S"),
                message("user", "a"),
                message("assistant", "b"),
                message("tool", "1"),
                message("tool", "2"),
                message("user", "c"),
                message("assistant", "d"),
                message("user", "e"),
            ];
            let said = Value::from_iter(said.into_iter().skip(usize::from(!system)));
            let mut messages: Vec<Map<String, Value>> = serde_json::from_value(said).unwrap();
            let mut tools = vec![json!({"type": "function", "function": {"name": "f"}})];
            say_results(&mut messages);
            describe(&mut messages, &mut tools, AnswerStyle::HERMES);
            assert!(tools.is_empty());
            let said = |it: &Map<String, Value>| {
                [&it["role"], &it["content"]].map(|it| it.as_str().unwrap().to_owned())
            };
            messages.iter().map(said).collect::<Vec<_>>()
        };
        let results =
            "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\nc";
        let [system, user] = [after(true), after(false)];
        let rest = [["assistant", "b"], ["user", results], ["assistant", "d"], ["user", "e"]];
        assert_eq!(system[2..], rest);
        assert_eq!(user[1..], rest);
        assert_eq!(system[1], ["user", "a"]);
        assert!(
            system[0][1].starts_with("S\n\nYou can call")
                && system[0][1].contains("\n{\"name\":\"f\"}\n")
        );
        assert!(user[0][1].starts_with("You can call") && user[0][1].ends_with("\n\na"));
    }
}
