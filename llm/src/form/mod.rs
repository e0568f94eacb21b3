//! Answers in a form: JSON of a schema, text that an expression matches or a grammar makes.
//!
//! Forms are kept to by [llguidance](https://github.com/guidance-ai/llguidance), fed with the bytes of the tokenizer's
//! tokens: tokens that may not come next are not chosen, and those that have to come are not asked for.

mod constraint;
mod words;

pub(crate) mod grammar;
pub(crate) mod harmony;
mod thinks;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use text::{AnswerStyle, Prompt, Tokenizer};

use crate::tools::Tools;
pub use constraint::Constraint;
pub use thinks::Thinks;
use words::factory;

/// What an answer is to be.
#[derive(Debug, Clone)]
pub struct Form {
    /// What it is called where something is wrong with it.
    name: &'static str,
    grammar: TopLevelGrammar,
    /// Another one, which is a part of it.
    part: Option<Box<Self>>,
}

/// What is wrong with a form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} {message}")]
#[non_exhaustive]
pub struct FormError {
    /// What [it is called](Form::called).
    pub name: &'static str,
    /// What is wrong: "cannot be kept to: …".
    pub message: String,
    /// Whether the system is at fault, and not the form.
    pub internal: bool,
}

/// What grammars call the form that is a part of them.
pub(crate) const PART: &str = "@text";

impl Form {
    /// What a `grammar` of llguidance makes.
    fn new(grammar: TopLevelGrammar) -> Self {
        Self { name: "the form", grammar, part: None }
    }

    /// JSON of `schema`, written in one way, so that no answer gets lost in white space; the schema may say otherwise
    /// (`x-guidance`).
    pub fn json_schema(schema: Value) -> Self {
        Self::new(TopLevelGrammar::from_json_schema(Self::written(schema)))
    }

    /// Any object of JSON.
    pub fn json_object() -> Self {
        Self::json_schema(json!({"type": "object"}))
    }

    /// What the regular `expression` matches.
    pub fn regex(expression: &str) -> Self {
        Self::new(TopLevelGrammar::from_regex(expression))
    }

    /// What a `grammar` makes, in [Lark's language](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self::new(TopLevelGrammar::from_lark(grammar.into()))
    }

    /// The same, called so where something is wrong with it; "the form" is the default.
    #[must_use]
    pub fn called(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What a `grammar` makes, in Lark's language, of which this one is the [`PART`].
    #[must_use]
    pub(crate) fn within(self, grammar: impl Into<String>) -> Self {
        let mut whole = TopLevelGrammar::from_lark(grammar.into());
        let mut parts = self.grammar.grammars.iter().cloned();
        let first = parts.next().map(|first| {
            let name = Some(PART.trim_start_matches('@').to_owned());
            GrammarWithLexer { name, ..first }
        });
        whole.grammars.extend(first.into_iter().chain(parts));
        let name = self.name;
        Self { part: Some(Box::new(self)), ..Self::new(whole).called(name) }
    }

    /// This one, as an answer to `prompt` has it: behind thoughts, and in the response, if the model marks those.
    #[must_use]
    fn of_answer(self, tokenizer: &Tokenizer, prompt: &Prompt) -> Self {
        let special = |text: &str| tokenizer.special_token(text);
        let thinks = Thinks::of(prompt);
        match prompt.style() {
            Some(AnswerStyle::Harmony) if thinks != Thinks::Never => {
                harmony::with_form(&special, self)
            }
            _ => thinks.before(&special, prompt.response_to_come(), self),
        }
    }

    /// As llguidance has it.
    #[cfg(test)]
    pub(crate) fn grammar(&self) -> &TopLevelGrammar {
        &self.grammar
    }

    /// `schema`, its JSON written in one way. A schema may say otherwise.
    pub(crate) fn written(mut schema: Value) -> Value {
        if let Value::Object(schema) = &mut schema {
            let form = json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            });
            schema.entry("x-guidance").or_insert(form);
        }
        schema
    }
}

/// The forms that answers of one model are kept to, in its tokens: what these are made of is read when the first one is asked
/// for.
pub struct Forms {
    tokenizer: Tokenizer,
    vocab_size: usize,
    eos: Vec<u32>,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// Which schemas can be kept to, by their SHA-256: clients send the same ones with every request.
    verdicts: Mutex<HashMap<[u8; 32], bool>>,
    /// Where texts in the last forms begin, by the SHA-256 of their grammars, the latest first.
    begun: Mutex<VecDeque<([u8; 32], Matcher)>>,
}

