//! `config.json` and `generation_config.json`, good and bad.

mod families;
mod refusals;

use std::fs;

use checkpoint::Error;
use checkpoint::architecture::{
    Architecture, Attention, FeedForward, Groups, Layer, Linear, Mixer, Parameter, Rope,
    RopeScaling, Shares,
};
use checkpoint::config::{ModelConfig, Sampling};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A small valid Llama.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    })
}

/// `base` with the keys of `changes` put in.
fn with(mut base: Value, changes: Value) -> Value {
    base.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    base
}

/// A small valid model of another family.
fn of(model_type: &str, class: &str, changes: Value) -> Value {
    with(with(llama(), json!({"model_type": model_type, "architectures": [class]})), changes)
}

fn qwen3(changes: Value) -> Value {
    of("qwen3", "Qwen3ForCausalLM", changes)
}

fn mistral(changes: Value) -> Value {
    of("mistral", "MistralForCausalLM", changes)
}

fn read_text(config: &str, generation: Option<&str>) -> Result<ModelConfig, Error> {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    if let Some(generation) = generation {
        fs::write(folder.path().join("generation_config.json"), generation).unwrap();
    }
    ModelConfig::from_dir(folder.path())
}

fn read(config: Value) -> Result<ModelConfig, Error> {
    read_text(&config.to_string(), None)
}

fn good(config: Value) -> ModelConfig {
    read(config).unwrap()
}

/// Which projections of every layer have a bias: all of queries, keys and values, the output of
/// attention, all of the MLP.
#[track_caller]
fn biases(config: &ModelConfig) -> [bool; 3] {
    let has = |linears: &[&Linear]| {
        let with = linears.iter().filter(|linear| linear.bias.is_some()).count();
        assert!(with == 0 || with == linears.len(), "some of {linears:?}");
        with > 0
    };
    let of = |layer: &Layer| {
        let Layer { mlp, .. } = layer;
        let Attention { qkv, output, .. } = layer.attention().unwrap();
        let FeedForward::Mlp(mlp) = mlp else { panic!("experts") };
        [
            has(&[&qkv[0], &qkv[1], &qkv[2]]),
            has(&[output]),
            has(&[&mlp.gate_up[0], &mlp.gate_up[1], &mlp.down]),
        ]
    };
    let layers = &config.architecture.layers;
    assert!(layers.iter().all(|layer| of(layer) == of(&layers[0])));
    of(&layers[0])
}

/// Whether every layer norms queries and keys.
#[track_caller]
fn qk_norm(config: &ModelConfig) -> bool {
    let layers = &config.architecture.layers;
    let with = layers.iter().filter(|layer| layer.attention().unwrap().qk_norm.is_some()).count();
    assert!(with == 0 || with == layers.len());
    with > 0
}

/// The window of each layer.
fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.architecture.layers.iter().map(|layer| layer.attention().unwrap().window).collect()
}

/// The message of a configuration error about config.json; every part must be in it.
#[track_caller]
fn refused(config: Value, parts: &[&str]) {
    let error = read(config).unwrap_err();
    let Error::Config { path, .. } = &error else { panic!("{error:?}") };
    assert_eq!(path.file_name().unwrap(), "config.json");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn reads_every_key_of_a_llama() {
    let config = good(with(
        llama(),
        json!({
            "head_dim": 10, "attention_bias": true, "mlp_bias": true, "torch_dtype": "bfloat16",
            "tie_word_embeddings": true, "bos_token_id": 3, "eos_token_id": [4, 5],
        }),
    ));
    assert_eq!((config.family.model_type(), config.family.class()), ("llama", "LlamaForCausalLM"));
    assert_eq!(config.vocab_size, 100);
    assert_eq!(config.hidden_size, 32);
    assert_eq!(config.intermediate_size, 48);
    assert_eq!(config.num_hidden_layers, 3);
    assert_eq!((config.num_attention_heads, config.num_key_value_heads), (4, 2));
    assert_eq!(config.head_dim, 10);
    assert_eq!(config.max_position_embeddings, 256);
    assert_eq!(config.rms_norm_eps, 1e-5);
    assert_eq!((config.rope().theta, &config.rope().scaling), (500_000.0, &RopeScaling::None));
    assert!(config.tie_word_embeddings);
    assert_eq!(biases(&config), [true; 3]);
    assert!(!qk_norm(&config));
    assert_eq!(windows(&config), [None; 3]);
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(3), vec![4, 5]));
}

