//! A conversation whose turns share one KV cache.

use std::io;

use anyhow::Result;
use xla_session::{GenerateOptions, InferenceSession};

use crate::answer::{self, Answer};
use crate::chat_template::{ChatTemplate, Message};
use crate::text::Text;

/// Turns so far, and what the session holds of them.
///
/// A turn prefills only tokens that the session does not hold: what the template puts between the
/// last answer and the new one. When the template writes the past otherwise than it was (some
/// leave out thoughts), the session starts over.
pub struct Conversation<'a> {
    session: &'a mut dyn InferenceSession,
    text: &'a Text,
    template: &'a ChatTemplate,
    messages: Vec<Message>,
    /// Every token so far; the session holds the first `position()` of them.
    tokens: Vec<u32>,
    /// Their text.
    rendered: String,
}

impl<'a> Conversation<'a> {
    /// An empty one; `system` begins it.
    pub fn new(
        session: &'a mut dyn InferenceSession,
        text: &'a Text,
        template: &'a ChatTemplate,
        system: Option<&str>,
    ) -> Self {
        session.reset();
        let messages = system.map(|system| Message::new("system", system)).into_iter().collect();
        Self { session, text, template, messages, tokens: Vec::new(), rendered: String::new() }
    }

    /// Forgets every turn but the system message.
    pub fn reset(&mut self) {
        self.session.reset();
        self.messages.retain(|message| message.role == "system");
        self.tokens.clear();
        self.rendered.clear();
    }

    /// Answers `question`, with each piece of text given to `show`.
    ///
    /// # Errors
    ///
    /// Those of the template and of [`answer::generate`]; the conversation is then as before the
    /// question.
    pub fn ask(
        &mut self,
        question: &str,
        options: &mut GenerateOptions,
        show: impl FnMut(&str) -> io::Result<()>,
    ) -> Result<Answer> {
        self.messages.push(Message::new("user", question));
        let result = self.answer(options, show);
        match &result {
            Ok(answer) => {
                let text = answer.text.clone().unwrap_or_default();
                self.rendered.push_str(&text);
                self.messages.push(Message::new("assistant", text));
            }
            Err(_) => {
                self.messages.pop();
            }
        }
        result
    }

    fn answer(
        &mut self,
        options: &mut GenerateOptions,
        show: impl FnMut(&str) -> io::Result<()>,
    ) -> Result<Answer> {
        let rendered = self.template.render(&self.messages, true)?;
        let tokens = match self.continued(&rendered)? {
            Some(tokens) => tokens,
            None => {
                self.session.reset();
                self.tokens.clear();
                self.rendered.clear();
                self.text.encode(&rendered, false)?
            }
        };
        let held = self.session.position();
        let result = answer::generate(
            self.session,
            &tokens,
            &tokens[held..],
            options,
            Some(self.text),
            &[],
            show,
        );
        match &result {
            Ok(answer) => {
                self.tokens = tokens;
                self.tokens.extend(&answer.generation.tokens);
                self.rendered = rendered;
            }
            // The prompt did not get in: what was known before still is.
            Err(_) if self.session.position() == held => {}
            // It broke off on the way: only a new start knows where.
            Err(_) => {
                self.session.reset();
                self.tokens.clear();
                self.rendered.clear();
            }
        }
        result
    }

