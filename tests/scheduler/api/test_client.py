"""The client, against a real server; also over a line that breaks down."""

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kgym.api.changes import Change, ChangeFilter
from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.api.steps import BuildResult, StepKind
from kgym.client import ApiError, AsyncClient, Client, Refused, ServerFailed
from kgym.errors import InfrastructureError, UserError
from kgym.web.server import serve
from kgym.worker.context import StepContext
from kgym_scheduler.api.app import create_app
from kgym_scheduler.scheduler import Scheduler
from tests.conftest import ROOT
from tests.refused import refused
from tests.scheduler.parts import BUILD, BUILT, Line, Platform, job

pytestmark = pytest.mark.anyio

CONTENT = b"0123456789abcdef" * (1 << 17)  # 2 MiB


SLOW = BUILD.model_copy(update={"compiler": "clang"})


async def build(run: StepContext) -> BuildResult:
    """Log ten lines, slowly if asked to, and leave a file."""
    for number in range(10):
        run.log(f"line {number}")
        await asyncio.sleep(0.08 if run.assignment.spec == SLOW else 0)
    (run.folder / "vmlinux").write_bytes(CONTENT)
    await run.keep(run.folder / "vmlinux")
    return BUILT


@pytest.fixture
async def server(platform: Platform, scheduler: Scheduler) -> AsyncIterator[str]:
    """The URL of a scheduler that has a worker."""
    async with (
        serve(create_app(scheduler)) as address,
        platform.worker(scheduler, {StepKind.BUILD: build}, slots=4),
    ):
        yield address.url


@pytest.fixture
async def client(server: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server) as client:
        yield client


async def test_a_job_goes_from_submission_to_its_result(client: AsyncClient) -> None:
    view = await client.submit(job(tags=("mine",)))
    assert view.state is State.QUEUED
    after = await client.wait(view.id)
    assert (after.state, after.steps[0].result) == (State.SUCCEEDED, BUILT)
    assert await client.job(view.id) == after
    assert (await client.log(view.id)).splitlines() == [f"line {n}" for n in range(10)]
    assert await client.log(view.id, step=0, attempt=2) == ""
    assert [w.running for w in await client.workers()] == [[]]
    assert {queue.queued for queue in await client.queues()} == {0}


@pytest.mark.thorough
async def test_events_go_on_after_a_lost_connection(client: AsyncClient, server: str) -> None:
    line = Line(server, cuts=3, after=400)
    view = await client.submit(job(SLOW))
    async with line.laid() as url, AsyncClient(url) as distant:
        events = [event async for event in distant.events(view.id)]
    assert line.connections > 1
    everything = [event async for event in client.events(view.id)]
    assert [event for event in events if event.kind != "progress"] == everything


async def test_a_job_that_is_not_there_is_refused(client: AsyncClient) -> None:
    with pytest.raises(Refused, match="there is no job 7") as error:
        await client.job(7)
    assert (error.value.status, error.value.reason) == (404, "job_not_found")
    assert error.value.problem["instance"] == "/v1/jobs/7"
    assert error.value.details == {"job": 7}
    assert isinstance(error.value, UserError)
    with pytest.raises(Refused, match="there is no job 7"):
        await anext(client.events(7))


async def test_a_server_that_fails_may_be_asked_again(
    client: AsyncClient, platform: Platform
) -> None:
    view = await client.submit(job())
    await client.wait(view.id)
    [artifact] = [a for a in await client.artifacts(view.id, 0) if a.name == "vmlinux"]
    (platform.storage.root / artifact.key).unlink()
    with pytest.raises(ServerFailed) as error:
        await client.download(view.id, 0, "vmlinux", platform.storage.root / "out")
    assert isinstance(error.value, ApiError)
    assert isinstance(error.value, InfrastructureError)


async def test_a_server_that_is_not_there_is_named() -> None:
    async with AsyncClient("http://127.0.0.1:9") as client:
        with refused(
            "scheduler_unreachable", r"http://127\.0\.0\.1:9 .*kgym up", InfrastructureError
        ):
            await client.job(1)
        with pytest.raises(InfrastructureError, match="no scheduler answers"):
            await anext(client.events(1))


