"""What a handler has of its attempt: inputs, stages, and what is held until the attempt ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgym.api.states import State
from kgym.api.steps import BuildResult, BuildSpec, ReproduceResult, ReproduceSpec, StepKind
from kgym.api.worker_calls import Input
from kgym.errors import InfrastructureError, UserError
from kgym.transport.artifact_storage import ArtifactMissing
from kgym.worker.context import StepContext
from kgym_scheduler.scheduler import Scheduler
from tests.conftest import NewRun
from tests.scheduler.parts import BUILD, BUILT, Platform, job, reproduce

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scheduler(platform: Platform) -> AsyncIterator[Scheduler]:
    async with platform.scheduler() as scheduler:
        yield scheduler


@pytest.mark.parametrize("end", ["result", "failure", "abort"])
async def test_what_is_held_is_left_before_the_folder_goes_however_the_attempt_ends(
    platform: Platform, scheduler: Scheduler, end: str
) -> None:
    left: list[bool] = []
    begun = asyncio.Event()

    async def build(run: StepContext) -> BuildResult:
        (run.folder / "upper").mkdir()
        run.held.callback(lambda: left.append((run.folder / "upper").exists()))
        begun.set()
        if end == "failure":
            raise UserError("broke", "it broke")
        if end == "abort":
            await asyncio.sleep(60)
        return BUILT

    async with asyncio.timeout(30), platform.worker(scheduler, {StepKind.BUILD: build}):
        view, _ = await scheduler.submit(job())
        await begun.wait()
        if end == "abort":
            await scheduler.abort(view.id)
        async for _ in scheduler.follow(view.id):
            pass
        while not left:
            await asyncio.sleep(0.01)
    wanted = {"result": State.SUCCEEDED, "failure": State.FAILED, "abort": State.ABORTED}
    assert (await scheduler.job(view.id)).state is wanted[end]
    assert left == [True]


async def test_an_input_is_fetched_by_its_name_and_of_the_wanted_kind(
    new_run: NewRun, tmp_path: Path
) -> None:
    run = new_run(reproduce())
    (tmp_path / "bzImage").write_text("kernel")
    image = await run.storage.put("steps/1/bzImage", tmp_path / "bzImage")
    run.assignment.inputs["build"] = Input(result=BUILT, artifacts=[image])
    assert run.spec(ReproduceSpec) == run.assignment.spec
    assert run.input("build", BuildResult) == BUILT
    assert run.optional_input("baseline", ReproduceResult) is None
    assert list(run.input_artifacts("baseline")) == []
    await run.fetch("build", "bzImage", run.folder / "kernel")
    assert (run.folder / "kernel").read_text() == "kernel"
    with pytest.raises(InfrastructureError, match="no artifact `vmlinux`, but bzImage") as never:
        await run.fetch("build", "vmlinux", run.folder / "vmlinux")
    await run.storage.remove("steps/1")
    with pytest.raises(ArtifactMissing) as gone:
        await run.fetch("build", "bzImage", run.folder / "kernel")
    reasons = [error.value.reason for error in (never, gone)]
    assert reasons == ["artifact_not_found", "artifact_missing"]  # never left; no more stored
    with pytest.raises(InfrastructureError, match="input `build` is a BuildResult, not a Repr"):
        run.input("build", ReproduceResult)
    with pytest.raises(InfrastructureError, match="the step is a ReproduceSpec, not a BuildSpec"):
        run.spec(BuildSpec)


async def test_stages_are_told_of_and_what_they_take_adds_up(new_run: NewRun) -> None:
    run = new_run(BUILD)
    own: dict[str, float] = {}
    with run.stage("tree"):
        _, progress = run.take_news()
        with run.stage("make", own):
            await asyncio.sleep(0.05)
    once = run.seconds["tree"]
    with run.stage("tree"):
        await asyncio.sleep(0.02)
    assert progress is not None
    assert progress.stage == "tree"
    assert run.seconds.keys() == {"tree"}
    rounded = 0.002  # each is, to milliseconds
    assert once + 0.02 - rounded <= run.seconds["tree"] <= run.elapsed + rounded
    assert own["make"] <= once
