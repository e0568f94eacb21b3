//! What architectures have of their own.

use super::*;

/// What a file of no tensors, of `layers` layers for `context` tokens, says with these keys more.
fn of(
    architecture: &str,
    [layers, context]: [u32; 2],
    more: Vec<(&str, (u32, Vec<u8>))>,
) -> Result<ModelConfig, Error> {
    let mut file = Gguf::new(3);
    file.key("general.architecture", text(architecture));
    for (key, value) in [
        ("block_count", layers),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("context_length", context),
    ] {
        if !more.iter().any(|(own, _)| *own == key) {
            file.key(&format!("{architecture}.{key}"), u32_value(value));
        }
    }
    file.key(&format!("{architecture}.attention.layer_norm_rms_epsilon"), f32_value(1e-5));
    for (key, value) in more {
        file.key(&format!("{architecture}.{key}"), value);
    }
    ModelConfig::from_dir(folder(&file.bytes()).path())
}

const WINDOW: &str = "attention.sliding_window";

/// The window of all layers of a file of `architecture`, which says `window`.
fn window(architecture: &str, sizes: [u32; 2], window: Option<u32>) -> Option<usize> {
    let more = window.map(|tokens| (WINDOW, u32_value(tokens))).into_iter().collect();
    let config = of(architecture, sizes, more).unwrap();
    let layers = &config.architecture.layers;
    let mut windows = layers.iter().map(|it| it.attention().unwrap().window);
    let first = windows.next().unwrap();
    assert!(windows.all(|window| window == first));
    first
}

/// The converter writes 0 for Phi-4.
#[test]
fn a_window_of_0_is_none() {
    assert_eq!(window("phi3", [40, 16_384], Some(0)), None);
    assert_eq!(window("phi3", [40, 16_384], Some(500)), Some(500));
    for architecture in ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "smollm3", "olmo2"] {
        assert_eq!(window(architecture, [12, 16_384], Some(0)), None, "{architecture}");
        let config = of(architecture, [12, 16_384], vec![(WINDOW, u32_value(0))]).unwrap();
        assert!(!["mistral", "olmo3"].contains(&config.family.model_type()));
    }
}

#[test]
fn older_files_of_phi_3_have_its_window() {
    for layers in [32, 40] {
        assert_eq!(window("phi3", [layers, 4096], None), Some(2047));
        assert_eq!(window("phi3", [layers, 4096], Some(0)), None);
        assert_eq!(window("phi3", [layers, 4096], Some(1000)), Some(1000));
        assert_eq!(window("phi3", [layers, 131_072], None), None);
    }
    assert_eq!(window("phi3", [24, 4096], None), None);
}

#[test]
fn a_gemma_3_without_a_window_has_one_rope() {
    for more in [vec![], vec![(WINDOW, u32_value(0))]] {
        let config = of("gemma3", [12, 16_384], more).unwrap();
        let layers = &config.architecture.layers;
        let thetas = layers
            .iter()
            .map(|it| config.architecture.ropes[it.attention().unwrap().ropes.unwrap()[0]].theta);
        assert!(thetas.clone().all(|theta| theta == 1e6), "{:?}", thetas.collect::<Vec<_>>());
        assert!(layers.iter().all(|it| it.attention().unwrap().window.is_none()));
    }
    let config = of("gemma3", [12, 16_384], vec![(WINDOW, u32_value(500))]).unwrap();
    let windows =
        config.architecture.layers.iter().filter(|it| it.attention().unwrap().window == Some(500));
    assert_eq!(windows.count(), 10);
}

#[test]
fn files_of_mistral_3_say_what_yarn_multiplies_by() {
    let read = |by, beta| {
        let more = vec![
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", f32_value(8.0)),
            ("rope.scaling.original_context_length", u32_value(8192)),
            ("rope.scaling.yarn_log_multiplier", f32_value(by)),
            ("attention.temperature_scale", f32_value(beta)),
        ];
        let config = of("mistral3", [2, 65_536], more).unwrap();
        let RopeScaling::Yarn { attention_factor, .. } = config.rope().scaling else { panic!() };
        (config.family.model_type(), attention_factor, config.architecture.ropes.len())
    };
    assert_eq!(read(1.0, 0.1), ("ministral3", 1.0, 2));
    assert_eq!(read(1.0, 0.0), ("llama", 1.0, 1));
    assert_eq!(read(0.0, 0.0), ("llama", 0.1 * 8f64.ln() + 1.0, 1));
}

