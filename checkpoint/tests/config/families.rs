//! What single families have.

use super::*;

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
    assert!(!mlp.is_gated());
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
fn granite_4_has_gate_and_up_apart_in_folders_of_mlx() {
    let rows = |name: &str, changes| {
        let base = json!({"num_local_experts": 0, "shared_intermediate_size": 24,
                          "layers_block_type": ["attention"]});
        let config =
            good(of("granitemoehybrid", "GraniteMoeHybridForCausalLM", with(base, changes)));
        let name = format!("model.layers.0.{name}.weight");
        config.tensors().find(|it| it.name == name).map(|it| it.shape[0])
    };
    let mlx = || json!({"quantization": {"bits": 4, "group_size": 32}});
    let (one, apart) = ("shared_mlp.input_linear", "mlp.up_proj");
    assert_eq!([rows(one, json!({})), rows(apart, json!({}))], [Some(48), None]);
    assert_eq!([rows(one, mlx()), rows(apart, mlx())], [None, Some(24)]);
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
    // Chosen as DeepSeek's are.
    refused(glm(json!({"n_group": 3})), &["`n_group` is 3", "128 experts", "groups"]);
    refused(glm(json!({"n_routed_experts": 4})), &["`num_experts_per_tok`", "`n_routed_experts`"]);
}

