"""A bisection: finds the commit that introduced or fixed a bug, by running jobs.

One job lists the commits, and one measures how often the bug shows at the bad end. Then one job per
test builds a commit's kernel, and runs the reproducer often enough for the bug to show. Each test
is chosen by the results of the earlier ones (`posterior.py`). Jobs are kept like those of sweeps
(`kgym.bugs.sweep`): the same bisection, started again after a kill, gets them and continues.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import Field

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import (
    CRASHED_AT_BOOT,
    GitSource,
    HistoryArtifact,
    HistoryResult,
    HistorySpec,
    InstanceOutcome,
    Line,
    Strict,
    Verdict,
)
from kgym.bisection import history as histories
from kgym.bisection.history import Commit, History
from kgym.bisection.posterior import Choice, Rate, Search, expected_steps
from kgym.bugs import calibration, earlier_jobs, ended_job
from kgym.bugs.bug import BEFORE, Bug
from kgym.bugs.calibration import Effort
from kgym.bugs.conclusion import Answer, failed, failure, in_one_line, reproduced, seconds
from kgym.bugs.ended_job import Heard
from kgym.bugs.sweep import SweepOptions, kept_job
from kgym.client import AsyncClient, Refused
from kgym.errors import InfrastructureError, UserError

MOST_RUNS = 30
MOST_TESTS = 100
_LISTED = 100


class Saw(StrEnum):
    """The result of testing a commit."""

    CRASH = "crash"
    QUIET = "quiet"
    """All runs did their work, and none crashed."""
    SKIPPED = "skipped"
    """Unknown: it does not build or boot, or the runs prove nothing."""


class Outcome(StrEnum):
    """The outcome of a bisection."""

    FOUND = "found"
    SEVERAL = "several"
    """One of several commits, which cannot be told apart without the skipped ones."""
    GOOD_HAS_IT = "good_has_it"
    """The good end has the bug as well."""
    OPEN = "open"
    """The limit of tests or hours was reached."""


class Plan(Strict):
    """The range to be searched, and the expected effort."""

    good: Line = Field(description="full id of the good commit")
    bad: Line = Field(description="full id of the bad commit")
    commits: int = Field(description="between the two")
    tests: int = Field(description="expected, without skipped ones")
    runs: int = Field(description="expected runs of the reproducer")


class Tried(Strict):
    """A commit that was tested."""

    number: int
    commit: Line
    subject: Line
    saw: Saw
    reason: Line = ""
    crashed: int = Field(0, description="runs that crashed")
    completed: int = Field(0, description="runs that crashed, or lasted for the whole time")
    job: int
    seconds: float = Field(description="duration of its steps")
    left: int = Field(description="candidates left, at the requested confidence")


class Culprit(Strict):
    """A candidate, with its probability."""

    commit: Line
    subject: Line
    chance: float


class Result(Strict):
    """The result of a bisection."""

    outcome: Outcome
    fix: bool = Field(description="whether a fix was searched for")
    good: Line
    bad: Line
    commits: int
    culprits: list[Culprit] = Field(max_length=_LISTED, description="the likeliest first")
    left: int = Field(description="number of candidates, including those not listed")
    confidence: float = Field(description="that it is one of them")
    tests: int
    skipped: int
    crashed: int = Field(description="of the calibrating runs at the bad end")
    calibrated: int = Field(description="calibrating runs")
    runs: int = Field(description="completed runs of all tests and of the calibration")


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """The options of a bisection."""

    url: str
    """Of the repository; a path refers to the builder's host."""
    good: str
    bad: str
    sweep: SweepOptions
    """Name and patience, as for a sweep."""
    fix: bool = False
    confidence: float = 0.95
    calibrate: int = 10
    """Runs that measure the bug at the bad end."""
    time: float | None = None
    """Seconds of each of them; None means the bundle's."""
    most_runs: int = MOST_RUNS
    """Maximum runs of one test."""
    most_tests: int = MOST_TESTS
    most_hours: float | None = None
    """No test begins later than this, counted from the start of this call."""


Tell = Callable[[Plan | Tried], None]


async def planned(client: AsyncClient, bug: Bug, options: BisectOptions) -> Plan:
    """Return the range to be searched; only the job that lists the commits runs."""
    return (await _Bisection(client, bug, options).listed()).plan


async def bisect(client: AsyncClient, bug: Bug, options: BisectOptions, tell: Tell) -> Result:
    """Search for the commit; call `tell` with the plan and with each test.

    Raises UserError `bug_not_shown`, `good_has_bug`, `end_not_tried`, and as sources do;
    InfrastructureError `test_failed`, or if the scheduler cannot be used.
    """
    bisection = _Bisection(client, bug, options)
    listed = await bisection.listed()
    tell(listed.plan)
    measured = await bisection.measured(listed)
    return await bisection.searched(listed, measured, tell)