@pytest.mark.thorough
async def test_all_pages_of_a_list_are_read(client: AsyncClient) -> None:
    for _ in range(5):
        await client.submit(job(tags=("some",)))
    paged = [view.id async for view in client.jobs(JobFilter(tag="some", limit=2))]
    assert paged == [view.id async for view in client.jobs()] == [5, 4, 3, 2, 1]


@pytest.mark.thorough
async def test_abort_restart_and_tags(client: AsyncClient) -> None:
    view = await client.submit(job(SLOW))
    assert (await client.abort(view.id)).state is State.ABORTED
    assert (await client.tag(view.id, ["new"])).tags == ["new"]
    again = await client.restart(view.id, from_step=0)
    assert again.state in {State.QUEUED, State.RUNNING}  # a worker may be quick
    assert (await client.wait(view.id)).state is State.SUCCEEDED


# --- downloads ------------------------------------------------------------------------------


async def built(client: AsyncClient) -> int:
    view = await client.submit(job())
    assert (await client.wait(view.id)).state is State.SUCCEEDED
    return view.id


@pytest.mark.thorough
async def test_a_download_goes_on_after_a_lost_connection(
    client: AsyncClient, server: str, tmp_path: Path
) -> None:
    job_id = await built(client)
    line = Line(server, cuts=3, after=500_000)
    async with line.laid() as url, AsyncClient(url) as distant:
        artifact = await distant.download(job_id, 0, "vmlinux", tmp_path / "vmlinux")
    assert artifact.size == len(CONTENT)
    assert (tmp_path / "vmlinux").read_bytes() == CONTENT
    assert line.connections == 5  # one for the list of artifacts
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*.part"))


async def test_a_download_uses_what_an_interrupted_one_has_left(
    client: AsyncClient, tmp_path: Path
) -> None:
    job_id = await built(client)
    [artifact] = [a for a in await client.artifacts(job_id, 0) if a.name == "vmlinux"]
    part = tmp_path / f".vmlinux.{artifact.sha256[:16]}.part"
    part.write_bytes(CONTENT[:1_000_000])
    await client.download(job_id, 0, "vmlinux", tmp_path / "vmlinux")
    assert (tmp_path / "vmlinux").read_bytes() == CONTENT
    assert not part.exists()


async def test_a_corrupt_file_does_not_appear(
    client: AsyncClient, platform: Platform, tmp_path: Path
) -> None:
    job_id = await built(client)
    [artifact] = [a for a in await client.artifacts(job_id, 0) if a.name == "vmlinux"]
    (platform.storage.root / artifact.key).write_bytes(b"x" * len(CONTENT))
    with refused("artifact_corrupt", "SHA-256 mismatch", InfrastructureError):
        await client.download(job_id, 0, "vmlinux", tmp_path / "vmlinux")
    assert not (tmp_path / "vmlinux").exists()


async def test_an_artifact_that_is_not_there_is_named_with_those_that_are(
    client: AsyncClient, tmp_path: Path
) -> None:
    job_id = await built(client)
    with pytest.raises(UserError, match=r"no artifact 'bzImage' \(it left: vmlinux, step.log\)"):
        await client.download(job_id, 0, "bzImage", tmp_path / "bzImage")


# --- blocking -------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_the_blocking_client_does_the_same(
    server: str, tmp_path: Path, platform: Platform
) -> None:
    def use(client: Client) -> None:
        view = client.submit(job(tags=("mine",)), "key")
        assert client.submit(job(tags=("mine",)), "key").id == view.id
        after = client.wait(view.id)
        assert after.state is State.SUCCEEDED
        assert client.log(view.id).startswith("line 0\nline 1\n")
        client.download(view.id, 0, "vmlinux", tmp_path / "vmlinux")
        assert (tmp_path / "vmlinux").read_bytes() == CONTENT
        second = client.submit(job(SLOW))
        assert client.abort(second.id).state is State.ABORTED
        assert client.restart(second.id).state is State.QUEUED
        client.tag(second.id, ["mine"])
        assert [view.id for view in client.jobs(JobFilter(tag="mine", limit=1))] == [2, 1]
        assert client.workers()
        assert client.queues()
        client.wait(second.id)
        with pytest.raises(Refused, match="has succeeded already"):
            client.abort(second.id)

    with Client(server) as client:
        await asyncio.to_thread(use, client)


