"""What is kept for how long."""

from pathlib import Path

import httpx
import pytest

from kgym.api.jobs import Artifact
from kgym.api.steps import StepSpec
from kgym.api.worker_calls import Assignment, AttemptEnding, attempt_folder
from kgym.errors import UserError
from kgym_scheduler.retention import artifact_retention
from kgym_scheduler.retention.artifact_retention import ArtifactPolicy, OldFiles
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import problem
from tests.scheduler.parts import BUILD, BUILT, Platform, badly, claim_of, end, job, reproduce, take

pytestmark = pytest.mark.anyio

SIZE = 1000


class Kept:
    """A platform with jobs that left files."""

    def __init__(self, scheduler: Scheduler, platform: Platform, folder: Path) -> None:
        self.scheduler = scheduler
        self.storage = platform.storage
        self.clock = platform.clock
        self._file = folder / "file"
        self._file.write_bytes(b"x" * SIZE)

    async def put(self, assignment: Assignment, name: str = "vmlinux") -> Artifact:
        key = f"{attempt_folder(assignment.step_id, assignment.lease)}/{name}"
        return await self.storage.put(key, self._file)

    async def build(self, *more: StepSpec) -> int:
        """Run the build of a new job, which leaves one file; return the job's id."""
        view, _ = await self.scheduler.submit(job(BUILD, *more))
        assignment = await take(self.scheduler)
        kept = await self.put(assignment)
        await self.scheduler.finish(assignment.lease, AttemptEnding(result=BUILT, artifacts=[kept]))
        return view.id

    async def plan(self, policy: ArtifactPolicy) -> list[OldFiles]:
        database, now = self.scheduler.store.database, self.clock()
        return await artifact_retention.old_files(database, self.storage, policy, now)

    async def apply(self, policy: ArtifactPolicy) -> list[tuple[int, int]]:
        """Carry the plan out; return the job and step of what was removed."""
        planned = await self.plan(policy)
        removed = await artifact_retention.remove_files(
            self.scheduler.store.database, self.storage, planned, self.clock()
        )
        return [(removal.job, removal.step) for removal in removed]

    def files(self) -> int:
        return sum(path.is_file() for path in self.storage.root.rglob("*"))


@pytest.fixture
def kept(scheduler: Scheduler, platform: Platform, tmp_path: Path) -> Kept:
    return Kept(scheduler, platform, tmp_path)


# --- artifacts ------------------------------------------------------------------------------


async def test_artifacts_go_when_they_are_too_old(kept: Kept) -> None:
    await kept.build()
    kept.clock.advance(50 * 86400)
    second = await kept.build()
    kept.clock.advance(50 * 86400)
    [old] = await kept.plan(ArtifactPolicy())
    assert (old.job, old.step, old.bytes, old.why) == (1, 0, SIZE, "age")
    assert kept.files() == 2  # a plan removes nothing
    assert await kept.apply(ArtifactPolicy()) == [(1, 0)]
    assert kept.files() == 1
    assert await kept.plan(ArtifactPolicy()) == []
    view = await kept.scheduler.job(1)
    assert view.steps[0].artifacts_gone_at is not None
    assert [artifact.name for artifact in view.steps[0].artifacts] == ["vmlinux"]
    assert (await kept.scheduler.job(second)).steps[0].artifacts_gone_at is None


async def test_the_oldest_go_to_keep_to_the_budget(kept: Kept) -> None:
    for _ in range(4):
        await kept.build()
        kept.clock.advance(60)
    planned = await kept.plan(ArtifactPolicy(artifact_budget=2 * SIZE))
    assert [(old.job, old.why) for old in planned] == [(1, "budget"), (2, "budget")]


async def test_what_unfinished_jobs_left_or_name_stays(kept: Kept) -> None:
    first = await kept.build()
    await kept.build(reproduce(0))  # its second step waits
    await kept.scheduler.submit(job(reproduce(0, first)))
    kept.clock.advance(1000 * 86400)
    policy = ArtifactPolicy(artifact_budget=0)
    assert await kept.apply(policy) == []
    await kept.scheduler.abort(2)
    await kept.scheduler.abort(3)
    assert await kept.apply(policy) == [(1, 0), (2, 0)]


async def test_what_began_to_be_needed_after_the_plan_stays(kept: Kept) -> None:
    for _ in range(3):
        await kept.build()
    kept.clock.advance(100 * 86400)
    planned = await kept.plan(ArtifactPolicy())
    await kept.scheduler.submit(job(reproduce(0, 1)))
    await kept.scheduler.restart(2)
    removed = await artifact_retention.remove_files(
        kept.scheduler.store.database, kept.storage, planned
    )
    assert [removal.job for removal in removed] == [3]


