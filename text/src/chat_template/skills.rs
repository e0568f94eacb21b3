//! What a template does with tools, calls and thoughts, as it turns out when some are given to it.

use super::{ChatTemplate, RenderOptions, dumps};
use crate::AnswerStyle;

/// What a template does with what is given to it.
#[derive(Debug)]
pub(super) struct Skills {
    tool_style: Option<AnswerStyle>,
    writes_calls: bool,
    several_calls: bool,
    leaves_out_calls: bool,
    takes_thought_parts: bool,
    thoughts_names: [Option<&'static str>; 2],
    takes_words_before_calls: bool,
    wants_arguments_as_text: bool,
    shows_tools: bool,
    takes_tools_of_system: bool,
    wants_short_ids: bool,
}

/// What templates call what was thought before an answer: those that know one of these.
const THOUGHTS_NAMES: [&str; 4] = ["reasoning_content", "thinking", "reasoning", "tool_plan"];

/// What is given to it: a tool's name, what the user says, and what is thought.
const CALLED: &str = "called_by_the_model";
const ASKED: &str = "asked_by_the_user";
const THOUGHT: &str = "thought_by_the_model";

/// Ids of calls: as Mistral's templates want them, and as others write them.
const SHORT_ID: &str = "abcdefghi";
const LONG_ID: &str = "call_0123456789";

impl ChatTemplate {
    /// How the model writes calls of tools, as far as the template tells; `None` where it knows no tools,
    /// or writes them in a way that [`Reply`](crate::Reply) does not know.
    pub fn tool_style(&self) -> Option<AnswerStyle> {
        self.skills().tool_style
    }

    /// Whether it knows of tools or their calls, in whatever way.
    pub fn knows_tools(&self) -> bool {
        let Skills { tool_style, writes_calls, .. } = self.skills();
        *writes_calls
            || tool_style.is_some()
            || self.mentions("tools")
            || self.mentions("xml_tools")
    }

    /// Whether an answer with several calls can be part of a conversation; templates of Llama 3 refuse it, that of
    /// gpt-oss leaves out all but the first.
    pub fn takes_several_calls(&self) -> bool {
        self.skills().several_calls
    }

    /// Whether it leaves out the calls of an answer, as those of Granite 3 and LFM2: they have to be among its words.
    pub fn leaves_out_calls(&self) -> bool {
        self.skills().leaves_out_calls
    }

    /// Whether thoughts of an answer may be a part of its content: `{"type": "thinking", "thinking": …}`, as
    /// Mistral's templates have it.
    pub fn takes_thought_parts(&self) -> bool {
        self.skills().takes_thought_parts
    }

    /// Whether it writes arguments of calls as they are given: they have to be the text of JSON, [`dumps`].
    pub fn wants_arguments_as_text(&self) -> bool {
        self.skills().wants_arguments_as_text
    }

    /// What the thoughts of an answer are called in messages of it, without calls or with some: `reasoning_content`
    /// mostly; `None` where it shows none.
    pub fn thoughts_name(&self, calls: bool) -> Option<&'static str> {
        self.skills().thoughts_names[usize::from(calls)]
    }

    /// Whether it shows words of an answer that has calls, and before these. Cohere's leave them out, and Gemma 4's puts
    /// them behind what has come of the calls.
    pub fn takes_words_before_calls(&self) -> bool {
        self.skills().takes_words_before_calls
    }

    /// Whether it tells the model of tools that there are; those of DeepSeek know calls alone.
    pub fn shows_tools(&self) -> bool {
        self.skills().shows_tools
    }

    /// Whether it tells the model of tools that the message of the system has, as `tools`: the text of JSON, as
    /// Phi-4-mini's.
    pub fn takes_tools_of_system(&self) -> bool {
        self.skills().takes_tools_of_system
    }

    /// Whether ids of calls have to be nine letters and digits.
    pub fn wants_short_ids(&self) -> bool {
        self.skills().wants_short_ids
    }

    /// An answer with so many `calls` to what the user asks, as it writes it; `None` if it refuses that. What stands
    /// before answers stands before it where that is not certain. The arguments of calls may be given `as_text`.
    fn answer(&self, calls: usize, as_text: bool) -> Option<String> {
        self.answer_with("", calls, as_text)
    }

    /// The same, that says `words`, too.
    fn answer_with(&self, words: &str, calls: usize, as_text: bool) -> Option<String> {
        self.rendered_answer(answer_of(words, &vec![SHORT_ID; calls], as_text), vec![tool("f")])
    }

    /// Whether this template, and not the one for tools, takes what the user says behind words of the user, and behind what
    /// has come of a call: some want user and assistant by turns.
    pub(super) fn takes_user_behind(&self) -> [bool; 2] {
        *self.takes_user_behind.get_or_init(|| self.user_behind())
    }

    fn user_behind(&self) -> [bool; 2] {
        let as_text = self.wants_arguments_as_text();
        let asked = serde_json::json!({"role": "user", "content": ASKED});
        let answer = answer_of("", &[SHORT_ID], as_text);
        let result = serde_json::json!({"role": "tool", "content": "a", "tool_call_id": SHORT_ID});
        let takes = |messages: &[serde_json::Value]| {
            let messages = minijinja::Value::from_serialize(messages);
            self.render_all(messages, &RenderOptions::prompt()).is_ok()
        };
        [vec![asked.clone()], vec![asked.clone(), answer, result]].map(|before| {
            takes(&[&before[..], std::slice::from_ref(&asked)].concat()) || !takes(&before)
        })
    }

    /// Whether words of an answer stand before a call of it, or it has none.
    fn takes_words(&self, as_text: bool) -> bool {
        let Some(answer) = self.answer_with(THOUGHT, 1, as_text) else { return true };
        let [words, call] = [THOUGHT, CALLED].map(|it| answer.find(it));
        call.is_none_or(|call| words.is_some_and(|words| words < call))
    }

