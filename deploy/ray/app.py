"""The program behind Ray Serve: each replica is one process of `iree-llm serve` on a Unix socket.

    cd deploy/ray
    serve run --working-dir . app:build model=/models/llama program=/usr/local/bin/iree-llm

starts it on this machine. On several: `ray start --head` on one, `ray start --address=HEAD:6379` on the others, and
the same command on the first. The program and the model have the same path on every machine. `serve run --help`
has the rest; Options below is what may follow. Needs Python 3.10 and ray[serve]."""

# No `from __future__ import annotations`: Serve looks at the type of build's argument.
import asyncio
import ctypes
import json
import logging
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

logger = logging.getLogger("ray.serve")
# Loaded before there is a fork that needs it.
LIBC = ctypes.CDLL(None)

# Headers of one connection, which the next one has of its own.
OF_A_CONNECTION = {"connection", "content-length", "date", "host", "keep-alive", "transfer-encoding"}
# Serve gives answers the id of their request itself.
OF_SERVE = {"x-request-id"}
# What dies more often than this between two answers of /ready has something wrong that a new start does not mend.
MOST_DEATHS = 3
JSON = {"content-type": "application/json"}


class Options(BaseModel):
    """What `serve run app:build NAME=VALUE ...` takes."""

    model_config = ConfigDict(extra="forbid")

    model: str
    program: str = "iree-llm"
    # More of `iree-llm serve`, with spaces between.
    arguments: str = ""
    # Replicas.
    least: int = 1
    most: int = 4
    # CPUs of a replica, and as many threads of the program where they are whole.
    cpus: float = 1
    # Requests of a replica (that run or wait in its program) above which there is another replica, and at most.
    target_requests: float = 16
    most_requests: int = 256
    # Seconds for the first start of a model, which compiles and packs; and for the last answers of a replica.
    start_seconds: float = 600
    stop_seconds: float = 120
    # Seconds of high and of low load until the number of replicas changes.
    up_seconds: float = 10
    down_seconds: float = 300


class Program:
    """A process of the program. It is started again when it dies."""

    def __init__(self, options: Options):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="iree-llm-")
        self.socket = str(Path(self.folder) / "socket")
        self.ready = asyncio.Event()
        self.deaths = 0
        self.process: asyncio.subprocess.Process | None = None
        connector = aiohttp.UnixConnector(self.socket, limit=0)
        no_limit = aiohttp.ClientTimeout(total=None)
        self.session = aiohttp.ClientSession("http://replica", connector=connector, timeout=no_limit)
        self.watching = asyncio.create_task(self.watch())

    async def watch(self) -> None:
        options = self.options
        command = [options.program, "serve", "--model", options.model, "--socket", self.socket, "--quiet"]
        command += ["--no-page", "--log", "warn", "--shutdown-timeout", str(int(options.stop_seconds))]
        if options.cpus >= 1:
            command += ["--threads", str(int(options.cpus))]
        while self.deaths <= MOST_DEATHS:
            self.process = await asyncio.create_subprocess_exec(
                *command, *options.arguments.split(), preexec_fn=die_with_parent
            )
            waiting = asyncio.create_task(self.become_ready())
            code = await self.process.wait()
            waiting.cancel()
            self.ready.clear()
            self.deaths += 1
            logger.error("iree-llm ended with %s: it is started again", code)

    async def become_ready(self) -> None:
        while not await self.says_ok("/ready"):
            await asyncio.sleep(0.02)
        self.deaths = 0
        self.ready.set()

    async def wait_until_ready(self) -> None:
        """An error where it does not start."""
        if self.ready.is_set():
            return
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait([ready, self.watching], timeout=self.options.start_seconds, return_when="FIRST_COMPLETED")
        if not self.ready.is_set():
            ready.cancel()
            watching = self.watching
            if watching.done() and not watching.cancelled() and (error := watching.exception()):
                raise RuntimeError(f"iree-llm cannot be run: {error}") from error
            raise RuntimeError("iree-llm does not start: its words are in the log of this replica")

    async def says_ok(self, path: str) -> bool:
        try:
            async with self.session.get(path, timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False

    async def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> aiohttp.ClientResponse:
        """The head of an answer. A request whose process died before it answered is asked of the next one, unless it
        may be what they die of."""
        for last in (False, False, True):
            await self.wait_until_ready()
            try:
                return await self.session.request(method, path, headers=headers, data=body or None)
            except (aiohttp.ClientConnectionError, OSError):
                if last:
                    raise
                # The watcher sees the death a moment later than we do.
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self.watching.cancel()
        await self.session.close()
        if self.process and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), self.options.stop_seconds + 5)
            except asyncio.TimeoutError:
                self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def die_with_parent() -> None:
    """No process is left when the replica's is killed (Linux)."""
    LIBC.prctl(1, signal.SIGKILL)


@serve.deployment
class Replica:
    """Hands requests to its process, and pieces of answers back as they come.

    Serve counts the requests that are here, which is what runs and waits in the process: by that it chooses the
    replica for a request, and how many replicas there are."""

    async def __init__(self, options: Options):  # type: ignore[misc]  # Serve waits for it.
        self.program = Program(options)
        # No request comes before this is over.
        await self.program.wait_until_ready()

    async def check_health(self) -> None:
        """An error, three times, has Serve make a new replica. A process that is started again is none."""
        program = self.program
        if program.watching.done() or (program.ready.is_set() and not await program.says_ok("/health")):
            raise RuntimeError("iree-llm does not answer, or does not start")

    async def __call__(self, request: Request) -> Response:
        program = self.program
        headers = {name: value for name, value in request.headers.items() if name not in OF_A_CONNECTION}
        query = f"?{request.url.query}" if request.url.query else ""
        try:
            response = await program.ask(request.method, request.url.path + query, headers, await request.body())
        except (aiohttp.ClientConnectionError, OSError):
            message = "the model's process died of this request, or of another one, each time that it was asked"
            return Response(json.dumps({"error": {"message": message, "type": "server_error"}}), 502, JSON)
        ours = OF_A_CONNECTION | OF_SERVE
        kept = {name: value for name, value in response.headers.items() if name.lower() not in ours}
        if response.content_type != "text/event-stream":
            async with response:
                return Response(await response.read(), response.status, kept)
        return StreamingResponse(pieces(response), response.status, kept)

    async def __del__(self) -> None:
        # Serve has waited for the requests that were here.
        await self.program.stop()


async def pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # Closing it, when the client has gone away, cancels the request: its pages are free before the next step.
    async with response:
        async for piece in response.content.iter_any():
            yield piece


def build(options: Options) -> Application:
    """What `serve run` starts."""
    return Replica.options(
        name="iree-llm",
        ray_actor_options={"num_cpus": options.cpus},
        max_ongoing_requests=options.most_requests,
        graceful_shutdown_timeout_s=options.stop_seconds,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=5,
        health_check_timeout_s=10,
        autoscaling_config={
            "min_replicas": options.least,
            "initial_replicas": options.least,
            "max_replicas": options.most,
            "target_ongoing_requests": options.target_requests,
            "upscale_delay_s": options.up_seconds,
            "downscale_delay_s": options.down_seconds,
            "metrics_interval_s": 1,
            "look_back_period_s": 3,
        },
    ).bind(options)
