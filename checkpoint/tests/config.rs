//! `config.json` and `generation_config.json`, good and bad.

use std::fs;

use checkpoint::Error;
use checkpoint::architecture::{
    Architecture, Attention, FeedForward, Layer, Linear, Mixer, Parameter, Rope, RopeScaling,
};
use checkpoint::config::ModelConfig;
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

#[test]
fn refuses_files_that_are_not_there_or_not_json() {
    let folder = TempDir::new().unwrap();
    let error = ModelConfig::from_dir(folder.path()).unwrap_err().to_string();
    assert!(error.contains("config.json: not found"), "{error}");
    let error = ModelConfig::from_dir(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("the folder does not exist"), "{error}");
    for (text, part) in [
        ("", "not valid JSON"),
        ("{\"vocab_size\": 1", "not valid JSON"),
        ("[1, 2]", "expected a JSON object, found [1,2]"),
        ("\u{feff}nonsense", "not valid JSON"),
    ] {
        let error = read_text(text, None).unwrap_err().to_string();
        assert!(error.contains("config.json") && error.contains(part), "{error}");
    }
}

#[test]
fn refuses_unknown_families() {
    let known = "LlamaForCausalLM, MistralForCausalLM, MinistralForCausalLM";
    refused(with(llama(), json!({"model_type": "gemma3"})), &["`model_type` is \"gemma3\"", known]);
    refused(
        with(llama(), json!({"architectures": ["LlamaForSequenceClassification"]})),
        &["`architectures` is [\"LlamaForSequenceClassification\"]", known],
    );
    refused(
        with(llama(), json!({"architectures": ["LlamaBidirectionalModel"]})),
        &["`architectures` is [\"LlamaBidirectionalModel\"]", known],
    );
    refused(
        with(llama(), json!({"architectures": ["MistralModel"]})),
        &["contradicts `model_type`, \"llama\""],
    );
    refused(
        with(llama(), json!({"architectures": ["Qwen2ForCausalLM"]})),
        &["contradicts `model_type`, \"llama\""],
    );
    refused(json!({"vocab_size": 5}), &["neither `model_type` nor `architectures`", known]);
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

#[test]
fn refuses_unsupported_quantisation() {
    let case = |changes: Value, parts: &[&str]| refused(with(llama(), changes), parts);
    case(
        json!({"quantization_config": {"quant_method": "quanto"}}),
        &["`quantization_config.quant_method`", "\"quanto\"", "gptq, awq"],
    );
    case(json!({"quantization_config": 4}), &["`quantization_config`", "an object"]);
    case(
        json!({"quantization_config": {"quant_method": "gptq", "bits": 3}}),
        &["`quantization_config.bits` is 3", "2, 4 and 8"],
    );
    case(
        json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0}}),
        &["`quantization_config.group_size` is 0"],
    );
    for own in [json!({"-:a": {}, "b": {"bits": 8}}), json!({"+:a": {"group_size": 32}})] {
        let config = json!({"quant_method": "gptq", "bits": 4, "dynamic": own});
        case(json!({"quantization_config": config}), &["`quantization_config.dynamic`"]);
    }
    case(
        json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}}),
        &["`quantization_config.checkpoint_format`", "\"marlin\"", "gptq_v2"],
    );
    case(
        json!({"quantization_config": {"quant_method": "awq", "bits": 8}}),
        &["`quantization_config.bits` is 8", "supported is 4"],
    );
    case(
        json!({"quantization_config": {"quant_method": "awq", "version": "gemv"}}),
        &["`quantization_config.version`", "\"gemv\"", "gemm"],
    );
    case(
        json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}),
        &["`quantization_config.weight_block_size` is [128]"],
    );
    case(
        json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}}),
        &["`quantization_config.format`", "nvfp4", "pack-quantized"],
    );
    case(
        json!({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 3}}}}}),
        &["`quantization_config.config_groups.a.weights.num_bits` is 3"],
    );
    case(
        json!({"quantization": {"bits": 7}}),
        &["`quantization.bits` is 7", "2, 3, 4, 5, 6 and 8"],
    );
    case(json!({"quantization": {"bits": 4, "mode": "nvfp4"}}), &["`quantization.mode`", "affine"]);
    case(
        json!({"quantization": {"bits": 4, "lm_head": {"group_size": 48}}}),
        &["`quantization.lm_head.group_size` is 48"],
    );
}

