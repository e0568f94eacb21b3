//! Quantised folders that are damaged, or not what their configuration says. What good ones say is
//! compared where models are run.

use std::collections::BTreeMap;
use std::fs;

use checkpoint::{Checkpoint, Error, LoadMode};
use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Rows and columns of the matrix `m.weight`.
const SHAPE: [usize; 2] = [16, 64];

type Parts = BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>;

/// Zeros of this shape.
fn part(dtype: Dtype, shape: &[usize]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    (dtype, shape.to_vec(), vec![0; bytes])
}

fn folder(config: &Value, parts: &Parts) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let views: Vec<_> = parts
        .iter()
        .map(|(name, (dtype, shape, bytes))| {
            (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        })
        .collect();
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

/// What opening the matrix says, in both ways to load.
fn refused(config: &Value, parts: &Parts, expected: &[&str]) {
    let folder = folder(config, parts);
    for mode in [LoadMode::Mmap, LoadMode::Read] {
        let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
        let error = checkpoint.tensor("m.weight", &SHAPE).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }), "{error:?}");
        let text = error.to_string();
        for part in [".safetensors", "`m"].iter().chain(expected) {
            assert!(text.contains(part), "{text}: expected {part}");
        }
    }
}

fn gptq() -> (Value, Parts) {
    let config = json!({"quantization_config":
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true}});
    let parts = [
        ("m.qweight", part(Dtype::I32, &[8, 16])),
        ("m.qzeros", part(Dtype::I32, &[2, 2])),
        ("m.scales", part(Dtype::F16, &[2, 16])),
        ("m.g_idx", part(Dtype::I32, &[64])),
    ];
    (config, parts.into())
}

#[test]
fn a_tensor_that_is_missing_or_of_another_kind_is_named() {
    let (config, parts) = gptq();
    for name in ["m.qzeros", "m.scales"] {
        let mut without = parts.clone();
        without.remove(name);
        refused(&config, &without, &[name, "missing"]);
        let mut other = parts.clone();
        other.insert(name, part(Dtype::F16, &[2, 3]));
        refused(&config, &other, &[name]);
        other.insert(name, part(Dtype::U8, &parts[name].1));
        refused(&config, &other, &[name, "U8", "expected"]);
    }
    let mut other = parts.clone();
    other.insert("m.qweight", part(Dtype::I32, &[16, 16]));
    refused(&config, &other, &["m.qweight", "[16, 16]", "[8, 16]"]);

    let mut without = parts.clone();
    without.remove("m.qweight");
    refused(&config, &without, &["m.weight", "missing"]);
    // Bits of another file.
    let eight = json!({"quantization_config": {"quant_method": "gptq", "bits": 8}});
    refused(&eight, &parts, &["m.qweight", "[16, 16]"]);
    refused(&json!({}), &parts, &["quantised", "`quantization_config`"]);
}

