//! Models by Hugging Face id, from a hub on the loopback interface.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use assert_cmd::Command;
use sha2::{Digest, Sha256};
use support::program;
use tiny_http::{Header, Request, Response, Server};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server that answers as the hub does: metadata, small files at once, large ones through a
/// redirection to another address.
struct Hub {
    server: Arc<Server>,
    address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    requests: Vec<String>,
    tokens: Vec<String>,
    /// Refuses whoever has no token.
    gated: bool,
    /// Sends this instead of the weights.
    damaged: Option<Vec<u8>>,
}

impl Hub {
    fn with(files: BTreeMap<String, Vec<u8>>) -> Self {
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let address = format!("http://{}", server.server_addr());
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let (serve, shared, here) = (server.clone(), state.clone(), address.clone());
        std::thread::spawn(move || {
            for request in serve.incoming_requests() {
                answer(request, &mut shared.lock().unwrap(), &here);
            }
        });
        Self { server, address, state }
    }

    /// The tiny model, with a file that nobody needs.
    fn tiny() -> Self {
        let folder = support::model();
        let mut files = folder_files(folder.path());
        files.insert("pytorch_model.bin".into(), vec![0; 100]);
        Self::with(files)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// `iree-llm inspect id`, with this hub and the cache in `home`.
    fn inspect(&self, home: &Path, id: &str) -> Command {
        let mut command = program(&["inspect", id]);
        command.env("HF_ENDPOINT", &self.address).env("HF_HOME", home);
        command
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

fn folder_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = folder.read_dir().unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).unwrap()
}

fn answer(request: Request, state: &mut State, here: &str) {
    let find = |name: &'static str| {
        let header = request.headers().iter().find(|header| header.field.equiv(name))?;
        Some(header.value.to_string())
    };
    let path = request.url().to_owned();
    state.requests.push(path.clone());
    let token = find("Authorization");
    if path.starts_with("/cdn/") {
        assert!(find("Range").is_some(), "the hub's files are asked for by range");
    } else {
        state.tokens.extend(token.clone());
    }
    if state.gated && token.is_none() {
        return request.respond(Response::empty(401)).unwrap();
    }
    let status = |code: u16| Response::from_data(Vec::new()).with_status_code(code);
    let weights = |name: &str| name.ends_with(".safetensors");
    let response = if path.starts_with("/api/models/some/model/revision/") {
        let names = state.files.keys().map(|name| serde_json::json!({ "rfilename": name }));
        let info = serde_json::json!({ "sha": COMMIT, "siblings": names.collect::<Vec<_>>() });
        Response::from_data(info.to_string())
    } else if let Some(name) = path.strip_prefix(&format!("/some/model/resolve/{COMMIT}/")) {
        match state.files.get(name) {
            None => status(404),
            Some(bytes) if weights(name) => status(302)
                .with_header(header("Location", &format!("{here}/cdn/{name}")))
                .with_header(header(
                    "X-Linked-Etag",
                    &format!("\"{}\"", hex(&Sha256::digest(bytes))),
                ))
                .with_header(header("ETag", "\"of the redirection\"")),
            Some(bytes) => part(bytes, find("Range")).with_header(header(
                "ETag",
                &format!("\"{}\"", &hex(&Sha256::digest(bytes))[..40]),
            )),
        }
        .with_header(header("X-Repo-Commit", COMMIT))
    } else if let Some(name) = path.strip_prefix("/cdn/") {
        let bytes = state.damaged.as_ref().unwrap_or_else(|| &state.files[name]);
        part(bytes, find("Range"))
    } else {
        status(404)
    };
    // A client that has gone away is its own test's business.
    let _ = request.respond(response);
}

fn part(bytes: &[u8], range: Option<String>) -> Response<std::io::Cursor<Vec<u8>>> {
    let Some(range) = range else { return Response::from_data(bytes) };
    let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let (from, end) = (from.parse().unwrap(), bytes.len());
    let to = to.parse().map_or(end, |to: usize| (to + 1).min(end));
    Response::from_data(&bytes[from..to])
        .with_status_code(206)
        .with_header(header("Content-Range", &format!("bytes {from}-{}/{end}", to - 1)))
}

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

#[test]
fn a_broken_transfer_is_resumed() {
    let (hub, home) = (Hub::tiny(), tempfile::tempdir().unwrap());
    let weights = hub.state.lock().unwrap().files["model.safetensors"].clone();
    let blobs = home.path().join("hub/models--some--model/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(hex(&Sha256::digest(&weights))).with_extension("part");
    for have in [1000, weights.len(), weights.len() + 5] {
        let mut bytes = weights.clone();
        bytes.resize(have, 0);
        std::fs::write(&part, &bytes).unwrap();
        hub.inspect(home.path(), "some/model").assert().success();
        assert!(!part.exists());
        std::fs::remove_dir_all(home.path().join("hub/models--some--model/snapshots")).unwrap();
        for blob in blobs.read_dir().unwrap() {
            std::fs::remove_file(blob.unwrap().path()).unwrap();
        }
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
    let pull = |id: &str| {
        let mut command = program(&["pull", id]);
        command.env("HF_ENDPOINT", &hub.address).env("HF_HOME", home.path());
        command
    };
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
        let names: std::collections::BTreeSet<_> =
            asked.iter().filter(|path| path.contains(".gguf")).collect();
        assert_eq!(names.len(), fetched, "{id}: {asked:?}");
        let offline = pull(id).env("HF_HUB_OFFLINE", "1").assert().success();
        offline.stdout(format!("{}\n", path.display()));
    }
    let error =
        String::from_utf8(pull("some/model:Q5_K_M").assert().failure().get_output().stderr.clone());
    let error = error.unwrap();
    assert!(error.contains("which GGUF?") && error.contains(files[0]), "{error}");
    assert!(error.contains("some/model:Q4_K_M"), "{error}");
}