#[test]
fn refuses_unsupported_options() {
    let case = |changes: Value, parts: &[&str]| refused(with(llama(), changes), parts);
    case(json!({"hidden_act": "gelu"}), &["`hidden_act` is \"gelu\"", "supported are \"silu\""]);
    for rope_type in ["dynamic", "mrope"] {
        case(
            json!({"rope_scaling": {"rope_type": rope_type, "factor": 4.0, "alpha": 1000.0}}),
            &[
                &format!("`rope_scaling.rope_type` is \"{rope_type}\""),
                "\"default\", \"linear\", \"llama3\", \"yarn\"",
            ],
        );
    }
    case(
        json!({"rope_parameters": {"type": "ntk", "factor": 4.0}}),
        &["`rope_parameters.type` is \"ntk\""],
    );
    case(json!({"partial_rotary_factor": 0.5}), &["`partial_rotary_factor` is 0.5"]);
    case(
        json!({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}),
        &["`rope_parameters.full_attention`", "differ between layers"],
    );
    case(
        json!({"rope_scaling": {"type": "longrope", "long_factor": [1, 2, 3, 4]}}),
        &["`rope_scaling.short_factor` is absent", "list of numbers"],
    );
    case(
        json!({"rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [1]}}),
        &["`rope_scaling.short_factor` has 2 numbers", "`rope_scaling.long_factor` 1"],
    );
    case(
        json!({"rope_scaling": {"type": "longrope", "short_factor": [1, 2, 3, 4, 5],
                                "long_factor": [1, 2, 3, 4, 5]}}),
        &["`rope_scaling.short_factor` has 5 numbers", "8 dimensions", "4 frequencies"],
    );
    case(
        json!({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}}),
        &["`rope_scaling.short_factor` has 1 numbers", "8 dimensions", "4 frequencies"],
    );
    case(
        json!({"rope_scaling": {"type": "yarn", "factor": -1}}),
        &["`rope_scaling.factor` is -1", "positive"],
    );
    case(json!({"rope_scaling": {"type": "linear"}}), &["`rope_scaling.factor` is absent"]);
    case(
        json!({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                                "high_freq_factor": 4}}),
        &["`rope_scaling.high_freq_factor` is 4", "above `low_freq_factor`, 4"],
    );
}

#[test]
fn refuses_what_a_family_does_not_have() {
    let of = |model_type: &str, changes: Value| {
        let base = with(llama(), json!({"model_type": model_type, "architectures": null}));
        with(base, changes)
    };
    for (model_type, changes, parts) in [
        (
            "gemma3_text",
            json!({"attn_logit_softcapping": 50.0}),
            &["`attn_logit_softcapping` is 50.0", "null"][..],
        ),
        (
            "gemma3_text",
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}),
            &["`rope_parameters`", "\"full_attention\""],
        ),
        (
            "gemma2",
            json!({"use_bidirectional_attention": true}),
            &["`use_bidirectional_attention` is true"],
        ),
        ("qwen2", json!({"is_causal": false}), &["`is_causal` is false"]),
        ("gemma2", json!({"hidden_activation": "relu"}), &["`hidden_activation` is \"relu\""]),
        ("smollm3", json!({"no_rope_layers": [1, 0]}), &["`no_rope_layers` has 2 entries for 3"]),
        ("smollm3", json!({"no_rope_layers": [1, 0, 2]}), &["`no_rope_layers`", "0 and 1"]),
        (
            "phi3",
            json!({"partial_rotary_factor": 0.5, "rope_scaling": {"type": "longrope",
                   "short_factor": [1, 1, 1], "long_factor": [1, 1, 1]}}),
            &["`rope_scaling.short_factor` has 3 numbers", "4 dimensions", "2 frequencies"],
        ),
        ("glm4", json!({"partial_rotary_factor": 0.4}), &["`partial_rotary_factor`", "even part"]),
        (
            "qwen3_moe",
            json!({"num_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 16}),
            &["`num_experts_per_tok` is 5", "4 experts (`num_experts`)"],
        ),
        (
            "qwen3_moe",
            json!({"moe_intermediate_size": 24}),
            &["`moe_intermediate_size` is 24", "multiples of 16"],
        ),
        ("qwen2_moe", json!({"use_sliding_window": true}), &["`use_sliding_window` is true"]),
        ("qwen2_moe", json!({"mlp_only_layers": [-1]}), &["`mlp_only_layers`", "integers"]),
        (
            "qwen3_moe",
            json!({"num_hidden_layers": 4096, "num_experts": 1024, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 16}),
            &["`num_experts` is 1024", "4096 layers"],
        ),
        ("mixtral", json!({"num_local_experts": 4096}), &["`num_local_experts` is 4096", "1024"]),
        ("granite", json!({"residual_multiplier": 0}), &["`residual_multiplier` is 0"]),
        ("olmo3", json!({"layer_types": ["full_attention"]}), &["`layer_types` has 1 entries"]),
    ] {
        refused(of(model_type, changes), parts);
    }
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
        (config.max_position_embeddings, config.rope().inv_freq()[0])
    };
    assert_eq!(of(None), (128, 1.0));
    assert_eq!(of(Some(128)), (128, 1.0));
    assert_eq!(of(Some(129)), (1024, 0.5));
    let llama = good(llama());
    assert_eq!(llama.clone().with_context(Some(7)), llama);
}