impl fmt::Debug for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forms").finish_non_exhaustive()
    }
}

/// Most schemas of which that is remembered.
const VERDICTS: usize = 4096;

/// Most forms of which the beginning is, which may take megabytes.
const BEGUN: usize = 16;

impl Forms {
    /// Those of a model of `vocab_size` tokens, which are those of `tokenizer`, and of which `eos` end an answer.
    pub fn new(tokenizer: Tokenizer, vocab_size: usize, eos: Vec<u32>) -> Self {
        let (factory, verdicts, begun) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Self { tokenizer, vocab_size, eos, factory, verdicts, begun }
    }

    /// Whether `schema` can be kept to, if that was found out before.
    pub(crate) fn verdict(&self, schema: &Value) -> Option<bool> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.get(&digest(schema)).copied()
    }

    /// Whether `schema` can be kept to, which `find_out` tells where it is not known.
    pub(crate) fn judge(&self, schema: &Value, find_out: impl FnOnce() -> bool) -> bool {
        self.verdict(schema).unwrap_or_else(|| {
            let verdict = find_out();
            let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            if verdicts.len() >= VERDICTS {
                verdicts.clear();
            }
            verdicts.insert(digest(schema), verdict);
            verdict
        })
    }

    /// Where a text in `form` begins.
    ///
    /// # Errors
    ///
    /// The form is none that can be kept to.
    pub fn start(&self, form: &Form) -> Result<Start, FormError> {
        if let Some(part) = &form.part {
            // Whoever asked for it is told what is wrong with it.
            self.start(part)?;
        }
        let factory = self.factory().map_err(|error| {
            let message = format!("cannot be kept to with this model's tokenizer: {error}");
            FormError { name: form.name, message, internal: false }
        })?;
        let begun = || self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let key = serde_json::to_vec(&form.grammar).map(|text| Sha256::digest(text).into()).ok();
        let known = key.and_then(|key: [u8; 32]| {
            let mut begun = begun();
            let at = begun.iter().position(|(it, _)| *it == key)?;
            let found = begun.remove(at)?;
            begun.push_front(found.clone());
            Some(found.1)
        });
        let matcher = match known {
            Some(matcher) => matcher,
            None => {
                let matcher = begin(factory, form)?;
                if let Some(key) = key {
                    let mut begun = begun();
                    begun.push_front((key, matcher.clone()));
                    begun.truncate(BEGUN);
                }
                matcher
            }
        };
        Ok(Start { name: form.name, matcher })
    }

    /// What makes forms of grammars, or why nothing does with this tokenizer.
    fn factory(&self) -> Result<&ParserFactory, &String> {
        let Self { tokenizer, vocab_size, eos, .. } = self;
        let factory = self.factory.get_or_init(|| {
            // It takes vocabularies for granted that are as most are.
            llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
                factory(tokenizer, *vocab_size, eos)
            }))
            .map_err(|error| error.to_string())
        });
        factory.as_ref()
    }

    /// Where the answer to `prompt` of a chat begins: calls of `tools` in the way that the model writes them, behind what it
    /// thinks, or text, in `form` if there is one. `None` where any text will do.
    ///
    /// # Errors
    ///
    /// The form is none that can be kept to, or the arguments of a tool that insists on its schema.
    pub fn start_answer(
        &self,
        prompt: &Prompt,
        form: Option<Form>,
        tools: Option<Tools>,
    ) -> Result<Option<Start>, FormError> {
        let Some((mut tools, style)) = tools.and_then(|it| Some((it, prompt.style()?))) else {
            let form = form.map(|it| it.of_answer(&self.tokenizer, prompt));
            return form.map(|form| self.start(&form)).transpose();
        };
        let special = |text: &str| self.tokenizer.special_token(text);
        let before = (Thinks::of(prompt), prompt.response_to_come());
        let start = |tools: &Tools| {
            let form = tools.form(&special, style, before, form.clone());
            form.map(|form| self.start(&form)).transpose()
        };
        if form.is_none() && !tools.insist() && self.factory().is_err() {
            // Calls are read however they are written.
            return Ok(None);
        }
        tools.loosen_known(self);
        let mut begun = start(&tools);
        // First those that cannot be kept to alone, then all.
        for _ in 0..2 {
            if begun.is_ok() || !tools.loosen(self, style, |form| self.start(form).is_ok()) {
                break;
            }
            begun = start(&tools);
        }
        begun
    }
}

