//! Models by Hugging Face id, from a hub on the loopback interface.

mod hub;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use assert_cmd::Command;
use hub::{COMMIT, Fault, Hub, folder_files, hex};
use sha2::{Digest, Sha256};

fn fails(mut command: Command) -> String {
    let assert = command.assert().code(1);
    assert!(assert.get_output().stdout.is_empty());
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

fn snapshot(home: &Path) -> PathBuf {
    home.join("hub/models--some--model/snapshots").join(COMMIT)
}

#[test]
fn a_model_is_fetched_once_with_what_it_needs() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let run = hub.inspect(home.path(), "some/model").env("HF_TOKEN", "secret").assert().success();
    let text = String::from_utf8_lossy(&run.get_output().stdout).into_owned();
    assert!(text.contains("llama (LlamaForCausalLM)"), "{text}");
    let requests = hub.requests();
    assert!(requests.iter().any(|it| it == "/cdn/model.safetensors"), "{requests:?}");
    // Without a terminal there are no bars: a line says what comes.
    let said = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    let line = said.lines().find(|it| it.starts_with("model.safetensors")).unwrap();
    assert!(line.ends_with("B)"), "{said}");
    assert!(!requests.iter().any(|it| it.contains("pytorch_model.bin")), "{requests:?}");
    hub.set(|state| {
        assert!(state.tokens.iter().all(|token| token == "Bearer secret"));
        assert!(!state.tokens.is_empty());
    });

    // The layout is Hugging Face's: links to blobs, a reference to the commit.
    let folder = snapshot(home.path());
    let files = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert!(files.iter().all(|name| folder.join(name).exists()));
    assert!(folder.join("config.json").is_symlink());
    let reference = home.path().join("hub/models--some--model/refs/main");
    assert_eq!(std::fs::read_to_string(reference).unwrap(), COMMIT);

    // From now on neither the network nor the hub is needed.
    hub.inspect(home.path(), "some/model").assert().success();
    hub.inspect(home.path(), "some/model").env("HF_HUB_OFFLINE", "1").assert().success();
    assert_eq!(hub.requests(), [""; 0]);
}

#[test]
fn a_revision_is_another_model() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    hub.inspect(home.path(), "some/model@v2").assert().success();
    assert_eq!(hub.requests()[0], "/api/models/some/model/revision/v2");
    assert!(home.path().join("hub/models--some--model/refs/v2").exists());
}

#[test]
fn shards_are_those_of_the_index() {
    let folder = support::model();
    let mut files = folder_files(folder.path());
    let weights = files.remove("model.safetensors").unwrap();
    let header_len = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&weights[8..8 + header_len]).unwrap();
    let one = "model-00001-of-00001.safetensors";
    let map: BTreeMap<_, _> = tensors.keys().map(|name| (name, one)).collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    files.insert("model.safetensors.index.json".into(), index.to_string().into());
    files.insert(one.into(), weights);
    files.insert("model-00001-of-00009.safetensors".into(), b"of another checkpoint".into());
    let (hub, home) = (Hub::with(files), tempfile::tempdir().unwrap());
    hub.inspect(home.path(), "some/model").assert().success();
    assert!(snapshot(home.path()).join(one).exists());
    assert!(!hub.requests().iter().any(|it| it.contains("of-00009")));
}

#[test]
fn an_embedding_model_says_how_its_vectors_are_made() {
    let folder = support::model();
    let mut files = folder_files(folder.path());
    let pooling = r#"{"pooling_mode_mean_tokens": true}"#;
    files.insert("1_Pooling/config.json".into(), pooling.into());
    files.insert("modules.json".into(), "[]".into());
    let (hub, home) = (Hub::with(files), tempfile::tempdir().unwrap());
    hub.inspect(home.path(), "some/model").assert().success();
    let folder = snapshot(home.path());
    assert_eq!(std::fs::read_to_string(folder.join("1_Pooling/config.json")).unwrap(), pooling);
    assert!(folder.join("modules.json").exists());
}