#[test]
fn a_factor_without_a_type_is_linear() {
    let scaling = |factor| {
        let more = vec![("rope.scaling.factor", f32_value(factor))];
        of("llama", [2, 4096], more).unwrap().rope().scaling.clone()
    };
    assert_eq!(scaling(4.0), RopeScaling::Linear { factor: 4.0 });
    assert_eq!(scaling(0.0), RopeScaling::None);
}

#[test]
fn parts_that_are_not_run_are_said() {
    let sections = |last| ("rope.dimension_sections", integers(&[8, 12, 12, last]));
    let error = of("glm4", [2, 4096], vec![sections(0)]).unwrap_err();
    says(&error, &["`glm4.rope.dimension_sections`", "images"]);
}

#[test]
fn what_yarn_multiplies_by_is_said_in_two_ways() {
    let read = |key, value| {
        let yarn = vec![
            (WINDOW, u32_value(4096)),
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", f32_value(8.0)),
            ("rope.scaling.original_context_length", u32_value(8192)),
            (key, f32_value(value)),
        ];
        of("olmo2", [4, 65_536], yarn)
    };
    let factor = |key, value| {
        let config = read(key, value).unwrap();
        assert_eq!(config.family.model_type(), "olmo3");
        let RopeScaling::Yarn { attention_factor, .. } = config.rope().scaling else { panic!() };
        attention_factor
    };
    let usual = 0.1 * 8f64.ln() + 1.0;
    assert_eq!(factor("rope.scaling.attn_factor", 1.0), usual);
    assert_eq!(factor("rope.scaling.attn_factor", 1.207_944_2), usual);
    // Hugging Face's `attn_factor`, which transformers and llama.cpp leave out.
    assert_eq!(factor("rope.scaling.yarn_attn_factor", 0.8782), usual);
    let error = read("rope.scaling.attn_factor", 1.3).unwrap_err();
    says(&error, &["`olmo2.rope.scaling.attn_factor` is 1.3", "supported are 1 and"]);
}

/// They are the last ones.
#[test]
fn layers_that_guess_further_tokens_are_left_out() {
    let read = |guess| of("qwen3", [3, 512], vec![("nextn_predict_layers", u32_value(guess))]);
    for (guess, layers) in [(0, 3), (1, 2)] {
        assert_eq!(read(guess).unwrap().num_hidden_layers, layers);
    }
    says(&read(3).unwrap_err(), &["`qwen3.nextn_predict_layers` is 3 of 3 layers"]);
}

/// Layers of LFM2 without heads of keys convolve.
#[test]
fn heads_of_keys_say_which_layers_of_lfm2_attend() {
    let read = |heads: &[i32]| {
        let heads = ("attention.head_count_kv", integers(heads));
        of("lfm2", [3, 512], vec![heads, ("shortconv.l_cache", u32_value(3))])
    };
    let config = read(&[0, 1, 0]).unwrap();
    assert_eq!((config.num_key_value_heads, config.intermediate_size), (1, 12));
    let attends: Vec<_> =
        config.architecture.layers.iter().map(|layer| layer.attention().is_some()).collect();
    assert_eq!(attends, [false, true, false]);
    says(&read(&[2, 1, 0]).unwrap_err(), &["`lfm2.attention.head_count_kv` is 2", "1 in another"]);
    says(&read(&[0, 1]).unwrap_err(), &["2 entries for 3 layers"]);
    let softmax = [
        ("shortconv.l_cache", u32_value(3)),
        ("expert_count", u32_value(4)),
        ("expert_used_count", u32_value(2)),
        ("expert_feed_forward_length", u32_value(16)),
        ("expert_gating_func", u32_value(1)),
    ];
    let error = of("lfm2moe", [3, 512], softmax.into()).unwrap_err();
    says(&error, &["`lfm2moe.expert_gating_func` is 1", "sigmoid"]);
    let window = vec![(WINDOW, u32_value(64)), ("shortconv.l_cache", u32_value(3))];
    says(&of("lfm2", [3, 512], window).unwrap_err(), &["`lfm2.attention.sliding_window` is set"]);
}

