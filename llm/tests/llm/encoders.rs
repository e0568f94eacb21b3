//! Encoders of `xla-session/tests/encoders`, and GGUF files of others in `tests/encoders`, asked in words: what
//! sentence-transformers' and transformers' own would say.

use std::path::{Path, PathBuf};

use iree_llm::xla_session::Pooling;
use iree_llm::xla_session::checkpoint::{Conversion, ConvertOptions, Float};
use iree_llm::{Ask, Error, Files, Llm, Vectors};
use serde::Deserialize;
use serde_json::json;

use crate::open;

#[derive(Deserialize)]
struct Reference {
    #[serde(default)]
    texts: Vec<Text>,
    #[serde(default)]
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    /// Of its hidden states.
    mean: Vec<f32>,
}

#[derive(Deserialize)]
struct Pair {
    query: String,
    document: String,
    logit: f64,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../xla-session/tests/encoders").join(name)
}

fn reference(name: &str) -> Reference {
    let text = std::fs::read(folder(name).join("reference.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// A copy that may be written to.
fn copy(name: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(folder(name).join(file), to.path().join(file)).unwrap();
    }
    to
}

fn assert_close(vector: &[f32], expected: &[f32]) {
    assert_eq!(vector.len(), expected.len());
    for (a, e) in vector.iter().zip(expected) {
        assert!((a - e).abs() < 2e-6, "{a}, not {e}");
    }
}

fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    iree_llm::xla_session::pooling::normalize(&mut vector);
    vector
}

#[test]
fn vectors_of_texts_are_those_of_sentence_transformers() {
    for name in [
        "bert-f32",
        "bert-masked-lm-f16",
        "roberta-bf16",
        "camembert-f32",
        "mpnet-f32",
        "modernbert-bf16",
        "nomic-bert-f32",
        "nomic-bert-own-code-f16",
        "eurobert-bf16",
    ] {
        let llm = open(&folder(name));
        for Text { text, mean } in reference(name).texts {
            assert_close(&llm.blocking_embed(&text).unwrap(), &normalized(mean));
        }
        let long = "w20 ".repeat(400);
        let error = llm.blocking_embed(&long).unwrap_err().to_string();
        assert!(error.contains("402"), "{error}");
        let most = llm.vectors().unwrap().most_tokens(llm.context());
        let cut = llm.tokenizer().encode_within(&long, most).unwrap();
        let whole = llm.tokenizer().encode(&long, true).unwrap();
        assert_eq!((cut.len(), cut.last(), cut[..9] == whole[..9]), (most, whole.last(), true));
    }
}

/// Layers behind the pooling, as EmbeddingGemma has them.
#[test]
fn vectors_go_through_the_layers_that_the_folder_lists() {
    let model = copy("bert-f32");
    let write = |name: &str, text: serde_json::Value| {
        let path = model.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.to_string()).unwrap();
    };
    let module = |name: &str, path: &str| json!({"type": format!("sentence_transformers.models.{name}"), "path": path});
    write(
        "modules.json",
        json!([
            module("Transformer", ""),
            module("Pooling", "1_Pooling"),
            module("Dense", "2_Dense"),
            module("Normalize", "3_Normalize")
        ]),
    );
    write("1_Pooling/config.json", json!({"pooling_mode_cls_token": true}));
    write("sentence_bert_config.json", json!({"max_seq_length": 30, "do_lower_case": false}));
    let config = |activation: &str| {
        json!({"in_features": 48, "out_features": 19, "bias": true,
               "activation_function": format!("torch.nn.modules.{activation}")})
    };
    write("2_Dense/config.json", config("activation.Tanh"));
    let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 100.0;
    let numbers = |range: std::ops::Range<usize>| -> Vec<u8> {
        range.flat_map(|i| number(i).to_le_bytes()).collect()
    };
    // In the form of safetensors.
    let (weight, bias) = (numbers(0..19 * 48), numbers(5000..5019));
    let head = json!({
        "linear.weight": {"dtype": "F32", "shape": [19, 48], "data_offsets": [0, weight.len()]},
        "linear.bias": {"dtype": "F32", "shape": [19], "data_offsets": [weight.len(), weight.len() + bias.len()]},
    });
    let head = head.to_string().into_bytes();
    let file = [(head.len() as u64).to_le_bytes().to_vec(), head, weight, bias].concat();
    std::fs::write(model.path().join("2_Dense/model.safetensors"), file).unwrap();

    let llm = open(model.path());
    let Vectors { pooling, normalized: unit, most_tokens, .. } = llm.vectors().unwrap();
    assert_eq!((*pooling, *unit, *most_tokens), (Pooling::Cls, true, Some(30)));
    let text = &reference("bert-f32").texts[1].text;
    let plain = copy("bert-f32");
    std::fs::create_dir(plain.path().join("1_Pooling")).unwrap();
    let pooling = json!({"pooling_mode": "cls"}).to_string();
    std::fs::write(plain.path().join("1_Pooling/config.json"), pooling).unwrap();
    std::fs::write(plain.path().join("modules.json"), "[]").unwrap();
    let state = open(plain.path()).blocking_embed(text).unwrap();
    let expected = (0..19).map(|row| {
        let product = |i: usize| f64::from(number(row * 48 + i)) * f64::from(state[i]);
        let sum: f64 = (0..48).map(product).sum();
        (sum + f64::from(number(5000 + row))).tanh() as f32
    });
    assert_close(&llm.blocking_embed(text).unwrap(), &normalized(expected.collect()));

    let prompts = json!({"prompts": {"query": "w20 "}, "default_prompt_name": "query"});
    write("config_sentence_transformers.json", prompts);
    let (told, asked) = (open(model.path()), format!("w20 {text}"));
    assert_eq!(told.blocking_embed(text).unwrap(), llm.blocking_embed(&asked).unwrap());

    for (wrong, said) in [
        (config("activation.GELU"), "GELU"),
        (json!({"in_features": 40, "out_features": 19}), "linear.weight"),
    ] {
        write("2_Dense/config.json", wrong);
        let error = Files::at(model.path()).vectors(None).unwrap_err();
        assert!(format!("{error:#}").contains(said), "{error:#}");
    }
}

