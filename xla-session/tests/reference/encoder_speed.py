"""Vectors of texts by `iree-llm embed` and by transformers, in turn, of random models of BERT's shapes: tokens a second.

    pip install -r requirements.txt
    cargo build --release -p cli
    python encoder_speed.py FOLDER --program ../../../target/release/iree-llm

transformers runs in float32, in batches of 32 texts of one length, as sentence-transformers does it; each figure is of
tokenizing, the model, mean pooling and normalizing, without loading.
"""

import argparse
import random
import re
import statistics
import subprocess
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, BertConfig

#: Hidden sizes, of 12 layers and 12 heads: bge-small's and all-MiniLM-L12's, bge-base's.
MODELS = {"small": 384, "base": 768}
#: Texts by their tokens.
TEXTS = {16: 512, 128: 128, 512: 32}


def make(folder):
    """Writes models and texts, unless they are there."""
    torch.manual_seed(0)
    random.seed(0)
    for name, hidden in MODELS.items():
        if (folder / name / "tokenizer.json").exists():
            continue
        shape = {"hidden_size": hidden, "num_hidden_layers": 12, "num_attention_heads": 12}
        AutoModel.from_config(BertConfig(intermediate_size=4 * hidden, **shape)).save_pretrained(folder / name)
        tokenizer = Tokenizer(WordLevel({f"w{it}": it for it in range(30522)}, unk_token="w5"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        around = [("w101", 101), ("w102", 102)]
        tokenizer.post_processor = TemplateProcessing(single="w101 $A w102", special_tokens=around)
        tokenizer.save(str(folder / name / "tokenizer.json"))
    for length, count in TEXTS.items():
        words = lambda: " ".join(f"w{random.randint(1000, 20000)}" for _ in range(length - 2))
        (folder / f"{length}.txt").write_text("".join(words() + "\n" for _ in range(count)))


@torch.inference_mode()
def transformers(model, tokenizer, texts):
    """Tokens a second."""
    start, tokens = time.time(), 0
    ids = [it.ids for it in tokenizer.encode_batch(texts)]
    for at in range(0, len(ids), 32):
        batch = torch.tensor(ids[at : at + 32])
        torch.nn.functional.normalize(model(batch).last_hidden_state.mean(1))
        tokens += batch.numel()
    return tokens / (time.time() - start)


def ours(program, folder, name, length, precision, threads):
    """Tokens a second."""
    command = [program, "embed", "-m", folder / name, "--precision", precision, "--threads", threads]
    command += ["--file", folder / f"{length}.txt", "-o", folder / "vectors.npy"]
    command += ["--cache-dir", folder / "compiled"]
    said = subprocess.run([str(it) for it in command], check=True, capture_output=True, text=True)
    return float(re.search(r"\(([0-9.]+) tok/s\)", said.stderr)[1])


def main():
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", nargs="*", default=["f32", "int8"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder)
    print("| model, tokens of a text | transformers, f32 |", *(f"{it} |" for it in arguments.precision))
    for name in MODELS:
        model = AutoModel.from_pretrained(arguments.folder / name, dtype=torch.float32).eval()
        tokenizer = Tokenizer.from_file(str(arguments.folder / name / "tokenizer.json"))
        for length in TEXTS:
            texts = (arguments.folder / f"{length}.txt").read_text().splitlines()
            samples = {it: [] for it in ["transformers", *arguments.precision]}
            for _ in range(arguments.rounds):
                samples["transformers"].append(transformers(model, tokenizer, texts))
                for precision in arguments.precision:
                    rate = ours(arguments.program, arguments.folder, name, length, precision, arguments.threads)
                    samples[precision].append(rate)
            theirs, *rates = (statistics.median(it) for it in samples.values())
            cells = [f"{rate:.0f}, {rate / theirs:.2f}x |" for rate in rates]
            print(f"| {name}, {length} | {theirs:.0f} |", *cells, flush=True)


if __name__ == "__main__":
    main()
