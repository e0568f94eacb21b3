"""Replicas of the program, and clients that know what the answer has to be: what the checks of
deploy/routers and deploy/ray share. Needs Python 3.10 and aiohttp."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

REPOSITORY = Path(__file__).resolve().parent.parent
LIBC = ctypes.CDLL(None)
PROMPTS = ["The little fox", "Once upon a time", "The dog", "A brave sailor", "In the garden"]


def program() -> str:
    """`IREE_LLM`, else what `cargo build --release -p cli` has built."""
    found = os.environ.get("IREE_LLM") or str(REPOSITORY / "target/release/iree-llm")
    if not Path(found).exists():
        raise SystemExit(f"{found}: no such file; build it, or name another in IREE_LLM")
    return found


def model_folder(parent: Path) -> Path:
    """The model of the repository, with a chat template, so that all APIs can be asked."""
    folder = parent / "tiny-chat"
    if not folder.exists():
        folder.mkdir()
        for file in (REPOSITORY / "models/tiny-tales").iterdir():
            (folder / file.name).symlink_to(file)
        template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
        (folder / "chat_template.jinja").write_text(template)
    return folder


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def die_with_parent() -> None:
    """Nothing is left of a check that is killed (Linux)."""
    LIBC.prctl(1, signal.SIGKILL)


class Replica:
    """One process of the program on a port of the loopback device."""

    def __init__(self, port: int, folder: Path, key: str = ""):
        self.port, self.folder, self.key = port, folder, key
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"replica-{port}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [program(), "serve", "-m", str(model_folder(self.folder)), "--threads", "1"]
        command += ["--port", str(self.port), "--kv-memory", "64", "--no-page"]
        command += ["--cache-dir", str(self.folder / "cache")]
        if self.key:
            keys = self.folder / "keys"
            keys.write_text(self.key)
            command += ["--api-key", str(keys)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def ready(self, session: aiohttp.ClientSession, seconds: float = 60) -> None:
        await wait_for(lambda: answers(session, self.url + "/ready"), seconds, f"{self.url} to be ready")

    async def ended(self, seconds: float = 40) -> int:
        """The exit code, once there is one."""
        assert self.process
        process = self.process
        await wait_for(lambda: returned(process), seconds, "a replica to end")
        return process.returncode

    def asked(self) -> dict[tuple[str, str], int]:
        """How often what was asked of it (method, path), with which status it answered: by the log."""
        line = r"INFO ([A-Z]+) (\S+) request=\S+ status=(\d+)"
        found = re.findall(line, self.log.read_text())
        counts: dict[tuple[str, str], int] = {}
        for method, path, status in found:
            key = (f"{method} {path}", status)
            counts[key] = counts.get(key, 0) + 1
        return counts


async def returned(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as response:
            return response.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
        return False


async def wait_for(condition, seconds: float, what: str) -> float:
    """Waits until `condition()` holds; how long that took."""
    start = time.monotonic()
    while not await condition():
        if time.monotonic() - start > seconds:
            raise asyncio.TimeoutError(f"waited {seconds} s for {what}")
        await asyncio.sleep(0.05)
    return time.monotonic() - start


async def metric(session: aiohttp.ClientSession, replica: Replica, name: str) -> float:
    """The sum of a metric over its labels."""
    async with session.get(replica.url + "/metrics") as response:
        text = await response.text()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


@dataclass(frozen=True)
class Question:
    prompt: str
    tokens: int
    seed: int
    stream: bool

    def body(self) -> dict:
        # Sampled, not greedy: a seed gives the same tokens on every replica.
        body = {"prompt": self.prompt, "max_tokens": self.tokens, "seed": self.seed}
        return body | {"model": "tiny-chat", "ignore_eos": True, "temperature": 0.8, "stream": self.stream}


@dataclass
class Answer:
    question: Question
    began: float
    text: str = ""
    error: str = ""
    begun: bool = False  # whether its head has come: no router asks elsewhere from then on
    first: float = 0.0  # seconds until the first piece
    took: float = 0.0  # seconds until the end
    gaps: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    certain: int = 0  # characters of the text that the ids have made certain


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    question: Question,
    headers: dict[str, str] | None = None,
    had: list[int] | None = None,
) -> Answer:
    """One answer, or with the ids `had` of its first tokens the rest of it; nothing is tried twice here."""
    answer = Answer(question, time.monotonic())
    body = question.body()
    if had is not None:
        body |= {"return_token_ids": True, "answer_token_ids": had}
    finished, last = False, answer.began
    try:
        async with session.post(url + "/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                answer.error = f"{response.status} {(await response.text())[:200]}"
                return answer
            answer.begun = True
            if not question.stream:
                answer.text = (await response.json())["choices"][0]["text"]
                return answer
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                now = time.monotonic()
                answer.first = answer.first or now - answer.began
                answer.gaps.append(now - last)
                last = now
                if line.strip() == b"data: [DONE]":
                    finished = True
                    continue
                piece = json.loads(line[6:])
                if "error" in piece:
                    answer.error = json.dumps(piece["error"])[:200]
                elif piece["choices"]:
                    choice = piece["choices"][0]
                    answer.text += choice["text"]
                    if ids := choice.get("token_ids"):
                        answer.ids += ids
                        answer.certain = len(answer.text)
            if not finished:
                answer.error = answer.error or "the stream has no end"
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.took = time.monotonic() - answer.began
    return answer


async def insist(session: aiohttp.ClientSession, url: str, question: Question, seconds: float = 60) -> Answer:
    """A streamed answer, whatever is in the way: where a stream is lost, it is gone on with."""
    whole = Answer(question, time.monotonic())
    while True:
        part = await ask(session, url, question, had=whole.ids)
        whole.took = time.monotonic() - whole.began
        if not part.error:
            whole.text += part.text
            return whole
        whole.text += part.text[: part.certain]
        whole.ids += part.ids
        whole.gaps.append(whole.took)
        if part.error.startswith("4") or whole.took > seconds:
            whole.error = part.error
            return whole
        await asyncio.sleep(0.1)


class Load:
    """Clients that ask one question after the other, and compare every answer with the one that a replica
    alone has given."""

    def __init__(self, session: aiohttp.ClientSession, url: str, clients: int = 6):
        self.session, self.url, self.clients = session, url, clients
        self.answers: list[Answer] = []
        self.questions = [
            Question(prompt, tokens, seed, stream)
            for seed, prompt in enumerate(PROMPTS)
            for tokens in (20, 60, 250)
            for stream in (False, True)
        ]
        self.expected: dict[Question, str] = {}
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def learn(self, replica: Replica) -> None:
        for question in self.questions:
            answer = await ask(self.session, replica.url, question)
            assert not answer.error, answer.error
            self.expected[question] = answer.text

    async def _client(self, number: int) -> None:
        chance = random.Random(number)
        while not self._stopping:
            question = chance.choice(self.questions)
            answer = await ask(self.session, self.url, question)
            if not answer.error and answer.text != self.expected[question]:
                answer.error = f"wrong text: {answer.text[:80]!r}"
            self.answers.append(answer)
            if answer.error:
                await asyncio.sleep(0.1)

    async def __aenter__(self) -> Load:
        self.answers, self._stopping = [], False
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self.clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 120)

    def failed(self, after: float = 0.0) -> list[Answer]:
        """Those that began after `after` and failed."""
        return [it for it in self.answers if it.error and it.began >= after]


class Fleet:
    """Several replicas that share a folder, and with it the compiled graph and the packed weights."""

    def __init__(self, count: int = 3, key: str = ""):
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-")
        self.folder = Path(self._folder.name)
        self.replicas = [Replica(port, self.folder, key) for port in free_ports(count)]

    async def start(self, session: aiohttp.ClientSession) -> None:
        for replica in self.replicas:
            replica.start()
            # One after the other: the first fills the cache.
            await replica.ready(session)

    def end(self) -> None:
        for replica in self.replicas:
            replica.end()
        self._folder.cleanup()