/// Of the first Phi-3s with a long context, "su" and "yarn" mean what is called "longrope" now.
#[test]
fn phi_3_has_older_names_of_longrope() {
    let read = |scaling: Value, more: Value| {
        let base = json!({"model_type": "phi3", "architectures": null,
                          "max_position_embeddings": 131_072});
        let config = with(with(llama(), base), more);
        good(with(config, json!({"rope_scaling": scaling}))).rope().scaling.clone()
    };
    let lists = json!({"short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2]});
    let expected = |original: usize| RopeScaling::LongRope {
        short_factor: vec![1.0; 4],
        long_factor: vec![2.0; 4],
        attention_factor: (1.0 + (131_072.0 / original as f64).ln() / (original as f64).ln())
            .sqrt(),
        original_max_position_embeddings: original,
    };
    for name in ["su", "yarn", "longrope"] {
        for key in ["type", "rope_type"] {
            let scaling = with(lists.clone(), json!({key: name}));
            assert_eq!(read(scaling.clone(), json!({})), expected(4096), "{key}: {name}");
            let outer = json!({"original_max_position_embeddings": 8192});
            assert_eq!(read(scaling.clone(), outer), expected(8192));
            let inner = with(scaling, json!({"original_max_position_embeddings": 2048}));
            assert_eq!(read(inner, json!({})), expected(2048));
        }
    }
}

#[test]
fn refuses_impossible_sizes() {
    let case = |changes: Value, parts: &[&str]| refused(with(llama(), changes), parts);
    for key in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "head_dim",
    ] {
        for value in [json!(0), json!(-4), json!(1e18 as u64), json!(2.5), json!("8"), json!([8])] {
            case(
                json!({key: value}),
                &[&format!("`{key}` is {value}: expected an integer between 1 and")],
            );
        }
    }
    case(json!({"num_key_value_heads": 3}), &["`num_key_value_heads` is 3", "must divide"]);
    case(json!({"num_key_value_heads": 8}), &["`num_key_value_heads` is 8", "must divide"]);
    case(
        json!({"hidden_size": 34}),
        &["`hidden_size` is 34", "multiple of `num_attention_heads`, 4"],
    );
    case(json!({"head_dim": 7}), &["`head_dim` is 7", "even"]);
    case(json!({"hidden_size": 12}), &["`hidden_size` / `num_attention_heads` is 3", "even"]);
    for key in ["rms_norm_eps", "rope_theta"] {
        for value in [json!(0), json!(-1.0), json!("1e-5")] {
            case(
                json!({key: value}),
                &[&format!("`{key}` is {value}: expected a positive number")],
            );
        }
    }
    case(json!({"tie_word_embeddings": 1}), &["`tie_word_embeddings` is 1", "true or false"]);
}

#[test]
fn refuses_impossible_windows() {
    refused(mistral(json!({"sliding_window": 0})), &["`sliding_window` is 0"]);
    refused(
        qwen3(json!({"layer_types": ["full_attention"]})),
        &["`layer_types` has 1 entries for 3 layers"],
    );
    refused(
        qwen3(json!({"layer_types": ["full_attention", "full_attention", "chunked_attention"]})),
        &["`layer_types`", "\"full_attention\" and \"sliding_attention\""],
    );
    refused(
        qwen3(json!({"layer_types": ["full_attention", "full_attention", "sliding_attention"]})),
        &["`layer_types`", "`use_sliding_window`"],
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
    assert_eq!(tied.output(), &tied.architecture.embedding);
    assert_eq!(tied.tensors().count(), 3 * 9 + 2);
    let elements: usize = tied.tensors().map(Parameter::elements).sum();
    assert_eq!(tied.parameter_count(), elements);
}

/// LFM2's keys have names of their own, and the width of its MLP is made of some.
#[test]
fn lfm2_has_names_of_its_own() {
    let lfm2 = |changes| of("lfm2", "Lfm2ForCausalLM", changes);
    let of_layers = |config: &ModelConfig| -> Vec<Option<usize>> {
        let rows = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(_) | Mixer::GatedDelta(_) => None,
            Mixer::ShortConvolution(convolution) => Some(convolution.rows()),
        };
        config.architecture.layers.iter().map(rows).collect()
    };
    // That of LFM2-1.2B.
    let first = good(lfm2(json!({
        "norm_eps": 1e-6, "block_ff_dim": 12288, "block_auto_adjust_ff_dim": true,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_L_cache": 3,
        "full_attn_idxs": [1], "tie_embedding": false,
    })));
    assert_eq!((first.intermediate_size, first.rms_norm_eps), (8192, 1e-6));
    assert_eq!(of_layers(&first), [Some(3), None, Some(3)]);
    assert!(!first.tie_word_embeddings);
    // What is absent, and the newer names.
    let newer = good(lfm2(json!({"rms_norm_eps": 1e-3, "tie_word_embeddings": false})));
    assert_eq!((newer.intermediate_size, newer.rms_norm_eps), (256, 1e-5));
    assert_eq!(of_layers(&newer), [None; 3]);
    assert!(!newer.tie_word_embeddings && good(lfm2(json!({}))).tie_word_embeddings);
    let types = ["conv", "conv", "full_attention"];
    let typed = good(lfm2(json!({
        "layer_types": types, "full_attn_idxs": [0], "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": false,
    })));
    assert_eq!((typed.intermediate_size, of_layers(&typed)), (48, vec![Some(4), Some(4), None]));

    refused(lfm2(json!({"conv_bias": true})), &["`conv_bias` is true"]);
    refused(lfm2(json!({"layer_types": ["conv"]})), &["1 entries for 3 layers"]);
    let types = ["conv", "conv", "sliding_attention"];
    refused(lfm2(json!({"layer_types": types})), &["\"full_attention\" and \"conv\""]);
    refused(
        lfm2(json!({"block_ffn_dim_multiplier": 1e9})),
        &["`block_ffn_dim_multiplier`", "width"],
    );
    let odd = json!({"hidden_size": 33, "head_dim": 8});
    refused(lfm2(odd), &["`hidden_size` is 33", "halves"]);
}

/// Qwen3.5's layers are linear attention but for every so many; a wrapper that reads images too has its own
/// default of tied embeddings.
#[test]
fn qwen3_5_attends_in_some_layers() {
    let qwen = |changes| of("qwen3_5_text", "Qwen3_5ForCausalLM", changes);
    let attends = |config: &ModelConfig| -> Vec<bool> {
        config.architecture.layers.iter().map(|layer| layer.attention().is_some()).collect()
    };
    let sizes = json!({
        "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, "linear_key_head_dim": 5, "linear_value_head_dim": 7,
        "linear_conv_kernel_dim": 3, "attn_output_gate": true,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
            "mrope_interleaved": true, "mrope_section": [2, 1, 1]},
    });
    let qwen = |changes| with(qwen(sizes.clone()), changes);
    let config = good(qwen(json!({})));
    assert_eq!(attends(&config), [false, false, false, true]);
    assert_eq!((config.rope().width, config.rope().theta), (8, 1e7));
    assert!(!config.tie_word_embeddings);
    let layers = &config.architecture.layers;
    let delta = layers[0].gated_delta().unwrap();
    let widths: Vec<_> = delta.inputs.iter().map(Linear::outputs).collect();
    assert_eq!(widths, [2 * 10 + 42, 42, 6, 6]);
    assert_eq!((delta.channels(), delta.rows(), delta.output.inputs()), (62, 3, 42));
    assert_eq!(layers[0].mixer.state(), Some([6 * 5 * 7, 2 * 62]));
    assert_eq!((layers[0].mixer.key_width(), layers[3].mixer.key_width()), (0, 32));
    assert!(!delta.tiled);
    let attention = layers[3].attention().unwrap();
    assert!(
        attention.gated && attention.qkv[0].outputs() == 2 * 64 && attention.output.inputs() == 64
    );
    // One is added to the weights of all norms but the one that is gated.
    let norms = config.architecture.norms();
    let plain: Vec<_> =
        norms.filter(|norm| norm.offset == 0.0).map(|norm| norm.weight.name.as_str()).collect();
    assert_eq!(plain.len(), 3, "{plain:?}");
    assert!(plain.iter().all(|name| name.ends_with("linear_attn.norm.weight")), "{plain:?}");

    // What is absent: of the widths that published models have, a quarter of each head.
    let usual = good(of("qwen3_5_text", "Qwen3_5TextModel", json!({"num_hidden_layers": 8})));
    assert_eq!(attends(&usual).iter().filter(|it| **it).count(), 2);
    assert_eq!((usual.head_dim, usual.rope().width), (256, 64));
    assert_eq!(usual.architecture.layers[0].mixer.state(), Some([32 * 128 * 128, 3 * 8192]));
    assert_eq!(
        attends(&good(qwen(json!({"full_attention_interval": 2})))),
        [false, true, false, true]
    );
    let [l, f] = ["linear_attention", "full_attention"];
    let typed = good(qwen(json!({"layer_types": [f, l, l, f], "full_attention_interval": 2})));
    assert_eq!(attends(&typed), [true, false, false, true]);

    for (tied, expected) in [(json!(null), false), (json!(true), true)] {
        let text = qwen(json!({"architectures": null}));
        let whole = json!({
            "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": text, "tie_word_embeddings": tied,
        });
        let whole = good(whole);
        assert_eq!(whole.architecture, config.architecture);
        assert_eq!(whole.tie_word_embeddings, expected);
    }

    for (changes, parts) in [
        (json!({"linear_num_value_heads": 5}), ["`linear_num_value_heads` is 5", "multiple"]),
        (json!({"linear_conv_kernel_dim": 1}), ["`linear_conv_kernel_dim` is 1", "2 to 16"]),
        (json!({"attn_output_gate": false}), ["`attn_output_gate` is false", "true"]),
        (json!({"hidden_act": "gelu_new"}), ["`hidden_act` is \"gelu_new\"", "silu"]),
        (json!({"full_attention_interval": 5}), ["`full_attention_interval` is 5", "4 layers"]),
        (json!({"layer_types": [l, l, l]}), ["3 entries", "4 layers"]),
        (json!({"layer_types": [l, l, l, l]}), ["`layer_types`", "at least one"]),
        (json!({"layer_types": [l, l, f, "mamba"]}), ["`layer_types`", "\"linear_attention\""]),
    ] {
        refused(qwen(changes), &parts);
    }
}