#[test]
fn groups_that_are_not_there_are_refused() {
    let (config, mut parts) = gptq();
    for group in [2i32, -1, i32::MIN] {
        parts.get_mut("m.g_idx").unwrap().2[4 * 5..][..4].copy_from_slice(&group.to_le_bytes());
        refused(&config, &parts, &["m.g_idx", &group.to_string(), "column 5"]);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let mlx = |config: Value, weight: usize, groups: usize, expected: &[&str]| {
        let parts = [
            ("m.weight", part(Dtype::U32, &[16, weight])),
            ("m.scales", part(Dtype::F16, &[16, groups])),
            ("m.biases", part(Dtype::F16, &[16, groups])),
        ];
        refused(&json!({"quantization": config}), &parts.into(), expected);
    };
    mlx(json!({"bits": 4, "group_size": 32}), 6, 2, &["m.weight", "[16, 6]", "[16, 8]"]);
    mlx(json!({"bits": 6, "group_size": 32}), 12, 1, &["m.scales", "[16, 1]", "[16, 2]"]);
    mlx(json!({"bits": 4, "group_size": 96}), 8, 2, &["m.weight", "64 columns", "96"]);
    let own = json!({"bits": 4, "group_size": 32, "m": {"bits": 5}});
    mlx(own, 8, 2, &["m.weight", "[16, 8]", "[16, 10]"]);

    let blocks = [
        ("m.weight", part(Dtype::F8_E4M3, &SHAPE)),
        ("m.weight_scale_inv", part(Dtype::F32, &[1, 2])),
    ];
    let fp8 = |more: Value| {
        let mut config = json!({"quant_method": "fp8"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"quantization_config": config})
    };
    let config = fp8(json!({"weight_block_size": [128, 128]}));
    refused(&config, &blocks.clone().into(), &["m.weight_scale_inv", "[1, 2]", "[1, 1]"]);
    refused(&fp8(json!({})), &blocks.into(), &["m.weight_scale_inv", "weight_block_size"]);
}

/// A model with images says the bits of a module under the module's name in the file.
#[test]
fn bits_of_modules_are_found_where_there_are_images() {
    for (module, read) in
        [("language_model.model.m", "model.m"), ("model.language_model.m", "model.m")]
    {
        let [weight, scales, biases] =
            ["weight", "scales", "biases"].map(|part| &*format!("{module}.{part}").leak());
        let parts = [
            (weight, part(Dtype::U32, &[16, 12])),
            (scales, part(Dtype::F16, &[16, 1])),
            (biases, part(Dtype::F16, &[16, 1])),
        ];
        let config = json!({"quantization": {"bits": 4, "group_size": 64, module: {"bits": 6}}});
        let folder = folder(&config, &parts.into());
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        let values = checkpoint.tensor(&format!("{read}.weight"), &SHAPE).unwrap().to_f32();
        assert_eq!(values, vec![0.0; 16 * 64]);
    }
}

#[test]
fn one_scale_and_scales_of_rows_are_applied() {
    for (name, scale, expected) in [
        ("m.weight_scale", vec![], [-3.0, -3.0]),
        ("m.weight_scale", vec![1], [-3.0, -3.0]),
        ("m.weight_scale", vec![16, 1], [-3.0, 1.5]),
        ("m.weight_scale_inv", vec![], [-3.0, -3.0]),
    ] {
        let mut weight = part(Dtype::F8_E4M3, &SHAPE);
        weight.2[1] = 0xc4;
        weight.2[65] = 0xc4;
        let mut scales = part(Dtype::F16, &scale);
        let values = [1.0f32, -0.5].map(|it| f16::from_f32(it).to_le_bytes()).concat();
        let end = values.len().min(scales.2.len());
        scales.2[..end].copy_from_slice(&values[..end]);
        let parts: Parts = [("m.weight", weight), (name, scales)].into();
        let config = json!({"quantization_config": {"quant_method": "fp8"}});
        let folder = folder(&config, &parts);
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        let values = checkpoint.tensor("m.weight", &SHAPE).unwrap().to_f32();
        assert_eq!([values[1], values[65]], expected, "{scale:?}");
    }
}

/// Qwen3-Next's matrices that lie in one, key head by key head, have scales there too.
#[test]
fn rows_of_key_heads_are_found_among_quantised_ones() {
    const MODULE: &str = "model.layers.0.linear_attn.in_proj_qkvz";
    let [weight, scale] =
        ["weight", "weight_scale"].map(|part| &*format!("{MODULE}.{part}").leak());
    // Two key heads, three wide, with one value each, two wide; what they are is their scale, of odd ones twice that.
    let scales = (0..20).flat_map(|row| f16::from_f32(row as f32).to_le_bytes()).collect();
    let parts = [
        (weight, (Dtype::F8_E4M3, vec![20, 2], [0x38, 0x38, 0x40, 0x40].repeat(10))),
        (scale, (Dtype::F16, vec![20, 1], scales)),
    ];
    let config = json!({"linear_num_key_heads": 2, "linear_key_head_dim": 3,
        "quantization_config": {"quant_method": "fp8"}});
    let folder = folder(&config, &parts.into());
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    let first = |part: &str, rows: usize| -> Vec<f32> {
        let name = format!("model.layers.0.linear_attn.in_proj_{part}.weight");
        let values = checkpoint.tensor(&name, &[rows, 2]).unwrap().to_f32();
        values.chunks(2).map(|row| row[0]).collect()
    };
    let bytes = |part: &str, rows: usize| {
        let name = format!("model.layers.0.linear_attn.in_proj_{part}.weight");
        checkpoint.bytes(&name, &[rows, 2])
    };
    assert_eq!([bytes("qkv", 16), bytes("z", 4), bytes("z", 6)], [32, 8, 0]);
    let values = |row: usize| (row * (1 + row % 2)) as f32;
    assert_eq!(first("z", 4), [8, 9, 18, 19].map(values));
    let qkv = [0, 1, 2, 10, 11, 12, 3, 4, 5, 13, 14, 15, 6, 7, 16, 17];
    assert_eq!(first("qkv", 16), qkv.map(values));
}

/// Their blocks are those of the rows of the whole. What MLX has added to norms is seen beside them.
#[test]
fn blocks_of_key_heads_are_found_among_those_of_all() {
    let leak = |part: &str| -> &'static str { format!("model.layers.0.{part}").leak() };
    let whole = |part: &str| leak(&format!("linear_attn.in_proj_qkvz.{part}"));
    // Two key heads, four wide, with one value each, four wide.
    let filled = |dtype, shape: &[usize]| {
        let (dtype, shape, mut bytes) = part(dtype, shape);
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 37 % 251) as u8);
        (dtype, shape, bytes)
    };
    let rising = |shape: &[usize]| {
        let bytes = (0..shape.iter().product()).flat_map(|i: usize| {
            let value = f16::from_f32(i as f32);
            value.to_le_bytes()
        });
        (Dtype::F16, shape.to_vec(), bytes.collect::<Vec<u8>>())
    };
    let mlx: Parts = [
        (whole("weight"), filled(Dtype::U32, &[32, 16])),
        (whole("scales"), rising(&[32, 2])),
        (whole("biases"), rising(&[32, 2])),
        (leak("linear_attn.conv1d.weight"), part(Dtype::F16, &[24, 4, 1])),
        (leak("input_layernorm.weight"), rising(&[3])),
    ]
    .into();
    let gptq: Parts = [
        (whole("qweight"), filled(Dtype::I32, &[16, 32])),
        (whole("qzeros"), filled(Dtype::I32, &[1, 4])),
        (whole("scales"), rising(&[1, 32])),
        (leak("input_layernorm.weight"), rising(&[3])),
    ]
    .into();
    let of_mlx = json!({"quantization": {"bits": 4, "group_size": 64}});
    let of_gptq = json!({"quantization_config":
        {"quant_method": "gptq", "bits": 4, "group_size": 128}});
    for (mut config, parts, dtype, scales, norm) in [
        (of_mlx, mlx, checkpoint::Dtype::Affine4, 2, [-1.0, 0.0, 1.0]),
        (of_gptq, gptq, checkpoint::Dtype::Zeroed4, 1, [0.0, 1.0, 2.0]),
    ] {
        config["linear_num_key_heads"] = json!(2);
        config["linear_key_head_dim"] = json!(4);
        let folder = folder(&config, &parts);
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        let all = checkpoint.tensor(whole("weight"), &[32, 128]).unwrap();
        let qkv = [0..4, 16..20, 4..8, 20..24, 8..12, 24..28].into_iter().flatten();
        for (name, places) in
            [("qkv", qkv.collect::<Vec<_>>()), ("z", (12..16).chain(28..32).collect())]
        {
            let name = leak(&format!("linear_attn.in_proj_{name}.weight"));
            let own = checkpoint.tensor(name, &[places.len(), 128]).unwrap();
            assert_eq!(own.dtype(), dtype);
            for (row, place) in places.into_iter().enumerate() {
                let bytes = own.bytes_of(own.row(row));
                assert_eq!(bytes, all.bytes_of(all.row(place)), "{name} {row}");
                assert_eq!(bytes[..2], f16::from_f32((place * scales) as f32).to_le_bytes());
            }
        }
        assert_eq!(checkpoint.tensor(leak("input_layernorm.weight"), &[3]).unwrap().to_f32(), norm);
    }
}

