//! Answers in a form: JSON of a schema, text that an expression matches or a grammar makes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use text::Tokenizer;

use crate::Problem;
use crate::fields::Fields;

/// A form that is asked for, and the field that does.
#[derive(Clone)]
pub(crate) struct Form {
    field: &'static str,
    grammar: TopLevelGrammar,
    /// That of another field, which is a part of it.
    part: Option<Box<Form>>,
}

/// What grammars call the form that is a part of them.
pub(crate) const PART: &str = "@text";

/// The special token that is written so, if there is one.
pub(crate) type Special<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// `text` as a grammar has it, with tokens where it has special ones.
pub(crate) fn mark(special: Special<'_>, text: &str) -> String {
    let (mut all, mut rest) = (Vec::new(), text);
    let found = |rest| text::tokens_in(rest).find_map(|token| Some((token, special(token)?)));
    while let Some((token, id)) = found(rest) {
        let (before, behind) = rest.split_once(token).unwrap_or_default();
        all.extend((!before.is_empty()).then(|| quoted(before)));
        all.push(format!("<[{id}]>"));
        rest = behind;
    }
    all.extend((!rest.is_empty()).then(|| quoted(rest)));
    all.join(" ")
}

/// `text` as a part of an expression of a grammar.
pub(crate) fn pattern(text: &str) -> String {
    let escape = |c: char| if c.is_ascii_punctuation() && !"<>_\"".contains(c) { "\\" } else { "" };
    text.chars().flat_map(|c| escape(c).chars().chain([c])).collect()
}

/// As a string of a grammar.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Form {
    /// What `fields` ask for; `None` where any text will do.
    ///
    /// # Errors
    ///
    /// There are two of them, or one is of another type.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>, Problem> {
        let given = [
            response_format(fields)?,
            fields
                .take::<Value>("guided_json")?
                .map(|schema| {
                    // vLLM's clients send it as text, too.
                    let parsed = schema.as_str().map(serde_json::from_str).transpose();
                    let wrong =
                        |error| Problem::field("guided_json", format!("is no JSON: {error}"));
                    Ok(Self::json("guided_json", parsed.map_err(wrong)?.unwrap_or(schema)))
                })
                .transpose()?,
            fields.take::<String>("guided_regex")?.map(|expression| {
                Self::new("guided_regex", TopLevelGrammar::from_regex(&expression))
            }),
            fields
                .take::<String>("guided_grammar")?
                .map(|grammar| Self::new("guided_grammar", TopLevelGrammar::from_lark(grammar))),
        ];
        let mut given = given.into_iter().flatten();
        let (first, second) = (given.next(), given.next());
        if let (Some(first), Some(second)) = (&first, second) {
            let message = format!("and `{}` ask for two forms: give one of them", first.field);
            return Err(Problem::field(second.field, message));
        }
        Ok(first)
    }

    /// The form that the field `field` asks for.
    pub fn new(field: &'static str, grammar: TopLevelGrammar) -> Self {
        Self { field, grammar, part: None }
    }

    /// The form of `grammar`, in Lark's language, that the field `field` asks for, and of which this one is
    /// the [`PART`].
    pub fn within(self, field: &'static str, grammar: String) -> Self {
        let mut whole = TopLevelGrammar::from_lark(grammar);
        let mut parts = self.grammar.grammars.iter().cloned();
        let first = parts.next().map(|first| {
            let name = Some(PART.trim_start_matches('@').to_owned());
            GrammarWithLexer { name, ..first }
        });
        whole.grammars.extend(first.into_iter().chain(parts));
        Self { part: Some(Box::new(self)), ..Self::new(field, whole) }
    }

    /// The field that asks for it.
    pub fn field(&self) -> &'static str {
        self.field
    }

    #[cfg(test)]
    pub fn grammar(&self) -> &TopLevelGrammar {
        &self.grammar
    }

    /// JSON of `schema`, as the field `field` asks for it.
    pub fn json(field: &'static str, schema: Value) -> Self {
        Self::new(field, TopLevelGrammar::from_json_schema(Self::written(schema)))
    }

    /// `schema`, its JSON written in one way, so that no answer gets lost in white space. A schema may say
    /// otherwise.
    pub fn written(mut schema: Value) -> Value {
        if let Value::Object(schema) = &mut schema {
            let form = json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            });
            schema.entry("x-guidance").or_insert(form);
        }
        schema
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Form>, Problem> {
    const FIELD: &str = "response_format";
    let Some(format) = fields.take::<Map<String, Value>>(FIELD)? else { return Ok(None) };
    let wrong = |message: String| Problem::field(FIELD, message);
    let mut format = Fields::new(format);
    let kind = format.take::<String>("type")?.unwrap_or_default();
    let form = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Form::json(FIELD, json!({"type": "object"}))),
        "json_schema" => {
            let given = format.take::<Map<String, Value>>("json_schema")?;
            let mut given = Fields::new(given.unwrap_or_default());
            let schema = given.take::<Value>("schema")?;
            let schema =
                schema.ok_or_else(|| wrong("has no `json_schema.schema`: give one".into()))?;
            // A name changes nothing, and every schema is kept to strictly.
            for name in ["name", "description", "strict"] {
                given.take::<Value>(name)?;
            }
            given.finish()?;
            Some(Form::json(FIELD, schema))
        }
        _ => {
            let known = "text, json_object, json_schema";
            return Err(wrong(format!("has the type {kind:?}; there are: {known}")));
        }
    };
    format.finish()?;
    Ok(form)
}