/// Qwen3-Next and Qwen3.5's mixtures are Qwen3.5 with experts, one of which is for all rows.
#[test]
fn mixtures_with_linear_attention_have_a_gated_expert_for_all_rows() {
    let sizes = json!({
        "hidden_size": 32, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20,
    });
    let [next, moe] =
        [("qwen3_next", "Qwen3NextForCausalLM"), ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")]
            .map(|(model_type, class)| {
                let sizes = sizes.clone();
                move |changes: Value| with(of(model_type, class, sizes.clone()), changes)
            });
    let plain = good(of("qwen3_5_text", "Qwen3_5ForCausalLM", json!({"num_hidden_layers": 4})));
    for config in [good(next(json!({}))), good(moe(json!({})))] {
        for (layer, plain) in config.architecture.layers.iter().zip(&plain.architecture.layers) {
            assert_eq!(layer.mixer, plain.mixer);
            let FeedForward::Experts(experts) = &layer.mlp else { panic!("no experts") };
            assert_eq!((experts.experts.len(), experts.top_k, experts.normalised), (8, 3, true));
            let shared = experts.shared.as_ref().unwrap();
            assert_eq!((shared.mlp.down.inputs(), shared.gate.is_some()), (20, true));
        }
    }
    let dense = good(next(json!({"mlp_only_layers": [1], "norm_topk_prob": false})));
    let of_layers = |config: &ModelConfig| -> Vec<Option<bool>> {
        let normalised = |layer: &Layer| match &layer.mlp {
            FeedForward::Experts(experts) => Some(experts.normalised),
            FeedForward::Mlp(_) => None,
        };
        config.architecture.layers.iter().map(normalised).collect()
    };
    assert_eq!(of_layers(&dense), [Some(false), None, Some(false), Some(false)]);
    // As mlx-lm reads it, too.
    let mut flat = moe(json!({"model_type": "qwen3_5_moe"}));
    flat["architectures"] = json!(["Qwen3_5MoeForConditionalGeneration"]);
    assert_eq!(good(flat), good(moe(json!({}))));
    let all = good(moe(json!({"mlp_only_layers": [1], "decoder_sparse_step": 2})));
    assert_eq!(of_layers(&all), [Some(true); 4]);
    refused(moe(json!({"norm_topk_prob": false})), &["`norm_topk_prob` is false", "true"]);
    refused(next(json!({"hidden_act": "gelu_new"})), &["`hidden_act` is \"gelu_new\"", "silu"]);
}

/// Whose rope is stretched where nothing is said of it.
#[test]
fn apertus_has_an_activation_that_learned() {
    let apertus = |changes| of("apertus", "ApertusForCausalLM", changes);
    let config = good(apertus(json!({"hidden_act": "xielu", "rope_theta": 1e4})));
    let FeedForward::Mlp(mlp) = &config.architecture.layers[0].mlp else { panic!("experts") };
    assert_eq!((mlp.gate_up.len(), mlp.learned.len(), qk_norm(&config)), (1, 4, true));
    assert!(!mlp.activation.is_gated());
    assert!(matches!(config.rope().scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
    assert_eq!(config.rope().theta, 12e6);
    let plain = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}});
    let plain = good(apertus(with(plain, json!({"hidden_act": null, "rope_theta": null}))));
    assert_eq!((&plain.rope().scaling, plain.rope().theta), (&RopeScaling::None, 1e4));
    refused(apertus(json!({"hidden_act": "silu"})), &["`hidden_act`", "\"xielu\""]);
}

