"""Programs end: by themselves, at their limit, or with whoever waits for them."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgym.errors import InfrastructureError, UserError
from kgym.host import proc, separate_process
from tests.conftest import ROOT
from tests.refused import refused

pytestmark = pytest.mark.anyio


async def tick(ticks: list[None]) -> None:
    """Add a tick a hundred times a second, as long as nothing else holds the loop up."""
    while True:
        await asyncio.sleep(0.01)
        ticks.append(None)


def alive(marker: str) -> bool:
    argv = ["pgrep", "-f", f"^sleep {marker}"]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


async def test_output_of_both_streams_and_the_status_are_returned() -> None:
    done = await proc.run(["sh", "-c", "echo a; echo b >&2; exit 3"], timeout=10, check=False)
    assert (done.returncode, done.text) == (3, "a\nb\n")


async def test_a_status_other_than_zero_is_an_error_that_shows_the_end_of_the_output() -> None:
    with pytest.raises(proc.ProgramFailed, match=r"status 4: it broke"):
        await proc.run(["sh", "-c", "echo it broke; exit 4"], timeout=10)


async def test_stdin_is_given_as_bytes_or_as_a_file(tmp_path: Path) -> None:
    assert (await proc.run(["cat"], timeout=10, stdin=b"bytes")).output == b"bytes"
    (tmp_path / "in").write_bytes(b"file")
    assert (await proc.run(["cat"], timeout=10, stdin=tmp_path / "in")).output == b"file"


async def test_a_program_that_does_not_read_its_stdin_is_no_error() -> None:
    await proc.run(["true"], timeout=10, stdin=b"x" * (1 << 22))


async def test_lines_come_as_they_are_printed_also_the_last_without_an_end() -> None:
    lines: list[bytes] = []
    await proc.run(["printf", r"a\nb\r\n\377"], timeout=10, on_line=lines.append)
    assert lines == [b"a", b"b\r", b"\xff"]


async def test_of_long_output_the_end_is_kept() -> None:
    size = 3 * proc.KEPT
    done = await proc.run(["sh", "-c", f"head -c {size} /dev/zero; echo end"], timeout=30)
    assert len(done.output) <= proc.KEPT
    assert done.output.endswith(b"end\n")


async def test_what_the_reader_of_lines_raises_ends_a_program_that_never_stops_talking() -> None:
    def refuse(line: bytes) -> None:
        raise RuntimeError("enough")

    for argv in (["yes"], ["cat", "/dev/zero"]):
        with pytest.raises(RuntimeError, match="enough"):
            await proc.run(argv, timeout=10, on_line=refuse)


@pytest.mark.thorough
async def test_a_program_that_never_stops_talking_does_not_stop_the_others() -> None:
    ticks: list[None] = []
    ticking = asyncio.create_task(tick(ticks))
    with pytest.raises(proc.ProgramTimedOut):
        await proc.run(["yes"], timeout=1, on_line=lambda line: None)
    ticking.cancel()
    assert len(ticks) > 5


@pytest.mark.thorough
async def test_a_limit_ends_the_whole_process_group() -> None:
    with pytest.raises(proc.ProgramTimedOut):
        await proc.run(["sh", "-c", "sleep 7351.1 & sleep 7351.2"], timeout=0.3)
    assert not alive("7351")


async def test_cancelling_ends_the_whole_process_group() -> None:
    task = asyncio.create_task(proc.run(["sh", "-c", "sleep 7352.1 & wait"], timeout=60))
    async with asyncio.timeout(10):
        while not alive("7352.1"):
            await asyncio.sleep(0.02)
    start = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - start < 1
    assert not alive("7352.1")


@pytest.mark.parametrize("rounds", range(6))
async def test_cancelling_while_it_starts_leaves_nothing_running(rounds: int) -> None:
    marker = f"7354.{rounds}1"
    task = asyncio.create_task(proc.run(["sh", "-c", f"sleep {marker} & wait"], timeout=60))
    for _ in range(rounds):
        await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251 - the program gets ahead of the loop
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()
    assert not alive(marker)


async def test_a_program_dies_with_a_parent_that_is_killed() -> None:
    code = (
        "import asyncio\nfrom kgym.host import proc\n"
        "asyncio.run(proc.run(['sh', '-c', 'exec sleep 7353.1'], timeout=60))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "common")}
    parent = await proc.spawn([sys.executable, "-c", code], env=environment)
    async with asyncio.timeout(20):
        while not alive("7353.1"):
            await asyncio.sleep(0.05)
        parent.kill()
        while alive("7353.1"):
            await asyncio.sleep(0.05)
    await proc.kill(parent)


async def test_a_missing_program_is_named() -> None:
    with refused("missing_tool", "no-such-program", InfrastructureError):
        await proc.run(["no-such-program"], timeout=10)


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


@pytest.mark.thorough
async def test_small_work_is_done_here_and_large_work_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KGYM_TOKEN", "secret")
    assert await separate_process.call(1, whose, "KGYM_TOKEN") == (os.getpid(), "secret")
    process, token = await separate_process.call(LARGE, whose, "KGYM_TOKEN")
    assert process != os.getpid()
    assert token is None


@pytest.mark.thorough
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
    ticks: list[None] = []
    ticking = asyncio.create_task(tick(ticks))
    with pytest.raises(UserError, match="takes more than 2 s"):
        await separate_process.call(LARGE, forever)
    ticking.cancel()
    assert len(ticks) > 10


@pytest.mark.thorough
async def test_work_that_takes_all_memory_is_refused() -> None:
    with pytest.raises(UserError, match="2048 MiB of memory"):
        await separate_process.call(LARGE, everything)


@pytest.mark.thorough
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