#[test]
fn absent_keys_take_the_family_defaults() {
    let llama = good(json!({"model_type": "llama"}));
    assert_eq!(
        (llama.vocab_size, llama.hidden_size, llama.intermediate_size),
        (32000, 4096, 11008)
    );
    assert_eq!(
        (llama.num_attention_heads, llama.num_key_value_heads, llama.head_dim),
        (32, 32, 128)
    );
    assert_eq!((llama.max_position_embeddings, llama.rms_norm_eps), (2048, 1e-6));
    assert_eq!((llama.rope().theta, llama.num_hidden_layers), (10_000.0, 32));
    assert!(!llama.tie_word_embeddings);
    assert_eq!(biases(&llama), [false; 3]);
    assert_eq!((llama.bos_token_id, llama.eos_token_ids), (Some(1), vec![2]));

    let mistral = good(json!({"architectures": ["MistralForCausalLM"]}));
    assert_eq!((mistral.intermediate_size, mistral.num_key_value_heads), (14336, 8));
    assert_eq!(mistral.max_position_embeddings, 131_072);
    assert_eq!(windows(&mistral), [Some(4096); 32]);
    assert_eq!(biases(&mistral), [false; 3]);

    let qwen2 = good(json!({"model_type": "qwen2"}));
    assert_eq!((qwen2.vocab_size, qwen2.intermediate_size), (151_936, 22016));
    assert_eq!((qwen2.num_key_value_heads, qwen2.head_dim), (32, 128));
    assert_eq!(biases(&qwen2), [true, false, false]);
    assert!(!qk_norm(&qwen2));
    assert_eq!(windows(&qwen2), [None; 32]);
    assert_eq!((qwen2.bos_token_id, qwen2.eos_token_ids), (None, vec![]));

    let qwen3 =
        good(json!({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 64}));
    assert_eq!(qwen3.head_dim, 128, "not hidden_size / num_attention_heads");
    assert_eq!(biases(&qwen3), [false; 3]);
    assert!(qk_norm(&qwen3));
}

#[test]
fn null_means_absent() {
    let config = good(with(
        llama(),
        json!({"head_dim": null, "num_key_value_heads": null, "rope_scaling": null,
               "quantization_config": null, "eos_token_id": null, "bos_token_id": null}),
    ));
    assert_eq!((config.head_dim, config.num_key_value_heads), (8, 4));
    assert_eq!((config.eos_token_ids, config.bos_token_id), (vec![], None));
    assert_eq!(good(mistral(json!({"num_key_value_heads": null}))).num_key_value_heads, 4);
}

#[test]
fn biases_follow_the_family() {
    let qwen2 = good(of("qwen2", "Qwen2ForCausalLM", json!({"attention_bias": false})));
    assert_eq!(biases(&qwen2), [true, false, false]);
    let qwen3 = good(qwen3(json!({"attention_bias": true})));
    assert_eq!(biases(&qwen3), [true, true, false]);
    let mistral = good(mistral(json!({"attention_bias": true})));
    assert_eq!(biases(&mistral), [false; 3]);
}

