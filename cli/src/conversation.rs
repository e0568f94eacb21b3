//! A conversation whose turns share one KV cache.

use std::io;

use anyhow::Result;
use text::{ChatTemplate, Message, RenderOptions, Tokenizer, Transcript};
use xla_session::{GenerateOptions, InferenceSession};

use crate::answer::{self, Answer, Reading};
use crate::readable::Writing;

/// Turns so far, and what the session holds of them.
///
/// A turn prefills only tokens that the session does not hold: what the template puts between the
/// last answer and the new one. When the template writes the past otherwise than it was (some
/// leave out thoughts), the session forgets what comes after the first difference.
pub struct Conversation<'a> {
    session: &'a mut dyn InferenceSession,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    messages: Vec<Message>,
    /// Every token so far; the session holds the first `position()` of them.
    past: Transcript,
}

impl<'a> Conversation<'a> {
    /// An empty one; `system` begins it.
    pub fn new(
        session: &'a mut dyn InferenceSession,
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        system: Option<&str>,
    ) -> Self {
        session.reset();
        let messages = system.map(|system| Message::new("system", system)).into_iter().collect();
        Self { session, tokenizer, template, messages, past: Transcript::default() }
    }

    /// Forgets every turn but the system message.
    pub fn reset(&mut self) {
        self.session.reset();
        self.past = Transcript::default();
        self.messages.retain(|message| message.role == "system");
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
                let said = Writing::of(self.template).said(&self.past.text, &answer.written);
                self.past.text.push_str(&answer.written);
                self.messages.push(Message::new("assistant", said));
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
        let messages = self.template.say_as_user(&self.messages, false);
        let rendered = self.template.render(&messages, &RenderOptions::prompt())?;
        let held = self.session.position();
        let tokens = match self.past.continued(self.tokenizer, held, &rendered)? {
            Some(tokens) => tokens,
            None => {
                let tokens = self.tokenizer.encode_chat(&rendered)?;
                let held = common_prefix(&self.past.tokens[..held], &tokens);
                self.session.truncate(held);
                tokens
            }
        };
        let held = self.session.position();
        let writing = Writing::of(self.template);
        let reading = Reading { tokenizer: Some(self.tokenizer), writing, stops: &[] };
        let result =
            answer::generate(self.session, &tokens, &tokens[held..], options, reading, show);
        match &result {
            Ok(answer) => {
                self.past = Transcript { tokens, text: rendered };
                self.past.tokens.extend(&answer.generation.tokens);
            }
            // What was known before still is, whether the prompt got in or it broke off on the way.
            Err(_) => {
                self.session.truncate(held);
            }
        }
        result
    }
}