/// What forms are made of for a tokenizer: the bytes of its tokens. Made when the first one is asked for.
#[derive(Default)]
pub(crate) struct Forms {
    factory: OnceLock<Result<ParserFactory, String>>,
    /// Which schemas can be kept to, by their SHA-256: clients send the same ones with every request.
    verdicts: Mutex<HashMap<[u8; 32], bool>>,
}

/// Most schemas of which that is remembered.
const VERDICTS: usize = 4096;

impl Forms {
    /// Whether `schema` can be kept to, if that was found out before.
    pub fn verdict(&self, schema: &Value) -> Option<bool> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.get(&digest(schema)).copied()
    }

    /// Whether `schema` can be kept to, which `find_out` tells where it is not known.
    pub fn judge(&self, schema: &Value, find_out: impl FnOnce() -> bool) -> bool {
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

    /// The start of `form`, in tokens of `tokenizer`, of which a model has `vocab_size` and `eos` end
    /// an answer.
    ///
    /// # Errors
    ///
    /// The form is none that can be kept to.
    pub fn start(
        &self,
        form: &Form,
        tokenizer: &Tokenizer,
        vocab_size: usize,
        eos: &[u32],
    ) -> Result<Matcher, Problem> {
        if let Some(part) = &form.part {
            // Whoever asked for it is told what is wrong with it.
            self.start(part, tokenizer, vocab_size, eos)?;
        }
        let factory = self.factory.get_or_init(|| {
            // It takes vocabularies for granted that are as most are.
            llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
                factory(tokenizer, vocab_size, eos)
            }))
            .map_err(|error| error.to_string())
        });
        let factory = factory.as_ref().map_err(|error| {
            let message =
                format!("forms of answers need another tokenizer than this model's: {error}");
            Problem::field(form.field, message)
        })?;
        begin(factory, form)
    }
}

/// The start of `form`.
fn begin(factory: &ParserFactory, form: &Form) -> Result<Matcher, Problem> {
    let wrong = |why: String| Problem::field(form.field, format!("cannot be kept to: {why}"));
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
        .map_err(|error| Problem::internal(format!("no thread for a form: {error}")))?
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

fn factory(tokenizer: &Tokenizer, vocab_size: usize, eos: &[u32]) -> anyhow::Result<ParserFactory> {
    let eos: Vec<_> = eos.iter().copied().filter(|&id| (id as usize) < vocab_size).collect();
    let Some(&end) = eos.first() else { anyhow::bail!("no token of it ends an answer") };
    let json = serde_json::from_str(&tokenizer.to_json()?)?;
    let mut tokens = llguidance::token_bytes_from_tokenizer_json(&json)?;
    // Some models lack the last ones, as Gemma 3's smallest do that of images: those are never chosen.
    tokens.resize(vocab_size, Vec::new());
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, end), &tokens);
    let (tokenizer, trie) = (tokenizer.clone(), trie.with_eos_tokens(&eos));
    let words: TokEnv = Arc::new(Words { tokenizer, trie });
    let mut factory = ParserFactory::new_simple(&words)?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Tells in which tokens the model knows a text that it is forced to write.