/// Of Qwen3.5's files every fourth layer attends, or those that are said not to be recurrent; the last ones may
/// guess tokens, and are left out.
#[test]
fn layers_of_qwen3_5_are_those_that_do_not_guess() {
    let read = |layers, more: Vec<(&'static str, (u32, Vec<u8>))>| {
        let mut keys = vec![
            ("attention.key_length", u32_value(16)),
            ("attention.value_length", u32_value(16)),
            ("rope.dimension_count", u32_value(4)),
            ("rope.dimension_sections", integers(&[1, 1, 0, 0])),
            ("ssm.conv_kernel", u32_value(4)),
            ("ssm.state_size", u32_value(6)),
            ("ssm.group_count", u32_value(2)),
            ("ssm.time_step_rank", u32_value(4)),
        ];
        if !more.iter().any(|(key, _)| *key == "ssm.inner_size") {
            keys.push(("ssm.inner_size", u32_value(20)));
        }
        keys.extend(more);
        of("qwen35", [layers, 512], keys)
    };
    let attends = |config: &ModelConfig| -> Vec<bool> {
        config.architecture.layers.iter().map(|layer| layer.attention().is_some()).collect()
    };
    let config = read(4, vec![]).unwrap();
    assert_eq!(attends(&config), [false, false, false, true]);
    assert_eq!((config.family.model_type(), config.rope().width), ("qwen3_5_text", 4));
    assert!(config.architecture.norms().all(|norm| norm.offset == 0.0));
    let delta = config.architecture.layers[0].gated_delta().unwrap();
    assert_eq!((delta.key_dim, delta.value_dim, delta.rows(), delta.tiled), (6, 5, 4, true));

    let guessing = ("nextn_predict_layers", u32_value(1));
    let interval = ("full_attention_interval", u32_value(2));
    let config = read(5, vec![guessing.clone(), interval]).unwrap();
    assert_eq!(attends(&config), [false, true, false, true]);
    let recurrent = ("attention.recurrent_layers", booleans(&[0, 1, 1, 0]));
    let config = read(4, vec![guessing.clone(), recurrent]).unwrap();
    assert_eq!(attends(&config), [true, false, false]);

    let says =
        |result: Result<ModelConfig, Error>, parts: &[&str]| says(&result.unwrap_err(), parts);
    says(read(1, vec![guessing]), &["`qwen35.nextn_predict_layers` is 1 of 1 layers"]);
    let short = ("attention.recurrent_layers", booleans(&[1, 0]));
    says(read(4, vec![short]), &["2 entries for 4 layers"]);
    let inner = ("ssm.inner_size", u32_value(21));
    says(read(4, vec![inner]), &["`qwen35.ssm.inner_size` is 21", "4 heads"]);
    says(of("qwen35", [4, 512], vec![]), &["`qwen35.ssm.conv_kernel` is missing"]);
}