/// Zeros of the first version are stored less one; a zero of -1, all bits set, is 0.
#[test]
fn zeros_of_gptq_are_of_its_version() {
    let (mut config, mut parts) = gptq();
    let one = f16::from_f32(1.0).to_le_bytes();
    parts.get_mut("m.scales").unwrap().2.as_chunks_mut().0.fill(one);
    parts.get_mut("m.qzeros").unwrap().2[0] = 0xf7;
    for (format, expected) in [("gptq", [-8.0, 0.0]), ("gptq_v2", [-7.0, -15.0])] {
        config["quantization_config"]["checkpoint_format"] = json!(format);
        let folder = folder(&config, &parts);
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        let values = checkpoint.tensor("m.weight", &SHAPE).unwrap().to_f32();
        assert_eq!([values[0], values[64]], expected, "{format}");
    }
}

/// NF4 with scales in eight bits; `state` is what the library says of the matrix.
fn nf4(state: &Value) -> (Value, Parts) {
    let bytes = state.to_string().into_bytes();
    let parts = [
        ("m.weight", part(Dtype::U8, &[512, 1])),
        ("m.weight.absmax", part(Dtype::U8, &[32])),
        ("m.weight.quant_map", part(Dtype::F32, &[16])),
        ("m.weight.nested_quant_map", part(Dtype::F32, &[256])),
        ("m.weight.nested_absmax", part(Dtype::F32, &[2])),
        ("m.weight.quant_state.bitsandbytes__nf4", (Dtype::U8, vec![bytes.len()], bytes)),
    ];
    (json!({"quantization_config": {"quant_method": "bitsandbytes"}}), parts.into())
}