@pytest.mark.thorough
async def test_the_blocking_client_goes_on_after_a_lost_connection(
    client: AsyncClient, server: str, tmp_path: Path
) -> None:
    def use(url: str) -> None:
        with Client(url) as client:
            assert client.wait(client.submit(job(SLOW)).id).state is State.SUCCEEDED
            client.download(1, 0, "vmlinux", tmp_path / "vmlinux")

    line = Line(server, cuts=3, after=4000)
    async with line.laid() as url:
        await asyncio.to_thread(use, url)
    assert (tmp_path / "vmlinux").read_bytes() == CONTENT
    assert line.connections > 3


@pytest.mark.thorough
async def test_changes_of_all_jobs_go_on_after_a_lost_connection(
    client: AsyncClient, server: str
) -> None:
    line = Line(server, cuts=3, after=1200)
    begin = (await client.change_page(ChangeFilter())).next
    heard: list[Change] = []
    async with line.laid() as url, AsyncClient(url) as distant:
        jobs = [(await client.submit(job(SLOW))).id for _ in range(6)]
        async for change in distant.changes(begin):
            if change.kind == "state":
                heard.append(change)
            if len(heard) == 3 * len(jobs):
                break
    assert line.connections > 1
    page = await client.change_page(ChangeFilter(after=begin, limit=1000))
    assert page.changes == heard
    assert (page.more, page.reset) == (False, False)
    assert {change.job for change in heard} == set(jobs)


async def test_blocking_changes_are_the_same(client: AsyncClient, server: str) -> None:
    begin = (await client.change_page(ChangeFilter())).next
    await client.wait((await client.submit(job())).id)

    def three() -> list[Change]:
        with Client(server) as blocking:
            heard = blocking.changes(begin)
            assert next(heard).kind == "begin"
            return [next(heard) for _ in range(3)]

    assert (
        await asyncio.to_thread(three)
        == (await client.change_page(ChangeFilter(after=begin))).changes
    )


async def test_a_cursor_that_is_none_is_refused(server: str) -> None:
    async with httpx.AsyncClient(base_url=f"{server}/v1", timeout=60) as plain:
        for cursor in ("x", "-1", "1" * 19):
            headers = {"Accept": "text/event-stream", "Last-Event-ID": cursor}
            assert (await plain.get("changes", headers=headers)).status_code == 422
        for params in ({"after": "1 "}, {"limit": "1001"}, {"before": "7"}):
            assert (await plain.get("changes", params=params)).status_code == 422


@pytest.mark.thorough
async def test_several_threads_use_one_blocking_client(server: str) -> None:
    def use(number: int) -> State:
        return client.wait(client.submit(job(tags=(f"of-{number}",))).id).state

    # Its own threads: the server, in this process, needs those of `asyncio.to_thread`.
    with Client(server) as client, ThreadPoolExecutor(10) as threads:
        loop = asyncio.get_running_loop()
        states = await asyncio.gather(
            *(loop.run_in_executor(threads, use, number) for number in range(20))
        )
    assert states == [State.SUCCEEDED] * 20
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.queues()


@pytest.mark.thorough
async def test_events_of_a_blocking_client_can_be_left(server: str) -> None:
    def use() -> None:
        with Client(server) as client:
            view = client.submit(job(SLOW))
            for event in client.events(view.id):
                assert event.id
                break
            assert client.wait(view.id).state is State.SUCCEEDED

    await asyncio.to_thread(use)


SCRIPT = """
import os, signal, sys, threading
from kgym.client import Client
client = Client(sys.argv[1])
{0}
"""
INTERRUPTED = """
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for change in client.changes():
        pass
except KeyboardInterrupt:
    print(len(client.workers()))
"""
LEFT_OPEN = """
changes = client.changes()
print(next(changes).kind)
"""
FORKED = """
print(len(client.workers()), flush=True)
child = os.fork()
print(len(client.workers()), flush=True)
if child:
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "printed"),
    [(INTERRUPTED, "1\n"), (LEFT_OPEN, "begin\n"), (FORKED, "1\n1\n1\n0\n")],
    ids=["interrupted", "left-open", "forked"],
)
async def test_a_program_with_a_blocking_client_ends(
    server: str, script: str, printed: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.format(script),
        server,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT / "common"), "PATH": "/usr/bin"},
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, output.decode()) == (0, printed)