/// Qwen3-Next's files have numbers of value heads key head by key head, older ones all that linear attention reads.
#[test]
fn rows_of_qwen3_next_are_taken_apart() {
    let mut file = llama();
    file.set("general.architecture", text("qwen3next"));
    file.key("qwen3next.ssm.group_count", u32_value(2));
    file.key("qwen3next.ssm.state_size", u32_value(3));
    let rows = |count: usize| (0..count).map(|row| row as f32).collect::<Vec<_>>();
    // Of each key head two values: a query, a key, two values and two gates, three and two rows wide.
    file.f32("blk.0.ssm_in.weight", &[28, 1], &rows(28));
    file.f32("blk.0.ssm_ba.weight", &[8, 1], &rows(8));
    let checkpoint = Checkpoint::open(folder(&file.bytes()).path(), LoadMode::Mmap).unwrap();
    for (part, expected) in [
        ("qkv", &[0, 1, 2, 14, 15, 16, 3, 4, 5, 17, 18, 19, 6, 7, 8, 9, 20, 21, 22, 23][..]),
        ("z", &[10, 11, 12, 13, 24, 25, 26, 27]),
        ("b", &[0, 1, 4, 5]),
        ("a", &[2, 3, 6, 7]),
    ] {
        let name = format!("model.layers.0.linear_attn.in_proj_{part}.weight");
        let values = checkpoint.tensor(&name, &[expected.len(), 1]).unwrap().to_f32();
        let expected: Vec<_> = expected.iter().map(|row| *row as f32).collect();
        assert_eq!(values, expected, "{part}");
    }
    let bytes: u64 =
        checkpoint.tensors().filter(|it| it.name.contains("in_proj")).map(|it| it.bytes).sum();
    assert_eq!(bytes, 4 * 36);
    // What has other rows stays as it is, and is named.
    file.set("qwen3next.ssm.state_size", u32_value(7));
    let checkpoint = Checkpoint::open(folder(&file.bytes()).path(), LoadMode::Mmap).unwrap();
    let error = checkpoint.tensor("model.layers.0.linear_attn.in_proj_z.weight", &[8, 1]);
    says(&error.unwrap_err(), &["`blk.0.attn_gate.weight` is missing", "`blk.0.ssm_in.weight`"]);
}

/// Converters may put the gates and the ups of all experts into one tensor, one expert after the other.
#[test]
fn gates_and_ups_of_experts_may_lie_together() {
    let mut file = llama();
    let rows: Vec<f32> = (0..8).map(|row| row as f32).collect();
    file.f32("blk.0.ffn_gate_up_exps.weight", &[2, 4, 1], &rows);
    for (architecture, part, [gate, up]) in
        [("qwen3moe", "mlp", ["gate_proj", "up_proj"]), ("llama", "block_sparse_moe", ["w1", "w3"])]
    {
        file.set("general.architecture", text(architecture));
        let checkpoint = Checkpoint::open(folder(&file.bytes()).path(), LoadMode::Mmap).unwrap();
        for (name, expected) in [
            (format!("0.{gate}"), [0.0, 1.0]),
            (format!("0.{up}"), [2.0, 3.0]),
            (format!("1.{gate}"), [4.0, 5.0]),
            (format!("1.{up}"), [6.0, 7.0]),
        ] {
            let name = format!("model.layers.0.{part}.experts.{name}.weight");
            assert_eq!(checkpoint.tensor(&name, &[2, 1]).unwrap().to_f32(), expected, "{name}");
        }
    }
    let mut file = llama();
    file.f32("blk.0.ffn_gate_up_exps.weight", &[2, 3, 1], &[0.0; 6]);
    refused(&file.bytes(), &["blk.0.ffn_gate_up_exps.weight", "3 rows"]);
}

/// A file has what decays are the logarithm of.
#[test]
fn decays_are_read_as_logarithms() {
    let mut file = llama();
    file.set("general.architecture", text("qwen35"));
    file.f32("blk.0.ssm_a", &[3], &[-1.0, -f32::exp(2.0), -0.0]);
    let read = |file: &Gguf| {
        let checkpoint = Checkpoint::open(folder(&file.bytes()).path(), LoadMode::Mmap).unwrap();
        let tensor = checkpoint.tensor("model.layers.0.linear_attn.A_log", &[3]);
        tensor.map(|tensor| (tensor.to_f32(), tensor.bytes().len()))
    };
    let (values, bytes) = read(&file).unwrap();
    assert_eq!((&values[..], bytes), (&[0.0, 2.0, f32::NEG_INFINITY][..], 12));
    file.drop_tensor("blk.0.ssm_a");
    file.f32("blk.0.ssm_a", &[3], &[-1.0, 0.5, -1.0]);
    says(&read(&file).unwrap_err(), &["`blk.0.ssm_a`", "0.5"]);
}