/// Shares of its experts are those of the ones that were chosen, and the one of all rows has no gate.
#[test]
fn granite_with_experts_has_its_multipliers() {
    let experts = |model_type, class, changes| {
        let base = json!({"num_local_experts": 4, "residual_multiplier": 0.5});
        let config = good(of(model_type, class, with(base, changes)));
        assert_eq!(config.architecture.layers[0].residual_scale, 0.5);
        let FeedForward::Experts(experts) = &config.architecture.layers[0].mlp else { panic!() };
        assert!(experts.normalised && experts.top_k == 2 && experts.experts.len() == 4);
        let shared = experts.shared.as_ref().map(|it| (it.mlp.down.inputs(), it.gate.is_some()));
        (experts.experts[0].down.inputs(), shared)
    };
    let alone = experts("granitemoe", "GraniteMoeForCausalLM", json!({}));
    assert_eq!(alone, (48, None));
    let shared = |changes| experts("granitemoeshared", "GraniteMoeSharedForCausalLM", changes);
    assert_eq!(shared(json!({"shared_intermediate_size": 24})), (48, Some((24, false))));
    assert_eq!(shared(json!({})), (48, None));
    let narrow = json!({"intermediate_size": 40});
    refused(of("granitemoe", "GraniteMoeForCausalLM", narrow), &["`intermediate_size` is 40"]);
}