/// DeepSeek-V2 and V3 and GLM-4.7-Flash: queries, keys and values of fewer numbers.
#[test]
fn latent_attention_has_widths_of_its_own() {
    let sizes = json!({
        "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "num_experts_per_tok": 2, "n_routed_experts": 8, "moe_intermediate_size": 16,
        "n_group": 4, "topk_group": 2, "num_key_value_heads": 4,
    });
    let with_sizes = |name, class, changes| of(name, class, with(sizes.clone(), changes));
    let v3 = |changes| with_sizes("deepseek_v3", "DeepseekV3ForCausalLM", changes);
    let v2 = |changes| with_sizes("deepseek_v2", "DeepseekV2ForCausalLM", changes);
    let lite = |changes| with_sizes("glm4_moe_lite", "Glm4MoeLiteForCausalLM", changes);
    let first = |config: &ModelConfig| config.architecture.layers[0].attention().unwrap().clone();
    let sparse = |config: &ModelConfig| -> Vec<bool> {
        let sparse = |layer: &Layer| matches!(layer.mlp, FeedForward::Experts(_));
        config.architecture.layers.iter().map(sparse).collect()
    };
    let mixture = |config: &ModelConfig| match &config.architecture.layers.last().unwrap().mlp {
        FeedForward::Experts(experts) => (**experts).clone(),
        FeedForward::Mlp(_) => panic!("no experts"),
    };

    let config = good(v3(json!({"first_k_dense_replace": 1, "rms_norm_eps": 1e-3})));
    let attention = first(&config);
    assert_eq!((config.head_dim, attention.head_dim, attention.kv_heads), (10, 10, 4));
    assert_eq!((config.rope().width, config.rope().interleaved), (4, true));
    assert_eq!((attention.scale, attention.output.inputs()), (1.0 / 10f32.sqrt(), 32));
    let latent = attention.latent.as_ref().unwrap();
    let [of_queries, expand] =
        latent.matrices().map(|it| &it.weight.shape[..]).collect::<Vec<_>>()[..]
    else {
        panic!("two");
    };
    assert_eq!((of_queries, expand), (&[40, 20][..], &[4 * (6 + 8), 12][..]));
    assert!(latent.norms().all(|norm| norm.epsilon == 1e-6));
    assert_eq!(sparse(&config), [false, true, true]);
    let experts = mixture(&config);
    assert_eq!(experts.groups, Some(Groups { count: 4, chosen: 2 }));
    assert!(experts.shares.bias().is_some() && experts.normalised && experts.scale == 2.5);

    // Queries of all of a row; scores grow where the rope is stretched.
    let yarn = |all| json!({"type": "yarn", "factor": 40.0, "mscale": all, "mscale_all_dim": all});
    let config =
        good(v2(json!({"q_lora_rank": null, "rope_scaling": yarn(0.707), "topk_group": 4})));
    let attention = first(&config);
    assert!(attention.latent.as_ref().unwrap().queries.is_none());
    let growth = 0.1 * 0.707 * 40f64.ln() + 1.0;
    assert_eq!(attention.scale, (growth * growth / 10f64.sqrt()) as f32);
    assert_eq!(config.rope().tables(0..1).cos, [1.0; 2]);
    let experts = mixture(&config);
    assert_eq!(
        (experts.shares, experts.normalised, experts.groups),
        (Shares::Softmax, false, None)
    );
    let grouped = good(v2(json!({"topk_method": "group_limited_greedy"})));
    assert!(mixture(&grouped).groups.is_some() && mixture(&good(v2(json!({})))).groups.is_none());
    assert_eq!(sparse(&grouped), [true; 3]);

    let types = |types: &[&str]| json!({"mlp_layer_types": types, "n_group": 1, "topk_group": 1});
    assert_eq!(sparse(&good(lite(types(&["sparse", "dense", "sparse"])))), [true, false, true]);
    assert_eq!(sparse(&good(lite(json!({})))), [false, true, true]);

    // A name from when it came with code of its own.
    let kimi =
        of("kimi_k2", "DeepseekV3ForCausalLM", with(sizes.clone(), json!({"topk_group": 4})));
    assert_eq!(good(kimi).family.model_type(), "deepseek_v3");

    refused(lite(types(&["sparse"])), &["`mlp_layer_types`", "each of 3 layers"]);
    refused(v3(json!({"num_key_value_heads": 2})), &["`num_key_value_heads` is 2", "4"]);
    refused(v3(json!({"qk_rope_head_dim": 5})), &["`qk_rope_head_dim` is 5", "even"]);
    refused(v3(json!({"v_head_dim": 12})), &["`v_head_dim` is 12", "no wider than keys, 10"]);
    refused(v3(json!({"n_group": 8})), &["`n_group` is 8", "at least two"]);
    refused(v3(json!({"n_group": null})), &["`n_group` is null", "a number"]);
    refused(v3(json!({"topk_group": 5})), &["`topk_group` is 5", "4 groups"]);
    refused(v3(json!({"num_experts_per_tok": 5})), &["`num_experts_per_tok` is 5", "4 experts"]);
    refused(v3(json!({"moe_layer_freq": 2})), &["`moe_layer_freq` is 2"]);
    refused(v2(json!({"topk_method": "noaux_tc"})), &["`topk_method`", "\"greedy\""]);
    refused(v2(json!({"norm_topk_prob": true})), &["`norm_topk_prob` is true"]);
    refused(v2(json!({"rope_interleave": false})), &["`rope_interleave` is false", "interleaves"]);
    refused(v2(json!({"num_experts_per_tok": null})), &["`num_experts_per_tok` is null"]);
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
fn layer_norms_have_biases_and_no_rms() {
    let norms = |config: &ModelConfig| {
        let layer = &config.architecture.layers[0];
        let all =
            [layer.input_norm.as_ref(), layer.mlp_norm.as_ref(), Some(&config.architecture.norm)];
        let kind = |norm: &checkpoint::architecture::Norm| {
            (norm.centred, norm.bias.is_some(), norm.offset, norm.epsilon)
        };
        all.map(|norm| norm.map(kind))
    };
    let starcoder = |changes| of("starcoder2", "Starcoder2ForCausalLM", changes);
    let config = good(starcoder(json!({"norm_epsilon": 1e-4, "sliding_window": 20})));
    assert_eq!(norms(&config), [Some((true, true, 0.0, 1e-4)); 3]);
    let attention = config.architecture.layers[0].attention().unwrap();
    assert_eq!((attention.window, attention.output.bias.is_some()), (Some(20), true));
    let plain = good(starcoder(json!({"use_bias": false})));
    let attention = plain.architecture.layers[0].attention().unwrap();
    assert!(attention.qkv.iter().all(|it| it.bias.is_none()) && attention.window.is_none());

    let stablelm = |changes| of("stablelm", "StableLmForCausalLM", changes);
    let config = good(stablelm(json!({"head_dim": 8, "use_parallel_residual": true})));
    assert_eq!(
        norms(&config),
        [Some((true, true, 0.0, 1e-5)), None, Some((true, true, 0.0, 1e-5))]
    );
    assert!(config.architecture.layers[0].parallel);
    assert_eq!(config.architecture.ropes[0].width, 2);
    refused(stablelm(json!({"head_dim": 8, "qk_layernorm": true})), &["`qk_layernorm`", "12B"]);

    let nemotron = |changes| of("nemotron", "NemotronForCausalLM", changes);
    let config = good(nemotron(json!({"hidden_act": "relu2", "head_dim": 8})));
    assert_eq!(norms(&config), [Some((true, true, 1.0, 1e-5)); 3]);
    assert_eq!(config.architecture.ropes[0].width, 4);
    refused(nemotron(json!({"hidden_act": "silu"})), &["`hidden_act`", "\"relu2\""]);
}

#[test]
fn arcee_has_no_gate() {
    let arcee = |changes| of("arcee", "ArceeForCausalLM", changes);
    let config = good(arcee(json!({"hidden_act": "relu2", "mlp_bias": true})));
    let FeedForward::Mlp(mlp) = &config.architecture.layers[0].mlp else { panic!("experts") };
    let [up] = &mlp.gate_up[..] else { panic!("{:?}", mlp.gate_up) };
    assert_eq!(up.weight.shape, [48, 32]);
    assert!(up.bias.is_some() && mlp.down.bias.is_some() && !mlp.is_gated());
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

#[test]
fn llama_as_nvidia_has_it_sees_both_ways() {
    let config = good(of("llama_bidirec", "LlamaBidirectionalModel", json!({})));
    assert!(config.architecture.is_encoder() && config.output().is_none());
    assert_eq!(config.family.model_type(), "llama");
}

/// Phi's output has a bias, and its only norm is read by attention and the MLP.
#[test]
fn phi_adds_to_logits() {
    let phi = |changes| of("phi", "PhiForCausalLM", changes);
    let config = good(phi(json!({"hidden_act": "gelu_new", "head_dim": 8})));
    let layer = &config.architecture.layers[0];
    assert!(layer.parallel && layer.mlp_norm.is_none());
    assert_eq!(config.architecture.output_bias.as_ref().unwrap().name, "lm_head.bias");
    assert_eq!(config.tensors().last().unwrap().name, "lm_head.bias");
    refused(phi(json!({"head_dim": 8, "qk_layernorm": true})), &["`qk_layernorm`"]);
}

/// Which layers have windows where nothing says it, and what they rotate by.
#[test]
fn layers_have_windows_by_default() {
    let windows = |config: &ModelConfig| -> Vec<Option<usize>> {
        config.architecture.layers.iter().map(|it| it.attention().unwrap().window).collect()
    };
    let changes = json!({"sliding_window": 20});
    let cwm = good(of("cwm", "CwmForCausalLM", changes.clone()));
    assert_eq!(windows(&cwm), [None, Some(20), Some(20)]);
    let stretched =
        |config: &ModelConfig| matches!(config.rope().scaling, RopeScaling::Llama3 { .. });
    assert!(stretched(&cwm));
    let said = json!({"sliding_window": 20, "rope_parameters": {"rope_type": "default"}});
    assert!(!stretched(&good(of("cwm", "CwmForCausalLM", said))));
    let vault = good(of("vaultgemma", "VaultGemmaForCausalLM", changes.clone()));
    assert_eq!(windows(&vault), [Some(20), None, Some(20)]);
    let norms = |layer: &Layer| (layer.mixer_norm.is_none(), layer.output_norm.is_none());
    assert!(vault.architecture.layers.iter().all(|it| norms(it) == (true, true)));

    let dots = |more: Value| {
        let experts =
            json!({"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2});
        of("dots1", "Dots1ForCausalLM", with(with(changes.clone(), experts), more))
    };
    assert_eq!(windows(&good(dots(json!({})))), [None; 3]);
    let config = good(dots(json!({"max_window_layers": 1})));
    assert_eq!(windows(&config), [None, Some(20), Some(20)]);
    let null = json!({"max_window_layers": 0, "sliding_window": null});
    assert_eq!(windows(&good(dots(null))), [None; 3]);

    let mellum = |more: Value| {
        let experts =
            json!({"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2});
        of("mellum", "MellumForCausalLM", with(with(changes.clone(), experts), more))
    };
    assert_eq!(windows(&good(mellum(json!({})))), [None; 3]);
    let types = ["full_attention", "sliding_attention", "full_attention"];
    let config = good(mellum(json!({
        "layer_types": types, "mlp_layer_types": ["dense", "sparse", "sparse"],
    })));
    assert_eq!(windows(&config), [None, Some(20), None]);
    let sparse = |it: &Layer| matches!(it.mlp, FeedForward::Experts(_));
    assert_eq!(
        config.architecture.layers.iter().map(sparse).collect::<Vec<_>>(),
        [false, true, true]
    );
    refused(mellum(json!({"mlp_layer_types": ["dense"]})), &["`mlp_layer_types`", "3 layers"]);
}

/// Text models of those that read images: within a configuration, or in one with all of it.
#[test]
fn qwens_that_read_images_are_read_as_text() {
    let scaling = json!({"type": "mrope", "mrope_section": [16, 24, 24]});
    let flat = with(
        llama(),
        json!({
            "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "rope_scaling": scaling, "vision_config": {"depth": 1},
        }),
    );
    let config = good(flat);
    assert_eq!(config.family.model_type(), "qwen2");
    assert_eq!(config.rope().scaling, RopeScaling::None);
    // As transformers 4 wrote them.
    let text =
        json!({"model_type": "qwen2_vl_text", "architectures": null, "tie_word_embeddings": true});
    let config = good(json!({
        "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
        "text_config": with(llama(), text),
    }));
    assert!(config.tie_word_embeddings);
    let text = with(llama(), json!({"model_type": "qwen3_vl_text", "architectures": null}));
    let config = good(json!({
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": text, "tie_word_embeddings": true,
    }));
    assert_eq!(config.family.model_type(), "qwen3");
    assert!(config.tie_word_embeddings);
}