@dataclass(frozen=True, slots=True)
class _Listed:
    """The commits."""

    plan: Plan
    history: History

    def commit(self, number: int) -> Commit:
        """Return a commit by its number; the number after the last stands for the good end."""
        if number < len(self.history):
            return self.history.commits[number]
        return Commit(self.plan.good, subject="(the good commit)")


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measured crash rate, and the effort of a test derived from it."""

    job: int
    rate: Rate
    effort: Effort


@dataclass(frozen=True, slots=True)
class _Seen:
    """The result of a test's job."""

    saw: Saw
    reason: str
    crashed: int = 0
    completed: int = 0


class _Bisection:
    """A bisection in progress."""

    def __init__(self, client: AsyncClient, bug: Bug, options: BisectOptions) -> None:
        self.client = client
        self.bug = bug
        self.options = options
        self.times = Counter[int]()
        self.runs = 0
        self.begun = time.monotonic()

    async def listed(self) -> _Listed:
        """List the commits."""
        options = self.options
        old, new = (options.bad, options.good) if options.fix else (options.good, options.bad)
        spec = HistorySpec(source=GitSource(url=options.url, commit=new), since=old)
        request = JobRequest(steps=[spec], tags=[f"bug={self.bug.name}"])
        job = await self._job(request)
        result = job.steps[0].result
        if not isinstance(result, HistoryResult) or result.since is None:
            raise _error(job)
        job = await ended_job.shown_again(self.client, job.id, patience=options.sweep.patience)
        history = histories.parse(await self._text(job.id))
        # A truncated list would silently leave out commits, perhaps the culprit.
        if (history.commits[-1].id, len(history)) != (result.commit, result.commits):
            raise InfrastructureError("bad_history", f"the list of job {job.id} is not whole")
        ends = (result.commit, result.since) if options.fix else (result.since, result.commit)
        tests = expected_steps(len(history))
        plan = Plan(
            good=ends[0],
            bad=ends[1],
            commits=len(history),
            tests=tests,
            runs=await self._expected_runs(ends[1], tests),
        )
        return _Listed(plan, history)

    async def measured(self, listed: _Listed) -> _Measured:
        """Measure the bug at the bad end."""
        options, bad = self.options, listed.plan.bad
        request = self._at(bad).calibration(options.calibrate, options.time)
        job = await self._job(request)
        result = reproduced(job.step(BEFORE))
        if result is None:
            raise _error(job)
        known = calibration.measured(result, self.bug.titles)
        if known is None:
            message = f"the bug does not show at {bad} (job {job.id}): {result.reason}"
            if result.verdict is Verdict.INCONCLUSIVE:
                raise InfrastructureError("test_failed", f"{message}; --retry runs it again")
            raise UserError("bug_not_shown", message)
        self.runs += known.runs
        effort = self._effort(calibration.effort(known, self._each), known.time)
        return _Measured(job.id, Rate(known.crashed, known.runs), effort)

    async def searched(self, listed: _Listed, measured: _Measured, tell: Tell) -> Result:
        """Test commits until one is certain enough, or until no test can tell more."""
        options = self.options
        search = Search(
            listed.history, measured.rate, fix=options.fix, confidence=options.confidence
        )
        choice, done = Choice(search.good_end, (), 0), 0
        while choice.commit is not None and self._may_try(done):
            commit, number = listed.commit(choice.commit), choice.commit
            seen, job = await self._tried(commit, number, measured)
            # The first test is of the good end: everything else would be searched in vain.
            if not done and seen.saw is not Saw.QUIET:
                raise _bad_end(commit, seen, job)
            if seen.saw is Saw.SKIPPED:
                search.skip(number)
            else:
                quiet = seen.completed - seen.crashed
                search.record_test(number, crashed=seen.saw is Saw.CRASH, quiet=quiet)
            # Up to 20 s for 100,000 commits: not on the event loop.
            choice = await asyncio.to_thread(search.next)
            done += 1
            tell(
                Tried(
                    number=done,
                    commit=commit.id,
                    subject=commit.subject,
                    saw=seen.saw,
                    reason=seen.reason,
                    crashed=seen.crashed,
                    completed=seen.completed,
                    job=job.id,
                    seconds=round(sum(map(seconds, job.steps)), 1),
                    left=len(choice.likely),
                )
            )
        weights = search.weights()
        return Result(
            outcome=_outcome(search, choice),
            fix=options.fix,
            good=listed.plan.good,
            bad=listed.plan.bad,
            commits=len(listed.history),
            culprits=[
                _culprit(listed.commit(place), weights[place]) for place in choice.likely[:_LISTED]
            ],
            left=len(choice.likely),
            confidence=round(choice.sure, 4),
            tests=done,
            skipped=len(search.skipped),
            crashed=measured.rate.crashed,
            calibrated=measured.rate.runs,
            runs=self.runs,
        )

    def _may_try(self, done: int) -> bool:
        """Return whether limits allow another test; the first, of the good end, is always made."""
        hours = self.options.most_hours
        late = hours is not None and time.monotonic() - self.begun >= hours * 3600
        return done < self.options.most_tests and not (done and late)

    async def _tried(
        self, commit: Commit, number: int, measured: _Measured
    ) -> tuple[_Seen, JobView]:
        # The same commit may be tested again: the tag makes it another job.
        self.times[number] += 1
        request = self._at(commit.id).sighting(measured.job, measured.effort)
        tags = [*request.tags, f"test={self.times[number]}"]
        request = request.model_copy(update={"tags": tags})
        try:
            job = await self._job(request)
        except Refused as error:
            if error.reason != "bad_reference":
                raise
            # Retention has removed the calibration's artifacts.
            patience = self.options.sweep.patience
            await ended_job.shown_again(self.client, measured.job, patience=patience)
            job = await self._job(request)
        seen = _seen(job)
        if seen is None:
            raise _error(job)
        self.runs += seen.completed
        return seen, job

    async def _job(self, request: JobRequest) -> JobView:
        return await kept_job(self.client, request, self.options.sweep, answers=_answers)

    async def _text(self, job: int) -> str:
        async def work(_: Heard) -> bytearray:
            text = bytearray()
            async for piece in self.client.read_artifact(job, 0, HistoryArtifact.COMMITS):
                text += piece
                if len(text) > histories.MOST_BYTES:
                    raise UserError("bad_history", f"the list of job {job} is too long")
            return text

        text = await ended_job.patiently(work, self.options.sweep.patience)
        return text.decode(errors="replace")

    def _at(self, commit: str) -> Bug:
        return self.bug.on_source(GitSource(url=self.options.url, commit=commit))

    @property
    def _each(self) -> float:
        """The confidence of a single quiet test: it may use half of the allowed error."""
        return 1 - (1 - self.options.confidence) / 2

    def _effort(self, wanted: Effort | None, time: float) -> Effort:
        """Return the effort of a test, capped at the allowed runs, which then prove less."""
        most = self.options.most_runs
        if wanted is None:
            return Effort(self._each, most, time)
        return replace(wanted, instances=min(wanted.instances, most))

    async def _expected_runs(self, bad: str, tests: int) -> int:
        """Return the expected number of runs: half of the tests end with their first crash."""
        known = await earlier_jobs.known_async(self.client, self._at(bad))
        wanted = calibration.effort(known, self._each) if known else None
        each = self._effort(wanted, 0).instances if known else self.bug.file.reproducer.instances
        return self.options.calibrate + each + (tests - 1) * (1 + each) // 2