/// Where an answer in a form begins.
#[derive(Clone)]
pub struct Start {
    name: &'static str,
    matcher: Matcher,
}

impl Start {
    /// What [the form is called](Form::called).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What keeps one answer to it, and where that says why it could not.
    pub fn constraint(&self) -> (Constraint, Arc<OnceLock<String>>) {
        Constraint::new(&self.matcher)
    }
}

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").finish_non_exhaustive()
    }
}

/// The start of `form`.
fn begin(factory: &ParserFactory, form: &Form) -> Result<Matcher, FormError> {
    let name = form.name;
    let error = |internal, why: String| {
        let message = format!("cannot be kept to: {why}");
        FormError { name, message, internal }
    };
    let wrong = |why| error(false, why);
    let nested = nested_at_most(&form.grammar);
    if nested > MOST_NESTED {
        return Err(wrong(format!(
            "it has {nested} rules, properties and brackets, of at most {MOST_NESTED}"
        )));
    }
    let begin = || {
        let mut matcher = Matcher::new(factory.create_parser(form.grammar.clone()));
        // What comes to light when it is first used: here nobody waits for it but who has asked.
        let forced = matcher.compute_ff_tokens();
        let _ = matcher.compute_mask();
        let mut ahead = matcher.clone();
        if let Some(first) = forced.first() {
            // That there were too many of them is said no sooner.
            let _ = ahead.consume_token(*first);
        }
        match ahead.get_error() {
            Some(error) => Err(wrong(error)),
            None => Ok(matcher),
        }
    };
    with_stack(STACK + nested * FRAMES, begin)
        .map_err(|it| error(true, format!("the system has no thread for it: {it}")))?
}

/// The compiler of forms calls itself for each rule and each schema within another, also where it is named there, and a
/// thread whose stack is full ends the program: so it has a stack for as deep as a form may be.
const STACK: usize = 2 << 20;
/// Most bytes of the stack for one more of them within another.
const FRAMES: usize = 32 << 10;
/// Most of them.
const MOST_NESTED: usize = 1 << 14;

/// How deep `grammar` is at most: as many as it has of what may be within another.
fn nested_at_most(grammar: &TopLevelGrammar) -> usize {
    fn of_schema(schema: &Value) -> usize {
        match schema {
            Value::Object(fields) => {
                1 + fields.len() + fields.values().map(of_schema).sum::<usize>()
            }
            Value::Array(items) => 1 + items.iter().map(of_schema).sum::<usize>(),
            _ => 0,
        }
    }
    // Each rule has one of these, and so has a schema in it.
    let of_lark = |text: &str| text.bytes().filter(|it| b":([{".contains(it)).count();
    let grammars = grammar.grammars.iter().map(|it| {
        it.json_schema.as_ref().map_or(0, of_schema) + it.lark_grammar.as_deref().map_or(0, of_lark)
    });
    grammars.sum()
}

/// What `work` returns, done on a thread that has `bytes` of stack.
fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn digest(schema: &Value) -> [u8; 32] {
    Sha256::digest(schema.to_string()).into()
}

#[cfg(test)]
mod tests {
    use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
    use serde_json::Map;
    use xla_session::batching;

    use super::*;

    impl Forms {
        /// Those of the small model.
        pub fn of_tales() -> Self {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
            let tokenizer = Tokenizer::require(std::path::Path::new(folder)).unwrap();
            Self::new(tokenizer, 0, Vec::new())
        }
    }

    #[test]
    fn what_is_known_of_a_schema_is_not_found_out_again() {
        let forms = Forms::of_tales();
        let [good, bad] = ["object", "animal"].map(|kind| json!({"type": kind}));
        assert_eq!(forms.verdict(&bad), None);
        assert!(!forms.judge(&bad, || false) && forms.judge(&good, || true));
        assert!(!forms.judge(&bad, || unreachable!()) && forms.judge(&good, || unreachable!()));
        assert_eq!([&good, &bad].map(|it| forms.verdict(it)), [Some(true), Some(false)]);
        for n in 0..2 * VERDICTS {
            forms.judge(&json!(n), || true);
        }
        assert!(forms.verdicts.lock().unwrap().len() <= VERDICTS);
    }