/// What is behind an encoder is where its list says; where the cache lacks the list, the hub is asked, once.
#[test]
fn what_the_list_of_modules_names_comes() {
    let encoder = concat!(env!("CARGO_MANIFEST_DIR"), "/../xla-session/tests/encoders/bert-f32");
    let mut files = folder_files(std::path::Path::new(encoder));
    let list = r#"[{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "2_Dense_1024"},
                   {"type": "a.Dense", "path": "../elsewhere"}]"#;
    files.insert("modules.json".into(), list.into());
    for name in ["config.json", "model.safetensors", "other"] {
        files.insert(format!("2_Dense_1024/{name}"), name.into());
        files.insert(format!("../elsewhere/{name}"), name.into());
    }
    let (hub, home) = (Hub::with(files.clone()), tempfile::tempdir().unwrap());
    hub.inspect(home.path(), "some/model").assert().success();
    let folder = snapshot(home.path());
    let layer = folder.join("2_Dense_1024");
    assert!(layer.join("config.json").exists() && layer.join("model.safetensors").exists());
    assert!(!layer.join("other").exists() && !folder.join("../elsewhere").exists());
    assert!(!hub.requests().is_empty());
    hub.inspect(home.path(), "some/model").assert().success();
    assert!(hub.requests().is_empty());

    // As a program leaves it that makes no vectors.
    std::fs::remove_file(folder.join("modules.json")).unwrap();
    std::fs::remove_dir_all(layer).unwrap();
    hub.inspect(home.path(), "some/model").assert().success();
    assert!(folder.join("2_Dense_1024/config.json").exists());

    files.remove("modules.json");
    let (hub, home) = (Hub::with(files), tempfile::tempdir().unwrap());
    hub.inspect(home.path(), "some/model").assert().success();
    assert!(!hub.requests().is_empty());
    hub.inspect(home.path(), "some/model").assert().success();
    assert!(hub.requests().is_empty());
}

#[test]
fn of_additional_templates_the_one_for_tools_comes() {
    let folder = support::model();
    let mut files = folder_files(folder.path());
    for name in ["tool_use", "rag"] {
        files.insert(format!("additional_chat_templates/{name}.jinja"), name.into());
    }
    let (hub, home) = (Hub::with(files), tempfile::tempdir().unwrap());
    hub.inspect(home.path(), "some/model").assert().success();
    let there = snapshot(home.path()).join("additional_chat_templates");
    assert!(there.join("tool_use.jinja").exists() && !there.join("rag.jinja").exists());
}

#[test]
fn no_such_model_and_no_access() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let message = fails(hub.inspect(home.path(), "some/other"));
    assert!(message.contains("some/other") && message.contains("check the name"), "{message}");
    hub.set(|state| state.gated = true);
    let message = fails(hub.inspect(home.path(), "some/model"));
    assert!(message.contains("HF_TOKEN"), "{message}");
    hub.inspect(home.path(), "some/model").env("HF_TOKEN", "secret").assert().success();
}

#[test]
fn offline_without_the_files_and_a_hub_that_is_not_there() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    for variable in ["HF_HUB_OFFLINE", "IREE_LLM_OFFLINE"] {
        let mut offline = hub.inspect(home.path(), "some/model");
        offline.env(variable, "1");
        let message = fails(offline);
        assert!(message.contains(variable) && message.contains("some/model"), "{message}");
        assert!(message.contains("no file or folder `some/model` here"), "{message}");
    }
    assert_eq!(hub.requests(), [""; 0]);

    let mut nowhere = hub.inspect(home.path(), "some/model");
    // Port 9 discards, where anybody listens at all.
    nowhere.env("HF_ENDPOINT", "http://127.0.0.1:9");
    let message = fails(nowhere);
    assert!(message.contains("127.0.0.1:9") && message.contains("HF_ENDPOINT"), "{message}");
}

#[test]
fn files_that_arrive_damaged_are_not_kept() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    hub.set(|state| {
        let mut bytes = state.files["model.safetensors"].clone();
        *bytes.last_mut().unwrap() ^= 1;
        state.damaged = Some(bytes);
    });
    let message = fails(hub.inspect(home.path(), "some/model"));
    assert!(message.contains("model.safetensors") && message.contains("SHA-256"), "{message}");
    assert!(!snapshot(home.path()).join("model.safetensors").exists());
    hub.set(|state| state.damaged = None);
    hub.inspect(home.path(), "some/model").assert().success();
}