/// What layers of Gemma 4 have of their own comes in lists of all, which have to fit together.
#[test]
fn lists_of_gemma_4_that_do_not_fit_are_refused() {
    const WIDTHS: &str = "feed_forward_length";
    let error = |pattern: &[u8], heads: &[i32], more: Vec<(&'static str, (u32, Vec<u8>))>| {
        let mut keys = vec![
            ("attention.sliding_window_pattern", booleans(pattern)),
            ("attention.head_count_kv", integers(heads)),
            (WINDOW, u32_value(64)),
            ("attention.key_length", u32_value(8)),
            ("attention.key_length_swa", u32_value(4)),
            ("embedding_length_per_layer_input", u32_value(0)),
        ];
        keys.extend(more);
        of("gemma4", [3, 512], keys).unwrap_err()
    };
    let fits = ([1, 1, 0], [2, 2, 1]);
    says(&error(&fits.0, &fits.1, vec![]), &["`rope_freqs.weight` is missing"]);
    let heads = &["`gemma4.attention.head_count_kv` differs"];
    says(&error(&fits.0, &[2, 1, 1], vec![]), heads);
    says(&error(&fits.0, &[2], vec![]), heads);
    for widths in [[12, 12, 24], [12, 24, 12], [12, 12, 36]] {
        let shared = ("attention.shared_kv_layers", u32_value(2));
        let error = error(&fits.0, &fits.1, vec![(WIDTHS, integers(&widths)), shared]);
        says(&error, &["`gemma4.feed_forward_length` differs"]);
    }
    says(&of("gemma4", [3, 512], vec![]).unwrap_err(), &["sliding_window_pattern"]);
}

