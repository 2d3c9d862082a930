"""Stored runs: whole after a kill, owned by one process, and not all in memory."""

import asyncio
import gzip
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kgym.api.agent.conversation import Reply
from kgym.api.agent.runs import RunFilter, RunRequest, RunState
from kgym.errors import Conflict, InfrastructureError, NotFound
from kgym_crashfixer.runs.run_store import (
    Answered,
    Batch,
    Created,
    RunRecord,
    RunStore,
    RunWriter,
    Sent,
)
from kgym_crashfixer.search.work import Answer, Unanswered
from tests.conftest import ROOT

pytestmark = pytest.mark.anyio
REQUEST = RunRequest(bug="one", model="made:up")


def created(idempotency_key: str | None = None) -> Created:
    return Created(
        key="key",
        strategy="forest",
        submitter="local",
        request=REQUEST,
        created_at=datetime.now(UTC),
        idempotency_key=idempotency_key,
        body_hash="hash",
    )


async def taken(store: RunStore, key: str | None = None) -> tuple[int, RunWriter]:
    """A new run that this process owns."""
    run, _ = await store.create(created(key))
    return run, await store.take(run, REQUEST)


def batch(number: int) -> Batch:
    """A batch that is about a kilobyte, whatever compresses it."""
    return Batch(events=[("asked", {"number": number, "noise": os.urandom(500).hex()})])


async def numbers(store: RunStore, run: int) -> list[object]:
    return [event.data["number"] for event in await store.read(run, RunRecord.events)]