/// How many of `tokens` are those that are `held`; at least the last is left to be run.
fn common_prefix(held: &[u32], tokens: &[u32]) -> usize {
    let most = tokens.len().saturating_sub(1);
    held.iter().zip(&tokens[..most]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::Parrot;
    use crate::fixture;

    struct Desk {
        tokenizer: Tokenizer,
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
            tokenizer: Tokenizer::require(folder.path()).unwrap(),
            template: ChatTemplate::require(folder.path()).unwrap(),
            _folder: folder,
        }
    }

    fn options(max_tokens: usize) -> GenerateOptions {
        GenerateOptions { max_tokens, eos: vec![fixture::EOS], ..Default::default() }
    }

    fn turns(desk: &Desk, parrot: &mut Parrot, max_tokens: usize) {
        let mut talk = Conversation::new(parrot, &desk.tokenizer, &desk.template, Some("Be kind."));
        for question in ["Who?", "And why?"] {
            let answer = talk.ask(question, &mut options(max_tokens), |_| Ok(())).unwrap();
            assert!(!answer.generation.tokens.is_empty());
        }
    }

    #[test]
    fn a_turn_prefills_only_what_is_new() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.tokenizer.encode("the fox", false).unwrap(), 512);
        turns(&desk, &mut parrot, 100);
        let new = "</s><|turn|>user\nAnd why?</s><|turn|>assistant\n";
        assert_eq!(parrot.prefills[1], desk.tokenizer.encode(new, false).unwrap());
        assert_eq!(parrot.resets, 1);
        let all = "<s><|turn|>system\nBe kind.</s><|turn|>user\nWho?</s><|turn|>assistant\nthe fox\
                   </s><|turn|>user\nAnd why?</s><|turn|>assistant\nthe fox";
        assert_eq!(parrot.held, desk.tokenizer.encode(all, false).unwrap());
    }

    #[test]
    fn tokens_that_the_tokenizer_would_not_choose_are_kept() {
        let desk = desk(None);
        // "the" letter by letter, where the tokenizer has one token for it.
        let letters: Vec<u32> = ["t", "h", "e"]
            .iter()
            .flat_map(|it| desk.tokenizer.encode(it, false).unwrap())
            .collect();
        let mut parrot = Parrot::new(&letters, 512);
        turns(&desk, &mut parrot, 100);
        assert_eq!(parrot.resets, 1);
        assert_eq!(parrot.prefills[1][0], fixture::EOS);
    }

    #[test]
    fn a_last_token_that_was_cut_off_is_not_lost() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.tokenizer.encode("xyz", false).unwrap(), 512);
        turns(&desk, &mut parrot, 2);
        // "y" was the last token: shown, but not yet in the context.
        let new = "y</s><|turn|>user\nAnd why?</s><|turn|>assistant\n";
        assert_eq!(parrot.prefills[1], desk.tokenizer.encode(new, false).unwrap());
    }

    #[test]
    fn a_template_that_rewrites_the_past_costs_only_what_it_changes() {
        let desk = desk(Some("{% for m in messages %}{{ m.content | upper }}|{% endfor %}"));
        let mut parrot = Parrot::new(&desk.tokenizer.encode("the fox", false).unwrap(), 512);
        turns(&desk, &mut parrot, 100);
        assert_eq!(parrot.resets, 1);
        let encode = |text| desk.tokenizer.encode(text, false).unwrap();
        let before = encode("BE KIND.|WHO?|").len();
        let all = encode("BE KIND.|WHO?|THE FOX|AND WHY?|");
        assert_eq!(parrot.prefills[1], all[before..]);
        assert_eq!(parrot.held, [all, encode("the fox")].concat());
    }

    #[test]
    fn what_a_template_does_not_take_of_the_system_is_said_by_the_user() {
        let template = "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}";
        let desk = desk(Some(template));
        let mut parrot = Parrot::new(&desk.tokenizer.encode("the fox", false).unwrap(), 512);
        turns(&desk, &mut parrot, 100);
        let all = "Be kind.\n\nWho?|the fox|And why?|the fox";
        assert_eq!(parrot.held, desk.tokenizer.encode(all, false).unwrap());
    }

    #[test]
    fn what_was_said_between_marks_is_said_again() {
        let template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}\
                        {# <|START_THINKING|><|END_THINKING|><|START_RESPONSE|><|END_RESPONSE|> #}";
        let template = desk(Some(template)).template;
        let said = |prompt: &str, text: &str| Writing::of(&template).said(prompt, text);
        let response = "<|START_RESPONSE|>Yes.<|END_RESPONSE|>";
        for (prompt, thoughts) in [
            ("a", "<|START_THINKING|>Hm.<|END_THINKING|>"),
            ("a<|START_THINKING|>\n", "Hm.<|END_THINKING|>"),
            ("a", ""),
        ] {
            assert_eq!(said(prompt, &format!("{thoughts}{response}")), "Yes.");
            assert_eq!(said(prompt, &format!("{thoughts}Yes.")), "Yes.");
        }
        // Of marks may be spoken.
        let words = "It ends with <|END_THINKING|>.";
        assert_eq!(said("a", words), words);
    }

    /// One whose tokenizer has `marks` as special tokens.
    fn desk_with(marks: &[&str], template: &str) -> Desk {
        let folder = tempfile::tempdir().unwrap();
        fixture::write_tokenizer(folder.path());
        let path = folder.path().join("tokenizer.json");
        let mut file: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (at, mark) in marks.iter().enumerate() {
            let mut token = file["added_tokens"][0].clone();
            token["id"] = (fixture::vocab_size() + at).into();
            token["content"] = (*mark).into();
            file["added_tokens"].as_array_mut().unwrap().push(token);
        }
        fixture::write(folder.path(), "tokenizer.json", &file);
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        Desk {
            tokenizer: Tokenizer::require(folder.path()).unwrap(),
            template: ChatTemplate::require(folder.path()).unwrap(),
            _folder: folder,
        }
    }

    #[test]
    fn marks_of_thoughts_are_shown_where_they_are_special_tokens() {
        let marks = ["[THINK]", "[/THINK]"];
        let template =
            "{% for m in messages %}{{ m.content }}</s>{% endfor %}{# [THINK]…[/THINK] #}";
        let desk = desk_with(&marks, template);
        let written = "[THINK]A fox?[/THINK]the fox";
        let mut parrot = Parrot::new(&desk.tokenizer.encode(written, false).unwrap(), 512);
        let mut talk = Conversation::new(&mut parrot, &desk.tokenizer, &desk.template, None);
        let answer = talk.ask("Who?", &mut options(100), |_| Ok(())).unwrap();
        assert_eq!(answer.text.as_deref(), Some(written));
    }

    #[test]
    fn thoughts_in_harmony_are_shown_and_are_no_part_of_what_was_said() {
        let template = "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}\
                        <|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}\
                        {% if add_generation_prompt %}<|start|>assistant{% endif %}";
        let desk = desk_with(&text::AnswerStyle::Harmony.special_tokens(), template);
        let Desk { tokenizer, template, .. } = &desk;

        let encode = |text: &str| tokenizer.encode(text, false).unwrap();
        let thoughts = "<|channel|>analysis<|message|>A fox?<|end|><|start|>assistant";
        let said = "<|channel|>final<|message|>the fox";
        let mut parrot = Parrot::new(&encode(&format!("{thoughts}{said}")), 512);
        let mut talk = Conversation::new(&mut parrot, tokenizer, template, None);
        for question in ["Who?", "And why?"] {
            let mut shown = String::new();
            let answer = talk.ask(question, &mut options(100), |piece| {
                shown += piece;
                Ok(())
            });
            assert_eq!(answer.unwrap().text.as_ref(), Some(&shown));
            assert_eq!(shown, "<think>\nA fox?\n</think>\n\nthe fox");
        }
        let prompt = "<|start|>user<|message|>Who?<|end|><|start|>assistant";
        let more = "<|end|><|start|>user<|message|>And why?<|end|><|start|>assistant";
        assert_eq!(parrot.held, encode(&format!("{prompt}{said}{more}{thoughts}{said}")));
        assert_eq!(parrot.resets, 1);
    }

    #[test]
    fn a_session_that_cannot_forget_a_part_starts_over() {
        let desk = desk(Some("{% for m in messages %}{{ m.content | upper }}|{% endfor %}"));
        let mut parrot = Parrot::new(&desk.tokenizer.encode("the fox", false).unwrap(), 512);
        parrot.truncates = false;
        turns(&desk, &mut parrot, 100);
        assert_eq!(parrot.resets, 2);
        let all = desk.tokenizer.encode("BE KIND.|WHO?|THE FOX|AND WHY?|", false).unwrap();
        assert_eq!(parrot.prefills[1], all);
    }

    #[test]
    fn an_answer_that_breaks_off_leaves_what_was_known_before() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.tokenizer.encode("the fox", false).unwrap(), 512);
        let mut talk = Conversation::new(&mut parrot, &desk.tokenizer, &desk.template, None);
        talk.ask("Who?", &mut options(99), |_| Ok(())).unwrap();
        let closed = |_: &str| Err(io::ErrorKind::BrokenPipe.into());
        talk.ask("Why?", &mut options(99), closed).unwrap_err();
        talk.ask("And why?", &mut options(99), |_| Ok(())).unwrap();
        assert_eq!(parrot.resets, 1);
        let all = "<s><|turn|>user\nWho?</s><|turn|>assistant\nthe fox\
                   </s><|turn|>user\nAnd why?</s><|turn|>assistant\nthe fox";
        assert_eq!(parrot.held, desk.tokenizer.encode(all, false).unwrap());
    }

    #[test]
    fn a_question_that_does_not_fit_changes_nothing() {
        let desk = desk(None);
        let mut parrot = Parrot::new(&desk.tokenizer.encode("ok", false).unwrap(), 100);
        let mut talk = Conversation::new(&mut parrot, &desk.tokenizer, &desk.template, None);
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
