//! What is refused, and how.

use super::*;

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
    case(json!({"hidden_act": "relu"}), &["`hidden_act` is \"relu\"", "supported are \"silu\""]);
    for rope_type in ["dynamic", "ntk-by-parts"] {
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
        (
            "mistral",
            json!({"is_causal": false, "sliding_window": 8}),
            &["`is_causal` is false", "without a window"],
        ),
        (
            "qwen3_5_text",
            json!({"is_causal": false, "full_attention_interval": 2}),
            &["`is_causal` is false"],
        ),
        ("bert", json!({"position_embedding_type": "relative_key"}), &["\"absolute\""]),
        ("bert", json!({"is_decoder": true}), &["`is_decoder` is true"]),
        ("bert", json!({"hidden_act": "relu"}), &["`hidden_act`", "\"gelu\""]),
        ("roberta", json!({"pad_token_id": 255}), &["`pad_token_id` is 255"]),
        // Beyond what its projections give.
        ("bert", json!({"head_dim": 4096}), &["`head_dim`", "4 query heads"]),
        ("modernbert", json!({"num_key_value_heads": 2}), &["`num_key_value_heads`"]),
        ("modernbert", json!({"rope_scaling": {"type": "linear"}}), &["`rope_scaling`"]),
        ("mpnet", json!({"relative_attention_num_buckets": 64}), &["is 64: supported is 32"]),
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
