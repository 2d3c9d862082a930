"""The distributed platform on one machine, for `kgym up --distributed` and tests.

PostgreSQL, RabbitMQ, schedulers and workers are processes of their own, started with the commands
that other hosts use, and restarted when they die.
"""

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import httpx
import structlog

from kgym.errors import InfrastructureError
from kgym.web.scopes import Scope
from kgym.web.server import listen
from kgym.worker.work_folder import remove_left
from kgym_cli.platforms.running_platform import Running, announce, take
from kgym_cli.platforms.servers import LOOPBACK, PostgreSQL, Program, RabbitMQ, free_port
from kgym_cli.platforms.step_registry import WorkerShape, workers_of_one_host
from kgym_cli.settings import settings
from kgym_scheduler.database.connection import upgraded
from kgym_scheduler.database.tokens import Tokens

START_SECONDS = 60.0
STOP_SECONDS = 15.0
# First and longest pause before a part that died is restarted; pauses double.
BACKOFF_SECONDS = (0.5, 30.0)
# After running this long, a part's earlier deaths no longer count.
STABLE_SECONDS = 60.0
_POLL_SECONDS = 0.1

_log = structlog.get_logger()


@dataclass(slots=True)
class _Part:
    """A program that is restarted when it dies."""

    program: Program
    prepare: Callable[[], None] = lambda: None
    """Called before a restart."""
    may_end: bool = False
    """Whether it is not restarted after a successful exit, as of a drained worker."""
    deaths: int = 0
    started: float = field(default_factory=time.monotonic)
    due: float | None = None

    def tend(self) -> None:
        now = time.monotonic()
        if self.program.pid is not None:
            if now - self.started > STABLE_SECONDS:
                self.deaths = 0
        elif self.may_end and self.program.done:
            return
        elif self.due is None:
            first, longest = BACKOFF_SECONDS
            self.due = now + min(first * 2**self.deaths, longest)
            self.deaths += 1
            _log.warning("died, starting again", part=self.program.name, output=self.program.tail())
        elif now >= self.due:
            self.due, self.started = None, now
            self.prepare()
            self.program.spawn()