def _seen(job: JobView) -> _Seen | None:
    """Return the result of a test's job; None if the platform failed, or it was aborted."""
    result = reproduced(job.step(BEFORE))
    if result is None:
        user = failed(job) is Answer.USER
        return _Seen(Saw.SKIPPED, in_one_line(failure(job) or "")) if user else None
    if result.verdict is Verdict.SAME_CRASH:
        return _Seen(Saw.CRASH, in_one_line(result.title or ""), result.crashed, result.completed)
    if result.verdict is Verdict.NO_CRASH:
        return _Seen(Saw.QUIET, "", 0, result.completed)
    return _Seen(Saw.SKIPPED, in_one_line(result.reason), result.crashed, result.completed)


def _answers(job: JobView) -> bool:
    """Return whether a job has its final answer; a failure of a machine is not final."""
    if (user := failed(job)) is not None:
        return user is Answer.USER
    result = reproduced(job.step(BEFORE))
    if result is None or result.verdict is not Verdict.INCONCLUSIVE:
        return job.state is State.SUCCEEDED
    # A kernel that crashes at boot does so again.
    return bool(result.instances) and all(
        instance.outcome is InstanceOutcome.BOOT_FAILED
        and instance.detail.startswith(CRASHED_AT_BOOT)
        for instance in result.instances
    )


def _error(job: JobView) -> UserError | InfrastructureError:
    """Return the error for a job without which the bisection cannot go on."""
    step = next((step for step in job.steps if step.failure is not None), None)
    if failed(job) is Answer.USER and step is not None and step.failure is not None:
        return UserError(step.failure.reason, f"job {job.id}: {step.failure.message}")
    message = f"job {job.id}: {failure(job)}; the same command with --retry runs it again"
    return InfrastructureError("test_failed", message)


def _bad_end(commit: Commit, seen: _Seen, job: JobView) -> UserError:
    reason = f"{commit.id} (job {job.id}): {seen.reason}"
    if seen.saw is Saw.CRASH:
        return UserError("good_has_bug", f"the good commit has the bug, too: {reason}")
    message = f"the good commit cannot be tried: {reason}; name another one"
    return UserError("end_not_tried", message)


def _outcome(search: Search, choice: Choice) -> Outcome:
    if choice.commit is not None:
        return Outcome.OPEN
    if len(choice.likely) > 1:
        return Outcome.SEVERAL
    return Outcome.GOOD_HAS_IT if choice.likely[0] == search.elsewhere else Outcome.FOUND


def _culprit(commit: Commit, chance: float) -> Culprit:
    return Culprit(commit=commit.id, subject=commit.subject, chance=round(chance, 4))
