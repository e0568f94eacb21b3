"""Writes one random model twice: for us (Hugging Face layout) and for llama.cpp (GGUF).

    python model.py FOLDER FORMAT...        FORMAT: bf16, float32, int8, int4

The shape is Llama 3.2 1B's, the weights are Gaussian numbers. FOLDER/hf is a Hugging Face folder
that holds them rounded to bf16, FOLDER/hf-float32 one that does not round them: a model of f32 has
low bits too, and whoever leaves zeros out may not gain by it. The tokens are invented words, for
servers to answer with. FOLDER/FORMAT.gguf is the same for llama.cpp: int8 is its Q8_0 and int4 its Q4_0, made of bf16.gguf by llama.cpp itself. Files that are
there are left alone: they are written under another name first.
"""

import ctypes
import json
import math
import os
import sys

import gguf
import numpy as np

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}

HIDDEN = CONFIG["hidden_size"]
HEADS = CONFIG["num_attention_heads"]
KV_HEADS = CONFIG["num_key_value_heads"]
HEAD_DIM = CONFIG["head_dim"]
LAYERS = CONFIG["num_hidden_layers"]
MLP = CONFIG["intermediate_size"]
VOCAB = CONFIG["vocab_size"]

# Hugging Face name, GGUF name, shape; heads whose rotary halves GGUF interleaves, or 0.
LAYER = [
    ("input_layernorm", "attn_norm", (HIDDEN,), 0),
    ("self_attn.q_proj", "attn_q", (HEADS * HEAD_DIM, HIDDEN), HEADS),
    ("self_attn.k_proj", "attn_k", (KV_HEADS * HEAD_DIM, HIDDEN), KV_HEADS),
    ("self_attn.v_proj", "attn_v", (KV_HEADS * HEAD_DIM, HIDDEN), 0),
    ("self_attn.o_proj", "attn_output", (HIDDEN, HEADS * HEAD_DIM), 0),
    ("post_attention_layernorm", "ffn_norm", (HIDDEN,), 0),
    ("mlp.gate_proj", "ffn_gate", (MLP, HIDDEN), 0),
    ("mlp.up_proj", "ffn_up", (MLP, HIDDEN), 0),
    ("mlp.down_proj", "ffn_down", (HIDDEN, MLP), 0),
]


def tensors():
    """Every tensor: Hugging Face name, GGUF name, shape, heads to interleave, seed."""
    all_tensors = [("model.embed_tokens", "token_embd", (VOCAB, HIDDEN), 0)]
    for i in range(LAYERS):
        for hf, gg, shape, heads in LAYER:
            all_tensors.append((f"model.layers.{i}.{hf}", f"blk.{i}.{gg}", shape, heads))
    all_tensors.append(("model.norm", "output_norm", (HIDDEN,), 0))
    for seed, (hf, gg, shape, heads) in enumerate(all_tensors):
        yield f"{hf}.weight", f"{gg}.weight", shape, heads, seed


def values(shape, seed):
    """Gaussian weights as f32; norm weights lie around 1, as trained ones do."""
    numbers = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        numbers = 1 + numbers / 10
    else:
        numbers *= 0.02
    return numbers


def rounded(numbers):
    """The bits of the nearest bf16, ties to even; no value is near infinity."""
    bits = numbers.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def interleave(matrix, heads):
    """The row order of GGUF: rotary pairs lie side by side instead of half a head apart."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def rope_factors():
    """What llama.cpp divides each rotary frequency by: llama3 scaling, as transformers has it."""
    scaling = CONFIG["rope_scaling"]
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]
    factors = []
    for i in range(HEAD_DIM // 2):
        wavelength = 2 * math.pi * CONFIG["rope_theta"] ** (2 * i / HEAD_DIM)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def tokens():
    """The name of every token: the bytes as GPT-2 writes them, a pair, words, two special ones."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain}
    names |= {byte: chr(256 + at) for at, byte in enumerate(others)}
    named = [names[byte] for byte in range(256)] + ["ab"]
    named += [f"\u0120w{token}" for token in range(len(named), VOCAB)]
    for token in SPECIAL:
        named[token] = f"<|{token}|>"
    return named


MERGES = ["a b"]
SPECIAL = [CONFIG["bos_token_id"], CONFIG["eos_token_id"]]