#[test]
fn glm_with_experts_has_them_behind_layers_without() {
    let glm = |changes| of("glm4_moe", "Glm4MoeForCausalLM", changes);
    let config = good(glm(json!({
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "n_shared_experts": 3, "first_k_dense_replace": 2, "use_qk_norm": true,
    })));
    let of_all = |layer: &Layer| match &layer.mlp {
        FeedForward::Experts(experts) => {
            assert!(experts.shares.bias().is_some() && experts.experts.len() == 4);
            experts.shared.as_ref().map(|it| (it.mlp.down.inputs(), it.gate.is_some()))
        }
        FeedForward::Mlp(_) => None,
    };
    let layers: Vec<_> = config.architecture.layers.iter().map(of_all).collect();
    assert_eq!(layers, [None, None, Some((48, false))]);
    assert_eq!(
        (config.rope().width, config.rope().interleaved, qk_norm(&config)),
        (4, false, true)
    );
    refused(glm(json!({"n_group": 2})), &["`n_group` is 2", "groups"]);
    refused(glm(json!({"n_routed_experts": 4})), &["`num_experts_per_tok`", "`n_routed_experts`"]);
}

/// What has no window does not rotate, and layers without one are every fourth where nothing else is said.
#[test]
fn cohere_has_layer_norms_of_both_attention_and_mlp() {
    let command_r = |changes| of("cohere", "CohereForCausalLM", changes);
    let config = good(command_r(json!({"layer_norm_eps": 1e-4, "attention_bias": true})));
    assert!(config.architecture.norms().all(|norm| norm.centred && norm.epsilon == 1e-4));
    let parallel = |layer: &Layer| layer.parallel && layer.mlp_norm.is_none();
    assert!(config.architecture.layers.iter().all(parallel) && config.rope().interleaved);
    assert_eq!((config.architecture.logits.scale, biases(&config)), (0.0625, [true, true, false]));
    let first = good(command_r(json!({"model_max_length": 131_072})));
    assert_eq!((first.max_position_embeddings, first.rope().positions), (131_072, 131_072));
    let none = good(command_r(json!({"model_max_length": 1e30})));
    assert_eq!(none.max_position_embeddings, config.max_position_embeddings);
    assert!(!qk_norm(&config));
    // Command R+.
    let plus = good(command_r(json!({"use_qk_norm": true, "num_key_value_heads": 2})));
    let norms = plus.architecture.layers[0].attention().unwrap().qk_norm.as_ref().unwrap();
    assert_eq!((&norms.query.weight.shape[..], norms.query.width()), (&[4, 8][..], 8));
    assert!(norms.key.as_ref().is_some_and(|it| it.centred && it.weight.shape == [2, 8]));
    refused(command_r(json!({"layer_norm_eps": -1.0})), &["`layer_norm_eps` is -1.0"]);

    let of_layers = |changes| -> Vec<_> {
        let base = json!({"num_hidden_layers": 4, "sliding_window": 16});
        let config = good(of("cohere2", "Cohere2ForCausalLM", with(base, changes)));
        let attention = |layer: &Layer| {
            let attention = layer.attention().unwrap();
            (attention.window, attention.ropes.is_some())
        };
        config.architecture.layers.iter().map(attention).collect()
    };
    let (near, far) = ((Some(16), true), (None, false));
    assert_eq!(of_layers(json!({})), [near, near, near, far]);
    assert_eq!(of_layers(json!({"sliding_window_pattern": 2})), [near, far, near, far]);
}