/// Files of latent attention, whose widths newer ones say under other keys, and older ones do not say all of.
#[test]
fn latent_attention_is_read_of_older_files_and_of_newer_ones() {
    type Key = (&'static str, (u32, Vec<u8>));
    let read = |experts: u32, more: Vec<Key>| {
        let mut keys = vec![
            ("embedding_length", u32_value(16)),
            ("attention.kv_lora_rank", u32_value(12)),
            ("rope.dimension_count", u32_value(4)),
            ("leading_dense_block_count", u32_value(1)),
            ("expert_count", u32_value(experts)),
            ("expert_used_count", u32_value(2)),
            ("expert_shared_count", u32_value(2)),
            ("expert_feed_forward_length", u32_value(16)),
        ];
        keys.extend(more);
        of("deepseek2", [2, 512], keys)
    };
    let older =
        || vec![("attention.key_length", u32_value(10)), ("attention.value_length", u32_value(8))];
    let newer = || {
        vec![
            ("attention.head_count_kv", u32_value(1)),
            ("attention.key_length", u32_value(16)),
            ("attention.value_length", u32_value(12)),
            ("attention.key_length_mla", u32_value(10)),
            ("attention.value_length_mla", u32_value(8)),
            ("attention.q_lora_rank", u32_value(6)),
            ("expert_gating_func", u32_value(2)),
            ("expert_weights_norm", (7, vec![1])),
        ]
    };
    let sizes = |config: &ModelConfig| {
        let attention = config.architecture.layers[0].attention().unwrap();
        let latent = attention.latent.as_ref().unwrap();
        let queries = latent.queries.as_ref().map(|(norm, _)| norm.width());
        ([attention.kv_heads, attention.head_dim, latent.rotated, latent.value_dim], queries)
    };
    let mixture = |config: &ModelConfig| match &config.architecture.layers[1].mlp {
        FeedForward::Experts(experts) => (experts.groups, experts.normalised, experts.scale),
        FeedForward::Mlp(_) => panic!("no experts"),
    };
    let with = |mut keys: Vec<Key>, more: Vec<Key>| {
        keys.extend(more);
        keys
    };
    let groups = |count, chosen| Some(Groups { count, chosen });

    let config = read(8, older()).unwrap();
    assert_eq!(
        (config.family.model_type(), sizes(&config)),
        ("deepseek_v2", ([2, 10, 4, 8], None))
    );
    assert_eq!(mixture(&config), (None, false, 1.0));
    assert_eq!(mixture(&read(160, older()).unwrap()).0, groups(8, 3));

    let config = read(8, newer()).unwrap();
    assert_eq!(
        (config.family.model_type(), sizes(&config)),
        ("deepseek_v3", ([2, 10, 4, 8], Some(6)))
    );
    assert_eq!(mixture(&config), (None, true, 1.0));
    assert_eq!(mixture(&read(256, newer()).unwrap()).0, groups(8, 4));
    let said = vec![
        ("expert_group_count", u32_value(4)),
        ("expert_group_used_count", u32_value(1)),
        ("expert_weights_scale", f32_value(2.5)),
    ];
    assert_eq!(mixture(&read(8, with(newer(), said)).unwrap()), (groups(4, 1), true, 2.5));

    let yarn = || {
        vec![
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", f32_value(40.0)),
            ("rope.scaling.original_context_length", u32_value(64)),
        ]
    };
    let growth = vec![("rope.scaling.yarn_log_multiplier", f32_value(0.0707))];
    let config = read(8, with(newer(), with(yarn(), growth))).unwrap();
    let scale = config.architecture.layers[0].attention().unwrap().scale;
    let expected = (0.0707 * 40f64.ln() + 1.0).powi(2) / 10f64.sqrt();
    assert!((f64::from(scale) / expected - 1.0).abs() < 1e-6, "{scale} {expected}");
    assert_eq!(config.rope().tables(0..1).cos, [1.0; 2]);

    let error = read(8, with(newer(), yarn())).unwrap_err();
    says(&error, &["`deepseek2.rope.scaling.yarn_log_multiplier` is missing", "convert"]);
    let linear = vec![
        ("rope.scaling.type", text("linear")),
        ("rope.scaling.factor", f32_value(4.0)),
        ("rope.scaling.yarn_log_multiplier", f32_value(0.1)),
    ];
    says(&read(8, with(newer(), linear)).unwrap_err(), &["yarn_log_multiplier` is set", "yarn"]);
    says(&read(0, newer()).unwrap_err(), &["`deepseek2.expert_count`", "without experts"]);
    let fourth = vec![("expert_gating_func", u32_value(4))];
    says(&read(8, with(older(), fourth)).unwrap_err(), &["`deepseek2.expert_gating_func` is 4"]);
    let growing = vec![("attention.temperature_scale", f32_value(0.1))];
    says(&read(8, with(newer(), growing)).unwrap_err(), &["temperature_scale` is set"]);
}

/// Newer files have what makes keys and values as two tensors, the first one head by head on its side.
#[test]
fn what_makes_keys_and_values_is_put_together() {
    // Two heads, keys of two columns, values of one, of three numbers.
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    let keys = [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 30.0, 40.0, 31.0, 41.0, 32.0, 42.0];
    let values = [20.0, 21.0, 22.0, 50.0, 51.0, 52.0];
    let expected: Vec<f32> = [0, 10, 20, 30, 40, 50]
        .iter()
        .flat_map(|of| (0..3).map(move |it| (of + it) as f32))
        .collect();
    let open = |file: &Gguf| {
        let folder = folder(&file.bytes());
        (Checkpoint::open(folder.path(), LoadMode::Read).unwrap(), folder)
    };
    let mut file = Gguf::new(3);
    file.key("general.architecture", text("deepseek2"));
    let halves = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|it| half::f16::from_f32(*it).to_le_bytes()).collect()
    };
    file.described("blk.0.attn_k_b.weight", &[2, 3, 2], 1, 0, &halves(&keys));
    file.described("blk.0.attn_v_b.weight", &[3, 1, 2], 1, 32, &halves(&values));
    let (checkpoint, _folder) = open(&file);
    let tensor = checkpoint.tensor(name, &[6, 3]).unwrap();
    assert_eq!((tensor.dtype(), tensor.to_f32()), (Dtype::F16, expected.clone()));
    assert_eq!(checkpoint.bytes(name, &[6, 3]), 36);
    let error = checkpoint.tensor(name, &[8, 3]).unwrap_err();
    says(&error, &["`blk.0.attn_k_b.weight`", "`blk.0.attn_v_b.weight`", "[2, 3, 2]", "[8, 3]"]);

    // Of two types they are widened.
    file.drop_tensor("blk.0.attn_v_b.weight");
    let wide: Vec<u8> = values.iter().flat_map(|it: &f32| it.to_le_bytes()).collect();
    file.described("blk.0.attn_v_b.weight", &[3, 1, 2], 0, 32, &wide);
    let (checkpoint, _folder) = open(&file);
    let tensor = checkpoint.tensor(name, &[6, 3]).unwrap();
    assert_eq!((tensor.dtype(), tensor.to_f32()), (Dtype::F32, expected));

    // So are blocks, which go along columns of what is asked for.
    let block = |first: i8| -> Vec<u8> {
        let integers = (0..32).map(|at| first + at).flat_map(i8::to_le_bytes);
        half::f16::ONE.to_le_bytes().into_iter().chain(integers).collect()
    };
    let mut of_blocks = Gguf::new(3);
    of_blocks.key("general.architecture", text("deepseek2"));
    let keys: Vec<u8> = (0..32).flat_map(|rank| block(2 * rank)).collect();
    of_blocks.described("blk.0.attn_k_b.weight", &[32, 32, 1], 8, 0, &keys);
    of_blocks.described("blk.0.attn_v_b.weight", &[32, 1, 1], 8, 1088, &block(-9));
    let (checkpoint, _folder) = open(&of_blocks);
    let tensor = checkpoint.tensor(name, &[33, 32]).unwrap();
    let values = tensor.to_f32();
    assert_eq!((tensor.dtype(), values[3 * 32 + 5]), (Dtype::F32, 13.0));
    assert_eq!((values[31 * 32 + 31], values[32 * 32], values[33 * 32 - 1]), (93.0, -9.0, 22.0));

    file.drop_tensor("blk.0.attn_v_b.weight");
    let (checkpoint, _folder) = open(&file);
    says(&checkpoint.tensor(name, &[6, 3]).unwrap_err(), &["`blk.0.attn_kv_b.weight` is missing"]);
}

