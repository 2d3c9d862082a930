"""The campaign's side of an environment: it answers the calls of the environment's programs.

A call is a line of JSON on a socket, and so is its answer. The environment has no token: the
campaign submits the jobs, counts them and enforces the limits.
"""

import asyncio
import base64
import contextlib
import hmac
import json
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kgym import tasks
from kgym.api.steps import Number, Strict
from kgym.bugs.kernel_run import KernelRun
from kgym.errors import KgymError
from kgym.source import diff_text
from kgym_benchmark.kenv.inside.programs import NOT_ALLOWED
from kgym_benchmark.kenv.protocol import (
    STILL_RUNNING,
    Case,
    Observation,
    failed,
    instructions,
    observation,
)

# Maximum bytes of a call: a patch has at most 8 MiB, in Base64.
MOST = 24 << 20
MOST_OPEN = 32
# Kernels that agents may leave running, or waiting: their diffs are held in memory.
MOST_RUNNING = 4
# Calls longer than 64 KiB that are read concurrently: they are held in memory.
LONG = 2
READ_SECONDS = 60.0
# Recorded as the answer to a call whose agent ended before the answer came.
GIVEN_UP = "given up"
_PART = 1 << 16
RunKernel = Callable[[str], Awaitable[KernelRun]]


class Call(Strict):
    """A call of a program."""

    call: str
    secret: str = ""
    diff: str = ""


class KernelCall(Strict):
    """The record of a call of `run_kernel`."""

    answer: str
    job: int | None = None
    seconds: Number


@dataclass(slots=True)
class Door:
    """The door of one environment; `calls` grows, and `on_call` receives each."""

    case: Case
    run: RunKernel | None
    """None if the agent may not run kernels."""
    most_calls: int
    on_call: Callable[[KernelCall], None]
    secret: str = ""
    calls: int = 0
    seconds: float = 0.0
    """Spent in `run_kernel`."""
    patience: float = 600.0
    """Seconds after which `run_kernel` answers that the kernel is still running."""
    _running: dict[str, asyncio.Task[Observation]] = field(default_factory=dict)
    """Kernel runs by their diff."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LONG))
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def on_socket(self, path: Path) -> AsyncIterator[None]:
        """Answer on a Unix socket at this path while the context lasts."""
        server = await asyncio.start_unix_server(self.accept, path, limit=_PART)
        await asyncio.to_thread(path.chmod, 0o666)
        try:
            yield
        finally:
            await self._closed(server)

    @contextlib.asynccontextmanager
    async def on_port(self, host: str, port: int = 0) -> AsyncIterator[str]:
        """Answer on a port, for a container; yield the value of KENV_KGYM_ENDPOINT."""
        server = await asyncio.start_server(self.accept, host, port, limit=_PART)
        try:
            yield f"tcp:{host}:{server.sockets[0].getsockname()[1]}:{self.secret}"
        finally:
            await self._closed(server)

    async def _closed(self, server: asyncio.Server) -> None:
        """Accept no more calls, and cancel the open ones: their agent has ended."""
        server.close()
        await tasks.end([*self._open, *self._running.values()])

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one call."""
        task = asyncio.current_task()
        assert task is not None
        try:
            # Further connections are closed unanswered: an agent must not exhaust descriptors.
            if len(self._open) < MOST_OPEN:
                self._open.add(task)
                answer = await self._heard(reader)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ValueError, OSError):  # too long, not a call, or the agent is gone
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _heard(self, reader: StreamReader) -> dict[str, object]:
        """Read a call and answer it; only LONG long ones are read concurrently."""
        line = await _read(reader, b"", _PART)
        if line.endswith(b"\n"):
            return await self._answer(line)
        async with self._long:
            return await self._answer(await _read(reader, line, MOST))

    async def _answer(self, line: bytes) -> dict[str, object]:
        asked = Call.model_validate_json(line)
        # On a port, any local process could call. The comparison takes constant time.
        if not hmac.compare_digest(asked.secret.encode(), self.secret.encode()):
            raise ValueError("not ours")
        if asked.call == "bug":
            case = self.case
            words = ("report", "reproducer", "task", "repository", "commit")
            kernels = self.most_calls if self.run is not None else 0
            return {word: getattr(case, word) for word in words} | {
                "instructions": instructions(kernels, oracle=case.has_oracle)
            }
        if asked.call != "run_kernel":
            raise ValueError(asked.call)
        # One kernel run at a time: agents must not exceed their number by asking concurrently.
        if asked.diff not in self._running:
            if len(self._running) == MOST_RUNNING:
                # An agent that changed its mind never asks for an answer again.
                ended = [diff for diff, task in self._running.items() if task.done()]
                if not ended:
                    what = f"{MOST_RUNNING} other kernels are still running"
                    return asdict(failed("limit", what))
                del self._running[ended[0]]
            self._running[asked.diff] = asyncio.create_task(self._in_turn(asked.diff))
        running = self._running[asked.diff]
        # Many agents end commands that take longer; the same call again goes on waiting.
        await asyncio.wait({running}, timeout=self.patience)
        if not running.done():
            return asdict(STILL_RUNNING)
        self._running.pop(asked.diff, None)
        return asdict(running.result())

    async def _in_turn(self, diff: str) -> Observation:
        async with self._turn:
            return await self._run_kernel(base64.b64decode(diff))

    async def _run_kernel(self, data: bytes) -> Observation:
        if self.run is None:
            return Observation(NOT_ALLOWED, {})
        if self.calls >= self.most_calls:
            return failed("limit", f"all {self.most_calls} runs of kernels are used up")
        self.calls += 1
        begun, answer, job = time.monotonic(), GIVEN_UP, None
        try:
            diff = diff_text.decode(data, "the tree's changes")
            run = await self.run(diff)
            seen, answer, job = observation(run), run.answer, run.job
        except KgymError as error:
            seen, answer = failed(error.reason, error.message), error.reason
        finally:
            seconds = time.monotonic() - begun
            self.seconds += seconds
            self.on_call(KernelCall(answer=answer, job=job, seconds=round(seconds, 3)))
        return seen


async def _read(reader: StreamReader, begun: bytes, most: int) -> bytes:
    """Return a line or its first `most` bytes; raise ValueError at EOF, TimeoutError if late."""
    line = bytearray(begun)
    async with asyncio.timeout(READ_SECONDS):
        while not line.endswith(b"\n") and len(line) < most:
            part = await reader.read(_PART)
            if not part:
                raise ValueError("no call")
            line += part
    return bytes(line)
