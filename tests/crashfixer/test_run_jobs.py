"""What a search asks for is done by jobs: each once, whatever happens meanwhile."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.api.agent.nodes import Tried
from kgym.api.states import State
from kgym.api.steps import Patch, PatchOutcome, Verdict
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym_cli.platforms.embedded_platform import Platform as Scheduler
from kgym_crashfixer.run_jobs import RunJobs, Shown
from kgym_crashfixer.search.search import TRACE
from kgym_crashfixer.search.work import Check, Checked, Seen, Trace, Try, Unanswered
from tests.cli.test_sweep import diff
from tests.cli.worked import working
from tests.crashfixer.farm import BUG, Farm, using
from tests.refused import refused

pytestmark = pytest.mark.thorough


async def tried(
    jobs: RunJobs, word: str, fresh: int = 0, name: str = "t0", shown: Shown | None = None
) -> Tried:
    work = Try(node="t0", diff=diff(word), fresh=fresh, traced=shown is not None)
    result = await jobs.run(f"{name}/{word}{fresh}-try", work, shown or await jobs.show())
    assert isinstance(result, Tried)
    return result


def test_the_crash_is_shown_first(scheduler: Scheduler, farm: Farm) -> None:
    shown = using(scheduler.url, lambda jobs, _: jobs.show())
    assert shown.crash.title == BUG.file.title
    assert shown.crash.report.startswith(f"BUG: {BUG.file.title}")
    assert shown.crash.trace is None
    assert sorted(farm.done) == ["build ", "run"]


def test_a_crash_that_does_not_show_is_said_before_anything_else(
    scheduler: Scheduler, farm: Farm
) -> None:
    farm.shows = False
    with refused("does_not_reproduce", "does not show without the patch", kind=UserError):
        using(scheduler.url, lambda jobs, _: jobs.show())
    assert farm.done == ["build ", "run"]


@pytest.mark.thorough
def test_a_platform_that_fails_is_tried_again_but_not_for_ever(
    scheduler: Scheduler, farm: Farm
) -> None:
    farm.fails = 100
    with refused("not_shown", kind=InfrastructureError):
        using(scheduler.url, lambda jobs, _: jobs.show())
    farm.fails = 0
    assert using(scheduler.url, lambda jobs, _: jobs.show(), key="r2").job


def test_patches_are_checked_in_one_job(scheduler: Scheduler, farm: Farm) -> None:
    words = ["mends", "broken", "unused"]
    patches = [Patch(name=word, diff=diff(word)) for word in words]
    check = Check(node="t0", patches=patches)
    checked = using(scheduler.url, lambda jobs, _: jobs.check("t0/1-check", check))
    assert isinstance(checked, Checked)
    assert [patch.name for patch in checked.patches] == words
    assert [patch.outcome for patch in checked.patches] == [
        PatchOutcome.COMPILES,
        PatchOutcome.DOES_NOT_COMPILE,
        PatchOutcome.NOT_BUILT,
    ]
    assert "compiles nothing" in checked.patches[2].reason
    assert farm.done == ["check 3"]


def test_an_agent_gets_the_report_of_a_variants_crash(scheduler: Scheduler, farm: Farm) -> None:
    async def twice(jobs: RunJobs, _: AsyncClient) -> list[Tried]:
        shown = await jobs.show()
        return [await tried(jobs, "partly", fresh, shown=shown) for fresh in (0, 1)]

    quick, thorough = using(scheduler.url, twice)
    assert quick.resolved
    assert not thorough.resolved
    assert thorough.crash is not None
    first, _, report = thorough.crash.report.partition("\n\n")
    assert first.endswith("futex (call 1) passes argument 6 0x20 instead of 0xfff")
    assert report.startswith(f"BUG: {BUG.file.title}")
    # The bug's variants are learned once the first patch is quiet, and then for all patches.
    learned = ["build ", "run"]
    assert farm.done == [
        *learned,
        "build partly",
        "run partly",
        *learned,
        "build partly",
        "run partly",
    ]
    using(scheduler.url, lambda jobs, _: tried(jobs, "mends", 1))
    assert farm.done[8:] == ["build mends", "run mends"]


@pytest.mark.thorough
def test_each_end_of_a_patched_kernel_is_told_apart(scheduler: Scheduler) -> None:
    async def all_of(jobs: RunJobs, client: AsyncClient) -> dict[str, Tried]:
        words = ["mends", "useless", "moves", "silences", "quiet", "unlinked", "undone", "noisy"]
        words.append("silences_undone")
        ends = {word: await tried(jobs, word) for word in words}
        jobs_of = [job async for job in client.jobs()]
        assert {job.group for job in jobs_of} == {"fix-1"}
        return ends

    ends = using(scheduler.url, all_of)
    assert ends["mends"].resolved
    assert ends["mends"].confidence == 0.96
    assert ends["useless"].verdict is Verdict.SAME_CRASH
    assert ends["useless"].crash is not None
    assert "useless" in ends["useless"].crash.report
    assert ends["moves"].verdict is Verdict.OTHER_CRASH
    assert ends["moves"].crash is not None
    assert ends["moves"].crash.title == "general protection fault in other"
    assert ends["silences"].verdict is Verdict.NO_CRASH
    assert not ends["silences"].resolved
    assert ends["silences"].obstacles == ["check_removed: BUG_ON"]
    assert [finding.reason for finding in ends["silences"].findings] == ["check_removed"]
    assert ends["quiet"].obstacles[0].startswith("control_silent")
    assert ends["unlinked"].verdict == "does_not_build"
    assert "a.c:7: no such label" in ends["unlinked"].reason
    assert ends["undone"].verdict is Verdict.INCONCLUSIVE
    assert ends["undone"].undecided
    assert not ends["undone"].noise
    assert ends["silences_undone"].obstacles == ["check_removed: BUG_ON"]
    assert not ends["silences_undone"].undecided
    assert ends["noisy"].noise
    assert all(end.job for end in ends.values())


@pytest.mark.thorough
def test_a_failure_of_the_platform_is_no_verdict(scheduler: Scheduler, farm: Farm) -> None:
    async def failing(jobs: RunJobs, client: AsyncClient) -> Tried:
        shown = await jobs.show()
        farm.fails = 50
        return await tried(jobs, "mends", shown=shown)

    result = using(scheduler.url, failing)
    assert (result.verdict, result.crash) == (Verdict.INCONCLUSIVE, None)


def test_a_patch_is_tried_once_however_often_it_is_asked_for(
    scheduler: Scheduler, farm: Farm
) -> None:
    async def twice(jobs: RunJobs, _: AsyncClient) -> list[Tried]:
        return [await tried(jobs, "useless", name=name) for name in ("t0", "t3.1")]

    first, again = using(scheduler.url, twice)
    assert first == again
    assert farm.done.count("build useless") == farm.done.count("run useless") == 1


def test_the_final_validation_is_a_run_of_its_own(scheduler: Scheduler, farm: Farm) -> None:
    async def both(jobs: RunJobs, client: AsyncClient) -> list[Tried]:
        runs = [await tried(jobs, "mends", fresh) for fresh in (0, 1)]
        job = await client.job(runs[1].job or 0)
        assert job.steps[1].spec is not None
        assert getattr(job.steps[1].spec, "smoke", False)
        return runs

    first, second = using(scheduler.url, both)
    assert first.job != second.job
    assert farm.done.count("run mends") == 2


def test_what_had_no_verdict_is_run_again_where_it_is_asked_for_again(
    scheduler: Scheduler, farm: Farm
) -> None:
    async def undone(jobs: RunJobs, _: AsyncClient) -> int | None:
        return (await tried(jobs, "undone")).job

    first = using(scheduler.url, undone)
    assert using(scheduler.url, undone) != first
    assert farm.done.count("run undone") == 2


@pytest.mark.thorough
def test_a_crash_comes_with_its_trace_on_kernels_of_their_own(
    scheduler: Scheduler, farm: Farm
) -> None:
    async def run(jobs: RunJobs, _: AsyncClient) -> Tried:
        shown = replace(await jobs.show(), traced=("drivers/a.c",))
        trace = await jobs.trace(TRACE, Trace(files=["drivers/a.c"]))
        assert trace == Seen(
            text="begins() [returned]\nouter() [active]\n\\_ helper() [returned]\n"
            "\\_ inner() [active]"
        )
        await tried(jobs, "mends", shown=shown)
        return await tried(jobs, "moves", shown=shown)

    result = using(scheduler.url, run)
    assert result.crash is not None
    assert result.crash.trace
    assert farm.done.count("traced build") == 2
    assert farm.done.count("minimize") == 2


def test_no_trace_is_no_failure(scheduler: Scheduler, farm: Farm) -> None:
    async def run(jobs: RunJobs, _: AsyncClient) -> Seen | Unanswered:
        return await jobs.trace(TRACE, Trace(files=["drivers/a.c"]))

    farm.traces = False
    untraced = using(scheduler.url, run)
    assert isinstance(untraced, Unanswered)
    assert "the kernel went on" in untraced.reason


@pytest.mark.thorough
def test_a_run_that_was_killed_finds_its_jobs(scheduler: Scheduler, farm: Farm) -> None:
    """The process ends without a word: what it had submitted goes on."""
    code = (
        "import sys\n"
        "from tests.crashfixer.farm import using\n"
        "from tests.crashfixer.test_run_jobs import tried\n"
        "using(sys.argv[1], lambda jobs, _: tried(jobs, 'useless'))\n"
    )
    farm.hold_at = "run useless"
    folder = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code, scheduler.url], cwd=folder) as process:
        try:
            assert farm.held.wait(60)
        finally:
            process.kill()
    farm.hold.set()
    result = using(scheduler.url, lambda jobs, _: tried(jobs, "useless"))
    assert result.verdict is Verdict.SAME_CRASH
    assert sorted(farm.done) == ["build ", "build useless", "run", "run useless"]


@pytest.mark.thorough
def test_what_is_cancelled_runs_no_more_and_can_be_taken_up(
    scheduler: Scheduler, farm: Farm
) -> None:
    async def cancelled(jobs: RunJobs, client: AsyncClient) -> None:
        farm.hold_at = "run useless"
        task = asyncio.create_task(tried(jobs, "useless"))
        assert await asyncio.to_thread(farm.held.wait, 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listedt = [job async for job in client.jobs()]
        assert all(job.state.final for job in listedt)
        assert listedt[0].state is State.ABORTED

    using(scheduler.url, cancelled)
    farm.hold.set()
    result = using(scheduler.url, lambda jobs, _: tried(jobs, "useless"))
    assert result.verdict is Verdict.SAME_CRASH


@pytest.mark.thorough
def test_a_bundle_that_has_changed_is_no_crash_of_the_run(scheduler: Scheduler) -> None:
    work = Check(node="t0", patches=[Patch(name="p", diff=diff("a"))])
    using(scheduler.url, lambda jobs, _: jobs.check("t0/1-check", work))
    other = Check(node="t0", patches=[Patch(name="p", diff=diff("b"))])
    with refused("run_changed", kind=UserError):
        using(scheduler.url, lambda jobs, _: jobs.check("t0/1-check", other))


def test_a_patch_that_no_job_can_hold_is_unanswered(scheduler: Scheduler) -> None:
    async def checked(jobs: RunJobs, _: AsyncClient) -> object:
        patches = [Patch(name="p", diff=diff("x" * 3_900_000)) for _ in range(5)]
        return await jobs.check("t0/1-check", Check(node="t0", patches=patches))

    assert isinstance(using(scheduler.url, checked), Unanswered)


@pytest.mark.thorough
def test_a_scheduler_that_goes_away_is_waited_for(tmp_path: Path, farm: Farm) -> None:
    farm.hold_at = "build "
    with Scheduler(tmp_path, work=False) as first:
        port = int(first.url.rpartition(":")[2])

        async def away(jobs: RunJobs, client: AsyncClient) -> Tried:
            task = asyncio.create_task(tried(jobs, "mends"))
            with working(first, tmp_path, farm.answers):
                assert await asyncio.to_thread(farm.held.wait, 60)
                await asyncio.to_thread(first.stop)
                farm.hold.set()
            assert not task.done()
            second = Scheduler(tmp_path, work=False, port=port)
            await asyncio.to_thread(second.__enter__)
            try:
                with working(second, tmp_path, farm.answers):
                    return await task
            finally:
                await asyncio.to_thread(second.stop)

        assert using(first.url, away, patience=60).resolved


def test_a_scheduler_that_stays_away_is_said_to(tmp_path: Path) -> None:
    with Scheduler(tmp_path, work=False) as first:
        url = first.url
    with pytest.raises(InfrastructureError, match="no scheduler answers"):
        using(url, lambda jobs, _: jobs.show(), patience=1)