#[test]
fn a_state_of_bitsandbytes_that_does_not_fit_is_refused() {
    const STATE: &str = "m.weight.quant_state.bitsandbytes__nf4";
    let good = json!({"blocksize": 32, "dtype": "bfloat16", "shape": SHAPE,
        "nested_blocksize": 16, "nested_offset": 0.5});
    let (config, parts) = nf4(&good);
    let made = folder(&config, &parts);
    let checkpoint = Checkpoint::open(made.path(), LoadMode::Read).unwrap();
    assert_eq!(checkpoint.tensor("m.weight", &SHAPE).unwrap().to_f32(), vec![0.0; 16 * 64]);

    for (key, value, expected) in [
        ("blocksize", json!(0), "whole groups"),
        ("blocksize", json!(48), "whole groups"),
        ("blocksize", json!(64), "m.weight.absmax"),
        ("blocksize", json!(128), "run across rows"),
        ("blocksize", json!(-1), "integer `-1`"),
        ("dtype", json!("int8"), "bfloat16, float16 or float32"),
        ("nested_blocksize", json!(0), "nested_blocksize"),
        ("nested_blocksize", json!(8), "m.weight.nested_absmax"),
        ("nested_offset", json!(null), "nested_offset"),
    ] {
        let mut state = good.clone();
        state[key] = value;
        refused(&config, &nf4(&state).1, &[expected]);
    }
    let mut other = parts.clone();
    other.insert(STATE, part(Dtype::U8, &[5000]));
    refused(&config, &other, &[STATE, "4096 at most"]);
    other.insert(STATE, part(Dtype::U8, &[50]));
    refused(&config, &other, &[STATE, "not what bitsandbytes writes"]);
    let mut without = parts;
    without.remove("m.weight.nested_absmax");
    refused(&config, &without, &["m.weight.nested_absmax", "missing"]);
}

