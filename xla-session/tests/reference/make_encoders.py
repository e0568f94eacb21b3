"""Makes the random tiny encoders of `tests/encoders`, the hidden states that transformers has of texts, and what those that
rank make of a query and a document.

    pip install -r requirements.txt
    python make_encoders.py            # make them again, all or those named
    python make_encoders.py --check    # make them elsewhere and compare with those committed

Arithmetic is float32 on the stored weights, attention the plain one.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from checkpoints import DTYPES, deterministic, write_json

FOLDER = Path(__file__).resolve().parent.parent / "encoders"

#: Tokens of the texts.
LENGTHS = [1, 17, 64, 200, 300]

BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 311,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 320,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
DECODER = {
    "vocab_size": 311,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 320,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}

MODERN = {
    "model_type": "modernbert",
    "vocab_size": 311,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 320,
    "local_attention": 32,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "cls_token_id": 0,
    "sep_token_id": 2,
}

NOMIC = BERT | {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}

#: Keys of the model's own code, and names.
NOMIC_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "max_trained_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
NOMIC_NAMES = {
    "embeddings.LayerNorm": "emb_ln",
    "self_attn.o_proj": "attn.out_proj",
    "up_proj": "fc11",
    "gate_proj": "fc12",
    "down_proj": "fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}

#: By name: the configuration, how weights are stored, and the module that they are saved in.
ENCODERS = {
    "bert-f32": (BERT, "float32", ""),
    # Saved with a head around it, of older names, and of an activation that newer ones have.
    "bert-masked-lm-f16": (
        BERT | {"architectures": ["BertForMaskedLM"], "hidden_act": "gelu_new", "hidden_size": 64},
        "float16",
        "bert.",
    ),
    "roberta-bf16": (
        BERT
        | {
            "architectures": ["RobertaModel"],
            "model_type": "roberta",
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        "bfloat16",
        "",
    ),
    "xlm-roberta-classifier-f32": (
        BERT
        | {
            "architectures": ["XLMRobertaForSequenceClassification"],
            "model_type": "xlm-roberta",
            "id2label": {"0": "LABEL_0"},
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        "float32",
        "roberta.",
    ),
    "bert-classifier-f32": (
        BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        "float32",
        "bert.",
    ),
    "camembert-f32": (
        BERT
        | {
            "architectures": ["CamembertForMaskedLM"],
            "model_type": "camembert",
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        "float32",
        "roberta.",
    ),
    "distilbert-classifier-f16": (
        {
            "architectures": ["DistilBertForSequenceClassification"],
            "model_type": "distilbert",
            "id2label": {"0": "LABEL_0"},
            "vocab_size": 311,
            "dim": 48,
            "hidden_dim": 96,
            "n_layers": 2,
            "n_heads": 3,
            "max_position_embeddings": 320,
            "pad_token_id": 0,
        },
        "float16",
        "",
    ),
    "mpnet-f32": (
        {
            "architectures": ["MPNetForMaskedLM"],
            "model_type": "mpnet",
            "vocab_size": 311,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 320,
            "relative_attention_num_buckets": 32,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        "float32",
        "mpnet.",
    ),
    "modernbert-bf16": (
        MODERN | {"architectures": ["ModernBertModel"]},
        "bfloat16",
        "",
    ),
    "modernbert-classifier-f32": (
        MODERN
        | {
            "architectures": ["ModernBertForSequenceClassification"],
            "id2label": {"0": "LABEL_0"},
            "classifier_pooling": "mean",
            "local_attention": 21,
            "norm_bias": False,
            "attention_bias": True,
            "mlp_bias": True,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
            },
        },
        "float32",
        "",
    ),
    "nomic-bert-f32": (NOMIC, "float32", ""),
    # As the model's own code has it.
    "nomic-bert-own-code-f16": (
        NOMIC | {"hidden_size": 64, "num_attention_heads": 8},
        "float16",
        "",
    ),
    "eurobert-bf16": (
        DECODER
        | {
            "architectures": ["EuroBertForMaskedLM"],
            "model_type": "eurobert",
            "pad_token_id": 0,
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 25e4},
        },
        "bfloat16",
        "model.",
    ),
    "gemma3-both-ways-bf16": (
        DECODER
        | {
            "architectures": ["Gemma3TextModel"],
            "model_type": "gemma3_text",
            "use_bidirectional_attention": True,
            "sliding_window": 40,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        "bfloat16",
        "",
    ),
    "qwen2-both-ways-f16": (
        DECODER
        | {
            "architectures": ["Qwen2Model"],
            "model_type": "qwen2",
            "is_causal": False,
            "use_sliding_window": False,
            "hidden_act": "silu",
            "rope_theta": 1e4,
        },
        "float16",
        "",
    ),
}


def random_tensor(rng, name, shape, norm):
    """Weights that make every part matter; those of norms are around `norm`."""
    values = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("bias"):
        return 0.3 * values
    if "norm" in name.lower():
        return norm + 0.2 * values
    if "embed" in name:
        return values
    return values * 1.5 / math.sqrt(shape[-1])


def make(name, folder):
    """Writes encoder `name` to `folder`, with its reference."""
    config, dtype, module = ENCODERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config | {"dtype": dtype})
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    kind = AutoModel
    if config["architectures"][0].endswith("ForSequenceClassification"):
        # Their weights are in the module as they are.
        kind, module = AutoModelForSequenceClassification, ""
    with torch.device("meta"):
        model = kind.from_config(AutoConfig.from_pretrained(folder))
    norm = 0.0 if config["model_type"].startswith("gemma") else 1.0
    tensors = {}
    for key, tensor in sorted(model.state_dict().items()):
        if "position_ids" in key or "token_type_ids" in key:
            continue
        if "pooler" in key and kind is AutoModel:
            continue
        values = random_tensor(rng, key, tuple(tensor.shape), norm)
        if name == "bert-masked-lm-f16":
            key = key.replace("LayerNorm.weight", "LayerNorm.gamma")
            key = key.replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[module + key] = torch.as_tensor(values).to(DTYPES[dtype])
    if config["model_type"] == "nomic_bert":
        tensors = nomic_names(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    whole = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model = whole if kind is AutoModel else getattr(whole, whole.base_model_prefix)
    cases = []
    for length in LENGTHS:
        tokens = rng.integers(3, config["vocab_size"], length).tolist()
        cases.append(case(model, tokens, None))
    if config.get("type_vocab_size") == 2:
        cases.append(case(model, tokens, 120))
    reference = {"cases": cases}
    if name == "nomic-bert-own-code-f16":
        write_json(folder / "config.json", nomic_keys(config | {"dtype": dtype}))
    if "bert" in config["model_type"] or config["model_type"] == "mpnet":
        tokenizer = write_tokenizer(folder, config)
        texts = [words(rng, count) for count in (3, 40)]
        reference["texts"] = [
            {"text": it, "mean": case(model, tokenizer.encode(it).ids, None)["mean"]} for it in texts
        ]
        if kind is not AutoModel:
            pairs = [(words(rng, 4), words(rng, count)) for count in (1, 30, 250)]
            reference["pairs"] = [pair(whole, tokenizer, *it) for it in pairs]
    write_json(folder / "reference.json", reference)


def nomic_keys(config):
    """A NomicBERT's configuration as the code has it that came with the first ones."""
    left_out = {"hidden_act", "rope_parameters"}
    config = {NOMIC_KEYS.get(key, key): it for key, it in config.items() if key not in left_out}
    more = {"n_positions": 8192, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False}
    more |= {"activation_function": "swiglu", "causal": False, "prenorm": False, "qkv_proj_bias": False}
    return config | more | {"rotary_emb_scale_base": None}


