"""The perplexity of a text as llama.cpp's `llama-perplexity -c 512 --chunks 8` has it, from a running server.

    iree-llm serve -m smollm2 --port 8080
    python perplexity.py http://localhost:8080 /usr/share/common-licenses/GPL-3

Each piece of 512 tokens has a context of its own, and counts from its middle on.
"""

import json
import math
import sys
import urllib.request

PIECE, PIECES = 512, 8


def post(base, path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def main():
    base, text = sys.argv[1], open(sys.argv[2], encoding="utf-8").read()
    with urllib.request.urlopen(base + "/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    asked = {"model": model, "prompt": text, "add_special_tokens": False}
    tokens = post(base, "/tokenize", asked)["tokens"]
    total = count = 0
    for piece in range(min(PIECES, len(tokens) // PIECE)):
        prompt = tokens[piece * PIECE : (piece + 1) * PIECE]
        asked = {"model": model, "prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 1}
        choice = post(base, "/v1/completions", asked)["choices"][0]
        known = choice["logprobs"]["token_logprobs"][PIECE // 2 + 1 : PIECE]
        total -= sum(known)
        count += len(known)
        print(f"{piece + 1}: {math.exp(total / count):.4f}", flush=True)


if __name__ == "__main__":
    main()
