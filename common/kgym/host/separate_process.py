"""Work on hostile input, away from the event loop and with limits.

Python's threads share one lock: what takes seconds in one of them holds up the loop, and cannot
be ended. So large work is done by a process of its own, with limits of time and memory; small
work by a thread, since the start of a process takes longer than it.
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
# Work up to here is done in a thread: some 0.1 s. `weight` counts bytes that are scanned once.
SMALL = 32 << 20

P = ParamSpec("P")
T = TypeVar("T")


async def call(weight: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`; it stands in a module, and what it takes can be pickled.

    Raises what it raises, and UserError `too_much_work` where it takes more time or memory
    than is allowed.
    """
    if weight <= SMALL:
        return await asyncio.to_thread(function, *args, **kwargs)
    return await within(SECONDS, MEMORY, function, *args, **kwargs)


async def within(
    seconds: float, memory: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `function(*args, **kwargs)`, done by a process of its own with these limits."""
    given, told = os.memfd_create("given"), os.memfd_create("told")
    try:
        await asyncio.to_thread(_write, given, (function, args, kwargs))
        await _run(given, told, seconds, memory)
        answer: T | KgymError = await asyncio.to_thread(_read, told)
    finally:
        os.close(given)
        os.close(told)
    if isinstance(answer, KgymError):
        raise answer
    return answer


async def _run(given: int, told: int, seconds: float, memory: int) -> None:
    # Not by `-m`: what is pickled names this module by its own name, not as `__main__`.
    program = f"from {__name__} import work; work({given}, {told}, {memory})"
    argv = [sys.executable, "-P", "-c", program]
    path = os.pathsep.join(one for one in sys.path if one)
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": path}
    try:
        done = await proc.run(argv, timeout=seconds, env=env, check=False, pass_fds=(given, told))
    except proc.ProgramTimedOut as error:
        raise _too_much(f"{seconds:g} s") from error
    if done.returncode != 0:
        end = done.text[-1000:]
        raise InfrastructureError("work_failed", f"status {done.returncode}: {end}")


def _too_much(limit: str) -> UserError:
    return UserError("too_much_work", f"this patch, on these files, takes more than {limit}")


def _write(file: int, value: object) -> None:
    with os.fdopen(os.dup(file), "wb") as out:
        pickle.dump(value, out, pickle.HIGHEST_PROTOCOL)


def _read(file: int) -> Any:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as source:
        return pickle.load(source)  # noqa: S301 - this module wrote it, in a process of ours


def work(given: int, told: int, memory: int) -> None:
    """Be the process: do what the one file says, and write the answer to the other."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answer: object
    try:
        function, args, kwargs = _read(given)
        answer = function(*args, **kwargs)
        _write(told, answer)
    except KgymError as error:
        _write(told, error)
    except MemoryError:
        os.ftruncate(told, 0)
        os.lseek(told, 0, os.SEEK_SET)
        _write(told, _too_much(f"{memory >> 20} MiB of memory"))
