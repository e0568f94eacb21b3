"""What several servers of one model on a machine take of it, and of each other.

    python processes.py PROGRAM MODEL [CLIENTS [THREADS]]

Starts 1, 2, 4 and 8 processes, has CLIENTS (8) ask them in turn for answers of 64 tokens for some seconds, and then as many
of each process; prints tokens per second of all together, and memory (PSS, which counts a page that
several share in parts). Needs nothing but Python, and Linux for the memory.
"""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request

PROCESSES = [1, 2, 4, 8]
SECONDS = 10
ANSWER = 64


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def post(port, path, body):
    headers = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@contextlib.contextmanager
def servers(program, model, count, threads):
    """Ports and process ids of servers that are ready."""
    ports = [free_port() for _ in range(count)]
    options = ["--threads", threads] if threads else []
    started = [
        subprocess.Popen(
            [program, "serve", "-m", model, "--port", str(port), *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for port in ports
    ]
    try:
        for port, process in zip(ports, started):
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close()
                    break
                except OSError:
                    if process.poll() is not None:
                        sys.exit(f"{program} serve -m {model} ended: run it to see why")
                    time.sleep(0.05)
        yield ports, [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def tokens_per_second(ports, clients):
    """Of as many clients, each of which asks one of the servers again and again."""
    stop, counts = time.monotonic() + SECONDS, [0] * clients

    def ask(client):
        port, turn = ports[client % len(ports)], 0
        while (asked := time.monotonic()) < stop:
            prompt = f"A story about number {client}, told for the {turn}th time."
            turn += 1
            body = {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
            used = post(port, "/v1/completions", body)["usage"]["completion_tokens"]
            # Of the last answer, what came in time.
            counts[client] += used * min(1, (stop - asked) / (time.monotonic() - asked))

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def memory(pids):
    """Megabytes of all, each shared page in parts."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += int(re.search(r"^Pss: +(\d+)", file.read(), re.MULTILINE)[1])
    return total / 1024


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, model = sys.argv[1:3]
    clients = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    threads = sys.argv[4] if len(sys.argv) > 4 else None
    print(f"| processes | tok/s of {clients} clients | of {clients} of each | PSS, MB |")
    print("|--:|--:|--:|--:|")
    for count in PROCESSES:
        with servers(program, model, count, threads) as (ports, pids):
            tokens_per_second(ports, count)
            together = tokens_per_second(ports, clients)
            each = tokens_per_second(ports, clients * count)
            print(f"| {count} | {together:.0f} | {each:.0f} | {memory(pids):.0f} |", flush=True)


if __name__ == "__main__":
    main()