struct Words {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl Words {
    fn tokens(&self, text: &str) -> Vec<TokenId> {
        // Some tokenizers begin a text with a space, which has no place within one; not so behind a line.
        for before in ["", "\n"] {
            let Ok(tokens) = self.tokenizer.encode(&format!("{before}{text}"), false) else {
                break;
            };
            for start in 0..=tokens.len().min(2) {
                if self.trie.decode_raw(&tokens[start..]) == text.as_bytes() {
                    return tokens[start..].to_vec();
                }
            }
        }
        self.trie.greedy_tokenize(text.as_bytes())
    }
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.tokens(text))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use llguidance::toktrie::ApproximateTokEnv;
    use xla_session::batching;

    use super::*;
    use crate::constraint::Constraint;

    #[test]
    fn what_is_known_of_a_schema_is_not_found_out_again() {
        let forms = Forms::default();
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

    #[test]
    fn special_tokens_of_a_text_are_marked_however_many_there_are() {
        let special = |text: &str| special(&["<a>", "[b]"], text);
        assert_eq!(mark(&special, "x<c><a>\n[b]y"), "\"x<c>\" <[256]> \"\\n\" <[257]> \"y\"");
        assert_eq!(["", "<a>"].map(|it| mark(&special, it)), ["", "<[256]>"]);
        assert_eq!(mark(&special, &"<a>".repeat(100_000)).len(), 8 * 100_000 - 1);
        for open in ["<", "[<"] {
            let text = open.repeat(1_000_000);
            assert_eq!(mark(&special, &text).len(), text.len() + 2);
        }
    }

    /// The special token of the tokenizer of [`accepts`] that is written so: one of `marks`, behind the bytes.
    pub fn special(marks: &[&str], text: &str) -> Option<u32> {
        marks.iter().position(|mark| *mark == text).map(|at| 256 + at as u32)
    }

    /// At the beginning of `grammar`.
    pub fn matcher(grammar: &TopLevelGrammar, marks: &[&str]) -> Matcher {
        Matcher::new(factory(marks).create_parser(grammar.clone()))
    }

    /// With a token for each byte, and `marks` behind them.
    fn factory(marks: &[&str]) -> ParserFactory {
        let bytes = (0..=255).map(|byte| vec![byte]);
        let specials = marks.iter().copied().chain(["<end>"]);
        let specials = specials.map(|mark| [b"\xff", mark.as_bytes()].concat());
        let words: Vec<Vec<u8>> = bytes.chain(specials).collect();
        let count = words.len() as u32;
        let trie = TokTrie::from(&TokRxInfo::new(count, count - 1), &words);
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
        let factory = factory(&[]);
        let start = |grammar| begin(&factory, &Form::new("guided_grammar", grammar));
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
            let Err(problem) = start(grammar) else { panic!("it has begun") };
            assert!(problem.json().to_string().contains("of at most 16384"), "{}", problem.json());
        }
    }

    /// Whether an answer may be `text`, a byte a token but for `marks`, which are special tokens; how much of it may
    /// be said if not.
    pub fn accepts(grammar: &TopLevelGrammar, marks: &[&str], text: &str) -> Result<(), String> {
        let mut matcher = matcher(grammar, marks);
        let (mut tokens, mut begins, mut at) = (Vec::new(), Vec::new(), 0);
        while at < text.len() {
            let mark = marks.iter().find(|mark| text.as_bytes()[at..].starts_with(mark.as_bytes()));
            let token = mark.and_then(|mark| special(marks, mark));
            tokens.push(token.unwrap_or(text.as_bytes()[at].into()));
            begins.push(at);
            at += mark.map_or(1, |mark| mark.len());
        }
        let taken = matcher.try_consume_tokens(&tokens);
        let taken = taken.unwrap_or_else(|error| panic!("{error}: {grammar:?}"));
        if let Some(at) = begins.get(taken) {
            return Err(text[..*at].to_owned());
        }
        // What a server asks for before each token.
        matcher.compute_mask_or_eos().unwrap();
        if matcher.is_accepting().unwrap() { Ok(()) } else { Err(text.to_owned()) }
    }
}
