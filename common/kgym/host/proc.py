"""The one place that runs programs.

Every program has a time limit, its output is drained while it runs, and it
dies with its whole process group: at the limit, when the awaiting task is
cancelled, and (through the kernel's parent-death signal) when this process
is killed. Of the environment it gets what programs need, and no secret.
"""

import asyncio
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kgym.errors import InfrastructureError, KgymError

# Bytes of a line after which it is handed on in pieces.
LINE_LIMIT = 1 << 20
# Bytes of output that are kept; of longer output, the end.
KEPT = 8 << 20


class ProgramFailed(KgymError):
    """A program ended with a status other than 0."""


class ProgramTimedOut(InfrastructureError):
    """A program was killed at its time limit."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended. `output` is stdout and stderr, interleaved as they came."""

    argv: tuple[str, ...]
    returncode: int
    output: bytes
    seconds: float

    @property
    def text(self) -> str:
        """The output as text; bytes that are not UTF-8 are replaced."""
        return self.output.decode(errors="replace")

    def check(self) -> None:
        """Raise ProgramFailed unless the status is 0."""
        if self.returncode != 0:
            lines = [line.strip() for line in self.text.strip().splitlines()[-5:]]
            raise ProgramFailed(
                "program_failed",
                f"`{' '.join(self.argv[:3])}` ended with status {self.returncode}: "
                + (" / ".join(lines)[-1000:] or "it printed nothing"),
                status=self.returncode,
            )


def require(program: str) -> str:
    """Return the path of `program`; raise InfrastructureError `missing_tool` if there is none."""
    path = shutil.which(program)
    if path is None:
        raise InfrastructureError(
            "missing_tool",
            f"the program `{program}` is not installed; ./run installs what is needed",
            tool=program,
        )
    return path


_HANDED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|SSL_CERT_(FILE|DIR)|GIT_SSL_CAINFO"
    r"|(https?|ftp|all|no)_proxy|(HTTPS?|FTP|ALL|NO)_PROXY"
)


def environment() -> dict[str, str]:
    """Return what programs get of this process's environment: what is known to be no secret.

    A worker's holds its token and the bus's password, and every process shows its own to
    whoever may read its /proc/PID/environ, also those that it changed later.
    """
    return {name: value for name, value in os.environ.items() if _HANDED_ON.fullmatch(name)}


@functools.cache
def privileged() -> bool:
    """Whether this process has root's rights: in many a container, user 0 has few of them.

    From capabilities(7) and user_namespaces(7): those over files and users and to mount, on the
    host's own users, not in a user namespace.
    """
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("\nCapEff:")[2].split()[0], 16)
    everybody = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    return everybody and all(effective >> capability & 1 for capability in _OF_ROOT)


@functools.cache
def countable() -> bool:
    """Whether the kernel limits the processes of this user.

    It does not for the host's user 0, whatever that one may or may not do, in whatever user
    namespace (kernel/fork.c, `copy_process`: INIT_USER is exempt from RLIMIT_NPROC).
    """
    argv = ["prlimit", "--nproc=1", "sh", "-c", "true & wait"]
    return subprocess.run(argv, check=False, capture_output=True, timeout=20).returncode != 0


# The signal does not come if the parent was dead before it was asked for.
_IF_ALIVE = '[ "$PPID" = "$0" ] && exec "$@"'

# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN.
_OF_ROOT = (0, 1, 6, 7, 21)


async def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,  # noqa: ASYNC109 - the limit kills the process group, which a scope cannot
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | Path = b"",
    on_line: Callable[[bytes], None] | None = None,
    check: bool = True,
    pass_fds: Sequence[int] = (),
    ends_with_namespace: bool = False,
) -> Completed:
    """Run a program to its end.

    `timeout` is in seconds. `stdin` is what the program reads, or a file that
    holds it. `env` is its whole environment, `environment()` by default.
    `on_line` gets each line of the output, without its end, as it comes; what
    it raises kills the program. With `check`, a status other than 0 raises
    ProgramFailed, whose details hold the status and the end of the output. The
    program inherits the file descriptors `pass_fds`. With `ends_with_namespace` it enters the PID
    namespace of this process, and needs no other way to die with it.
    """
    start = time.monotonic()

    def spawned(stdin: int | IO[bytes]) -> Coroutine[None, None, asyncio.subprocess.Process]:
        return spawn(
            argv,
            cwd=cwd,
            env=env,
            stdin=stdin,
            pass_fds=pass_fds,
            ends_with_namespace=ends_with_namespace,
        )

    if isinstance(stdin, Path):
        with await asyncio.to_thread(stdin.open, "rb") as file:
            process = await spawned(file)
    else:
        process = await spawned(asyncio.subprocess.PIPE)
    drained = asyncio.create_task(_drain(process, on_line))
    try:
        async with asyncio.timeout(timeout):
            if not isinstance(stdin, Path):
                await _feed(process, stdin)
            output = await drained
            returncode = await process.wait()
    except TimeoutError:
        raise ProgramTimedOut(
            "timed_out", f"`{argv[0]}` was killed after {timeout:g} s", argv=_texts(argv)
        ) from None
    finally:
        await kill(process)
        drained.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drained
    done = Completed(_texts(argv), returncode, output, time.monotonic() - start)
    if check:
        done.check()
    return done


async def spawn(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = asyncio.subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    ends_with_namespace: bool = False,
) -> asyncio.subprocess.Process:
    """Start a program in a process group of its own, stderr joined to stdout; `kill` ends it.

    `env` is its whole environment, `environment()` by default.
    """
    program = require(str(argv[0]))
    bound = (require("setpriv"), "--pdeathsig=KILL", "sh", "-c", _IF_ALIVE, str(os.getpid()))
    start = asyncio.create_subprocess_exec(
        *(() if ends_with_namespace else bound),
        program,
        *_texts(argv[1:]),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cwd,
        env=environment() if env is None else env,
        start_new_session=True,
        pass_fds=pass_fds,
        limit=LINE_LIMIT,
    )
    starting = asyncio.create_task(start)
    try:
        return await asyncio.shield(starting)
    except OSError as error:
        raise InfrastructureError("cannot_start", f"cannot start `{program}`: {error}") from error
    except asyncio.CancelledError:
        # asyncio would kill the program alone, and wait for whoever else has its pipes.
        with contextlib.suppress(OSError):
            await kill(await starting)
        raise


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group and reap its leader; nothing happens to one that ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    # Its pipes stay open while a child that inherited them lives; they are read no more.
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    transport.close()
    if process.stdin is not None:
        process.stdin.close()
    await asyncio.sleep(0)  # the loop closes them in its next round


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _drain(
    process: asyncio.subprocess.Process, on_line: Callable[[bytes], None] | None
) -> bytes:
    assert process.stdout is not None
    kept, rest = bytearray(), b""
    try:
        while chunk := await process.stdout.read(1 << 14):
            kept += chunk
            if len(kept) > 2 * KEPT:
                del kept[:-KEPT]
            if on_line is not None:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    on_line(line)
                if len(rest) > LINE_LIMIT:
                    on_line(rest)
                    rest = b""
            await asyncio.sleep(0)  # a program that never stops talking must not stop the loop
        if on_line is not None and rest:
            on_line(rest)
    finally:
        # With the pipe full and nobody reading, `wait` would wait for ever.
        transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
        if (pipe := transport.get_pipe_transport(1)) is not None:
            pipe.close()
    return bytes(kept[-KEPT:])


def _texts(argv: Sequence[str | Path]) -> tuple[str, ...]:
    return tuple(str(word) for word in argv)
