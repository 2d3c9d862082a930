"""Work on hostile input in a separate process, with limits of time and memory.

A thread would hold Python's global lock for seconds, delay the event loop, and could not be
killed. Small work is still done in a thread, as a process takes longer to start.
"""

import asyncio
import os
import pickle
import resource
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import proc

SECONDS = 60.0
# Bytes of address space.
MEMORY = 2 << 30
# Maximum weight of work that is done in a thread: about 0.1 s. A weight is the number of bytes
# scanned, each counted as often as it is scanned.
SMALL = 32 << 20

P = ParamSpec("P")
T = TypeVar("T")


async def call(weight: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`; function and arguments must be picklable.

    Raises what the function raises, and UserError `too_much_work` over a limit.
    """
    if weight <= SMALL:
        return await asyncio.to_thread(function, *args, **kwargs)
    return await within(SECONDS, MEMORY, function, *args, **kwargs)


async def within(
    seconds: float, memory: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `function(*args, **kwargs)`, called in a process with these limits."""
    call, result = os.memfd_create("call"), os.memfd_create("result")
    try:
        await asyncio.to_thread(_write, call, (function, args, kwargs))
        await _run(call, result, seconds, memory)
        answer: T | KgymError = await asyncio.to_thread(_read, result)
    finally:
        os.close(call)
        os.close(result)
    if isinstance(answer, KgymError):
        raise answer
    return answer


async def _run(call: int, result: int, seconds: float, memory: int) -> None:
    # Not with `-m`: pickles name this module, which would then be `__main__`.
    program = f"from {__name__} import work; work({call}, {result}, {memory})"
    argv = [sys.executable, "-P", "-c", program]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": path}
    try:
        done = await proc.run(argv, timeout=seconds, env=env, check=False, pass_fds=(call, result))
    except proc.ProgramTimedOut as error:
        raise _too_much(f"{seconds:g} s") from error
    if done.returncode != 0:
        raise InfrastructureError("work_failed", f"status {done.returncode}: {done.text[-1000:]}")


def _too_much(limit: str) -> UserError:
    return UserError("too_much_work", f"this input takes more than {limit}")


def _write(file: int, value: object) -> None:
    with os.fdopen(os.dup(file), "wb") as out:
        pickle.dump(value, out, pickle.HIGHEST_PROTOCOL)


def _read(file: int) -> Any:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as source:
        return pickle.load(source)  # noqa: S301 - written by this module


def work(call: int, result: int, memory: int) -> None:
    """Read the call from one file, and write its result or error to the other."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answer: object
    try:
        function, args, kwargs = _read(call)
        answer = function(*args, **kwargs)
        _write(result, answer)
    except KgymError as error:
        _write(result, error)
    except MemoryError:
        os.ftruncate(result, 0)
        os.lseek(result, 0, os.SEEK_SET)
        _write(result, _too_much(f"{memory >> 20} MiB of memory"))