/// Leaves `bytes` of the weights as an earlier run does that was stopped.
fn leave(hub: &Hub, home: &Path, bytes: &[u8]) -> PathBuf {
    let blobs = home.join("hub/models--some--model/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(hex(&Sha256::digest(hub.weights())) + ".incomplete");
    std::fs::write(&part, bytes).unwrap();
    part
}

#[test]
fn what_an_earlier_run_has_brought_is_gone_on_with() {
    let hub = Hub::tiny();
    let weights = hub.weights();
    let whole = "/cdn/model.safetensors".to_owned();
    for (have, asked) in [
        (1000, vec![format!("{whole} bytes=1000-")]),
        (weights.len(), vec![]),
        (weights.len() + 5, vec![whole]),
    ] {
        let home = tempfile::tempdir().unwrap();
        let mut bytes = weights.clone();
        bytes.resize(have, 0);
        let part = leave(&hub, home.path(), &bytes);
        hub.inspect(home.path(), "some/model").assert().success();
        assert_eq!(hub.deliveries(), asked);
        assert!(!part.exists());
    }
}

#[test]
fn a_transfer_that_breaks_goes_on_as_long_as_more_comes() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let piece = hub.weights().len() / 8;
    hub.set(|state| state.faults = (0..7).map(|_| Fault::BreaksOff(piece)).collect());
    hub.inspect(home.path(), "some/model").assert().success();
    let asked = hub.deliveries();
    assert_eq!(asked.len(), 8, "{asked:?}");
    assert_eq!(asked[7], format!("/cdn/model.safetensors bytes={}-", 7 * piece));
}

#[test]
fn a_hub_that_fails_again_and_again_is_given_up_and_nothing_is_lost() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let part = leave(&hub, home.path(), &hub.weights()[..1000]);
    hub.set(|state| state.faults = (0..5).map(|_| Fault::Status(503)).collect());
    let message = fails(hub.inspect(home.path(), "some/model"));
    assert!(message.contains("503") && message.contains("model.safetensors"), "{message}");
    assert_eq!(part.metadata().unwrap().len(), 1000);
    assert_eq!(hub.deliveries().len(), 5);

    // One that knows no parts sends all: it takes the place of what there was.
    hub.set(|state| state.faults = [Fault::Status(502), Fault::Whole].into());
    hub.inspect(home.path(), "some/model").assert().success();
    assert_eq!(
        std::fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(),
        hub.weights()
    );
}

#[test]
fn a_hub_that_falls_silent_is_asked_again() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    hub.set(|state| state.faults = [Fault::Waits(Duration::from_secs(60))].into());
    let mut inspect = hub.inspect(home.path(), "some/model");
    inspect.env("HF_HUB_DOWNLOAD_TIMEOUT", "3").timeout(Duration::from_secs(50)).assert().success();
    assert!(hub.deliveries().len() >= 2);
}

#[test]
fn a_hub_that_has_no_time_is_waited_for() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    hub.set(|state| state.busy = [1, 0].into());
    hub.inspect(home.path(), "some/model").assert().success();
    hub.set(|state| state.busy = [0; 5].into());
    let message = fails(hub.inspect(home.path(), "some/model@v2"));
    assert!(message.contains("429") && message.contains("HF_TOKEN"), "{message}");
}

#[test]
fn pull_brings_what_has_changed_and_nothing_else() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let pull = || {
        let run = hub.pull(home.path(), "some/model").assert().success();
        let output = run.get_output().clone();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (first, said) = pull();
    assert!(first.trim().ends_with(COMMIT) && !said.contains("up to date"), "{first} {said}");
    let (same, said) = pull();
    assert!(same == first && said.contains("some/model: up to date"), "{said}");

    // The same weights, another configuration.
    let next = COMMIT.replace('0', "f");
    hub.set(|state| {
        state.commit.clone_from(&next);
        state.files.get_mut("config.json").unwrap().push(b'\n');
    });
    hub.inspect(home.path(), "some/model")
        .assert()
        .success()
        .stdout(predicates::str::contains(COMMIT));
    hub.requests();
    let (second, said) = pull();
    assert!(second.trim().ends_with(&next) && said.contains("config.json"), "{second} {said}");
    assert!(!said.contains("up to date") && !said.contains("model.safetensors"), "{said}");
    assert_eq!(hub.deliveries(), [""; 0]);
    let new = PathBuf::from(second.trim());
    assert_eq!(std::fs::read(new.join("model.safetensors")).unwrap(), hub.weights());
    let reference = home.path().join("hub/models--some--model/refs/main");
    assert_eq!(std::fs::read_to_string(reference).unwrap(), next);
    hub.inspect(home.path(), "some/model")
        .assert()
        .success()
        .stdout(predicates::str::contains(&next));
}

