"""Workers that share a folder: each has its own, and only the dead are cleaned up after."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kgym.api.states import State
from kgym.api.steps import BuildResult, StepKind
from kgym.worker.context import StepContext
from kgym.worker.work_folder import own_folder, remove_left
from tests.scheduler.parts import BUILT, Platform, job

pytestmark = pytest.mark.anyio

LIMIT = 30
HOLDER = """
import asyncio, sys
from pathlib import Path
from kgym.worker.work_folder import own_folder

async def main():
    async with own_folder(Path(sys.argv[1])) as folder:
        (folder / "deep/er").mkdir(parents=True)
        print(folder, flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


def holder(shared: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder of its own, until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, shared],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.thorough
async def test_what_a_dead_worker_left_is_removed_by_the_next_and_nothing_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "somebody's").mkdir()
    (dead, left), (alive, used) = holder(tmp_path), holder(tmp_path)
    dead.send_signal(signal.SIGKILL)
    dead.communicate(timeout=LIMIT)
    assert left.exists()
    async with own_folder(tmp_path) as own:
        assert set(tmp_path.iterdir()) == {tmp_path / "somebody's", used, own}
        assert (used / "deep/er").exists()
    alive.communicate(timeout=LIMIT)
    assert list(tmp_path.iterdir()) == [tmp_path / "somebody's"]


async def test_what_an_earlier_platform_left_in_other_folders_is_removed(tmp_path: Path) -> None:
    dead, folder = holder(tmp_path / "vm")
    alive, kept = holder(tmp_path / "build")
    with dead, alive:
        dead.kill()
        dead.wait()
        (tmp_path / "worker-0").mkdir()  # shared by workers: nobody's own
        await asyncio.to_thread(remove_left, tmp_path)
        assert not folder.exists()
        assert kept.exists()
        assert (tmp_path / "worker-0").exists()
        alive.kill()


async def test_many_that_start_and_stop_at_once_keep_their_folders(tmp_path: Path) -> None:
    async def worker() -> None:
        async with own_folder(tmp_path) as folder:
            for number in range(5):
                (folder / str(number)).mkdir()
                await asyncio.sleep(0.002)
            assert len(list(folder.iterdir())) == 5

    for _ in range(4):
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(worker())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
async def test_replicas_start_and_stop_beside_a_step_that_runs(
    platform: Platform, tmp_path: Path
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def build(run: StepContext) -> BuildResult:
        (run.folder / "half").write_text("of the work")
        begun.set()
        await go_on.wait()
        run.log((run.folder / "half").read_text())
        return BUILT

    async with asyncio.timeout(LIMIT), platform.scheduler() as scheduler:
        view, _ = await scheduler.submit(job())
        async with platform.worker(scheduler, {StepKind.BUILD: build}):
            await begun.wait()
            async with platform.worker(scheduler, {StepKind.CHECK: build}):
                await asyncio.sleep(0.2)
            go_on.set()
            while await scheduler.store.state(view.id) is not State.SUCCEEDED:
                await asyncio.sleep(0.02)
    assert list((tmp_path / "work").iterdir()) == []