async def test_files_of_results_that_were_not_accepted_go(kept: Kept) -> None:
    await kept.scheduler.submit(job())
    lost = await take(kept.scheduler)
    await kept.put(lost)
    await kept.scheduler.release(lost.lease)
    failed = await take(kept.scheduler)
    kept_log = await kept.put(failed, "step.log")
    await kept.scheduler.finish(
        failed.lease, badly("infrastructure").model_copy(update={"artifacts": [kept_log]})
    )
    kept.clock.advance(10)
    running = await take(kept.scheduler)
    await kept.put(running)
    assert await kept.plan(ArtifactPolicy()) == []  # somebody may still read them
    kept.clock.advance(2 * 86400)
    planned = await kept.plan(ArtifactPolicy())
    assert {(removal.prefix, removal.why) for removal in planned} == {
        (attempt_folder(lost.step_id, lost.lease), "unaccepted"),
        (attempt_folder(failed.step_id, failed.lease), "unaccepted"),
    }
    await kept.apply(ArtifactPolicy())
    assert [
        path.relative_to(kept.storage.root).as_posix()
        for path in kept.storage.root.glob("steps/*/*")
    ] == [attempt_folder(running.step_id, running.lease)]


async def test_what_nobody_knows_stays(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    for key in ("steps/77/" + "ab" * 16 + "/a", "steps/77/odd/a", "bundles/a"):
        await kept.storage.put(key, tmp_path / "other")
    kept.clock.advance(1000 * 86400)
    assert await kept.apply(ArtifactPolicy(artifact_budget=0)) == []
    assert kept.files() == 3


@pytest.mark.thorough
async def test_a_removed_artifact_is_gone(kept: Kept, http: httpx.AsyncClient) -> None:
    await kept.build()
    kept.clock.advance(100 * 86400)
    await kept.apply(ArtifactPolicy())
    url = "/v1/jobs/1/steps/0/artifacts/vmlinux"
    document = problem(await http.get(url), 410, "artifact_gone")
    assert "restart job 1 from step 0" in document["detail"]
    assert (await http.head(url)).status_code == 410


@pytest.mark.thorough
async def test_a_job_cannot_build_on_what_is_gone(kept: Kept) -> None:
    await kept.build()
    kept.clock.advance(100 * 86400)
    await kept.apply(ArtifactPolicy())
    with pytest.raises(UserError, match="the artifacts of step 0 of job 1 were removed"):
        await kept.scheduler.submit(job(reproduce(0, 1)))


async def test_a_step_whose_input_went_meanwhile_fails_by_the_users_cause(kept: Kept) -> None:
    await kept.build(reproduce(0))
    await end(kept.scheduler, badly("user"))
    kept.clock.advance(100 * 86400)
    await kept.apply(ArtifactPolicy())
    await kept.scheduler.restart(1, 1)
    assert (await kept.scheduler.claim(claim_of())).assignments == []
    failure = (await kept.scheduler.job(1)).steps[1].failure
    assert failure is not None
    assert (failure.cause, failure.reason) == ("user", "input_gone")


async def test_a_restart_makes_them_again(kept: Kept, http: httpx.AsyncClient) -> None:
    await kept.build()
    kept.clock.advance(100 * 86400)
    await kept.apply(ArtifactPolicy())
    await kept.scheduler.restart(1, 0)
    assignment = await take(kept.scheduler)
    again = await kept.put(assignment)
    await kept.scheduler.finish(assignment.lease, AttemptEnding(result=BUILT, artifacts=[again]))
    response = await http.get("/v1/jobs/1/steps/0/artifacts/vmlinux")
    assert (response.status_code, len(response.content)) == (200, SIZE)


# --- logs -----------------------------------------------------------------------------------


async def test_long_logs_of_old_jobs_leave_a_note(kept: Kept) -> None:
    for text in ("long " * 400, "short"):
        await kept.scheduler.submit(job())
        assignment = await take(kept.scheduler)
        for _ in range(3):
            await kept.scheduler.report(assignment.lease, f"{text}\n", None)
        await kept.scheduler.finish(assignment.lease, AttemptEnding(result=BUILT))
    kept.clock.advance(20 * 86400)
    database = kept.scheduler.store.database
    assert await artifact_retention.old_logs(database, ArtifactPolicy(), kept.clock()) == []
    kept.clock.advance(20 * 86400)
    logs = await artifact_retention.old_logs(database, ArtifactPolicy(), kept.clock())
    assert [(log.job, log.step, log.attempt) for log in logs] == [(1, 0, 1)]
    await artifact_retention.remove_logs(database, logs)
    assert await artifact_retention.old_logs(database, ArtifactPolicy(), kept.clock()) == []
    assert "".join([text async for text in kept.scheduler.log(1)]) == artifact_retention.NOTE
    assert "".join([text async for text in kept.scheduler.log(2)]) == "short\n" * 3
    events = [streamed.event async for batch in kept.scheduler.follow(1) for streamed in batch]
    assert [event.kind for event in events].count("log") == 1


async def test_logs_of_unfinished_jobs_stay(kept: Kept) -> None:
    await kept.scheduler.submit(job())
    assignment = await take(kept.scheduler)
    await kept.scheduler.report(assignment.lease, "long " * 400, None)
    kept.clock.advance(100 * 86400)
    assert (
        await artifact_retention.old_logs(
            kept.scheduler.store.database, ArtifactPolicy(), kept.clock()
        )
        == []
    )
