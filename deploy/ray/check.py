"""The deployment on a real cluster of several Ray nodes, which are processes of this machine: python check.py

    pip install 'ray[serve]' aiohttp
    cargo build --release -p cli          # or IREE_LLM=path/to/iree-llm

Questions come all the time while there are more and fewer replicas, a node is added, drained and killed, and a
process is killed. Every answer is compared with the one that the program gives alone. It takes about three minutes,
and ends with 1 where something is not as docs/many-machines.md says. `check.py overhead` only measures."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# Nodes and replicas find the modules as this script does.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import aiohttp  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray._private.node import Node  # noqa: E402
from ray._raylet import GcsClient  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # noqa: E402

import app  # noqa: E402
from fleet import Fleet, Load, Question, answers, ask, free_ports, model_folder, program, wait_for  # noqa: E402

CLIENTS = 12
# Seconds after which nobody may notice that a node is gone.
NOTICES = 15

problems: list[str] = []


# What only the main thread may do, as nodes of a cluster are started with handlers of signals. The clients are on
# another thread, so that they go on asking meanwhile.
on_main: queue.Queue[tuple[Callable[[], Any], Future] | None] = queue.Queue()


async def nodes(work: Callable[[], Any]) -> Any:
    """Starts and ends nodes."""
    done: Future = Future()
    on_main.put((work, done))
    return await asyncio.wrap_future(done)


def say(good: bool, text: str) -> None:
    print(f"  {'ok ' if good else 'BAD'} {text}", flush=True)
    if not good:
        problems.append(text)


def running() -> int:
    deployment = serve.status().applications["default"].deployments["iree-llm"]
    return deployment.replica_states.get("RUNNING", 0)


async def replicas(count: int, seconds: float) -> float:
    async def there() -> bool:
        return await asyncio.to_thread(running) == count

    return await wait_for(there, seconds, f"{count} replicas")


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/status").read_text().split("PPid:")[1].split()[0])


def processes(*nodes: Node) -> list[int]:
    """Those of the program on these nodes."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in nodes}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            # The program, its replica, the node.
            if b"serve" in words and b"--socket" in words and parent(parent(int(folder.name))) in raylets:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def drain(address: str, node: str, seconds: float) -> None:
    """What `ray drain-node` does: nothing new is put there, and until then it is to be empty."""
    deadline = int((time.time() + seconds) * 1000)
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = GcsClient(address=address).drain_node(node, reason, "the check", deadline)
    assert accepted, why


async def overhead(session: aiohttp.ClientSession, direct: str, through: str) -> None:
    """What a request and a token cost more than straight from the program: one client, medians, in turns."""
    rows: dict[str, dict[str, list[float]]] = {}
    urls = {"direct": direct, "Ray Serve": through}
    for turn in range(65):
        for name, url in urls.items():
            row = rows.setdefault(name, {"one": [], "first": [], "token": [], "long": []})
            one = await ask(session, url, Question("The dog", 1, turn, False))
            stream = await ask(session, url, Question("Once upon a time", 400, turn, True))
            assert not one.error and not stream.error, one.error or stream.error
            if turn < 5:
                continue
            row["one"].append(one.took)
            row["first"].append(stream.first)
            row["long"].append(stream.took)
            row["token"].append((stream.took - stream.first) / 399)
    medians = {name: {key: statistics.median(all_) * 1000 for key, all_ in row.items()} for name, row in rows.items()}
    print("\n  | medians of 60, ms | request of 1 token | first piece of a stream | each further token | 400 tokens |")
    print("  |---|---|---|---|---|")
    for name, it in medians.items():
        print(f"  | {name} | {it['one']:.2f} | {it['first']:.2f} | {it['token']:.3f} | {it['long']:.0f} |")
    more = {key: medians["Ray Serve"][key] - medians["direct"][key] for key in medians["direct"]}
    print(
        f"  | more | {more['one']:.2f} | {more['first']:.2f} | {more['token']:.3f} | {more['long']:.0f} |\n", flush=True
    )


async def cancellation(session: aiohttp.ClientSession, url: str) -> None:
    async def cancelled() -> float:
        async with session.get(url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(it.split()[-1]) for it in lines if it.startswith("iree_llm_requests_cancelled_total{"))

    before = await cancelled()
    body = Question("The dog", 2000, 1, True).body()
    async with session.post(url + "/v1/completions", json=body) as response:
        await response.content.readline()
        response.close()

    async def more() -> bool:
        return await cancelled() > before

    took = await wait_for(more, 5, "a request to be cancelled")
    say(True, f"a client that goes away has cancelled its request {took:.1f} s later")