#[test]
fn integers_of_bitsandbytes_in_another_order_are_refused() {
    let config = json!({"quantization_config": {"quant_method": "bitsandbytes"}});
    let mut parts = Parts::from([
        ("m.weight", part(Dtype::I8, &SHAPE)),
        ("m.SCB", part(Dtype::F32, &[16])),
        ("m.weight_format", (Dtype::U8, vec![1], vec![2])),
    ]);
    refused(&config, &parts, &["m.weight_format", "rows"]);
    parts.insert("m.SCB", part(Dtype::F32, &[15]));
    refused(&config, &parts, &["m.SCB", "[16]"]);
}

/// MLX has one tensor of all experts for each projection, whose bits it says under that one's name.
#[test]
fn experts_of_mlx_are_cut_up() {
    const LAYER: &str = "model.layers.0";
    let leak = |name: String| -> &'static str { name.leak() };
    for (stack, router, expert, projections) in [
        ("mlp.switch_mlp", "mlp.gate", "mlp.experts", ["gate_proj", "down_proj"]),
        ("mlp.experts", "mlp.router", "mlp.experts", ["gate_proj", "down_proj"]),
        (
            "block_sparse_moe.switch_mlp",
            "block_sparse_moe.router.layer",
            "block_sparse_moe.experts",
            ["gate_proj", "down_proj"],
        ),
        (
            "block_sparse_moe.switch_mlp",
            "block_sparse_moe.gate",
            "block_sparse_moe.experts",
            ["w1", "w2"],
        ),
        ("feed_forward.switch_mlp", "feed_forward.gate", "feed_forward.experts", ["w1", "w2"]),
    ] {
        let ones = |count: usize, of: f32| {
            (0..count).flat_map(|_| f16::from_f32(of).to_le_bytes()).collect::<Vec<_>>()
        };
        let name = |module: &str, part: &str| leak(format!("{LAYER}.{module}.{part}"));
        let gate = format!("{stack}.gate_proj");
        let down = format!("{stack}.down_proj");
        // Three experts of 2 x 32 in four bits, the second one's numbers 1, their minima their own; plain ones of 1 x 2.
        let numbers = [vec![0; 32], vec![0x11; 32], vec![0; 32]].concat();
        let minima: Vec<_> = [0.0, 10.0, 20.0].into_iter().flat_map(|of| ones(2, of)).collect();
        let parts: Parts = [
            (name(&gate, "weight"), (Dtype::U32, vec![3, 2, 4], numbers)),
            (name(&gate, "scales"), (Dtype::F16, vec![3, 2, 1], ones(6, 2.0))),
            (name(&gate, "biases"), (Dtype::F16, vec![3, 2, 1], minima)),
            (
                name(&down, "weight"),
                (Dtype::F16, vec![3, 1, 2], [1.0, 2.0, 3.0].map(|it| ones(2, it)).concat()),
            ),
            (
                name(&down, "bias"),
                (Dtype::F16, vec![3, 1], [4.0, 5.0, 6.0].map(|it| ones(1, it)).concat()),
            ),
            (name(router, "weight"), part(Dtype::F16, &[3, 2])),
        ]
        .into();
        let own = format!("{LAYER}.{gate}");
        let config = json!({"quantization": {"bits": 8, "group_size": 64,
            own: {"bits": 4, "group_size": 32}}});
        let folder = folder(&config, &parts);
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        let read = |number: usize, projection: &str, part: &str, shape: &[usize]| {
            let name = format!("{LAYER}.{expert}.{number}.{projection}.{part}");
            checkpoint.tensor(&name, shape).unwrap().to_f32()
        };
        let [gate, down] = projections;
        for (number, value) in [0.0, 12.0, 20.0].into_iter().enumerate() {
            assert_eq!(read(number, gate, "weight", &[2, 32]), vec![value; 64], "{stack} {router}");
            assert_eq!(read(number, down, "weight", &[1, 2]), [number as f32 + 1.0; 2]);
            assert_eq!(read(number, down, "bias", &[1]), [number as f32 + 4.0]);
        }
    }
}

