"""Makes `../smollm2.json`: what transformers generates with a trained chat model.

    pip install -r requirements.txt
    python smollm2.py FOLDER

FOLDER is a model that `smollm2_model.py` has made, or will be one. First it is compared with what
transformers makes of the same GGUF: every tensor to the bit, every key of the configuration, the ids
of every prompt. Then both generate: 64 greedy tokens after each prompt, whatever the EOS ids are.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import smollm2_model
from checkpoints import Greedy, compact, deterministic, load

OUT = Path(__file__).parent.parent / "smollm2.json"
TOKENS = 64
#: Float32 noise of this model is some 1e-6 of the largest logit.
LEAST_MARGIN = 1e-4
#: Of `TOKENS`: a loop says little.
LEAST_DISTINCT = 16
#: How Carroll's Alice begins, for a prompt that fills several pages of a cache.
ALICE = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to \
do: once or twice she had peeped into the book her sister was reading, but it had no pictures or \
conversations in it, "and what is the use of a book," thought Alice "without pictures or \
conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very \
sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of \
getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to \
hear the Rabbit say to itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over \
afterwards, it occurred to her that she ought to have wondered at this, but at the time it all \
seemed quite natural); but when the Rabbit actually took a watch out of its waistcoat-pocket, and \
looked at it, and then hurried on, Alice started to her feet, for it flashed across her mind that \
she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it."""
CHATS = [
    [("user", "What is the capital of France?")],
    [("user", "Write a haiku about the sea.")],
    [("user", f"Summarise this story in two sentences.\n\n{ALICE}")],
    [
        ("user", "Name three fruits."),
        ("assistant", "Apples, bananas and cherries."),
        ("user", "Which one do monkeys like?"),
    ],
    [("system", "You answer in one short sentence."), ("user", "What do bees make?")],
    [("user", "Translate to French: The weather is nice today.\n\nThen say it in German – bitte!")],
]
TEXTS = [
    "Once upon a time, in a small village by the river,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are:\n1.",
    "In 1969, Neil Armstrong became the first person to",
    "Question: What is photosynthesis?\nAnswer:",
    ALICE,
]


def prompts(tokenizer):
    """Token ids of the chats, through the model's template, and of the texts."""
    for chat in CHATS:
        messages = [{"role": role, "content": content} for role, content in chat]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        yield tokenizer(text, add_special_tokens=False)["input_ids"]
    for text in TEXTS:
        yield tokenizer(text)["input_ids"]


def check(folder):
    """Stops unless the folder has what transformers reads from the GGUF."""
    with tempfile.TemporaryDirectory() as scratch:
        file = smollm2_model.fetch(Path(scratch))
        named = {"gguf_file": file.name}
        expected = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **named)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
    model = load(folder)
    for key in ("rms_norm_eps", "rope_parameters", "max_position_embeddings", "eos_token_id"):
        if getattr(model.config, key) != getattr(expected.config, key):
            sys.exit(f"{key}: {getattr(model.config, key)}, {getattr(expected.config, key)}")
    tensors, wanted = model.state_dict(), expected.state_dict()
    if tensors.keys() != wanted.keys():
        sys.exit(f"other tensors: {tensors.keys() ^ wanted.keys()}")
    for name, values in wanted.items():
        if not torch.equal(tensors[name], values):
            sys.exit(f"{name}: other values")
    if list(prompts(tokenizer)) != list(prompts(AutoTokenizer.from_pretrained(folder))):
        sys.exit("other ids of a prompt")
    print(f"{len(wanted)} tensors and all prompts are the same")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    deterministic()
    smollm2_model.ensure(folder)
    greedy = Greedy(check(folder))
    lines = []
    for prompt in prompts(AutoTokenizer.from_pretrained(folder)):
        before, greedy.margin = greedy.margin, float("inf")
        tokens, _ = greedy.generate(prompt, TOKENS)
        print(f"{len(prompt)} tokens, margin {greedy.margin:.1e}, {len(set(tokens))} distinct")
        if greedy.margin < LEAST_MARGIN or len(set(tokens)) < LEAST_DISTINCT:
            sys.exit("a choice hangs on rounding, or the answer is a loop: ask something else")
        greedy.margin = min(before, greedy.margin)
        lines.append(f'{{"prompt":{compact(prompt)},"tokens":{compact(tokens)}}}')
    head = json.dumps({"least_margin": greedy.margin})[1:-1]
    OUT.write_text("{" + head + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