#[test]
fn documents_are_ranked_as_transformers_does_it() {
    for name in [
        "bert-classifier-f32",
        "xlm-roberta-classifier-f32",
        "distilbert-classifier-f16",
        "modernbert-classifier-f32",
    ] {
        let llm = open(&folder(name));
        let pairs = reference(name).pairs;
        assert!(pairs.len() >= 3);
        for Pair { query, document, logit } in &pairs {
            let score = llm.blocking_rank(None, query, &[document]).unwrap()[0];
            let expected = 1.0 / (1.0 + (-logit).exp());
            assert!((score - expected).abs() < 2e-6, "{name}: {score}, not {expected}");
        }
        // Together, and on an executor.
        let documents: Vec<_> = pairs.iter().map(|it| &it.document).collect();
        let together = llm.blocking_rank(None, &pairs[0].query, &documents).unwrap();
        let again = pollster::block_on(llm.rank(None, &pairs[0].query, &documents)).unwrap();
        assert_eq!(together, again);
        let alone = llm.blocking_rank(None, &pairs[0].query, &documents[2..]).unwrap();
        assert_eq!(together[2..], alone);

        let error = llm.blocking_rank(Some("Find it."), "w20", &["w30"]).unwrap_err().to_string();
        assert!(error.contains("instruction"), "{error}");
        let error = llm.blocking_embed("w20").unwrap_err().to_string();
        assert!(error.contains("ranks or classifies"), "{error}");
        // What is too long is an error, or cut off behind the query.
        let long = "w20 ".repeat(400);
        let error = llm.blocking_rank(None, "w30", &[&long]).unwrap_err().to_string();
        assert!(error.contains("context"), "{error}");
        let most = llm.context();
        let cut = llm.blocking_rank_within(None, "w30", &[&long], Some(most)).unwrap();
        let room = if name.starts_with("bert") { most - 4 } else { most - 5 };
        let fits = llm.blocking_rank(None, "w30", &["w20 ".repeat(room)]).unwrap();
        assert_eq!(cut, fits);
        let error = llm.blocking_rank_within(None, &long, &["w20"], Some(most)).unwrap_err();
        assert!(error.to_string().contains("the query takes all"), "{error}");
    }
}