#[test]
fn two_that_need_a_model_bring_it_once() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let (go, held) = mpsc::channel();
    hub.set(|state| state.faults = [Fault::Held(held)].into());
    let waits = "model.safetensors: another process fetches it";
    let said: Vec<_> = std::thread::scope(|scope| {
        let run = || {
            let mut inspect = support::running();
            inspect.args(["inspect", "some/model"]);
            inspect.env("HF_ENDPOINT", &hub.address).env("HF_HOME", home.path());
            // Before it asks for the rest again, the other one has all the time it needs to come and wait.
            inspect.env("HF_HUB_DOWNLOAD_TIMEOUT", "60");
            let mut child = inspect.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut said = Vec::new();
            for line in BufReader::new(child.stderr.take().unwrap()).lines() {
                said.push(line.unwrap());
                if said.last().unwrap().contains(waits) {
                    go.send(()).unwrap();
                }
            }
            assert!(child.wait().unwrap().success(), "{said:?}");
            said
        };
        let both = [scope.spawn(run), scope.spawn(run)];
        both.map(|it| it.join().unwrap()).concat()
    });
    assert_eq!(hub.deliveries().len(), 1);
    assert!(said.iter().any(|it| it.contains(waits)), "{said:?}");
}

#[test]
fn a_commit_is_its_own_name() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let id = format!("some/model@{COMMIT}");
    hub.inspect(home.path(), &id).assert().success();
    assert!(!home.path().join("hub/models--some--model/refs").exists());
    hub.requests();
    hub.inspect(home.path(), &id).assert().success();
    hub.inspect(home.path(), &id).env("TRANSFORMERS_OFFLINE", "1").assert().success();
    assert_eq!(hub.requests(), [""; 0]);
}

#[test]
fn a_mirror_cannot_write_elsewhere() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    hub.set(|state| state.etag = Some("../../../../outside"));
    let message = fails(hub.inspect(home.path(), "some/model"));
    assert!(message.contains("ETag"), "{message}");
    hub.set(|state| state.commit = "../../outside".into());
    let message = fails(hub.inspect(home.path(), "some/model"));
    assert!(message.contains("odd commit"), "{message}");
    hub.set(|state| {
        state.commit = COMMIT.into();
        state.files = [("../../../outside-Q4_0.gguf".to_owned(), b"x".to_vec())].into();
    });
    let message = fails(hub.pull(home.path(), "some/model:Q4_0"));
    assert!(message.contains("no GGUF file"), "{message}");
    assert!(!home.path().join("outside").exists());
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let message = fails(hub.inspect(&file.join("hf"), "some/model"));
    let folder = file.join("hf/hub").display().to_string();
    assert!(message.contains(&folder) && message.contains("HF_HOME"), "{message}");
    assert!(!message.contains("HF_ENDPOINT"), "{message}");
}

#[test]
fn a_newer_version_that_cannot_be_kept_keeps_no_older_one_from_running() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let gguf = |bytes: &[u8]| [("model-Q4_0.gguf".to_owned(), bytes.to_vec())].into();
    hub.set(|state| state.files = gguf(b"old"));
    hub.pull(home.path(), "some/model").assert().success();
    hub.set(|state| {
        state.files = gguf(b"new");
        state.commit = COMMIT.replace('0', "f");
    });
    // As on a disk that takes nothing more, for whoever runs the tests.
    let locks = home.path().join("hub/.locks");
    std::fs::remove_dir_all(&locks).unwrap();
    std::fs::write(&locks, "").unwrap();
    let message = fails(hub.pull(home.path(), "some/model"));
    assert!(message.contains(".locks") && message.contains("HF_HOME"), "{message}");
    let message = fails(hub.inspect(home.path(), "some/model"));
    assert!(message.contains("going on with the files in the cache"), "{message}");
}

#[test]
fn an_id_that_was_meant_as_a_path_is_no_question_of_a_login() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    hub.set(|state| state.gated = true);
    for id in ["no/such/model-Q4_K_M.gguf", "no/such"] {
        let message = fails(hub.inspect(home.path(), id));
        assert!(message.contains(&format!("no file or folder `{id}` here")), "{message}");
    }
    let message = fails(hub.inspect(home.path(), "some/model:Q4_K_M"));
    assert!(!message.contains("file or folder"), "{message}");
    hub.requests();
    let message = fails(hub.inspect(home.path(), "models/llama.gguf"));
    assert!(message.contains("no such file or folder"), "{message}");
    assert_eq!(hub.requests(), [""; 0]);
}