    /// Each answer begins where the form does, whatever became of another one, and few forms are remembered.
    #[test]
    fn a_form_that_was_begun_is_begun_again() {
        let mut forms = Forms::of_tales();
        (forms.vocab_size, forms.eos) = (1536, vec![1]);
        let mut first = forms.start(&Form::regex("aa")).unwrap().constraint().0;
        let tokens = batching::Constraint::forced(&mut first);
        assert!(!tokens.is_empty());
        for token in &tokens {
            let _ = batching::Constraint::accept(&mut first, *token);
        }
        for (expression, name) in [("aa", "again"), ("bb", "other")] {
            let start = forms.start(&Form::regex(expression).called(name)).unwrap();
            assert_eq!(start.name(), name);
            let found = batching::Constraint::forced(&mut start.constraint().0);
            assert_eq!(found == tokens, name == "again");
        }
        for n in 0..2 * BEGUN {
            forms.start(&Form::regex(&n.to_string())).unwrap();
        }
        assert_eq!(forms.begun.lock().unwrap().len(), BEGUN);
    }

    /// At the beginning of `grammar`.
    pub fn matcher(grammar: &TopLevelGrammar) -> Matcher {
        Matcher::new(factory().create_parser(grammar.clone()))
    }

    /// With a token for each byte, and one for the end.
    fn factory() -> ParserFactory {
        let mut words: Vec<_> = (0..=255).map(|byte| vec![byte]).collect();
        words.push(b"\xff<end>".to_vec());
        let trie = TokTrie::from(&TokRxInfo::new(257, 256), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).unwrap();
        factory.quiet();
        factory
    }

    /// Forms in which rules, tokens or schemas are within each other by name, so many that all have `nested` of what
    /// nests.
    fn chains(nested: usize) -> [TopLevelGrammar; 4] {
        let lark = |name: char| {
            let count = nested - 2;
            let link = |n: usize| format!("{name}{n}: {name}{}\n", n + 1);
            let links: String = (0..count).map(link).collect();
            format!("start: {name}0\n{links}{name}{count}: \"x\"\n")
        };
        let schema = |each: usize, link: &dyn Fn(Value) -> Value| {
            let count = (nested - 16) / each;
            let link = |n: usize| link(json!({"$ref": format!("#/$defs/{}", n + 1)}));
            let mut defs: Map<_, _> = (0..count).map(|n| (n.to_string(), link(n))).collect();
            defs.insert(count.to_string(), json!({"const": "x"}));
            TopLevelGrammar::from_json_schema(json!({"$ref": "#/$defs/0", "$defs": defs}))
        };
        [
            TopLevelGrammar::from_lark(lark('a')),
            TopLevelGrammar::from_lark(lark('A')),
            schema(3, &|next| next),
            schema(7, &|next| json!({"type": "array", "prefixItems": [next]})),
        ]
    }

    #[test]
    fn forms_however_deep_end_no_program() {
        let factory = factory();
        let start = |grammar| begin(&factory, &Form::new(grammar));
        for grammar in chains(MOST_NESTED) {
            let nested = nested_at_most(&grammar);
            assert!((MOST_NESTED - 16..=MOST_NESTED).contains(&nested), "{nested}");
            let matcher = start(grammar).unwrap();
            // As an answer has it, on threads that have the usual stack.
            let (mut constraint, failure) = Constraint::new(&matcher);
            drop(matcher);
            let _ = batching::Constraint::forced(&mut constraint);
            let _ = batching::Constraint::restrict(&mut constraint, &mut vec![0.0; 257]);
            assert!(failure.get().is_none());
        }
        let flat = json!({"enum": vec!["a (b): [c]"; 100_000]});
        assert_eq!(nested_at_most(&TopLevelGrammar::from_json_schema(flat)), 3);
        for grammar in chains(2 * MOST_NESTED) {
            let error = start(grammar).map(drop).unwrap_err().to_string();
            assert!(error.contains("the form cannot be kept to: it has"), "{error}");
            assert!(error.contains("of at most 16384"), "{error}");
        }
    }
}