#[test]
fn what_an_encoder_is_not_is_said() {
    let llm = open(&folder("bert-f32"));
    let mut response = llm.complete("w20 w30", &Ask::default()).unwrap();
    let error = response.blocking_recv().unwrap().unwrap_err();
    assert!(error.to_string().contains("this model is an encoder"), "{error}");
    let error = llm.blocking_rank(None, "w20", &["w30"]).unwrap_err().to_string();
    assert!(error.contains("bge-reranker"), "{error}");

    let model = copy("bert-classifier-f32");
    let path = model.path().join("config.json");
    let said = |labels: serde_json::Value| {
        let text = std::fs::read(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
        config["id2label"] = labels;
        std::fs::write(&path, config.to_string()).unwrap();
        let llm: Llm = open(model.path());
        llm.blocking_rank(None, "w20", &["w30"])
    };
    let error = said(json!({"0": "NEGATIVE", "1": "POSITIVE"})).unwrap_err();
    assert!(matches!(&error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("2 classes"), "{error}");
    said(json!({"0": "LABEL_0"})).unwrap();

    // A decoder for vectors may see otherwise in code of its own.
    let model = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(model.path().join(name), text).unwrap();
    let config = r#""model_type": "qwen2", "auto_map": {"AutoModel": "modeling.Model"}"#;
    write("config.json", &format!("{{{config}}}"));
    let vectors = || Files::at(model.path()).vectors(None);
    vectors().unwrap();
    write("modules.json", "[]");
    let error = vectors().unwrap_err().to_string();
    assert!(error.contains("is_causal"), "{error}");
    for said in [true, false] {
        write("config.json", &format!("{{{config}, \"is_causal\": {said}}}"));
        vectors().unwrap();
    }
    // Of this one it is known.
    write("config.json", &format!("{{{config}}}").replace("qwen2", "llama_bidirec"));
    assert_eq!(vectors().unwrap().pooling, Some(Pooling::Mean));
}

/// What transformers makes of texts with the model that a file is of.
#[derive(Deserialize)]
struct OfFile {
    #[serde(default)]
    texts: Vec<Embedded>,
    #[serde(default)]
    pairs: Vec<Ranked>,
}

#[derive(Deserialize)]
struct Embedded {
    text: String,
    tokens: Vec<u32>,
    /// Of length 1.
    vector: Vec<f32>,
}

#[derive(Deserialize)]
struct Ranked {
    query: String,
    document: String,
    tokens: Vec<u32>,
    logit: f64,
}

/// `xla-session/tests/reference/make_gguf_encoders.py` makes them, with llama.cpp's converter.
#[test]
fn gguf_files_give_what_transformers_does() {
    for name in [
        "bert",
        "nomic-bert",
        "eurobert",
        "gemma-embedding",
        "modern-bert-ranks",
        "xlm-roberta-ranks",
    ] {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
        let text = std::fs::read(place.join(format!("{name}.json"))).unwrap();
        let OfFile { texts, pairs } = serde_json::from_slice(&text).unwrap();
        assert_eq!(texts.is_empty(), name.ends_with("ranks"));
        let llm = open(&place.join(format!("{name}.gguf")));
        for Embedded { text, tokens, vector } in texts {
            assert_eq!(llm.tokenizer().encode(&text, true).unwrap(), tokens, "{name}: {text}");
            assert_close(&llm.blocking_embed(&text).unwrap(), &vector);
        }
        for Ranked { query, document, tokens, logit } in pairs {
            let (ids, _) = llm.tokenizer().encode_pair(&query, &document, None).unwrap();
            assert_eq!(ids, tokens, "{name}: {query} {document}");
            let score = llm.blocking_rank(None, &query, &[&document]).unwrap()[0];
            let expected = 1.0 / (1.0 + (-logit).exp());
            assert!((score - expected).abs() < 2e-6, "{name}: {score}, not {expected}");
            let error = llm.blocking_embed(&document).unwrap_err().to_string();
            assert!(error.contains("ranks or classifies"), "{error}");
        }
    }
}

/// Of Qwen3-Reranker, whose files have two rows of the output projection, and no more.
#[test]
fn a_gguf_file_that_is_asked_ranks_as_transformers_does_it() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
    let text = std::fs::read(place.join("qwen3-reranker.json")).unwrap();
    let OfFile { pairs, .. } = serde_json::from_slice(&text).unwrap();
    let llm = open(&place.join("qwen3-reranker.gguf"));
    assert!(pairs.len() >= 3);
    for Ranked { query, document, tokens, logit } in &pairs {
        assert!(tokens.len() > 50);
        let score = llm.blocking_rank(None, query, &[document]).unwrap()[0];
        let expected = 1.0 / (1.0 + (-logit).exp());
        assert!((score - expected).abs() < 2e-6, "{score}, not {expected}");
    }
    let documents: Vec<_> = pairs.iter().map(|it| &it.document).collect();
    let query = &pairs[0].query;
    let together = llm.blocking_rank(None, query, &documents).unwrap();
    let alone = documents.iter().map(|it| llm.blocking_rank(None, query, &[it]).unwrap()[0]);
    assert_eq!(together, alone.collect::<Vec<_>>());
    let told = llm.blocking_rank(Some("Find what encoders do."), query, &documents).unwrap();
    assert_ne!(together, told);
    let answer = llm.complete(query, &Ask::default()).unwrap();
    let error = answer.blocking_whole().unwrap_err().to_string();
    assert!(error.contains("ranks texts"), "{error}");
    let error = llm.blocking_embed(query).unwrap_err().to_string();
    assert!(error.contains("ranks texts"), "{error}");
    let files = Files::at(place.join("qwen3-reranker.gguf"));
    let error = files.vectors(Some(Pooling::Last)).unwrap_err();
    assert!(format!("{error:#}").contains("ranks texts"), "{error:#}");
    let options = ConvertOptions::new(Float::F32);
    let error = Conversion::open(files.path(), options).unwrap_err().to_string();
    assert!(error.contains("cls.output"), "{error}");
}
