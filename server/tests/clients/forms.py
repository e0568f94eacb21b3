"""Tokens per second of answers in a form, beside free ones, from a server that runs.

    iree-llm serve -m smollm2 --port 8181
    python forms.py http://127.0.0.1:8181 [TURNS]

All take turns. `logprobs` has every token run by itself: the same text, without the gain of forced pieces.
Times are from the first piece of an answer to its last. Needs nothing but Python.
"""

import json
import statistics
import sys
import time
import urllib.request

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "last_name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email_address": {"type": "string", "maxLength": 20},
        "favourite_colour": {"enum": ["red", "green", "blue"]},
        "is_student": {"type": "boolean"},
    },
    "required": [
        "first_name", "last_name", "age", "email_address", "favourite_colour", "is_student"
    ],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}},
    "required": ["people"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}
WAYS = {
    "free": {"ignore_eos": True},
    "any JSON": {"response_format": {"type": "json_object"}},
    "JSON of a schema": {"response_format": FORM},
    "JSON of a schema, one by one": {"response_format": FORM, "logprobs": True},
}
ASKED = "Write JSON about three people: Alice, Bob and Carol, with name, age, email, colour, student."


def ask(url, more):
    """Tokens per second of one answer, and its text."""
    body = {
        "messages": [{"role": "user", "content": ASKED}],
        "max_tokens": 200,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | more
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    first, last, text, tokens = None, None, "", 0
    for line in urllib.request.urlopen(request):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event["choices"]:
            if choice["delta"].get("content"):
                last = time.monotonic()
                first = first or last
                text += choice["delta"]["content"]
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    return (tokens - 1) / (last - first), text


def main():
    url, turns = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    rates, texts = {way: [] for way in WAYS}, {}
    for _ in range(turns):
        for way, more in WAYS.items():
            rate, texts[way] = ask(url, more)
            rates[way].append(rate)
    alone = texts["JSON of a schema, one by one"]
    assert texts["JSON of a schema"] == alone, "forced pieces have changed the text"
    free = statistics.median(rates["free"])
    for way, seen in rates.items():
        rate = statistics.median(seen)
        print(f"{way:30} {rate:7.1f} tok/s, {rate / free:.2f}x ({min(seen):.1f} to {max(seen):.1f})")


if __name__ == "__main__":
    main()
