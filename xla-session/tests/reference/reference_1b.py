"""Makes a random model of the full Llama-3.2-1B shape and its reference tokens.

    pip install -r requirements.txt
    python reference_1b.py FOLDER --compare

The folder takes 2.5 GB; making it takes some 10 GB of memory. It has the layout of a fixture
(`config.json`, `model.safetensors`, `reference.json`), with prompts of 5 and 300 tokens. `--compare` runs the engines on it afterwards
and demands the same tokens; a folder that is complete is not made again.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from checkpoints import (
    Greedy,
    deterministic,
    load,
    random_prompt,
    write_json,
    write_reference,
    write_weights,
)

HERE = Path(__file__).parent
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
    "eos_token_id": [128001, 128008, 128009],
    "torch_dtype": "bfloat16",
}
PROMPTS = (5, 300)
TOKENS = 48
#: The best of 128256 logits lie closer together than a tiny model's; noise is some 1e-6.
LEAST_MARGIN = 5e-5
SEED = 0
RESIDUAL_GAIN = 3.0
EMBEDDING_SCALE = 0.05
LEAST_DISTINCT = 16


def case(greedy, length, vocab_size):
    """A prompt of `length` tokens whose answer varies and is nowhere close to rounding noise."""
    for attempt in range(20):
        rng = np.random.default_rng([SEED, length, attempt])
        prompt = random_prompt(rng, length, vocab_size)
        greedy.margin = float("inf")
        tokens, logits = greedy.generate(prompt, TOKENS)
        distinct = len(set(tokens))
        print(
            f"{length} tokens, attempt {attempt}: margin {greedy.margin:.1e}, "
            f"distinct {distinct}/{TOKENS}",
            file=sys.stderr,
        )
        if greedy.margin >= LEAST_MARGIN and distinct >= LEAST_DISTINCT:
            return prompt, tokens, logits, greedy.margin
    sys.exit(f"no prompt of {length} tokens has a comfortable margin and a varied answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--layers", type=int, default=CONFIG["num_hidden_layers"], help="fewer for a quick trial"
    )
    parser.add_argument("--compare", action="store_true", help="run the engines on it")
    args = parser.parse_args()
    if not (args.compare and (args.folder / "reference.json").exists()):
        make(args)
    if args.compare:
        sys.exit(compare(args.folder))


def compare(folder):
    """Runs the comparison; answers its exit status."""
    command = "cargo test --release -p xla-session --test models"
    # A release build knows only by it where the compiler is.
    command += " --features iree-rt/remember-folder"
    environment = os.environ | {"REFERENCE_MODEL": str(folder.resolve())}
    return subprocess.call([*command.split(), "--", "--ignored", "reference_model::"], env=environment, cwd=HERE)


def make(args):
    """Writes the folder."""
    deterministic()
    config = CONFIG | {"num_hidden_layers": args.layers}
    args.folder.mkdir(parents=True, exist_ok=True)
    write_json(args.folder / "config.json", config)
    write_json(
        args.folder / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
    )
    write_weights(args.folder, "bfloat16", SEED, RESIDUAL_GAIN, EMBEDDING_SCALE)
    greedy = Greedy(load(args.folder))
    cases = [case(greedy, length, config["vocab_size"]) for length in PROMPTS]
    facts = {
        "seed": SEED,
        "least_margin": min(margin for *_, margin in cases),
        "least_distinct": min(len(set(tokens)) for _, tokens, *_ in cases),
    }
    write_reference(args.folder, [c[:3] for c in cases], facts)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