/// Its experts begin behind some layers, are chosen with a bias and may weigh more than one.
#[test]
fn lfm2_with_experts_chooses_them_by_sigmoids() {
    let moe = |changes| {
        let sizes = json!({"moe_intermediate_size": 16, "num_experts": 8});
        of("lfm2_moe", "Lfm2MoeForCausalLM", with(sizes, changes))
    };
    let of_layers = |config: &ModelConfig| -> Vec<_> {
        let experts = |layer: &Layer| match &layer.mlp {
            FeedForward::Experts(experts) => {
                let bias = experts.shares.bias().is_some();
                Some((experts.top_k, experts.normalised, experts.scale, bias))
            }
            FeedForward::Mlp(mlp) => {
                assert_eq!(mlp.down.inputs(), 48);
                None
            }
        };
        config.architecture.layers.iter().map(experts).collect()
    };
    assert_eq!(of_layers(&good(moe(json!({})))), [None, None, Some((4, true, 1.0, true))]);
    let changed = good(moe(json!({
        "num_dense_layers": 0, "num_experts_per_tok": 2, "norm_topk_prob": false,
        "routed_scaling_factor": 2.5, "use_expert_bias": false,
    })));
    assert_eq!(of_layers(&changed), [Some((2, false, 2.5, false)); 3]);
    refused(moe(json!({"num_experts_per_tok": 9})), &["`num_experts_per_tok` is 9", "8 experts"]);
    refused(moe(json!({"num_dense_layers": -1})), &["`num_dense_layers` is -1", "between 0 and"]);
    refused(moe(json!({"conv_bias": true})), &["`conv_bias` is true"]);
}

#[test]
fn arcee_has_no_gate() {
    let arcee = |changes| of("arcee", "ArceeForCausalLM", changes);
    let config = good(arcee(json!({"hidden_act": "relu2", "mlp_bias": true})));
    let FeedForward::Mlp(mlp) = &config.architecture.layers[0].mlp else { panic!("experts") };
    let [up] = &mlp.gate_up[..] else { panic!("{:?}", mlp.gate_up) };
    assert_eq!(up.weight.shape, [48, 32]);
    assert!(up.bias.is_some() && mlp.down.bias.is_some() && !mlp.activation.is_gated());
    refused(arcee(json!({"hidden_act": "silu"})), &["`hidden_act`", "\"relu2\""]);
}

/// A fixed alpha of "dynamic", which other families refuse.
#[test]
fn hunyuan_stretches_the_base_of_its_rope() {
    let rope = |scaling: Value| {
        let changes = json!({"rope_theta": 10000.0, "head_dim": 10, "rope_scaling": scaling});
        read(of("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", changes))
    };
    let config = rope(json!({"type": "dynamic", "alpha": 1000.0, "factor": 1.0})).unwrap();
    let theta = config.rope().theta;
    assert!((theta / (1e4 * 1000f64.powf(1.25)) - 1.0).abs() < 1e-12, "{theta}");
    assert!(config.architecture.layers[0].attention().unwrap().qk_norm.as_ref().unwrap().rotated);
    let plain = rope(json!({"type": "dynamic", "factor": 1.0})).unwrap();
    assert_eq!((plain.rope().theta, &plain.rope().scaling), (1e4, &RopeScaling::None));
    assert!(rope(json!({"type": "dynamic", "alpha": 1e300})).is_err());
}

