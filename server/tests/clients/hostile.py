"""Requests that mean no good, for a running server: python hostile.py http://HOST:PORT [COUNT [SEED]]

Start the server with a small --context, so that answers are short."""

import collections
import concurrent.futures
import json
import random
import socket
import sys
import time
import urllib.parse
import urllib.request

BASE = sys.argv[1]
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
PLACE = urllib.parse.urlsplit(BASE)
LIMIT = 120  # seconds that no answer may take
GOOD = {200, 400, 404, 405, 411, 413, 414, 415, 429, 431, 501, 504, 505}


def get(path):
    return urllib.request.urlopen(BASE + path, timeout=LIMIT).read().decode()


DOCUMENT = json.loads(get("/openapi.json"))
PATHS = DOCUMENT["paths"]
BODIES = {
    path: methods["post"]["requestBody"]["content"]["application/json"]
    for path, methods in PATHS.items()
    if "post" in methods
}
EXAMPLES = [
    (path, it["value"]) for path, body in BODIES.items() for it in body["examples"].values()
]

deep = "[" * 5000 + "]" * 5000
nested = {"type": "object"}
for _ in range(100):
    nested = {"type": "object", "properties": {"a": nested}, "required": ["a"]}
JUNK = [
    None, True, 0, -1, 1, 0.5, 2**31, 2**32, 2**63, 2**64, 10**400, 1e308, -1e308, 5e-324, "", "x",
    "\0", "\ud800", "é" * 1000, "x" * 100_000, [], {}, [[]], [None], [[[[]]]], {"": None}, {"type": None},
    {"type": "text"}, {"type": "function"}, ["x"] * 2000, [0] * 5000, [-1], [2**32], "<|begin|><|end|>",
    "<tool_call>", "</think>", float("nan"), float("inf"),
]  # fmt: skip
SCHEMAS = [
    nested, {"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"$ref": "http://x/y"},
    {"enum": list(range(5000))}, {"enum": []}, {"type": "string", "minLength": 10**9}, {"minItems": 10**9, "type": "array"},
    {"type": "string", "pattern": "(" * 200 + ")" * 200}, {"type": "string", "pattern": "(a{1000}){1000}"},
    {"type": "integer", "minimum": 5, "maximum": 1}, {"multipleOf": 1e-300, "type": "number"}, {"allOf": [False]},
    {"anyOf": [{"const": "x" * n} for n in range(500)]}, {"type": "nothing"}, {"oneOf": [{}, {}]}, {"not": {}}, False,
    {"type": "object", "patternProperties": {"(": {}}}, {"properties": {"a": 7}}, {"x-guidance": 7}, {"type": ["string"] * 99},
    {"type": "string", "format": "date-time"}, {"x-guidance": {"whitespace_flexible": True, "coerce_one_of": True}},
]  # fmt: skip
REGEXES = ["(", "[", "a{99999}", "(a|b)*c{1,1000}", "(.*)*", "\\p{L}+", "(?=a)", "\\1", "(?<x>a)", "[^\\x00-\\xff]", "a{5,1}", "(((a*)*)*)*b", "$^", ".{0,5000}x", "\ud7ff"]
GRAMMARS = ["", "start:", "start: start", "start: a\na: start | ", 'start: "a"*', "x: 1", "start: /(/", "start: %json {", "start: <[99999]>", "start[lazy]: /.*/", "start: " + "(" * 500 + ")" * 500, 'start: "a"~1000000', "%import x.y\nstart: x", "start: @other", 'start: "" start', "%llguidance 7\nstart: \"a\""]  # fmt: skip


def text_of(value):
    # Lone surrogates stay escapes; what is no number of JSON is written as Python does.
    return json.dumps(value)


def spoilt(rng, value):
    """`value` with something else in a random place."""
    value = json.loads(json.dumps(value))
    at, key, node = None, None, value
    for _ in range(rng.randrange(1, 7)):
        if isinstance(node, dict) and node:
            at, key = node, rng.choice(list(node))
        elif isinstance(node, list) and node:
            at, key = node, rng.randrange(len(node))
        else:
            break
        node = at[key]
    if at is not None:
        at[key] = rng.choice(JUNK)
    return value


def fields_of(path):
    schema = BODIES[path]["schema"]
    names = [it["$ref"].rsplit("/", 1)[1] for it in schema.get("anyOf", [schema])]
    return [field for it in names for field in DOCUMENT["components"]["schemas"][it]["properties"]]


def body_of(rng):
    """A path and a body that something is wrong with."""
    path, value = rng.choice(EXAMPLES)
    kind = rng.randrange(10)
    if kind < 3:
        return path, text_of(spoilt(rng, value)).encode()
    if kind < 5:
        field = rng.choice(fields_of(path))
        return path, text_of({**value, field: rng.choice(JUNK)}).encode()
    if kind == 5:
        raw = bytearray(text_of(value).encode())
        for _ in range(rng.randrange(1, 5)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        return path, bytes(raw)
    if kind == 6:
        raw = text_of(value).encode()
        return path, raw[: rng.randrange(len(raw))] + rng.choice([b"", b"\xff\xfe", deep.encode(), b"\0", b"}}"])
    forms = [("guided_json", SCHEMAS), ("guided_regex", REGEXES), ("guided_grammar", GRAMMARS)]
    field, values = rng.choice(forms)
    path = rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
    value = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    if path == "/v1/completions":
        value = {"prompt": "a", "max_tokens": 4}
    if path == "/v1/responses":
        value = {"input": "a", "max_output_tokens": 4}
    form = rng.choice(values)
    if field == "guided_json" and path != "/v1/completions" and rng.randrange(2):
        tool = {"name": "f", "parameters": form}
        if path == "/v1/messages":
            tool = {"name": "f", "input_schema": form}
        elif path == "/v1/responses":
            tool["type"] = "function"
        else:
            tool = {"type": "function", "function": tool}
        return path, text_of({**value, "tools": [tool]}).encode()
    return path, text_of({**value, field: form, "stream": rng.random() < 0.3}).encode()


def connect():
    return socket.create_connection((PLACE.hostname, PLACE.port), timeout=LIMIT)


def status_of(stream):
    """What comes back; 0 where the server has closed the connection."""
    data = b""
    try:
        while piece := stream.recv(65536):
            data += piece
            if len(data) > 1 << 24:
                break
    except ConnectionResetError:
        pass
    data = data.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not data.startswith(b"HTTP/1.1 "):
        return 0, data
    return int(data[9:12]), data


def once(number):
    rng = random.Random(SEED * 1_000_003 + number)
    path, body = body_of(rng)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    json_type = b"Content-Type: application/json\r\n"
    length = f"Content-Length: {len(body)}\r\n".encode()
    stream = connect()
    way = rng.randrange(40)
    closed_is_fine = way < 12
    try:
        if way == 0:  # two lengths
            stream.sendall(head + json_type + length + b"Content-Length: 1\r\n\r\n" + body)
        elif way == 1:  # a length and pieces
            stream.sendall(head + json_type + length + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        elif way == 2:  # pieces of odd lengths
            size = rng.choice([b"-1", b"zz", b"ffffffffffffffff", b"", b"5"])
            stream.sendall(head + json_type + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + body)
            stream.shutdown(socket.SHUT_WR)
        elif way == 3:  # large heads
            many = b"".join(b"x-%d: y\r\n" % n for n in range(rng.choice([50, 99, 150, 5000])))
            stream.sendall(head + json_type + length + many + b"\r\n" + body)
        elif way == 4:
            large = b"x: " + b"y" * rng.choice([1000, 100_000, 1_000_000]) + b"\r\n"
            stream.sendall(head + json_type + length + large + b"\r\n" + body)
        elif way == 5:  # a length that is none
            bad = rng.choice([b"-5", b"99999999999999999999999", b"5 5", b"", b"0x10"])
            stream.sendall(head + json_type + b"Content-Length: " + bad + b"\r\n\r\n" + body)
        elif way == 6:  # no HTTP
            stream.sendall(rng.randbytes(rng.randrange(1, 2000)) + b"\r\n\r\n")
            stream.shutdown(socket.SHUT_WR)
        elif way == 7:  # too large a body
            large = 9 << 20
            stream.sendall(head + json_type + b"Content-Length: %d\r\n\r\n" % large)
            if rng.randrange(4) == 0:
                stream.sendall(b'{"prompt": "' + b"x" * large)
            else:
                stream.sendall(b" " * 1000)
                stream.shutdown(socket.SHUT_WR)
        elif way == 8:  # odd paths and methods
            method = rng.choice([b"GET", b"DELETE", b"PUT", b"OPTIONS", b"HEAD", b"BREW", b"TRACE"])
            odd = [b"/v1/models/%ff", b"/v1/responses/%00", b"//", b"/../..", b"/" + b"a" * 70_000, b"*", b"/v1/models/" + b"/" * 500]
            odd += [it.encode() for it in PATHS]
            stream.sendall(method + b" " + rng.choice(odd) + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        elif way == 9:  # goes away before the answer
            stream.sendall(head + json_type + length + b"\r\n" + body)
            return "left", None
        elif way == 10:  # goes away before the end of the question
            stream.sendall(head + json_type + length + b"\r\n" + body[: len(body) // 2])
            return "left", None
        elif way == 11:  # headers twice
            twice = rng.choice([b"Host: 127.0.0.1\r\n", json_type, b"Content-Type: text/plain\r\n", b"Authorization: Bearer a\r\n" * 2, b"x-request-id: \xff\r\n", b"Expect: 100-continue\r\n"])
            stream.sendall(head + json_type + length + twice + b"\r\n" + body)
        elif way == 12:  # takes its time with the question
            whole = head + json_type + length + b"\r\n" + body[:300]
            for n in range(0, len(whole), 40):
                stream.sendall(whole[n : n + 40])
                time.sleep(0.002)
            stream.sendall(body[300:])
        elif way == 13:  # takes its time with the answer
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            slow = b'{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true, "n": 2}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            stream.sendall(head + json_type + b"Content-Length: %d\r\n\r\n" % len(slow) + slow)
            for _ in range(rng.randrange(100)):
                stream.recv(10)
                time.sleep(0.01)
            if rng.randrange(2):
                return "left", None
            closed_is_fine = True  # its beginning is gone
        elif way == 14:  # other kinds of bodies
            other = rng.choice([b"", b"Content-Type: text/plain\r\n", b"Content-Type: \xff\r\n", b"Content-Encoding: gzip\r\n" + json_type])
            stream.sendall(head + other + length + b"\r\n" + body)
        else:
            stream.sendall(head + json_type + length + b"\r\n" + body)
    except (ConnectionResetError, BrokenPipeError):
        pass  # refused before it had ended
    status, data = status_of(stream)
    stream.close()
    if status == 0 and closed_is_fine:
        return "closed", None
    if status not in GOOD:
        return status, (path, body[:2000], data[:2000])
    return status, None


def numbers():
    found = {}
    for line in get("/metrics").splitlines():
        if line.startswith(("vllm:num_requests", "iree_llm_kv_pages", "iree_llm_step_failures", "iree_llm_requests_failed")):
            name, value = line.rsplit(" ", 1)
            found[name] = found.get(name, 0) + float(value)
    return found


def main():
    start = time.time()
    crowd = [connect() for _ in range(1000)]
    for stream in crowd[::2]:
        stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    assert "ok" in get("/health")
    seen, wrong = collections.Counter(), []
    longest, slowest = 0.0, None

    def timed(number):
        begin = time.time()
        try:
            return *once(number), time.time() - begin, number
        except Exception as error:
            return type(error).__name__, repr(error), time.time() - begin, number

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        for status, what, took, number in pool.map(timed, range(COUNT)):
            seen[status] += 1
            if took > longest:
                longest, slowest = took, number
            if what:
                wrong.append((number, status, what))
    assert "ok" in get("/health")
    for stream in crowd:
        stream.close()
    while any(value for name, value in numbers().items() if name.startswith("vllm:num_requests")):
        assert time.time() - start < 3600, numbers()
        time.sleep(0.1)
    for number, status, what in wrong[:20]:
        print(number, status, what)
    print(f"{dict(seen)} in {time.time() - start:.0f} s; the longest took {longest:.1f} s ({slowest})")
    held = [value for name, value in numbers().items() if 'state="held"' in name]
    print(numbers())
    assert not wrong and not any(held), f"{len(wrong)} are wrong, {held} pages are held"
    print("ok")


if __name__ == "__main__":
    main()
