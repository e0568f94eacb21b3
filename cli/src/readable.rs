//! What a model writes as it is read here: as it is, or where it is in harmony, with thoughts between the marks that
//! other models put around theirs.

use text::{AnswerStyle, ChatTemplate, Part, Reply, Thoughts, Tokenizer};

/// How an answer is written, as far as the chat template says; the default is text, as everything else is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Writing {
    /// The style of all of it.
    pub style: Option<AnswerStyle>,
    /// What thoughts stand between.
    pub thoughts: Option<Thoughts>,
    /// What words may stand between.
    response: Option<Thoughts>,
}

impl Writing {
    pub fn of(template: &ChatTemplate) -> Self {
        let [thoughts, response] = [template.thoughts(), template.response()];
        Self { style: template.answer_style(), thoughts, response }
    }

    /// What of an answer `text` to `prompt` belongs to the conversation: templates leave out thoughts that are marked in
    /// the text by themselves, and know nothing of others, nor of marks around words.
    pub fn said(self, prompt: &str, text: &str) -> String {
        let reply = match (self.style, self.response) {
            (Some(style), _) => reply(style).joined(),
            (None, None) => return text.to_owned(),
            (None, Some(_)) => {
                let begun = |[open, _]: &Thoughts| prompt.trim_end().ends_with(open);
                let reply = match self.thoughts.filter(begun) {
                    Some(thoughts) => Reply::thinking(None, thoughts),
                    None => Reply::new(None, self.thoughts),
                };
                reply.in_response(self.response)
            }
        };
        words(reply, text)
    }

    /// The special tokens that its text must have.
    pub fn special_ids(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let of_style = self.style.map(|it| it.special_ids(tokenizer)).unwrap_or_default();
        let thoughts = self.thoughts.into_iter().flatten();
        let thoughts = thoughts.flat_map(|mark| tokenizer.special_tokens_in(mark));
        of_style.into_iter().chain(thoughts).collect()
    }
}

/// Turns what comes of an answer to what is shown.
pub struct Readable {
    /// What tells the parts apart; `None` where all of it is text.
    reply: Option<Reply>,
    /// Whether the last part was thoughts.
    thinks: Option<bool>,
}

impl Readable {
    /// Of an answer in `style`.
    pub fn new(style: Option<AnswerStyle>) -> Self {
        Self { reply: style.map(reply), thinks: None }
    }

    /// Takes text and returns what is shown of it.
    pub fn push(&mut self, text: &str) -> String {
        match &mut self.reply {
            None => text.to_owned(),
            Some(reply) => {
                let parts = reply.push(text);
                self.show(parts)
            }
        }
    }

    /// Returns what was held back: no more text comes.
    pub fn finish(&mut self) -> String {
        let parts = self.reply.take().map(Reply::finish);
        self.show(parts.unwrap_or_default())
    }

    /// All of an answer in `style`.
    pub fn whole(style: Option<AnswerStyle>, text: &str) -> String {
        let mut it = Self::new(style);
        it.push(text) + &it.finish()
    }

    fn show(&mut self, parts: Vec<Part>) -> String {
        let mut shown = String::new();
        for part in parts {
            let (thinks, text) = match part {
                Part::Reasoning(text) => (true, text),
                Part::Content(text) => (false, text),
                // There are no tools here.
                Part::Call(_) | Part::Arguments(_) => continue,
            };
            shown += match (self.thinks.replace(thinks), thinks) {
                (None, true) => "<think>\n",
                (Some(false), true) => "\n\n<think>\n",
                (Some(true), false) => "\n</think>\n\n",
                _ => "",
            };
            shown += &text;
        }
        shown
    }
}

/// The words of `text`, as `reply` tells them apart.
fn words(mut reply: Reply, text: &str) -> String {
    let mut parts = reply.push(text);
    parts.extend(reply.finish());
    let words = parts.into_iter().map(|part| match part {
        Part::Content(text) => text,
        _ => String::new(),
    });
    words.collect()
}

fn reply(style: AnswerStyle) -> Reply {
    Reply::new(Some(style), None).of_tools(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_in_harmony_are_marked_as_those_of_others() {
        let style = Some(AnswerStyle::Harmony);
        let shown = |text: &str| {
            let mut readable = Readable::new(style);
            let mut shown: String =
                text.chars().map(|c| readable.push(c.encode_utf8(&mut [0; 4]))).collect();
            shown += &readable.finish();
            assert_eq!(Readable::whole(style, text), shown);
            (shown, Writing { style, ..Writing::default() }.said("", text))
        };
        let (next, thoughts) = ("<|end|><|start|>assistant", "<|channel|>analysis<|message|>Hm.");
        let yes = "<|channel|>final<|message|>Yes – <b>.";
        let text = format!("{thoughts}{next}{yes}");
        assert_eq!(
            shown(&text),
            ("<think>\nHm.\n</think>\n\nYes – <b>.".into(), "Yes – <b>.".into())
        );
        assert_eq!(shown(yes).0, "Yes – <b>.");
        assert_eq!(shown(thoughts), ("<think>\nHm.".into(), String::new()));
        let words = format!("<|channel|>commentary<|message|>So:{next}{text}");
        assert_eq!(shown(&words).0, "So:\n\n<think>\nHm.\n</think>\n\nYes – <b>.");
        assert_eq!(shown(&words).1, "So:\n\nYes – <b>.");
        assert_eq!(Readable::whole(None, &text), text);
        assert_eq!(Writing::default().said("", "<think>a</think>b"), "<think>a</think>b");
    }
}