#[test]
fn reads_rope_in_both_forms() {
    let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4,
                        "original_max_position_embeddings": 64});
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    for key in ["type", "rope_type"] {
        let scaling = with(llama3.clone(), json!({key: "llama3"}));
        let config = good(with(llama(), json!({"rope_scaling": scaling})));
        assert_eq!((config.rope().theta, &config.rope().scaling), (500_000.0, &expected));
    }
    let parameters = with(llama3.clone(), json!({"rope_type": "llama3", "rope_theta": 7000}));
    let mut newer = with(llama(), json!({"rope_parameters": parameters, "dtype": "float32"}));
    newer.as_object_mut().unwrap().remove("rope_theta");
    let config = good(newer);
    assert_eq!((config.rope().theta, &config.rope().scaling), (7000.0, &expected));

    let linear = json!({"rope_scaling": {"type": "linear", "factor": 2}});
    assert_eq!(good(with(llama(), linear)).rope().scaling, RopeScaling::Linear { factor: 2.0 });
    let plain = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}});
    let config = good(with(llama(), plain));
    assert_eq!((config.rope().theta, &config.rope().scaling), (123.0, &RopeScaling::None));

    // As transformers does: the older key wins where both are, and the context length stands in
    // for the original one.
    let both = json!({
        "rope_scaling": {"rope_type": "linear", "factor": 3.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 9.0},
    });
    let config = good(with(llama(), both));
    assert_eq!(config.rope().scaling, RopeScaling::Linear { factor: 3.0 });
    assert_eq!(config.rope().theta, 500_000.0);
    let outer = json!({"original_max_position_embeddings": 32,
                       "rope_scaling": with(llama3.clone(), json!({"rope_type": "llama3"}))});
    assert!(matches!(
        good(with(llama(), outer)).rope().scaling,
        RopeScaling::Llama3 { original_max_position_embeddings: 32, .. }
    ));
    let yarn =
        json!({"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1.0, "mscale_all_dim": 0}});
    let RopeScaling::Yarn { attention_factor, .. } = good(with(llama(), yarn)).rope().scaling
    else {
        panic!()
    };
    assert_eq!(attention_factor, 0.1 * 4f64.ln() + 1.0);
    // It changes what is longer than the context.
    let dynamic = json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}});
    assert_eq!(good(with(llama(), dynamic)).rope().scaling, RopeScaling::None);
    let mut short = with(llama3, json!({"rope_type": "llama3"}));
    short.as_object_mut().unwrap().remove("original_max_position_embeddings");
    let config = good(with(llama(), json!({"rope_scaling": short})));
    assert!(matches!(
        config.rope().scaling,
        RopeScaling::Llama3 { original_max_position_embeddings: 256, .. }
    ));
}