/// MLX has a scale of 1e-7 where all values of a group are the same, which is not exact in f16.
#[test]
fn scales_of_nothing_need_not_be_exact() {
    let mut weight = part(Dtype::U32, &[16, 8]);
    weight.2[32..].fill(0x53);
    let mut scales = part(Dtype::BF16, &[16, 1]);
    scales.2.as_chunks_mut().0.fill(half::bf16::from_f32(0.5).to_le_bytes());
    scales.2[..2].copy_from_slice(&half::bf16::from_f32(-1e-7).to_le_bytes());
    let mut biases = part(Dtype::BF16, &[16, 1]);
    biases.2[..2].copy_from_slice(&half::bf16::from_f32(-3.0).to_le_bytes());
    let config = json!({"quantization": {"bits": 4, "group_size": 64}});
    let role = checkpoint::architecture::Role::Matrix;
    let matrix =
        checkpoint::architecture::Parameter { name: "m.weight".into(), shape: SHAPE.into(), role };
    for (code, dtype) in [(0, checkpoint::Dtype::Affine4), (1, checkpoint::Dtype::F32)] {
        weight.2[31] = code;
        let parts = [
            ("m.weight", weight.clone()),
            ("m.scales", scales.clone()),
            ("m.biases", biases.clone()),
        ];
        let folder = folder(&config, &parts.into());
        for mode in [LoadMode::Mmap, LoadMode::Read] {
            let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
            let tensor = checkpoint.get(&matrix).unwrap();
            assert_eq!((tensor.dtype(), checkpoint.type_of(&matrix)), (dtype, Some(dtype)));
            let values = tensor.to_f32();
            assert_eq!((values[0], values[64], values[65]), (-3.0, 1.5, 2.5));
        }
    }
}

/// Floats with powers of two, as gpt-oss has its experts; a module that says nothing of it has integers.
#[test]
fn mlx_has_floats_of_four_bits_too() {
    let floats = |bits: usize, group: usize| {
        json!({"quantization": {"bits": bits, "group_size": group, "mode": "mxfp4",
            "n": {"bits": 4, "group_size": 32}}})
    };
    let (mut weight, mut scales) = (part(Dtype::U32, &[16, 8]), part(Dtype::U8, &[16, 2]));
    weight.2.fill(0x92);
    scales.2.fill(128);
    let parts: Parts = [
        ("m.weight", weight),
        ("m.scales", scales),
        ("n.weight", part(Dtype::U32, &[16, 8])),
        ("n.scales", part(Dtype::F16, &[16, 2])),
        ("n.biases", part(Dtype::F16, &[16, 2])),
    ]
    .into();
    let made = folder(&floats(4, 32), &parts);
    let checkpoint = Checkpoint::open(made.path(), LoadMode::Mmap).unwrap();
    let values = checkpoint.tensor("m.weight", &SHAPE).unwrap();
    assert_eq!(values.dtype(), checkpoint::Dtype::Mxfp4);
    assert_eq!(values.to_f32()[..4], [2.0, -1.0, 2.0, -1.0]);
    assert_eq!(checkpoint.tensor("n.weight", &SHAPE).unwrap().to_f32(), vec![0.0; 16 * 64]);
    refused(
        &floats(4, 32),
        &[("m.weight", part(Dtype::U32, &[16, 8])), ("m.scales", part(Dtype::F16, &[16, 2]))]
            .into(),
        &["m.scales", "U8"],
    );
    for (config, expected) in [
        (floats(8, 32), ["`quantization.mode` is \"mxfp4\"", "4 `bits`"]),
        (floats(4, 64), ["`quantization.mode` is \"mxfp4\"", "`group_size` of 32"]),
        (
            json!({"quantization": {"bits": 4, "group_size": 16, "mode": "nvfp4"}}),
            ["`quantization.mode` is \"nvfp4\"", "\"affine\" and \"mxfp4\""],
        ),
    ] {
        let made = folder(&config, &parts);
        let text = Checkpoint::open(made.path(), LoadMode::Mmap).unwrap_err().to_string();
        assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    }
}
