"""How soon the answers of a conversation begin, turn by turn.

    python turns.py NAME=URL [NAME=URL ...]

Each server has a conversation of its own of 8 turns: 100 tokens to begin with, then 40 new ones behind each answer of 50,
all of them by their ids, as no text would come back as the same tokens. One turn of each server follows the other, 3
conversations long; printed are the medians of the seconds to the first token of every turn. A server called llama is
asked as llama.cpp's. Needs nothing but Python.
"""

import json
import random
import statistics
import sys
import time
import urllib.request

CONVERSATIONS, TURNS, BEGIN, QUESTION, ANSWER = 3, 8, 100, 40, 50
VOCABULARY = 30_000


def ask(name, url, prompt):
    """The seconds to the first token of the answer to `prompt`, and all of it."""
    if name == "llama":
        path = "/completion"
        body = {"n_predict": ANSWER, "cache_prompt": True, "return_tokens": True, "ignore_eos": True}
    else:
        path = "/v1/completions"
        body = {"max_tokens": ANSWER, "return_token_ids": True, "ignore_eos": True}
    body |= {"prompt": prompt, "stream": True, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    start, first, tokens = time.perf_counter(), None, []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: "):])
            new = event.get("tokens") or [
                token for choice in event.get("choices", []) for token in choice.get("token_ids") or []
            ]
            if new and first is None:
                first = time.perf_counter() - start
            tokens += new
    if len(tokens) != ANSWER:
        sys.exit(f"{name}: {len(tokens)} tokens, not {ANSWER}")
    return first, tokens


def main():
    servers = [argument.split("=", 1) for argument in sys.argv[1:]]
    if not servers or any(len(it) != 2 for it in servers):
        sys.exit(__doc__)
    seconds = {name: [[] for _ in range(TURNS)] for name, _ in servers}
    for conversation in range(CONVERSATIONS):
        chance = random.Random(conversation)
        draw = lambda count: [chance.randrange(100, VOCABULARY) for _ in range(count)]
        said = {name: draw(BEGIN) for name, _ in servers}
        for turn in range(TURNS):
            for name, url in servers:
                first, answer = ask(name, url, said[name])
                seconds[name][turn].append(first)
                said[name] += answer + draw(QUESTION)
    print("turn", *(name for name, _ in servers), sep="\t")
    for turn in range(TURNS):
        medians = (statistics.median(seconds[name][turn]) for name, _ in servers)
        print(turn + 1, *(f"{it:.3f}" for it in medians), sep="\t")
    later = {name: statistics.median(sum(turns[1:], [])) for name, turns in seconds.items()}
    print("behind the first", *(f"{later[name]:.3f}" for name, _ in servers), sep="\t")


main()