#[test]
fn sliding_windows_follow_the_family() {
    assert_eq!(windows(&good(mistral(json!({"sliding_window": 16})))), [Some(16); 3]);
    assert_eq!(windows(&good(mistral(json!({"sliding_window": null})))), [None; 3]);
    // transformers makes a Ministral of it.
    let types = json!({"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention",
                                                             "full_attention"]});
    assert_eq!(windows(&good(mistral(types))), [None, Some(16), None]);
    // As wide as the context: no window.
    assert_eq!(windows(&good(mistral(json!({"sliding_window": 256})))), [None; 3]);
    assert_eq!(windows(&good(with(llama(), json!({"sliding_window": 16})))), [None; 3]);

    let off = json!({"sliding_window": 16, "max_window_layers": 1});
    assert_eq!(windows(&good(qwen3(off))), [None; 3]);
    let on = json!({"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1});
    assert_eq!(windows(&good(qwen3(on))), [None, Some(16), Some(16)]);
    let all = json!({"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 0});
    assert_eq!(windows(&good(qwen3(all))), [Some(16); 3]);
    let types = json!({
        "use_sliding_window": true, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    });
    assert_eq!(windows(&good(qwen3(types))), [Some(16), None, Some(16)]);
}

#[test]
fn generation_config_comes_first_for_special_tokens() {
    let config = with(llama(), json!({"eos_token_id": 7, "bos_token_id": 8})).to_string();
    let read = |generation| read_text(&config, Some(generation)).unwrap();
    assert_eq!(read(r#"{"eos_token_id": [9, 10], "bos_token_id": 1}"#).eos_token_ids, [9, 10]);
    assert_eq!(read(r#"{"eos_token_id": [9, 10], "bos_token_id": 1}"#).bos_token_id, Some(1));
    assert_eq!(read(r#"{"eos_token_id": 11}"#).eos_token_ids, [11]);
    assert_eq!(read(r#"{"eos_token_id": null}"#).eos_token_ids, [7]);
    assert_eq!(read("{}").bos_token_id, Some(8));
    // Outside the vocabulary of 100: never generated.
    assert_eq!(read(r#"{"eos_token_id": [9, 128001]}"#).eos_token_ids, [9]);
    assert_eq!(read(r#"{"eos_token_id": [9, -2]}"#).eos_token_ids, [9]);
    assert_eq!(read(r#"{"suppress_tokens": [3, 99, 128001]}"#).suppress_tokens, [3, 99]);
    assert!(read(r#"{"suppress_tokens": [-1]}"#).suppress_tokens.is_empty());
    assert!(read(r#"{"suppress_tokens": null}"#).suppress_tokens.is_empty());

    let said = r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
        "min_p": 0.05, "repetition_penalty": 1.05}"#;
    let sampling = Sampling {
        temperature: Some(0.7),
        top_k: Some(20),
        top_p: Some(0.8),
        min_p: Some(0.05),
        repetition_penalty: Some(1.05),
    };
    assert_eq!(read(said).sampling, sampling);
    let wrong = r#"{"temperature": "hot", "top_k": -1, "top_p": 0, "min_p": 2, "repetition_penalty": null}"#;
    assert_eq!(read(wrong).sampling, Sampling::default());
    // It is of `generation_config.json` alone.
    let config = with(llama(), json!({"temperature": 0.5})).to_string();
    assert_eq!(read_text(&config, None).unwrap().sampling, Sampling::default());

    let all = json!({"suppress_tokens": Vec::from_iter(0..100)}).to_string();
    for (text, part) in [
        (&*all, "no token is left"),
        (r#"{"eos_token_id": "</s>"}"#, "`eos_token_id` is \"</s>\""),
        (r#"{"eos_token_id": [1, 2.5]}"#, "`eos_token_id` is [1,2.5]"),
        (r#"{"suppress_tokens": [4294967296]}"#, "`suppress_tokens` is [4294967296]"),
        (r#"{"eos_token_id": "#, "not valid JSON"),
    ] {
        let error = read_text(&config, Some(text)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("generation_config.json") && text.contains(part), "{text}");
    }
}

/// As transformers takes them: from outside of the text model's part first.
#[test]
fn special_tokens_of_a_model_that_reads_images_are_outside() {
    let read = |outer: Value, text: Value, generation| {
        let text = with(with(llama(), json!({"model_type": "gemma3_text"})), text);
        let text = with(text, json!({"architectures": null}));
        let config = with(json!({"model_type": "gemma3", "text_config": text}), outer);
        let config = read_text(&config.to_string(), generation).unwrap();
        (config.eos_token_ids, config.bos_token_id)
    };
    let outer = json!({"eos_token_id": [1, 99], "bos_token_id": 3});
    let text = json!({"eos_token_id": 1, "bos_token_id": 4});
    assert_eq!(read(outer.clone(), json!({}), None), (vec![1, 99], Some(3)));
    assert_eq!(read(outer.clone(), text.clone(), None), (vec![1, 99], Some(3)));
    assert_eq!(read(json!({}), text.clone(), None), (vec![1], Some(4)));
    assert_eq!(read(json!({"eos_token_id": null}), text, None).0, [1]);
    assert_eq!(read(json!({"eos_token_id": null}), json!({}), None).0, [1]);
    assert_eq!(read(json!({}), json!({}), None), (vec![1], Some(2)));
    assert_eq!(read(outer, json!({}), Some(r#"{"eos_token_id": 7}"#)), (vec![7], Some(3)));
}

/// As transformers takes it, which does not tie an output that a file has and that differs.
#[test]
fn whether_the_output_of_a_text_model_is_tied_is_outside() {
    for (outer, inner, expected) in [
        (json!(null), json!(false), true),
        (json!(true), json!(false), true),
        (json!(false), json!(true), false),
    ] {
        let text = mistral(json!({"tie_word_embeddings": inner}));
        let config =
            json!({"model_type": "mistral3", "text_config": text, "tie_word_embeddings": outer});
        assert_eq!(good(config).tie_word_embeddings, expected);
    }
}

/// As e5-mistral-7b-instruct and other models that make vectors of texts are saved.
#[test]
fn a_model_without_an_output_is_of_its_family() {
    for (class, model_type) in [
        ("LlamaModel", "llama"),
        ("MistralModel", "mistral"),
        ("Qwen3Model", "qwen3"),
        ("Gemma3TextModel", "gemma3_text"),
    ] {
        let config = good(json!({"architectures": [class], "model_type": model_type}));
        assert_eq!(config, good(json!({"model_type": model_type})));
        assert_eq!(good(json!({"architectures": [class]})).family, config.family);
    }
}

#[test]
fn experts_are_counted_under_either_key() {
    let with_experts = |model_type: &str, more: Value| {
        let base = json!({"model_type": model_type, "architectures": null,
                          "num_experts_per_tok": 2, "moe_intermediate_size": 16});
        with(with(llama(), base), more)
    };
    for model_type in ["qwen2_moe", "qwen3_moe"] {
        for key in ["num_experts", "num_local_experts"] {
            let config = good(with_experts(model_type, json!({key: 8})));
            let FeedForward::Experts(experts) = &config.architecture.layers[0].mlp else {
                panic!("no experts")
            };
            assert_eq!(experts.experts.len(), 8, "{model_type}, {key}");
            let named = format!("`{key}` is 0");
            refused(with_experts(model_type, json!({key: 0})), &[&named]);
            let named = format!("1 experts (`{key}`)");
            refused(with_experts(model_type, json!({key: 1})), &[&named]);
        }
    }
}

/// Qwen3.5's own files of GPTQ name what is plain, and what is as all is.
#[test]
fn gptq_may_name_modules_that_are_plain() {
    let own = json!({"lm_head": {}, "-:.*attn.*": {}, "-:.*mtp.*": {"bits": 8}, "+:.*mlp.*": {}});
    let config = json!({"quant_method": "gptq", "bits": 4, "dynamic": own});
    good(with(llama(), json!({"quantization_config": config})));
}

/// The context decides which of two lists of divisors there is.
#[test]
fn long_contexts_are_asked_for() {
    let phi = with(
        llama(),
        json!({"model_type": "phi3", "architectures": null, "max_position_embeddings": 1024,
               "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1],
                                "long_factor": [2, 2, 2, 2],
                                "original_max_position_embeddings": 128}}),
    );
    let config = good(phi);
    let of = |tokens| {
        let config = config.clone().with_context(tokens);
        assert_eq!(config.longest_context, 1024);
        (config.max_position_embeddings, config.rope().inv_freq()[0])
    };
    assert_eq!(of(None), (128, 1.0));
    assert_eq!(of(Some(128)), (128, 1.0));
    assert_eq!(of(Some(129)), (1024, 0.5));
    let llama = good(llama());
    assert_eq!(llama.clone().with_context(Some(7)), llama);
}

/// Who adds YaRN as model cards tell leaves `max_position_embeddings` as it is.
#[test]
fn yarn_stretches_the_context_that_it_names() {
    let of = |scaling| {
        let base = json!({"max_position_embeddings": 1024, "rope_scaling": scaling});
        good(with(llama(), base)).longest_context
    };
    let yarn = |factor, original| {
        of(
            json!({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}),
        )
    };
    assert_eq!(yarn(4.0, 512), 2048);
    assert_eq!(yarn(2.0, 128), 1024);
    assert_eq!(of(json!({"type": "yarn", "factor": 4.0})), 1024);
    assert_eq!(
        of(json!({"type": "linear", "factor": 4.0, "original_max_position_embeddings": 512})),
        1024
    );
}

#[test]
fn lists_every_tensor_once() {
    let config = good(qwen3(json!({"head_dim": 6, "attention_bias": true})));
    let tensors: Vec<_> = config.tensors().collect();
    let shape = |name: &str| {
        let found: Vec<_> = tensors.iter().filter(|t| t.name == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].shape.clone()
    };
    assert_eq!(tensors.len(), 3 * 15 + 3);
    assert_eq!(shape("model.embed_tokens.weight"), [100, 32]);
    assert_eq!(shape("lm_head.weight"), [100, 32]);
    assert_eq!(shape("model.norm.weight"), [32]);
    assert_eq!(shape("model.layers.0.input_layernorm.weight"), [32]);
    assert_eq!(shape("model.layers.1.post_attention_layernorm.weight"), [32]);
    assert_eq!(shape("model.layers.2.self_attn.q_proj.weight"), [24, 32]);
    assert_eq!(shape("model.layers.2.self_attn.q_proj.bias"), [24]);
    assert_eq!(shape("model.layers.2.self_attn.k_proj.weight"), [12, 32]);
    assert_eq!(shape("model.layers.2.self_attn.v_proj.bias"), [12]);
    assert_eq!(shape("model.layers.2.self_attn.o_proj.weight"), [32, 24]);
    assert_eq!(shape("model.layers.2.self_attn.o_proj.bias"), [32]);
    assert_eq!(shape("model.layers.2.self_attn.q_norm.weight"), [6]);
    assert_eq!(shape("model.layers.2.mlp.gate_proj.weight"), [48, 32]);
    assert_eq!(shape("model.layers.2.mlp.down_proj.weight"), [32, 48]);

    let tied = good(with(llama(), json!({"tie_word_embeddings": true})));
    assert_eq!(tied.output(), Some(&tied.architecture.embedding));
    assert_eq!(tied.tensors().count(), 3 * 9 + 2);
    let elements: usize = tied.tensors().map(Parameter::elements).sum();
    assert_eq!(tied.parameter_count(), elements);
}