#[test]
fn no_weights_are_fetched_to_be_made_up() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let made_up = ["generate", "-m", "some/model", "--load-mode", "random"];
    let made_up = [&made_up[..], &["--prompt-tokens", "1,2", "-n", "2"]].concat();
    hub.command(home.path(), &made_up).assert().success();
    assert_eq!(hub.deliveries(), [""; 0]);
    hub.command(home.path(), &made_up).env("HF_HUB_OFFLINE", "1").assert().success();
    // Whoever wants them gets them.
    hub.inspect(home.path(), "some/model").assert().success();
    assert_eq!(hub.deliveries().len(), 1);
}

#[test]
fn a_reader_that_has_gone_ends_it_as_any_program() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let mut pull = support::running();
    pull.args(["pull", "some/model"]).env("HF_ENDPOINT", &hub.address).env("HF_HOME", home.path());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    pull.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert_eq!(pull.status().unwrap().code(), Some(141));
}

#[test]
fn of_types_the_one_that_was_asked_for_is_taken_also_offline() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let offline = |id: &str| {
        let mut command = hub.pull(home.path(), id);
        command.env("HF_HUB_OFFLINE", "1");
        command
    };
    let nowhere = |id: &str| {
        let mut command = hub.pull(home.path(), id);
        command.env("HF_ENDPOINT", "http://127.0.0.1:9");
        command
    };
    hub.pull(home.path(), "some/model").assert().success();
    // The cached safetensors are no Q8_0.
    for command in [offline("some/model:Q8_0"), nowhere("some/model:Q8_0")] {
        fails(command);
    }
    nowhere("some/model").assert().success();

    let gguf = "model 1-Q8_0.gguf";
    hub.set(|state| {
        state.commit = COMMIT.replace('0', "e");
        state.files = [(gguf.to_owned(), b"gguf".to_vec())].into();
    });
    hub.pull(home.path(), "some/model:Q8_0").assert().success();
    hub.set(|state| {
        state.commit = COMMIT.replace('0', "d");
        state.files = [("model-Q4_0.gguf".to_owned(), b"other".to_vec())].into();
    });
    hub.pull(home.path(), "some/model:Q4_0").assert().success();
    // It lies in the snapshot of an earlier commit.
    for mut command in [offline("some/model:Q8_0"), nowhere("some/model:Q8_0")] {
        command.assert().success().stdout(predicates::str::contains(gguf));
    }
}

/// What is in them is not asked here: only which is fetched, and that it is fetched once.
#[test]
fn a_gguf_file_is_fetched_by_its_type() {
    let files =
        ["model-Q4_0.gguf", "model-Q8_0-00001-of-00002.gguf", "model-Q8_0-00002-of-00002.gguf"];
    let hub =
        Hub::with(files.iter().map(|name| (name.to_string(), name.as_bytes().to_vec())).collect());
    let home = tempfile::tempdir().unwrap();
    let pull = |id: &str| hub.pull(home.path(), id);
    for (id, first, fetched) in [
        ("some/model:q4_0", files[0], 1),
        ("some/model:Q8_0", files[1], 2),
        ("some/model/model-Q4_0.gguf", files[0], 0),
    ] {
        let out = pull(id).assert().success().get_output().stdout.clone();
        let path = PathBuf::from(String::from_utf8(out).unwrap().trim());
        assert_eq!(path.file_name().unwrap(), first);
        assert_eq!(std::fs::read(&path).unwrap(), first.as_bytes());
        let asked = hub.requests();
        let names = asked.iter().filter(|path| path.starts_with("/cdn/"));
        assert_eq!(names.count(), fetched, "{id}: {asked:?}");
        let offline = pull(id).env("HF_HUB_OFFLINE", "1").assert().success();
        offline.stdout(format!("{}\n", path.display()));
    }
    let error =
        String::from_utf8(pull("some/model:Q5_K_M").assert().failure().get_output().stderr.clone());
    let error = error.unwrap();
    assert!(error.contains("which GGUF?") && error.contains(files[0]), "{error}");
    assert!(error.contains("some/model:Q4_K_M"), "{error}");
}
