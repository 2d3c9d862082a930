"""Large work on hostile input is done by a process that can be ended."""

import asyncio
import os
import time

import pytest

from kgym.errors import InfrastructureError, UserError
from kgym.host import separate_process

pytestmark = pytest.mark.anyio
LARGE = separate_process.SMALL + 1


def whose(token: str) -> tuple[int, str | None]:
    return os.getpid(), os.environ.get(token)


def refuse(what: str) -> None:
    raise UserError("refused", f"no {what}", what=what, line=7)


def forever() -> None:
    while True:
        pass


def everything() -> int:
    return len(bytearray(8 << 30))


def vanish() -> None:
    os._exit(7)


async def test_small_work_is_done_here_and_large_work_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KGYM_TOKEN", "secret")
    assert await separate_process.call(1, whose, "KGYM_TOKEN") == (os.getpid(), "secret")
    process, token = await separate_process.call(LARGE, whose, "KGYM_TOKEN")
    assert process != os.getpid()
    assert token is None


@pytest.mark.parametrize("weight", [1, LARGE])
async def test_a_refusal_arrives_as_it_was_raised(weight: int) -> None:
    with pytest.raises(UserError) as caught:
        await separate_process.call(weight, refuse, "way")
    error = caught.value
    assert (error.reason, error.message) == ("refused", "no way")
    assert error.details == {"what": "way", "line": 7}


@pytest.mark.thorough
async def test_work_without_an_end_is_ended_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(separate_process, "SECONDS", 2.0)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(UserError, match="takes more than 2 s"):
        await separate_process.call(LARGE, forever)
    ticking.cancel()
    assert ticks > 10


async def test_work_that_takes_all_memory_is_refused() -> None:
    with pytest.raises(UserError, match="2048 MiB of memory"):
        await separate_process.call(LARGE, everything)


async def test_work_that_is_lost_is_nobodys_verdict() -> None:
    with pytest.raises(InfrastructureError, match="status 7"):
        await separate_process.call(LARGE, vanish)


@pytest.mark.thorough
async def test_work_that_is_cancelled_ends() -> None:
    started = time.monotonic()
    task = asyncio.create_task(separate_process.call(LARGE, forever))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < separate_process.SECONDS