async def load_and(load: Load, what: str, doing) -> None:
    """Questions while something happens, and a second before and after; none may fail."""
    async with load:
        await asyncio.sleep(1)
        said = await doing()
        await asyncio.sleep(1)
    failed = load.failed()
    errors = sorted({it.error[:160] for it in failed})
    say(not failed, f"{what}: {said}; {len(load.answers)} questions, {len(failed)} failed {errors or ''}")


async def check(only_overhead: bool) -> None:
    fleet = Fleet(1)
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = await nodes(lambda: Cluster(initialize_head=True, head_node_args=head))
    limits = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=limits, connector=connector) as session:
        try:
            await fleet.start(session)
            alone = fleet.replicas[0]
            first = await nodes(lambda: cluster.add_node(num_cpus=2))
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            port = free_ports(1)[0]
            url = f"http://127.0.0.1:{port}"
            serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
            arguments = f"--cache-dir {fleet.folder / 'cache'} --kv-memory 64"
            options = app.Options(
                model=str(model_folder(fleet.folder)),
                program=program(),
                arguments=arguments,
                target_requests=3,
                up_seconds=2,
                down_seconds=5,
                stop_seconds=60,
            )
            start = time.monotonic()
            await asyncio.to_thread(serve.run, app.build(options))
            await wait_for(lambda: answers(session, url + "/ready"), 60, "Serve")
            print(f"Ray {ray.__version__}: ready after {time.monotonic() - start:.1f} s", flush=True)
            await overhead(session, alone.url, url)
            if only_overhead:
                return
            await cancellation(session, url)
            load = Load(session, url, CLIENTS)
            await load.learn(alone)

            async def up() -> str:
                took = await replicas(2, 60)
                return f"1 to 2 replicas in {took:.1f} s"

            async def add() -> str:
                nonlocal second
                second = await nodes(lambda: cluster.add_node(num_cpus=2))
                took = await replicas(4, 60)
                return f"a node was added: 2 to 4 replicas in {took:.1f} s"

            async def leave() -> str:
                nonlocal third
                third = await nodes(lambda: cluster.add_node(num_cpus=2))
                held = len(processes(second))
                drain(cluster.address, second.node_id, 60)

                async def empty() -> bool:
                    return not processes(second)

                took = await wait_for(empty, 60, "the drained node to be empty")
                await replicas(4, 60)
                await nodes(lambda: cluster.remove_node(second))
                return f"a node with {held} replicas was drained, empty after {took:.1f} s, and removed"

            second = third = first
            await load_and(load, "load", up)
            await load_and(load, "load", add)
            await load_and(load, "load", leave)

            async with load:
                await asyncio.sleep(1)
                victim = processes(third)[0]
                replica = parent(victim)
                os.kill(victim, signal.SIGKILL)
                killed = time.monotonic()
                await asyncio.sleep(4)
            failed = load.failed()
            begun = [it for it in failed if it.begun]
            say(
                len(begun) == len(failed) and not load.failed(killed),
                f"kill -9 of a process: {len(failed)} of {len(load.answers)} failed, {len(failed) - len(begun)} of "
                f"them had not begun to come, {len(load.failed(killed))} began later",
            )
            again = [it for it in processes(third) if parent(it) == replica and it != victim]
            say(len(again) == 1, "its replica has started another one")

            async with load:
                await asyncio.sleep(1)
                lost = set(processes(third))
                await nodes(lambda: cluster.remove_node(third, False))
                killed = time.monotonic()
                await asyncio.sleep(NOTICES + 5)
            failed, late = load.failed(), load.failed(killed + NOTICES)
            last = max((it.began for it in failed), default=killed) - killed
            say(
                not late,
                f"kill -9 of a node with {len(lost)} replicas: {len(failed)} of {len(load.answers)} failed, "
                f"the last began {last:.1f} s later {sorted({it.error[:100] for it in failed})[:3] or ''}",
            )
            left = [it for it in lost if Path(f"/proc/{it}").exists()]
            say(not left, "no process of the program outlived its replica")

            async def down() -> str:
                load.clients = 1
                took = await replicas(1, 60)
                return f"back to 1 replica in {took:.1f} s"

            load.clients = 1
            await load_and(load, "little load", down)
        finally:
            await asyncio.to_thread(serve.shutdown)
            ray.shutdown()
            await nodes(cluster.shutdown)
            fleet.end()


def checked() -> None:
    try:
        asyncio.run(check(sys.argv[1:] == ["overhead"]))
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        on_main.put(None)


def main() -> None:
    threading.Thread(target=checked).start()
    while job := on_main.get():
        work, done = job
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
    print("\n".join(problems) or "all is well")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