def nomic_names(tensors):
    """Its tensors as that code calls them, and transformers when it saves them."""
    renamed = {}
    for key, tensor in tensors.items():
        if key.endswith("self_attn.q_proj.weight"):
            parts = [tensors[key.replace("q_proj", f"{it}_proj")] for it in "qkv"]
            key, tensor = key.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts)
        elif key.endswith(("self_attn.k_proj.weight", "self_attn.v_proj.weight")):
            continue
        for native, own in NOMIC_NAMES.items():
            key = key.replace(native, own)
        renamed[f"encoder.{key}" if key.startswith("layers.") else key] = tensor
    return renamed


def words(rng, count):
    """A text of so many words, each a token."""
    return " ".join(f"w{it}" for it in rng.integers(10, 311, count))


def write_tokenizer(folder, config):
    """Writes a tokenizer of words that have the numbers of their tokens, with what goes around texts."""
    begin, end = (0, 2) if "bos_token_id" in config else (3, 4)
    vocabulary = {f"w{it}": it for it in range(config["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w5"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    single, both = f"w{begin} $A w{end}", f"w{begin} $A w{end} $B:1 w{end}:1"
    if config.get("type_vocab_size") != 2:
        # One kind of text, and two ends between both.
        both = f"w{begin} $A w{end} w{end} $B w{end}"
    names = [(f"w{it}", it) for it in (begin, end)]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=both, special_tokens=names)
    # What training leaves there.
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@torch.inference_mode()
def pair(model, tokenizer, query, document):
    """What a model makes of a query and a document."""
    encoded = tokenizer.encode(query, document)
    types = {}
    if getattr(model.config, "type_vocab_size", 0) == 2:
        types = {"token_type_ids": torch.tensor([encoded.type_ids])}
    logits = model(torch.tensor([encoded.ids]), **types).logits
    return {"query": query, "document": document, "logit": logits.item()}


@torch.inference_mode()
def case(model, tokens, second):
    """Hidden states of a text of which the tokens from `second` on are a second one."""
    types = {}
    if second is not None:
        types = {"token_type_ids": torch.tensor([[0] * second + [1] * (len(tokens) - second)])}
    states = model(torch.tensor([tokens]), use_cache=False, **types).last_hidden_state[0]
    states = {"first": states[0], "last": states[-1], "mean": states.mean(0)}
    return {"tokens": tokens, "second": second} | {key: it.tolist() for key, it in states.items()}


def differences(name):
    """Makes encoder `name` elsewhere; yields what came out different."""
    committed = FOLDER / name
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        make(name, made)
        for file in ["config.json", "model.safetensors"]:
            if (made / file).read_bytes() != (committed / file).read_bytes():
                yield file
        read = [json.loads((it / "reference.json").read_text()) for it in (committed, made)]
    for before, after in zip(read[0]["cases"], read[1]["cases"], strict=True):
        for key in ["first", "last", "mean"]:
            # Another CPU may round otherwise.
            if np.abs(np.array(before[key]) - np.array(after[key])).max() > 2e-5:
                yield f"{key} of {len(before['tokens'])} tokens"
    for key in ["texts", "pairs"]:
        for before, after in zip(*(it.get(key, []) for it in read), strict=True):
            name = "mean" if key == "texts" else "logit"
            if np.abs(np.array(before[name]) - np.array(after[name])).max() > 2e-5:
                yield f"{name} of {key}"


def main():
    """Makes or compares those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("names", nargs="*", help="encoders; all when none is given")
    arguments = parser.parse_args()
    deterministic()
    wrong = 0
    for name in arguments.names or ENCODERS:
        if not arguments.check:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
            make(name, FOLDER / name)
            continue
        for difference in differences(name):
            wrong += 1
            print(f"{name}: {difference}", file=sys.stderr)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
