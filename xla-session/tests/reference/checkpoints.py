"""Random checkpoints in Hugging Face layout, and what transformers generates from them.

Arithmetic is float32 on the stored weights: the checkpoint's bf16 or f16 values are widened when
they are loaded, which is exact.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def class_of(config):
    """What makes a model of `config`: those that read images with texts alone have no class of the text alone."""
    reads_images = config.model_type in ("qwen2_5_vl", "qwen3_vl")
    return AutoModelForImageTextToText if reads_images else AutoModelForCausalLM


def tensor_shapes(folder):
    """Name and shape of every stored tensor, from transformers' own model of `config.json`."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = class_of(config).from_config(config)
    for name, tensor in model.state_dict().items():
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            yield from as_stored(config, name, tuple(tensor.shape))


def as_stored(config, name, shape):
    """Experts are one tensor in the model, and in checkpoints one for each, but for gpt-oss, Qwen3.5 and Granite."""
    if config.model_type == "gpt_oss":
        yield name, shape
        return
    if config.model_type in ("qwen3_5", "qwen3_5_moe"):
        # The text model is a part of one that reads images.
        yield name.replace("model.", "model.language_model.", 1), shape
        return
    if "visual." in name:
        return
    if config.model_type == "qwen2_5_vl":
        # As its files were before transformers knew one with a part of the text.
        yield name.replace("model.language_model.", "model.", 1), shape
        return
    if config.model_type in ("granitemoe", "granitemoeshared"):
        # All experts are one, under names of their own.
        name = name.replace("experts.gate_up_proj", "input_linear.weight")
        name = name.replace("experts.down_proj", "output_linear.weight")
        yield name.replace("router.weight", "router.layer.weight"), shape
        return
    module, _, part = name.partition(".experts.")
    names = {"gate_up_proj": ["gate_proj", "up_proj"], "down_proj": ["down_proj"]}
    if config.model_type == "mixtral":
        module = module.replace(".mlp", ".block_sparse_moe")
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if config.model_type in ("mixtral", "lfm2_moe"):
        names = {"gate_up_proj": ["w1", "w3"], "down_proj": ["w2"]}
    if not part:
        yield name, shape
        return
    experts, rows, columns = shape
    for expert in range(experts):
        for each in names[part]:
            yield f"{module}.experts.{expert}.{each}.weight", (rows // len(names[part]), columns)


def random_tensor(rng, name, shape, residual_gain, embedding_scale, norm):
    """Weights that keep activations near unit scale and make every part of the model matter.

    `residual_gain` scales the two projections that write to the residual stream,
    `embedding_scale` what is there at first. Where the embeddings are tied, too much of the
    latter makes a model that only repeats its input; the wider the model, the sooner. Weights of
    norms are around `norm`.
    """
    values = rng.standard_normal(shape, dtype=np.float32)
    if ".act_fn." in name:
        # Of xIELU: two that are learned, a line beside them, and where it ends.
        fixed = {"beta": np.float32(0.5), "eps": np.float32(-1e-6)}
        return fixed.get(name.rsplit(".")[-1], values)
    if name.endswith("bias"):
        return 0.3 * values
    if "norm" in name:
        # Sharper attention: with plain unit norms it is so even that texts run into loops.
        if "linear_attn" in name:
            # To this one nothing is added.
            norm = 1.0
        heads = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm")
        return (0.5 if any(part in name for part in heads) else 0.0) + norm + 0.2 * values
    if name.endswith("layer_scalar"):
        return 0.7 + 0.2 * values
    if "embed_tokens_per_layer" in name:
        # As large as what it is added to.
        return values / math.sqrt(16)
    if "embed_tokens" in name:
        return embedding_scale * values
    if name.endswith("sinks"):
        return values
    if name.endswith("A_log"):
        # Some states last for a few rows, some for hundreds.
        return 1.5 * values - 3.5
    writes = ("o_proj", "out_proj", "down_proj", ".w2.", "output_linear", "self_attn.dense", "fc2")
    gain = residual_gain if any(part in name for part in writes) else 1.5
    if name.endswith((".gate.weight", "_expert_gate.weight", "router.weight", "router.layer.weight")):
        # Routers: experts that are chosen clearly.
        gain = 3.0
    # Experts that are one tensor have columns first, but for Granite's, and Qwen3.5's, of which both are alike.
    columns_first = len(shape) == 3 and "_linear" not in name
    values *= gain / math.sqrt(shape[-2] if columns_first else shape[-1])
    return values


def write_weights(
    folder, dtype, seed, residual_gain, embedding_scale=1.0, shards=1, norm=1.0
):
    """Writes `model.safetensors`, or `shards` files with an index."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(folder):
        values = random_tensor(rng, name, shape, residual_gain, embedding_scale, norm)
        tensors[name] = torch.as_tensor(values).to(DTYPES[dtype])
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        # Interleaved, so that one layer's tensors lie in different files.
        chosen = names[shard::shards]
        save_file({n: tensors[n] for n in chosen}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(chosen, file))
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path, value):
    """Writes indented JSON that ends with a newline."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def deterministic():
    """One thread, no algorithm whose result depends on timing."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def load(folder):
    """transformers' model of the folder, widened to float32, with the plain attention."""
    model = class_of(AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


class Greedy:
    """Greedy decoding and how far each choice was from going the other way."""

    def __init__(self, model):
        self.model = model
        #: Smallest distance of the best two logits, relative to the largest absolute logit.
        self.margin = math.inf

    def choose(self, logits):
        """The most likely token of `logits`, `[vocab]`."""
        best = torch.topk(logits, 2)
        gap = (best.values[0] - best.values[1]) / logits.abs().max()
        self.margin = min(self.margin, gap.item())
        return best.indices[0].item()

    @torch.inference_mode()
    def generate(self, prompt, count):
        """`count` tokens through the KV cache, and the last prefill logits `[vocab]`."""
        out = self.model(torch.tensor([prompt]), use_cache=True)
        first = out.logits[0, -1]
        tokens = [self.choose(first)]
        while len(tokens) < count:
            out = self.model(
                torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True
            )
            tokens.append(self.choose(out.logits[0, -1]))
        return tokens, first

    @torch.inference_mode()
    def generate_without_cache(self, prompt, count):
        """The same tokens, each from a forward pass over everything before it."""
        tokens = []
        while len(tokens) < count:
            logits = self.model(torch.tensor([prompt + tokens]), use_cache=False).logits
            tokens.append(self.choose(logits[0, -1]))
        return tokens


def random_prompt(rng, length, vocab_size):
    """Token ids drawn evenly from the vocabulary."""
    return rng.integers(0, vocab_size, length).tolist()


def write_reference(folder, cases, facts):
    """Writes `reference.json`: `facts`, then one line for each case.

    Logits are written in the shortest decimal form that reads back as the same float32.
    """
    lines = []
    for prompt, tokens, logits in cases:
        values = ",".join(str(v) for v in logits.numpy())
        lines.append(
            f'{{"prompt":{compact(prompt)},"tokens":{compact(tokens)},"logits":[{values}]}}'
        )
    head = json.dumps(facts)[1:-1]
    Path(folder, "reference.json").write_text(
        "{" + head + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n"
    )


def compact(value):
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