    /// All tokens of the conversation `rendered`, if they begin with what the session holds.
    fn continued(&self, rendered: &str) -> Result<Option<Vec<u32>>> {
        let held = &self.tokens[..self.session.position()];
        let tokens = self.text.encode(rendered, false)?;
        if tokens.len() > held.len() && tokens.starts_with(held) {
            return Ok(Some(tokens));
        }
        // The model may have written a text in other tokens than the tokenizer would. Text after
        // an added token is encoded on its own in any case, so the new part can be, too.
        let Some(rest) = rendered.strip_prefix(&self.rendered) else { return Ok(None) };
        let rest = self.text.encode(rest, false)?;
        let splits = rest.first().is_some_and(|&id| self.text.is_added(id));
        Ok(splits.then(|| [self.tokens.as_slice(), &rest].concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::Parrot;
    use crate::fixture;

    struct Desk {
        text: Text,
        template: ChatTemplate,
        _folder: tempfile::TempDir,
    }

    fn desk(template: Option<&str>) -> Desk {
        let folder = tempfile::tempdir().unwrap();
        fixture::write_tokenizer(folder.path());
        if let Some(template) = template {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        }
        Desk {
            text: Text::require(folder.path()).unwrap(),
            template: ChatTemplate::require(folder.path()).unwrap(),
            _folder: folder,
        }
    }

    fn options(max_tokens: usize) -> GenerateOptions {
        GenerateOptions { max_tokens, eos: vec![fixture::EOS], ..Default::default() }
    }

    fn turns(desk: &Desk, parrot: &mut Parrot, max_tokens: usize) {
        let mut talk = Conversation::new(parrot, &desk.text, &desk.template, Some("Be kind."));
        for question in ["Who?", "And why?"] {
            let answer = talk.ask(question, &mut options(max_tokens), |_| Ok(())).unwrap();
            assert!(!answer.generation.tokens.is_empty());
        }
    }

    #[test]
    fn a_turn_prefills_only_what_is_new() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.text.encode("the fox", false).unwrap(), 512);
        turns(&desk, &mut parrot, 100);
        let new = "</s><|turn|>user\nAnd why?</s><|turn|>assistant\n";
        assert_eq!(parrot.prefills[1], desk.text.encode(new, false).unwrap());
        assert_eq!(parrot.resets, 1);
        let all = "<s><|turn|>system\nBe kind.</s><|turn|>user\nWho?</s><|turn|>assistant\nthe fox\
                   </s><|turn|>user\nAnd why?</s><|turn|>assistant\nthe fox";
        assert_eq!(parrot.held, desk.text.encode(all, false).unwrap());
    }

    #[test]
    fn tokens_that_the_tokenizer_would_not_choose_are_kept() {
        let desk = desk(None);
        // "the" letter by letter, where the tokenizer has one token for it.
        let letters: Vec<u32> =
            ["t", "h", "e"].iter().flat_map(|it| desk.text.encode(it, false).unwrap()).collect();
        let mut parrot = Parrot::new(&letters, 512);
        turns(&desk, &mut parrot, 100);
        assert_eq!(parrot.resets, 1);
        assert_eq!(parrot.prefills[1][0], fixture::EOS);
    }

    #[test]
    fn a_last_token_that_was_cut_off_is_not_lost() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.text.encode("xyz", false).unwrap(), 512);
        turns(&desk, &mut parrot, 2);
        // "y" was the last token: shown, but not yet in the context.
        let new = "y</s><|turn|>user\nAnd why?</s><|turn|>assistant\n";
        assert_eq!(parrot.prefills[1], desk.text.encode(new, false).unwrap());
    }

    #[test]
    fn a_template_that_rewrites_the_past_starts_over() {
        let desk = desk(Some("{% for m in messages %}{{ m.content | upper }}|{% endfor %}"));
        let mut parrot = Parrot::new(&desk.text.encode("the fox", false).unwrap(), 512);
        turns(&desk, &mut parrot, 100);
        assert_eq!(parrot.resets, 2);
        let all = desk.text.encode("BE KIND.|WHO?|THE FOX|AND WHY?|", false).unwrap();
        assert_eq!(parrot.prefills[1], all);
    }

    #[test]
    fn a_question_that_does_not_fit_changes_nothing() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.text.encode("ok", false).unwrap(), 100);
        let mut talk = Conversation::new(&mut parrot, &desk.text, &desk.template, None);
        talk.ask("Who?", &mut options(9), |_| Ok(())).unwrap();
        let long = "x".repeat(300);
        let error = talk.ask(&long, &mut options(9), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("context"), "{error}");
        talk.ask("Why?", &mut options(9), |_| Ok(())).unwrap();
        talk.reset();
        talk.ask("Who?", &mut options(9), |_| Ok(())).unwrap();
        let first = parrot.prefills[0].clone();
        assert_eq!(parrot.prefills.len(), 3);
        assert!(parrot.prefills[1].len() < first.len() + 10);
        assert_eq!(parrot.prefills[2], first);
    }
}