/// Gemma 4's layers differ, by what is said of all of them.
#[test]
fn gemma_4_has_layers_of_two_kinds() {
    let gemma4 = |changes| of("gemma4_text", "Gemma4ForCausalLM", changes);
    let dense = |changes| gemma4(with(json!({"hidden_size_per_layer_input": 0}), changes));
    let attention = |config: &ModelConfig, layer: usize| {
        config.architecture.layers[layer].attention().unwrap().clone()
    };
    // As the configuration class has it: but for the last layer all slide.
    let config = good(gemma4(json!({"head_dim": 8, "max_position_embeddings": 1024})));
    assert_eq!(windows(&config), [Some(512), Some(512), None]);
    let inputs = config.architecture.layer_inputs.as_ref().unwrap();
    assert_eq!(inputs.embedding.shape, [262_144, 3 * 256]);
    let [first, last] = [0, 2].map(|layer| attention(&config, layer));
    assert_eq!((first.head_dim, first.ropes), (8, Some([1; 2])));
    assert_eq!((last.head_dim, last.kv_heads, last.ropes), (512, 2, Some([0; 2])));
    let Architecture { ropes, .. } = &config.architecture;
    let turning = |rope: &Rope| rope.inv_freq().iter().filter(|it| **it > 0.0).count();
    assert_eq!((ropes[0].width, turning(&ropes[0]), turning(&ropes[1])), (512, 64, 4));
    assert_eq!((ropes[0].theta, ropes[1].theta), (500_000.0, 10_000.0));

    // Keys that are values, and heads of them; of each layer as transformers saves it.
    let keys =
        json!({"attention_k_eq_v": true, "global_head_dim": 6, "num_global_key_value_heads": 1});
    let layers = json!({"attention_k_eq_v": true,
                        "per_layer_config": {"2": {"head_dim": 6, "num_key_value_heads": 1}}});
    for changes in [keys, layers] {
        let config = good(dense(changes));
        let last = attention(&config, 2);
        assert_eq!((last.head_dim, last.kv_heads, attention(&config, 0).kv_heads), (6, 1, 2));
        assert_eq!((&last.qkv[1], last.qkv.len()), (&last.qkv[2], 3));
        let of_keys = |it: &&Parameter| it.name.contains("layers.2.self_attn.k_proj");
        assert_eq!(config.tensors().filter(of_keys).count(), 1);
        assert!(config.architecture.layer_inputs.is_none());
    }

    // Layers without keys of their own, and what is twice as wide there.
    let types = ["sliding_attention", "full_attention", "full_attention"];
    let shared =
        json!({"num_kv_shared_layers": 1, "use_double_wide_mlp": true, "layer_types": types});
    let config = good(dense(shared));
    let last = &config.architecture.layers[2];
    assert_eq!((attention(&config, 2).shared, attention(&config, 1).shared), (Some(1), None));
    assert_eq!(
        (last.mixer.key_width(), last.mlp.widths()[0], config.intermediate_size),
        (0, 96, 48)
    );

    refused(dense(json!({"num_kv_shared_layers": 1})), &["`num_kv_shared_layers` is 1", "layer 2"]);
    refused(dense(json!({"enable_moe_block": true})), &["`enable_moe_block` is true", "experts"]);
    refused(
        dense(json!({"use_bidirectional_attention": "all"})),
        &["`use_bidirectional_attention`"],
    );
    refused(dense(json!({"global_head_dim": 7})), &["`global_head_dim` is 7", "even"]);
    let heads = json!({"attention_k_eq_v": true, "num_global_key_value_heads": 3});
    refused(dense(heads), &["`num_global_key_value_heads` is 3", "must divide"]);
    let differ = json!({"per_layer_config": {"0": {"head_dim": 6}}});
    refused(dense(differ), &["`per_layer_config`", "without a window"]);
    let odd = json!({"per_layer_config": {"2": {"head_dim": 7}}});
    refused(dense(odd), &["`per_layer_config.head_dim` is 7"]);
    refused(gemma4(json!({"hidden_size_per_layer_input": 24})), &["multiples of 16"]);
    let few = json!({"vocab_size_per_layer_input": 99});
    refused(gemma4(few), &["`vocab_size_per_layer_input` is 99", "`vocab_size` is more, 100"]);
}