def write_tokenizer(path):
    named = tokens()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": token, "content": named[token], "special": True} | flags for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "post_processor": None,
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "vocab": {name: token for token, name in enumerate(named)},
            "merges": MERGES,
        },
    }
    with open(path + ".part", "w") as file:
        json.dump(tokenizer, file)
    os.replace(path + ".part", path)


def write_hf(folder, dtype):
    os.makedirs(folder, exist_ok=True)
    write_tokenizer(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(CONFIG | {"torch_dtype": dtype}, file, indent=2)
    path = os.path.join(folder, "model.safetensors")
    if os.path.exists(path):
        return
    kind, size = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}[dtype]
    header, end = {}, 0
    for name, _, shape, _, _ in tensors():
        begin, end = end, end + size * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path + ".part", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name, _, shape, _, seed in tensors():
            numbers = values(shape, seed)
            file.write((rounded(numbers) if kind == "BF16" else numbers).data)
    os.replace(path + ".part", path)


def write_gguf(path, name):
    if os.path.exists(path):
        return
    f32, bf16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16
    kind = {"float32": f32, "bf16": bf16}[name]
    out = gguf.GGUFWriter(path + ".part", "llama")
    out.add_block_count(LAYERS)
    out.add_context_length(CONFIG["max_position_embeddings"])
    out.add_embedding_length(HIDDEN)
    out.add_feed_forward_length(MLP)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD_DIM)
    out.add_value_length(HEAD_DIM)
    out.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    out.add_rope_freq_base(CONFIG["rope_theta"])
    out.add_rope_dimension_count(HEAD_DIM)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokens())
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    out.add_token_types([control if it in SPECIAL else normal for it in range(VOCAB)])
    out.add_token_merges(MERGES)
    out.add_bos_token_id(CONFIG["bos_token_id"])
    out.add_eos_token_id(CONFIG["eos_token_id"])
    factors = rope_factors()
    out.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes, f32)
    for _, gg, shape, _, _ in tensors():
        wide = len(shape) == 1 or kind == f32
        count = math.prod(shape)
        if wide:
            out.add_tensor_info(gg, shape, np.dtype(np.float32), 4 * count, f32)
        else:
            # Types that NumPy lacks are given as bytes.
            as_bytes = (*shape[:-1], 2 * shape[-1])
            out.add_tensor_info(gg, as_bytes, np.dtype(np.uint8), 2 * count, kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    out.write_tensor_data(factors)
    for _, _, shape, heads, seed in tensors():
        numbers = values(shape, seed)
        if heads:
            numbers = interleave(numbers, heads)
        if kind == f32:
            out.write_tensor_data(numbers)
        elif len(shape) == 1:
            out.write_tensor_data(widen(rounded(numbers)))
        else:
            out.write_tensor_data(rounded(numbers).view(np.uint8))
    out.close()
    os.replace(path + ".part", path)


def quantise(source, path, name):
    """What `llama-quantize SOURCE PATH Q8_0` (or Q4_0) writes."""
    if os.path.exists(path):
        return
    import llama_cpp as lc

    kinds = {"int8": lc.LLAMA_FTYPE_MOSTLY_Q8_0, "int4": lc.LLAMA_FTYPE_MOSTLY_Q4_0}
    # Two lines for each tensor; a failure has a code.
    silent = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(silent, None)
    lc.llama_backend_init()
    parameters = lc.llama_model_quantize_default_params()
    parameters.ftype = kinds[name]
    part = path + ".part"
    code = lc.llama_model_quantize(source.encode(), part.encode(), ctypes.byref(parameters))
    if code != 0:
        sys.exit(f"error: llama_model_quantize failed with {code}")
    os.replace(part, path)


def main():
    folder, formats = sys.argv[1], sys.argv[2:]
    if any(name != "float32" for name in formats):
        write_hf(os.path.join(folder, "hf"), "bfloat16")
    if "float32" in formats:
        write_hf(os.path.join(folder, "hf-float32"), "float32")
    for name in formats:
        path = os.path.join(folder, f"{name}.gguf")
        if name in ("int8", "int4"):
            source = os.path.join(folder, "bf16.gguf")
            write_gguf(source, "bf16")
            quantise(source, path, name)
        else:
            write_gguf(path, name)


if __name__ == "__main__":
    main()
