"""Vectors of texts by `iree-llm embed` and by transformers, in turn, of random models of BERT's shapes: tokens a second.
With `--llama-cpp` and `--llama-server` instead by `iree-llm serve` and by `llama-server`, of the same GGUF files.

    pip install -r requirements.txt
    cargo build --release -p cli
    python encoder_speed.py FOLDER --program ../../../target/release/iree-llm
    python encoder_speed.py FOLDER --program … --llama-cpp SOURCES --llama-server PROGRAM

transformers runs in float32, in batches of 32 texts of one length, as sentence-transformers does it; each figure is of
tokenizing, the model, mean pooling and normalizing, without loading. Servers are sent 32 texts of one length at a time.
"""

import argparse
import contextlib
import json
import random
import re
import socket
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, BertConfig

from checkpoints import write_json
from make_gguf_encoders import run_converter

#: Hidden sizes, of 12 layers and 12 heads: bge-small's and all-MiniLM-L12's, bge-base's.
MODELS = {"small": 384, "base": 768}
#: Texts by their tokens.
TEXTS = {16: 512, 128: 128, 512: 32}


def make(folder):
    """Writes models and texts, unless they are there."""
    torch.manual_seed(0)
    random.seed(0)
    for name, hidden in MODELS.items():
        if (folder / name / "tokenizer_config.json").exists():
            continue
        shape = {"hidden_size": hidden, "num_hidden_layers": 12, "num_attention_heads": 12}
        AutoModel.from_config(BertConfig(intermediate_size=4 * hidden, **shape)).save_pretrained(folder / name)
        marks = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
        words = {marks.get(it, f"w{it}"): it for it in range(30522)}
        tokenizer = Tokenizer(WordPiece(words, unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
        around = [("[CLS]", 101), ("[SEP]", 102)]
        tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
        tokenizer.add_special_tokens(list(marks.values()))
        tokenizer.save(str(folder / name / "tokenizer.json"))
        names = {f"{it[1:-1].lower()}_token": it for it in marks.values()}
        write_json(folder / name / "tokenizer_config.json", names | {"tokenizer_class": "BertTokenizer"})
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


def gguf(llama_cpp, folder, name, dtype):
    """The model as llama.cpp's converter writes it."""
    file = folder / f"{name}-{dtype}.gguf"
    if not file.exists():
        run_converter(llama_cpp, "bert-bge", folder / name, "--outtype", dtype, "--outfile", file)
    return file


@contextlib.contextmanager
def served(command):
    """A server on a port of its own, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(it) for it in [*command, "--port", port]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            if server.poll() is not None:
                raise RuntimeError(f"it ended: {command}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def asked(url, texts):
    """Tokens a second of a server, and the first vector of the last request; each text's tokens are its words and two more."""
    with urllib.request.urlopen(f"{url}/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    start = time.time()
    for at in range(0, len(texts), 32):
        body = json.dumps({"model": model, "input": texts[at : at + 32]}).encode()
        request = urllib.request.Request(f"{url}/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            vector = json.load(answer)["data"][0]["embedding"]
    tokens = sum(len(it.split()) + 2 for it in texts)
    return tokens / (time.time() - start), torch.tensor(vector)


def servers(arguments):
    """Measures both servers, and prints a table."""
    threads = ["--threads", arguments.threads]
    print("| model, type, tokens of a text | iree-llm | llama-server | |")
    for name, dtype in [(name, dtype) for name in MODELS for dtype in ["f16", "q8_0"]]:
        file = gguf(arguments.llama_cpp, arguments.folder, name, dtype)
        own = [arguments.program, "serve", "-m", file, "--cache-dir", arguments.folder / "compiled", *threads]
        # A batch of 512 tokens is faster than larger ones.
        theirs = [arguments.llama_server, "-m", file, "--embedding", "--pooling", "mean", "-fa", "on", *threads]
        theirs += ["-tb", arguments.threads, "-b", 512, "-ub", 512, "-c", 8192, "-np", 16]
        samples = {}
        for _ in range(arguments.rounds):
            for which, command in [("ours", own), ("theirs", theirs)]:
                with served(command) as url:
                    asked(url, ["w2000 w2001"])
                    for length in TEXTS:
                        texts = (arguments.folder / f"{length}.txt").read_text().splitlines()
                        samples.setdefault((which, length), []).append(asked(url, texts))
        for length in TEXTS:
            rates = [statistics.median(it for it, _ in samples[which, length]) for which in ["ours", "theirs"]]
            vectors = [samples[which, length][0][1] for which in ["ours", "theirs"]]
            if torch.nn.functional.cosine_similarity(*vectors, dim=0) < 0.999:
                raise RuntimeError(f"{file}: the vectors differ")
            cell = f"{rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f}x |"
            print(f"| {name}, {dtype}, {length} | {cell}", flush=True)


def main():
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", nargs="*", default=["f32", "int8"])
    parser.add_argument("--llama-cpp", type=Path, help="the folder with convert_hf_to_gguf.py")
    parser.add_argument("--llama-server", type=Path, help="the program to measure instead of transformers")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder)
    if bool(arguments.llama_server) != bool(arguments.llama_cpp):
        parser.error("--llama-server and --llama-cpp go together")
    if arguments.llama_server:
        return servers(arguments)
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
