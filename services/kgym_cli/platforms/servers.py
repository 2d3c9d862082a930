"""Private servers on this machine: PostgreSQL and RabbitMQ, as Debian packages them.

Each has a folder for its data, a fixed free port, a password, and, if we are root, the
unprivileged user of its package. It can be stopped, killed and restarted, and dies with the
thread that started it.

    with PostgreSQL(folder / "postgresql") as database:
        url = database.create("jobs")    # postgresql+asyncpg://kgym:…@127.0.0.1:…/jobs
        database.kill()                  # SIGKILL, to all of its processes
        database.start()                 # on the same port, with the same data
"""

import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from kgym.errors import InfrastructureError
from kgym.host.proc import require

LOOPBACK = "127.0.0.1"
USER = "kgym"
START_SECONDS = 180.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05
# Where a server sees its folder: its user may lack access to the real path.
_PLACE = Path("/mnt")


class Program:
    """A program that runs until it is stopped; its output is appended to the file `log`."""

    stop_signal = signal.SIGTERM

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.log = log
        self.argv = [str(word) for word in argv]
        # Variables to add to the environment.
        self.env: Mapping[str, str] = {}
        # Its working directory; None: the one of this process.
        self.cwd: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    @property
    def pid(self) -> int | None:
        """Process id; None if it is not running."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def done(self) -> bool:
        """Whether it has exited with status 0."""
        return self._process is not None and self._process.poll() == 0

    def spawn(self) -> None:
        """Start the program without waiting until it is ready."""
        self._asked = False
        # PDEATHSIG follows the thread, not the process (prctl(2)): whoever spawns must keep its
        # thread.
        words = [require("setpriv"), "--pdeathsig=KILL", *self.argv]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Send the stop signal, once: on a second one, programs may skip their cleanup."""
        if self.pid is not None and not self._asked:
            self._asked = True
            os.kill(self.pid, self.stop_signal)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stop it, kill it after `seconds`, and reap it."""
        if self._process is None:
            return
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the program and its descendants, and reap it."""
        if self._process is None or self.pid is None:  # the id may have been reused
            return
        # The descendants are listed first, but the parent is killed first, as it could start more.
        for pid in (self._process.pid, *list(_descendants(self._process.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def tail(self) -> str:
        """Return the last lines of its output."""
        text = self.log.read_bytes()[-2000:].decode(errors="replace") if self.log.exists() else ""
        return " / ".join(text.strip().splitlines()[-5:])


class Server(Program, ABC):
    """A server with its data in `folder` that listens on `host`, an address of this machine."""

    user = "nobody"
    scheme = ""

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        super().__init__(folder.name, [], folder / "log")
        self.folder = folder
        self.host = host
        # Fixed for the server's life: after a crash, clients reconnect to the same address.
        self.port = free_port(host)
        folder.mkdir(parents=True, exist_ok=True)
        self._user = _user(self.user) if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._inside = folder.resolve() if self._user is None else _PLACE
        self._password = self._secret("password")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """URL for clients, with user and password."""
        return self._url("")

    def start(self) -> None:
        """Start it and wait until it answers; raise InfrastructureError `server_failed`."""
        self.spawn()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers; raise InfrastructureError `server_failed`."""
        limit = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.pid is None or time.monotonic() > limit:
                raise InfrastructureError(
                    "server_failed", f"{self.name} did not start: {self.tail()}", log=str(self.log)
                )
            time.sleep(_POLL_SECONDS)

    @classmethod
    @abstractmethod
    def check(cls) -> None:
        """Raise InfrastructureError `missing_tool` if this kind of server is not installed."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it accepts clients."""

    def _url(self, path: str) -> str:
        return f"{self.scheme}://{USER}:{self._password}@{self.host}:{self.port}/{path}"

    def _secret(self, name: str) -> str:
        """Return the secret in this file of the folder, generated on first use."""
        path = self.folder / name
        if not path.exists():
            self._write(name, secrets.token_hex(16))
        return path.read_text()

    def _write(self, name: str, text: str) -> Path:
        """Write a file that only the server may read; return its path as the server sees it."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
            file.write(text)
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)
        return self._inside / name

    def _as_user(self, *argv: str | Path) -> list[str]:
        """Return the command that runs a program as the server's user, with its folder mounted."""
        words = [str(word) for word in argv]
        if self._user is None:
            return words
        switch = [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
        script = 'mount --bind "$1" "$2"; shift 2; cd /; exec "$@"'
        mounted = ["sh", "-ec", script, "sh", str(self.folder.resolve()), str(_PLACE)]
        setpriv = ["setpriv", *switch, "--pdeathsig=KILL"]
        return [require("unshare"), "--mount", *mounted, *setpriv, *words]


class PostgreSQL(Server):
    """A PostgreSQL server; `url` is its database `kgym`, `create` makes others.

    Without `durable`, a crash of the machine may lose committed data.
    """

    user = "postgres"
    scheme = "postgresql+asyncpg"
    stop_signal = signal.SIGINT  # fast shutdown: SIGTERM would wait for clients

    def __init__(self, folder: Path, host: str = LOOPBACK, *, durable: bool = True) -> None:
        super().__init__(folder, host)
        settings = (
            () if durable else ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
        )
        self._settings = [word for setting in settings for word in ("-c", setting)]

    @classmethod
    def check(cls) -> None:
        """Raise InfrastructureError `missing_tool` if PostgreSQL is not installed."""
        _postgres("initdb")

    @property
    def url(self) -> str:
        """URL of the database `kgym`, for SQLAlchemy."""
        return self._url(USER)

    def spawn(self) -> None:
        """Start the server; initialise its cluster and database first if they are missing."""
        if not (self.folder / "data").exists():
            self._initialise()
        self.argv = self._as_user(
            _postgres("postgres"),
            *("-D", self._inside / "data", "-h", self.host, "-p", str(self.port)),
            *("-c", "unix_socket_directories=", "-c", "max_connections=200"),
            *self._settings,
        )
        super().spawn()

    def answers(self) -> bool:
        """Return whether the server accepts queries, which it does not during recovery."""
        command = [_postgres("pg_isready"), "-q", "-t", "1", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(command, check=False, timeout=START_SECONDS).returncode == 0

    def create(self, name: str) -> str:
        """Create an empty database; return its URL."""
        self.query(f'CREATE DATABASE "{name}"')
        return self._url(name)

    def query(self, sql: str, database: str = USER) -> str:
        """Run a statement; return its rows, one a line."""
        where = ["-h", self.host, "-p", str(self.port), "-U", USER, "-d", database]
        command = [_postgres("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where]
        return _run([*command, "-c", sql], PGPASSWORD=self._password)

    def _initialise(self) -> None:
        making = self.folder / "making"
        shutil.rmtree(making, ignore_errors=True)
        options = ["-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        secret = f"--pwfile={self._inside / 'password'}"
        where = self._inside / "making"
        _run(self._as_user(_postgres("initdb"), "-D", where, *options, secret))
        # In single-user mode, so that no client can connect before the database exists.
        single = self._as_user(_postgres("postgres"), "--single", "-D", where, "postgres")
        _run(single, input=f"CREATE DATABASE {USER}\n")
        making.rename(self.folder / "data")


class RabbitMQ(Server):
    """A RabbitMQ server without plugins; its data, including quorum queues, is durable."""

    user = "rabbitmq"
    scheme = "amqp"

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        super().__init__(folder, host)
        # A port mapper of its own: otherwise Erlang starts epmd as a daemon that stays for ever.
        self._mapper_port, self._node_port = free_port(), free_port()
        mapper = self._as_user(
            require("epmd"), "-address", LOOPBACK, "-port", str(self._mapper_port)
        )
        self._mapper = Program("epmd", mapper, folder / "epmd.log")
        self.argv = self._as_user(_rabbitmq())
        self.env = self._environment()

    @classmethod
    def check(cls) -> None:
        """Raise InfrastructureError `missing_tool` if RabbitMQ is not installed."""
        _rabbitmq()

    def spawn(self) -> None:
        """Start the server, and its port mapper if necessary."""
        if self._mapper.pid is None:
            self._mapper.spawn()
        super().spawn()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stop the server and its port mapper."""
        super().stop(seconds)
        self._mapper.kill()

    def kill(self) -> None:
        """Kill the server and its port mapper."""
        super().kill()
        self._mapper.kill()

    def answers(self) -> bool:
        """Return whether the server answers an AMQP handshake."""
        try:
            with socket.create_connection((self.host, self.port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(b"AMQP\x00\x00\x09\x01")  # AMQP 0-9-1, section 4.2.2
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    def _environment(self) -> dict[str, str]:
        inside = str(self._inside)
        config = self._write(
            "rabbitmq.conf",
            f"listeners.tcp.default = {self.host}:{self.port}\n"
            f"default_user = {USER}\n"
            f"default_pass = {self._password}\n"
            "log.file = false\n"
            "log.console = true\n"
            "log.console.level = warning\n"
            # The default of 512 MiB is also reserved as memory.
            "raft.wal_max_size_bytes = 32000000\n",
        )
        return {
            "HOME": inside,  # for Erlang's cookie
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": "kgym@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": str(self._write("empty", "")),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._write("plugins", "[].")),
            "RABBITMQ_MNESIA_BASE": f"{inside}/data",
            "RABBITMQ_LOG_BASE": inside,
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{inside}/generated",
            # With both, the start script execs the server instead of staying its parent.
            "RABBITMQ_ALLOW_INPUT": "yes",
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
            # Waiting scheduler threads must not spin on a machine with few cores.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+sbwt none +sbwtdcpu none +sbwtdio none "
                "-kernel inet_dist_use_interface {127,0,0,1} "
                # failure detection between nodes, and statistics that nobody reads
                "-aten poll_interval 10000 -rabbit quorum_tick_interval 60000 "
                "-rabbit collect_statistics_interval 60000"
            ),
        }


def free_port(host: str = LOOPBACK) -> int:
    """Return a free port outside the range of ephemeral ports."""
    # A client that retries a dead server's port can be given that very port as its own, if it is
    # ephemeral: TCP's simultaneous open then connects it to itself, and the server cannot return.
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first = int(file.read().split()[0])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.sample(range(10000, max(first, 10100)), 100):
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return port
    raise InfrastructureError("no_port", f"no free port on {host}")


def _descendants(pid: int) -> Iterator[int]:
    """Yield all descendants of a process, including those that left its process group."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield from _descendants(child)
                yield child


def _run(argv: Sequence[str], *, input: str = "", **env: str) -> str:  # noqa: A002
    done = subprocess.run(
        argv,
        check=False,
        input=input,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        env={**os.environ, **env},
    )
    if done.returncode:
        raise InfrastructureError(
            "server_failed", f"`{argv[-1]}` failed: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return done.stdout


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


def _postgres(program: str) -> str:
    """Return a program of the newest PostgreSQL, which Debian mostly keeps off the PATH."""
    folders = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    for folder in sorted(folders, key=lambda folder: float(folder.parent.name), reverse=True):
        if (folder / program).exists():
            return str(folder / program)
    return require(program)


def _rabbitmq() -> Path:
    """Return RabbitMQ's own start script: Debian's wrapper on the PATH changes the user."""
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return script if script.exists() else Path(require("rabbitmq-server"))