class Distributed:
    """Context manager: the distributed platform on a data folder.

    Broker and schedulers listen on `host`, an address of this machine; any but loopback needs
    tokens. `port` 0 means any free port; `url` is the first scheduler's. With a
    `monitor_port`, a web monitor is started. `options` are added to the schedulers' command line.
    """

    def __init__(
        self,
        data: Path,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        monitor_port: int | None = None,
        schedulers: int = 1,
        workers: Sequence[WorkerShape] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.data = data
        self.database = PostgreSQL(data / "postgresql")
        self.broker = RabbitMQ(data / "rabbitmq", host)
        self.host = host
        # Secrets go into the environment, as all users can read command lines. Workers run
        # untrusted code, so they do not get the database's URL.
        self.worker_env = {
            "KGYM_DATA": str(data),
            "KGYM_BUS": self.broker.url,
            "KGYM_STORAGE": str(data / "artifacts"),
            "KGYM_TOKEN": "",  # not the user's own token
        }
        self._owner = secrets.token_urlsafe(32)
        scheduler_env = {
            **self.worker_env,
            "KGYM_DATABASE": self.database.url,
            "KGYM_OWNER_TOKEN": self._owner,
        }
        ports = [port or free_port(host), *(free_port(host) for _ in range(1, schedulers))]
        self._ports = ports
        self.urls = [f"http://{host}:{port}" for port in ports]
        self.schedulers = [
            self._program(
                f"scheduler-{number}",
                scheduler_env,
                *("scheduler", "--host", host, "--port", str(port), *options),
            )
            for number, port in enumerate(ports)
        ]
        self.monitors: list[Program] = []
        self.monitor_url = ""
        if monitor_port is not None:
            self._add_monitor(monitor_port)
        shapes = workers_of_one_host() if workers is None else workers
        self.workers = [self._worker(number, shape) for number, shape in enumerate(shapes)]
        self._parts: list[_Part] = []
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """URL of the first scheduler."""
        return self.urls[0]

    def __enter__(self) -> Self:
        # The lock is taken first, so that a second platform never touches the data of the first.
        self._lock = take(self.data)
        try:
            remove_left(self.data / "work")
            self._start()
            announce(self._lock, Running(self.url, database=self.database.url, owner=self._owner))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tend(self) -> None:
        """Restart parts that died, each after its pause."""
        for part in self._parts:
            part.tend()

    def keep(self) -> None:
        """Tend the parts until interrupted."""
        while True:
            self.tend()
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop all parts in reverse dependency order; kill those that do not stop."""
        self._parts = []
        groups: list[Sequence[Program]] = [
            self.monitors,
            self.workers,
            self.schedulers,
            [self.broker, self.database],
        ]
        try:
            for group in groups:
                for program in group:
                    program.terminate()
                for program in group:
                    program.stop(STOP_SECONDS)
        finally:  # also after an interrupt during the wait
            for group in groups:
                for program in group:
                    program.kill()
            if self._lock is not None:
                self._lock.close()

    def _start(self) -> None:
        for port in self._ports:  # a scheduler without its port would be restarted for ever
            listen(self.host, port).close()
        for server in (self.database, self.broker):
            server.spawn()
        for server in (self.database, self.broker):
            server.wait()
        self._give_token()
        for program in self.schedulers:
            program.spawn()
        for program, url in zip(self.schedulers, self.urls, strict=True):
            _await_scheduler(program, url)
        for program in [*self.workers, *self.monitors]:
            program.spawn()
        others = [self.database, self.broker, *self.schedulers, *self.monitors]
        self._parts = [_Part(program) for program in others]
        self._parts += [_Part(worker, self._retake_token, may_end=True) for worker in self.workers]

    def _give_token(self) -> None:
        self.worker_env["KGYM_TOKEN"] = self._worker_token() or ""

    def _retake_token(self) -> None:
        """Give workers a token if they died because the user created the first one."""
        if not self.worker_env["KGYM_TOKEN"]:
            with contextlib.suppress(InfrastructureError):  # the database may be down, too
                self._give_token()

    def _worker_token(self) -> str | None:
        """Return the workers' token; None if no tokens are needed."""
        path = self.data / "worker.token"
        if path.exists():
            return path.read_text()
        token = asyncio.run(_create_token(self.database.url, needed=self.host != LOOPBACK))
        if token is None:
            return None
        # Created before it is written, so that the token is never readable by others.
        path.touch(0o600)
        path.write_text(token)
        return token

    def _program(self, name: str, env: Mapping[str, str], *words: str) -> Program:
        log = self.data / "log" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        program = Program(name, [*_KGYM, *words], log)
        program.env = env
        return program

    def _add_monitor(self, port: int) -> None:
        port = port or free_port(self.host)
        self._ports.append(port)
        self.monitor_url = f"http://{self.host}:{port}"
        env = {**self.worker_env, "KGYM_SERVER": self.url, "KGYM_TOKEN": self._owner}
        if (agent := settings().agent) is not None:
            env["KGYM_AGENT"] = agent
        words = ("monitor", "--host", self.host, "--monitor-port", str(port))
        self.monitors = [self._program("monitor", env, *words)]

    def _worker(self, number: int, shape: WorkerShape) -> Program:
        name = f"worker-{number}"
        # Workers are spread over the schedulers: any of them serves all jobs.
        server = self.urls[number % len(self.urls)]
        kinds = ("--kinds", ",".join(shape.kinds), "--slots", str(shape.slots))
        folder = ("--folder", str(self.data / "work" / name))
        words = ("worker", "--server", server, *kinds, *folder)
        return self._program(name, self.worker_env, *words)


_KGYM = (sys.executable, "-m", "kgym_cli")


async def _create_token(url: str, *, needed: bool) -> str | None:
    async with upgraded(url) as database:
        tokens = Tokens(database)
        if not (needed or await tokens.needed()):
            return None
        return await tokens.create(f"workers-{secrets.token_hex(4)}", [Scope.WORKER])


def _await_scheduler(program: Program, url: str) -> None:
    limit = time.monotonic() + START_SECONDS
    while program.pid is not None and time.monotonic() < limit:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/v1/healthz", timeout=5, trust_env=False).is_success:
                return
        time.sleep(_POLL_SECONDS)
    raise InfrastructureError("scheduler_failed", f"{program.name} did not start: {program.tail()}")
