"""Runs the graphs of `iree-llm emit --portable` under XLA and compares with the reference tokens.

    pip install -r requirements.txt
    iree-llm emit --portable graphs --model ../fixtures/qwen3-gqa-tied-bf16
    python portable_jax.py graphs ../fixtures/qwen3-gqa-tied-bf16

The folder of graphs holds StableHLO text (`decode_step.mlir`, `prefill_<rows>.mlir`), the rotary
tables (`rope.safetensors`) and `arguments.json`, which says where each argument comes from:
"tokens", "start", "last", a table of `rope.safetensors`, "keys.<layer>" and "values.<layer>" of
the KV cache (zeros at first, then the result of that name), or tensors of the checkpoint, joined by "+".
Nothing here knows the model.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import get_backend
from jaxlib import xla_client
from safetensors.flax import load_file

DTYPES = {"i32": jnp.int32, "f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def compile_function(text, name):
    """An executable of function `name` of a StableHLO module, for the first CPU device."""
    # The entry point of an XLA module is always called main.
    text = text.replace(f" @{name}(", " @main(", 1)
    client = get_backend("cpu")
    devices = xla_client._xla.DeviceList(tuple(client.local_devices()[:1]))
    return client.compile_and_load(text, devices, xla_client.CompileOptions())


def joined(constants, source):
    """The tensors that `source` names, one behind the other; `None` where it names none."""
    names = source.split("+")
    if any(name not in constants for name in names):
        return None
    return jnp.concatenate([constants[name] for name in names]) if names[1:] else constants[source]


def without_ones(tensor):
    """The tensor; taps of convolutions, `[columns, 1, taps]`, without their dimension of one."""
    return tensor.squeeze(1) if tensor.ndim == 3 else tensor


class Graph:
    """One compiled function whose constant arguments are bound."""

    def __init__(self, folder, described, constants):
        self.rows = described["rows"]
        self.arguments = described["arguments"]
        self.results = [result["name"] for result in described["results"]]
        self.executable = compile_function(
            (folder / described["file"]).read_text(), described["name"]
        )
        self.constants = {
            a["source"]: without_ones(tensor.astype(DTYPES[a["dtype"]]))
            for a in self.arguments
            if (tensor := joined(constants, a["source"])) is not None
        }
        for a in self.arguments:
            if a["source"] in self.constants:
                shape = list(self.constants[a["source"]].shape)
                assert shape == a["shape"], f"{a['source']} is {shape}, not {a['shape']}"

    def cache(self):
        """Empty keys and values, by source."""
        return {
            a["source"]: jnp.zeros(a["shape"], DTYPES[a["dtype"]])
            for a in self.arguments
            if a["source"].startswith(("keys.", "values."))
        }

    def __call__(self, tokens, start, cache):
        """Appends `tokens` at `start`; returns the next token, the logits and the new cache."""
        padded = np.zeros(self.rows, np.int32)
        padded[: len(tokens)] = tokens
        call = {"tokens": padded, "start": np.int32(start), "last": np.int32(len(tokens) - 1)}
        values = self.constants | cache | {name: jax.device_put(v) for name, v in call.items()}
        results = self.executable.execute([values[a["source"]] for a in self.arguments])
        named = dict(zip(self.results, results, strict=True))
        token = int(np.asarray(named.pop("token"))[0])
        return token, np.asarray(named.pop("logits")), named


class Session:
    """The graphs of one model with its weights."""

    def __init__(self, folder, model):
        described = json.loads((folder / "arguments.json").read_text())
        self.capacity = described["capacity"]
        constants = load_file(folder / "rope.safetensors")
        for file in sorted(model.glob("*.safetensors")):
            constants |= load_file(file)
        graphs = [Graph(folder, d, constants) for d in described["graphs"]]
        self.graphs = sorted(graphs, key=lambda graph: -graph.rows)

    def prefill(self, prompt):
        """As few calls as the graphs allow; a graph's padding must fit the cache, too."""
        cache = self.graphs[-1].cache()
        start = 0
        while start < len(prompt):
            left = len(prompt) - start
            graph = next(
                g
                for g in self.graphs
                if g.rows == 1 or (left > 1 and start + g.rows <= self.capacity)
            )
            chunk = prompt[start : start + graph.rows]
            token, logits, cache = graph(chunk, start, cache)
            start += len(chunk)
        return token, logits, cache

    def generate(self, prompt, count):
        """`count` greedy tokens and the logits after the prompt."""
        token, first, cache = self.prefill(prompt)
        tokens = [token]
        while len(tokens) < count:
            position = len(prompt) + len(tokens) - 1
            token, _, cache = self.graphs[-1]([token], position, cache)
            tokens.append(token)
        return tokens, first


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, help="folder written by `iree-llm emit --portable`")
    parser.add_argument("model", type=Path, help="the model's folder, with reference.json")
    args = parser.parse_args()
    session = Session(args.graphs, args.model)
    failed = False
    for case in json.loads((args.model / "reference.json").read_text())["cases"]:
        tokens, logits = session.generate(case["prompt"], len(case["tokens"]))
        expected = np.array(case["logits"], np.float32)
        error = np.abs(logits - expected).max() / np.abs(expected).max()
        same = tokens == case["tokens"]
        failed |= not same or bool(error > 1e-4)
        print(
            f"{len(case['prompt'])} tokens: {'same' if same else 'OTHER'} {len(tokens)} tokens, "
            f"logits off by {error:.1e} of the largest"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