async def test_answers_and_failures_are_stored_side_by_side(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run, writer = await taken(store)
    names = ["a", "b", "c", "d"]
    await writer.write(Batch(sent=[Sent(name, "t0", "patch") for name in names]))
    reply = Reply(text="yes", model="made:up", price=0.5)
    answers = [Answered("a", reply), Answered("b", error="gone"), Answered("c", reply)]
    results = [("a", Answer(text="yes")), ("b", Unanswered(reason="gone"))]
    await writer.write(Batch(answered=answers, results=list(results)))
    await writer.write(Batch(sent=[Sent(name, "t0", "patch", again=True) for name in ("b", "d")]))
    assert await store.read(run, RunRecord.results) == results
    unfinished = await store.read(run, RunRecord.unfinished_calls)
    assert {name: reply is not None for name, (_, reply) in unfinished.items()} == {
        "c": True,
        "d": False,
    }
    calls = await store.read(run, lambda record: [record.call(name) for name in names])
    assert [call.asked for call in calls] == [1, 2, 1, 2]
    assert [call.reply is not None for call in calls] == [True, False, True, False]
    spent = await store.read(run, RunRecord.spent)
    assert (spent.calls, spent.known_dollars, spent.lost_calls) == (2, 1.0, 1)
    assert spent.dollars is None  # the lost answer may have been paid for


@pytest.mark.parametrize("cut", [1, 10, 400])
async def test_a_torn_last_entry_is_ignored_and_removed_when_the_run_goes_on(
    tmp_path: Path, cut: int
) -> None:
    store = RunStore(tmp_path)
    run, writer = await taken(store)
    for number in range(3):
        await writer.write(batch(number))
    await store.release(run, writer)
    path = tmp_path / str(run) / "events.gz"
    os.truncate(path, path.stat().st_size - cut)
    again = RunStore(tmp_path)
    assert await numbers(again, run) == [0, 1]
    assert (await again.page(None, 1))[0].state is RunState.INTERRUPTED
    writer = await again.take(run, REQUEST)
    await writer.write(batch(3))
    await again.release(run, writer)
    assert await numbers(RunStore(tmp_path), run) == [0, 1, 3]
    lines = gzip.decompress(path.read_bytes()).splitlines()  # for `zcat`
    assert all(json.loads(line) for line in lines)


async def test_a_batch_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run, writer = await taken(store)
    await writer.write(batch(0))
    size = (tmp_path / str(run) / "events.gz").stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limit[1]))  # as on a full disk
    try:
        with pytest.raises(InfrastructureError, match=r"events\.gz cannot be written"):
            await writer.write(batch(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    await writer.write(batch(2))
    assert await numbers(store, run) == [0, 2]


CHILD = """
import asyncio, sys
from pathlib import Path
from kgym_crashfixer.runs.run_store import RunStore
from tests.crashfixer.test_store import batch, taken

async def main():
    store = RunStore(Path(sys.argv[1]))
    run, writer = await taken(store, "k")
    for number in range(100000):
        await writer.write(batch(number))
        print(number, flush=True)

asyncio.run(main())
"""


def child(folder: Path) -> subprocess.Popen[str]:
    path = f"{ROOT}:{ROOT / 'common'}:{ROOT / 'services'}"
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)],
        cwd=ROOT,
        env={"PYTHONPATH": path, "PATH": "/usr/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.thorough
async def test_a_kill_loses_nothing_that_was_written_and_frees_the_run(tmp_path: Path) -> None:
    process = child(tmp_path)
    assert process.stdout is not None
    while process.stdout.readline() != "20\n":
        assert process.poll() is None
    store = RunStore(tmp_path)
    assert (await store.page(None, 1))[0].state is RunState.RUNNING
    with pytest.raises(Conflict, match="run 1 is running"):
        await store.take(1, REQUEST)
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    written = [*range(21), *map(int, rest.split())]
    assert (await store.page(None, 1))[0].state is RunState.INTERRUPTED
    stored = [
        event.data["number"]
        for part in range(0, len(written) + 1, 1000)
        for event in await store.read(1, lambda record, part=part: record.events(part))  # type: ignore[misc]
    ]
    assert stored[: len(written)] == written
    # The entry that was written last may not have been reported yet.
    assert stored in (written, [*written, written[-1] + 1])
    # Across the kill, the same key is the same run.
    assert await store.create(created("k")) == (1, False)
    writer = await store.take(1, REQUEST)
    assert (await store.page(None, 1))[0].state is RunState.RUNNING
    await store.release(1, writer)


async def test_a_kill_between_a_key_and_its_run_begins_the_run_once(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / ".new").mkdir()  # as a killed process leaves it
    first, _ = await store.create(created("k"))
    (tmp_path / str(first)).rename(tmp_path / "gone")  # its key is there, and it is not
    other, _ = await store.create(created())
    again = await store.create(created("k"))
    assert again == (first + 2, True)
    assert other == first + 1  # numbers do not come again
    assert await store.create(created("k")) == (first + 2, False)


def _begin(folder: Path) -> list[int]:
    async def main() -> list[int]:
        store = RunStore(folder)
        runs = [await store.create(created(f"k{number}")) for number in range(20)]
        return [run for run, _ in runs]

    return asyncio.run(main())


@pytest.mark.thorough
async def test_processes_that_begin_the_same_runs_get_the_same_numbers(tmp_path: Path) -> None:
    def begun() -> list[list[int]]:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            return pool.map(_begin, [tmp_path] * 4)

    runs = await asyncio.to_thread(begun)
    assert runs == [runs[0]] * 4
    assert len(set(runs[0])) == 20


@pytest.mark.thorough
async def test_lists_read_summaries_and_few_runs_are_in_memory(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for number in range(30):
        run, writer = await taken(store)
        await writer.write(batch(number))
        await writer.write(Batch(ended=(RunState.FAILED if number % 2 else RunState.STOPPED, "so")))
        await store.release(run, writer)
    other = RunStore(tmp_path)
    assert [run.id for run in await other.page(None, 3)] == [30, 29, 28]
    failed = await other.page(11, 3, RunFilter(state=RunState.FAILED))
    assert [run.id for run in failed] == [10, 8, 6]
    assert await other.counts() == ({RunState.FAILED: 15, RunState.STOPPED: 15}, 0)
    assert len(other.records) == 0
    for run in range(1, 31):
        await other.read(run, RunRecord.events)
    assert len(other.records) < 10


async def test_one_unreadable_run_never_breaks_a_list(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for _ in range(3):
        run, writer = await taken(store)
        await store.release(run, writer)
    (tmp_path / "2" / "events.gz").write_bytes(b"\x1f\x8bnonsense")
    again = RunStore(tmp_path)
    assert [run.id for run in await again.page(None, 10)] == [3, 1]
    with pytest.raises(InfrastructureError, match="run 2 cannot be read"):
        await again.read(2, RunRecord.events)
    with pytest.raises(NotFound, match="there is no run 4"):
        await again.read(4, RunRecord.events)