    /// What it calls the thoughts of an answer with so many `calls`, if it shows some.
    fn shown_thoughts(&self, calls: usize) -> Option<&'static str> {
        let function = serde_json::json!({"name": CALLED, "arguments": {}});
        let call = serde_json::json!({"type": "function", "id": SHORT_ID, "function": function});
        let shows = |name: &&str| {
            let mut answer = serde_json::json!({"role": "assistant", "content": "a"});
            answer[*name] = THOUGHT.into();
            if calls > 0 {
                answer["tool_calls"] = vec![call.clone(); calls].into();
            }
            let answer = self.rendered_answer(answer, vec![tool("f")]);
            answer.is_some_and(|it| it.contains(THOUGHT))
        };
        THOUGHTS_NAMES.into_iter().find(shows)
    }

    /// Whether what the user says may stand behind `messages`, and something is `said` then, in letters of any size.
    pub(super) fn shows(
        &self,
        messages: &[serde_json::Value],
        tools: Vec<serde_json::Value>,
        said: &str,
    ) -> bool {
        let asked = serde_json::json!({"role": "user", "content": ASKED});
        let messages: Vec<_> = messages.iter().chain([&asked]).collect();
        let options = RenderOptions { tools, ..RenderOptions::prompt() };
        self.render(&messages, &options).is_ok_and(|it| it.to_lowercase().contains(said))
    }

    fn rendered_answer(
        &self,
        answer: serde_json::Value,
        tools: Vec<serde_json::Value>,
    ) -> Option<String> {
        let asked = serde_json::json!({"role": "user", "content": ASKED});
        let prompt = RenderOptions { tools, ..RenderOptions::prompt() };
        let whole = RenderOptions { add_generation_prompt: false, ..prompt.clone() };
        let whole = self.render(&[&asked, &answer], &whole).ok()?;
        let prompt = self.render(&[&asked], &prompt).ok();
        match prompt.and_then(|prompt| whole.strip_prefix(&prompt)) {
            Some(answer) => Some(answer.to_owned()),
            None => Some(whole.rsplit_once(ASKED).map_or(whole.as_str(), |it| it.1).to_owned()),
        }
    }

    /// What the template with tools does with calls.
    fn skills(&self) -> &Skills {
        let it = self.with_tools();
        it.skills.get_or_init(|| {
            let has = |answer: &str, calls| answer.matches(CALLED).count() >= calls;
            let template = it.environment.get_template("chat");
            let source = template.as_ref().map_or("", |it| it.source());
            let arguments = serde_json::json!({"x": "y"});
            let read = |answer: &str| AnswerStyle::of_call(answer, CALLED, &arguments);
            // Some write arguments as they are given.
            let answers = [it.answer(1, false), it.answer(1, true)];
            let [is_read, as_text] = [0, 1].map(|at| answers[at].as_deref().and_then(read));
            let as_text = is_read.is_none() && as_text.is_some();
            let answer = &answers[usize::from(as_text)];
            let one = answer.as_deref().filter(|answer| has(answer, 1));
            let tool_style = match one {
                _ if it.answer_style.is_some() => {
                    it.answer_style.filter(|_| source.contains("tools"))
                }
                Some(answer) => read(answer),
                None => AnswerStyle::of_words(source),
            };
            let parts = serde_json::json!([
                {"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": "a"},
            ]);
            let thought = serde_json::json!({"role": "assistant", "content": parts});
            Skills {
                tool_style,
                writes_calls: one.is_some(),
                several_calls: one.is_none()
                    || it.answer(2, as_text).is_some_and(|answer| has(&answer, 2)),
                leaves_out_calls: answer.is_some() && one.is_none(),
                takes_thought_parts: it.thoughts.is_some_and(|[open, close]| {
                    let thought_of = it.rendered_answer(thought, Vec::new());
                    thought_of.is_some_and(|it| it.contains(&format!("{open}{THOUGHT}{close}")))
                }),
                thoughts_names: [0, 1].map(|calls| it.shown_thoughts(calls)),
                takes_words_before_calls: it.takes_words(as_text),
                wants_arguments_as_text: as_text,
                shows_tools: it.shows(&[], vec![tool(CALLED)], CALLED),
                takes_tools_of_system: {
                    let system =
                        serde_json::json!({"role": "system", "content": "", "tools": CALLED});
                    it.shows(&[system], Vec::new(), CALLED)
                },
                wants_short_ids: one.is_some() && {
                    let asked = serde_json::json!({"role": "user", "content": ASKED});
                    let answer = answer_of("", &[LONG_ID], as_text);
                    it.render(&[asked, answer], &RenderOptions::default()).is_err()
                },
            }
        })
    }
}

/// An answer of `words` and a call of each of `ids`.
fn answer_of(words: &str, ids: &[&str], as_text: bool) -> serde_json::Value {
    let arguments = serde_json::json!({"x": "y"});
    let arguments = if as_text { dumps(&arguments).into() } else { arguments };
    let function = serde_json::json!({"name": CALLED, "arguments": arguments});
    let call = |id| serde_json::json!({"type": "function", "id": id, "function": function});
    let calls: Vec<_> = ids.iter().map(call).collect();
    serde_json::json!({"role": "assistant", "content": words, "tool_calls": calls})
}

/// A tool called `name`, as templates take it.
fn tool(name: &str) -> serde_json::Value {
    let parameters = serde_json::json!({"type": "object", "properties": {}});
    let function = serde_json::json!({"name": name, "description": "", "parameters": parameters});
    serde_json::json!({"type": "function", "function": function})
}
