"""Makes the random tiny checkpoints of `tests/fixtures` and their reference tokens.

    pip install -r requirements.txt
    python make_fixtures.py            # make them again, all or those named
    python make_fixtures.py --check    # make them elsewhere and compare with those committed

A fixture is kept when no greedy choice is close to rounding noise and the text does not get stuck
in a short loop; else the next seed is tried.
"""

import argparse
import json
import shutil
import sys
import tempfile
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
from fixtures import FIXTURES

FOLDER = Path(__file__).parent.parent / "fixtures"
PROMPTS = (1, 17, 64, 300)
TOKENS = 48
#: Float32 noise of these models is some 1e-6 of the largest logit.
LEAST_MARGIN = 1e-3
#: Of `TOKENS`, for every prompt.
LEAST_DISTINCT = 16


def make(name, folder, seed):
    """Writes fixture `name` to `folder` from `seed`; answers why it is unfit, or None."""
    fixture = FIXTURES[name]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", fixture.written_config())
    write_json(folder / "generation_config.json", fixture.generation_config)
    write_weights(
        folder,
        fixture.dtype,
        seed,
        fixture.residual_gain,
        fixture.embedding_scale,
        fixture.shards,
        fixture.norm,
    )

    greedy = Greedy(load(folder))
    fixture.check_loaded(greedy.model)
    rng = np.random.default_rng([seed, 1])
    cases = []
    distinct = TOKENS
    for length in PROMPTS:
        prompt = random_prompt(rng, length, fixture.config["vocab_size"])
        tokens, logits = greedy.generate(prompt, TOKENS)
        cases.append((prompt, tokens, logits))
        distinct = min(distinct, len(set(tokens)))
        if greedy.margin < LEAST_MARGIN:
            return f"margin {greedy.margin:.1e}"
        if distinct < LEAST_DISTINCT:
            return f"{distinct} distinct tokens after {length}"
    for prompt, tokens, _ in cases:
        if greedy.generate_without_cache(prompt, TOKENS) != tokens:
            sys.exit(f"{name}: other tokens without the KV cache")
    facts = {"seed": seed, "least_margin": greedy.margin, "least_distinct": distinct}
    write_reference(folder, cases, facts)
    return None


def search(name):
    """Makes fixture `name` in place from the first seed that is fit."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    for seed in range(1000):
        unfit = make(name, folder, seed)
        if unfit is None:
            facts = json.loads((folder / "reference.json").read_text())
            print(
                f"{name}: seed {seed}, margin {facts['least_margin']:.1e}, "
                f"distinct {facts['least_distinct']}/{TOKENS}"
            )
            return
        print(f"{name}: seed {seed}: {unfit}", file=sys.stderr)
    sys.exit(f"{name}: no seed is fit")


def differences(name):
    """Makes fixture `name` elsewhere from the committed seed; yields what came out different."""
    committed = FOLDER / name
    expected = json.loads((committed / "reference.json").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        unfit = make(name, made, expected["seed"])
        if unfit is not None:
            yield unfit
            return
        files = {p.name for p in made.iterdir()}
        if files != {p.name for p in committed.iterdir()}:
            yield "other files"
        for file in sorted(files - {"reference.json"}):
            if (made / file).read_bytes() != (committed / file).read_bytes():
                yield file
        actual = json.loads((made / "reference.json").read_text())
    for before, after in zip(expected["cases"], actual["cases"], strict=True):
        length = len(before["prompt"])
        if before["prompt"] != after["prompt"] or before["tokens"] != after["tokens"]:
            yield f"tokens after {length}"
        # Another CPU may round otherwise.
        before, after = np.array(before["logits"]), np.array(after["logits"])
        if np.abs(before - after).max() > 2e-5 * np.abs(before).max():
            yield f"logits after {length}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("names", nargs="*", help="fixtures; all when none is given")
    args = parser.parse_args()
    deterministic()
    failed = False
    for name in args.names or FIXTURES:
        if args.check:
            found = list(differences(name))
            print(f"{name}: {', '.join(found) or 'same'}")
            failed |= bool(found)
        else:
            search(name)
    sys.exit(failed)


if __name__ == "__main__":
    main()
