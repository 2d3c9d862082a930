"""The only place that runs programs.

Every program has a time limit, and its output is read while it runs. Its process group is killed
at the limit, when the awaiting task is cancelled, and (by the kernel's parent-death signal) when
this process is killed. It gets a list of harmless environment variables, without secrets.
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

# Bytes after which a line is passed on in pieces.
LINE_LIMIT = 1 << 20
# Bytes of output that are kept; the end of longer output.
KEPT = 8 << 20


_FULL = re.compile("No space left on device|Disk quota exceeded")


class ProgramFailed(KgymError):
    """A program ended with a status other than 0."""


class ProgramTimedOut(InfrastructureError):
    """A program was killed at its time limit."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended. `output` is stdout and stderr, interleaved in order of arrival."""

    argv: tuple[str, ...]
    returncode: int
    output: bytes
    seconds: float

    @property
    def text(self) -> str:
        """The output as text; invalid UTF-8 is replaced."""
        return self.output.decode(errors="replace")

    def check(self) -> None:
        """Raise ProgramFailed if the exit status is not 0; InfrastructureError `disk_full`."""
        if self.returncode != 0:
            lines = [line.strip() for line in self.text.strip().splitlines()[-5:]]
            words = " / ".join(lines)[-1000:] or "it printed nothing"
            message = f"`{' '.join(self.argv[:3])}` ended with status {self.returncode}: {words}"
            # A full disk is this host's fault, whatever callers make of a program that fails.
            if _FULL.search(words):
                raise InfrastructureError("disk_full", message)
            raise ProgramFailed("program_failed", message, status=self.returncode)


def require(program: str) -> str:
    """Return the path of `program`; raise InfrastructureError `missing_tool` without it."""
    path = shutil.which(program)
    if path is None:
        raise InfrastructureError(
            "missing_tool",
            f"the program `{program}` is not installed; ./run installs the required programs",
            tool=program,
        )
    return path


# A worker's environment holds its token and the bus's password, and a process shows the environment
# that it was started with in /proc/PID/environ, even if it clears it later. So this is a list of
# allowed variables.
_HANDED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|SSL_CERT_(FILE|DIR)|GIT_SSL_CAINFO"
    r"|(https?|ftp|all|no)_proxy|(HTTPS?|FTP|ALL|NO)_PROXY"
)


def environment() -> dict[str, str]:
    """Return the variables of this process's environment that programs may see."""
    return {name: value for name, value in os.environ.items() if _HANDED_ON.fullmatch(name)}


@functools.cache
def privileged() -> bool:
    """Return whether this process has root's capabilities; user 0 of a container often does not.

    From capabilities(7) and user_namespaces(7): capabilities over files, users and mounts, and
    all users of the host mapped, as they are not in a user namespace.
    """
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("\nCapEff:")[2].split()[0], 16)
    everybody = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    return everybody and all(effective >> capability & 1 for capability in _OF_ROOT)


@functools.cache
def countable() -> bool:
    """Return whether the kernel limits the number of this user's processes.

    It does not limit the host's user 0, in any user namespace and with any capabilities
    (kernel/fork.c, `copy_process`: INIT_USER is exempt from RLIMIT_NPROC).
    """
    argv = ["prlimit", "--nproc=1", "sh", "-c", "true & wait"]
    return subprocess.run(argv, check=False, capture_output=True, timeout=20).returncode != 0


# The parent-death signal is not sent if the parent died before the child requested it.
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
    """Run a program until it ends.

    `timeout` is in seconds. `stdin` is its input, or a file with the input. `env` is its whole
    environment, `environment()` by default. `on_line` is called with each line of output, without
    the newline, as it arrives; an exception from it kills the program. With `check`, a status
    other than 0 raises ProgramFailed, with the status and the end of the output. The program
    inherits the file descriptors `pass_fds`. With `ends_with_namespace`, the program enters
    `pid_namespace`, which ends with this process, and gets no parent-death signal.
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
        # asyncio would kill only the program, and wait for its descendants to close the pipes.
        with contextlib.suppress(OSError):
            await kill(await starting)
        raise


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group and reap its leader; do nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    # A descendant that left the group may keep the pipes open: do not wait for it.
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    transport.close()
    if process.stdin is not None:
        process.stdin.close()
    await asyncio.sleep(0)  # the event loop closes them in its next iteration


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
            await asyncio.sleep(0)  # endless output must not block the event loop
        if on_line is not None and rest:
            on_line(rest)
    finally:
        # With a full pipe and no reader, the program would never end.
        transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
        if (pipe := transport.get_pipe_transport(1)) is not None:
            pipe.close()
    return bytes(kept[-KEPT:])


def _texts(argv: Sequence[str | Path]) -> tuple[str, ...]:
    return tuple(str(word) for word in argv)