#[test]
fn what_ranks_has_no_output() {
    let mut ranks = llama();
    ranks.f32("cls.output.weight", &[8, 2], &[0.0; 16]);
    let error = ModelConfig::from_dir(folder(&ranks.bytes()).path()).unwrap_err();
    says(&error, &["`cls.output.weight`", "`llama.classifier.output_labels`"]);
    ranks.key("llama.classifier.output_labels", texts(&["yes", "no"]));
    let config = ModelConfig::from_dir(folder(&ranks.bytes()).path()).unwrap();
    assert!(!config.architecture.makes_tokens() && !config.architecture.is_encoder());
}

/// `llama-quantize`, and converters before 2025, store what is one row so.
#[test]
fn one_row_may_be_a_vector() {
    let mut file = Gguf::new(3);
    file.key("general.architecture", text("bert"));
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("context_length", 32),
    ] {
        file.key(&format!("bert.{key}"), u32_value(value));
    }
    file.key("bert.attention.layer_norm_epsilon", f32_value(1e-5));
    file.f32("token_types.weight", &[8], &[0.5; 8]);
    file.f32("cls.output.weight", &[8], &[0.25; 8]);
    let folder = folder(&file.bytes());
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    for (name, value) in
        [("embeddings.token_type_embeddings.weight", 0.5), ("classifier.out_proj.weight", 0.25)]
    {
        assert_eq!(checkpoint.tensor(name, &[1, 8]).unwrap().to_f32(), [value; 8]);
    }
    let config = ModelConfig::from_dir(folder.path()).unwrap();
    assert_eq!(config.architecture.texts.unwrap().shape[..], [1, 8]);
    assert_eq!(config.architecture.layers.len(), 1);
}
