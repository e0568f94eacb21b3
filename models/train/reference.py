"""Makes `reference.json` beside the stored weights: greedy tokens that any other engine must reproduce.

transformers computes them in float32 from the stored bfloat16 weights, with plain attention and one
step per token. `python reference.py [FOLDER] [--check]`; with `--check` nothing is written and a
difference is an error.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch

from grammar import tell
from samples import chat_ids, greedy, load

COUNT = 64
TOP = 8
# A gap below this could flip under another order of summation; choose other prompts then.
SMALLEST_GAP = 1e-2


def prompts(tokenizer):
    """`(name, text, token ids)` of every case."""
    for name, text in [("begin", ""), ("once", "Once upon a time"), ("fox", "The little fox")]:
        yield name, text, tokenizer(text)["input_ids"]
    request = [{"role": "user", "content": "Tell me a story about a fox and a lamp."}]
    yield "chat", request[0]["content"], chat_ids(tokenizer, request)
    rng = random.Random(7)
    told = [tell(rng, kind="owl", thing="bell").text, tell(rng, kind="bear", thing="pot").text]
    long = [
        {"role": "user", "content": "Tell me a story about an owl and a bell."},
        {"role": "assistant", "content": told[0]},
        {"role": "user", "content": "Tell me a story about a bear and a pot."},
        {"role": "assistant", "content": told[1]},
        {"role": "user", "content": "What happened in the story?"},
    ]
    yield "long-chat", long[-1]["content"], chat_ids(tokenizer, long)


@torch.no_grad()
def case(model, tokenizer, name, text, ids):
    """One entry of the file. Generation runs through end tokens, so that all 64 tokens are compared."""
    tokens, gap = greedy(model, ids, COUNT)
    top = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(TOP)
    return {
        "name": name,
        "prompt": text,
        "prompt_tokens": ids,
        "tokens": tokens,
        "text": tokenizer.decode(tokens),
        "smallest_gap": round(gap, 5),
        "prefill_top": [[int(i), round(float(v), 5)] for v, i in zip(top.values, top.indices)],
    }


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).resolve().parent.parent / "tiny-tales")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.folder)
    cases = [case(model, tokenizer, *prompt) for prompt in prompts(tokenizer)]
    for entry in cases:
        print(f"{entry['name']}: {len(entry['prompt_tokens'])} prompt tokens, smallest top-two gap {entry['smallest_gap']}")
        if entry["smallest_gap"] < SMALLEST_GAP:
            sys.exit(f"{entry['name']} is nearly tied (gap below {SMALLEST_GAP}): choose another prompt")
    path = args.folder / "reference.json"
    if args.check:
        stored = json.loads(path.read_text())["cases"]
        if [c["tokens"] for c in stored] != [c["tokens"] for c in cases]:
            sys.exit(f"{path} differs from what these weights give: run reference.py without --check")
        return
    # One case per line keeps the file readable in a diff.
    lines = ",\n".join("    " + json.dumps(c) for c in cases)
    path.write_text('{\n  "arithmetic": "float32",\n  "stop": "none",\n  "cases": [\n' + lines + "\n  ]\n}\n")


if __name__ == "__main__":
    main()
