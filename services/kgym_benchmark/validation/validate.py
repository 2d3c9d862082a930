"""The stages that a bug has to pass before agents are measured on it.

Its kernel is built and cached; the bug shows on it; it does not show with the fix; and it shows
often enough for a fix to be proven (`kgym.bugs.calibration`). Each stage rests on a job that is
kept like those of sweeps (`kgym.bugs.sweep`): the same validation, started again, gets it. So the
jobs are the validation's memory; the file of a verdict only saves asking for them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import Calibration, Number, ReproduceSpec, Sha256, Strict, Verdict
from kgym.atomic_files import replace_file
from kgym.bench.attempt_record import BugId, Words
from kgym.bench.bug_record import BugRecord, Validation
from kgym.bench.dataset import About, Dataset
from kgym.bench.tried_bug import INSTANCES, SECONDS, Base, tried_bug
from kgym.bugs import calibration, ended_job
from kgym.bugs.bug import BEFORE, BUILD_BEFORE, Bug, TrialOptions
from kgym.bugs.conclusion import Answer, conclusion, failed, failure, reproduced
from kgym.bugs.sweep import SweepOptions, kept_job
from kgym.bugs.trial_result import SideResult, TrialResult
from kgym.client import AsyncClient, Refused
from kgym.configs import CONFIGS
from kgym.errors import UserError, file_errors

# Live-kBench requires each patch to survive this many runs.
MOST_RUNS = 25
_REASON = 500


class Stage(StrEnum):
    """The stages, in order."""

    CACHED = "cached"
    """Its kernel builds, and is cached."""
    REPRODUCES = "reproduces"
    """It shows on the parent of its fix."""
    FIXED = "fixed"
    """It does not show with the fix."""
    DETERMINISTIC = "deterministic"
    """It shows often enough for a fix to be proven."""


class Outcome(StrEnum):
    """The outcome of a stage."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """A machine failed, or the runs prove nothing."""


class StageResult(Strict):
    """The result of a stage."""

    stage: Stage
    outcome: Outcome
    reason: Words = ""
    job: int | None = None
    crashed: int | None = Field(None, description="of the runs that count")
    completed: int | None = None


class BugVerdict(Strict):
    """The progress of a bug; it is accepted if it has passed all stages."""

    bug: BugId
    title: Words
    stages: list[StageResult] = Field([], max_length=len(Stage))
    validation: Validation | None = Field(None, description="of an accepted bug")

    @property
    def accepted(self) -> bool:
        """Whether all stages are passed."""
        return self.validation is not None

    @property
    def final(self) -> bool:
        """Whether trying again would have the same result."""
        return self.accepted or any(stage.outcome is Outcome.FAILED for stage in self.stages)


class AboutValidation(Strict):
    """The dataset and options of the verdicts in a folder."""

    sha256: Sha256 = Field(description="of the dataset")
    base: Base
    kernel: Words | None
    attempts: int
    seconds: Number
    most_runs: int


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """The options of a validation."""

    sweep: SweepOptions
    base: Base = "parent"
    kernel: str | None = None
    """A shared kernel on which the fixes are reversed, in place of the bugs' own."""
    attempts: int = INSTANCES
    seconds: float = SECONDS
    most_runs: int = MOST_RUNS
    """Maximum runs needed to prove a fix: this, not the crash rate, decides on a racy bug."""
    configs: Path = field(default=CONFIGS)


Tell = Callable[[BugVerdict], None]


async def validate(
    client: AsyncClient, dataset: Dataset, folder: Path, options: ValidateOptions, tell: Tell
) -> About | None:
    """Try all bugs and save the accepted ones below `folder` as a dataset; return it.

    `tell` is called with a bug's verdict after each stage. The dataset says how often each bug
    shows; it is None if no bug is accepted. Raises UserError `another_validation` if the folder
    belongs to other bugs or options, KgymError if the scheduler cannot be used.
    """
    _claim(folder, dataset, options)
    verdicts = _Verdicts(folder / "verdicts", tell)
    async with asyncio.TaskGroup() as group:
        for record in dataset.bugs:
            group.create_task(_Validation(client, record, options, verdicts).go())
    accepted = [
        record.model_copy(update={"validation": verdicts.known[record.id].validation})
        for record in dataset.bugs
        if verdicts.known[record.id].accepted
    ]
    if not accepted:
        return None
    made = Dataset.of(
        f"{dataset.name}-validated",
        accepted,
        description=dataset.description,
        source=f"{dataset.name} {dataset.about.sha256[:12]}, validated",
    )
    return made.save(folder / "accepted" / made.about.sha256[:12])


class _Verdicts:
    """The verdicts of a folder: one file per bug, replaced atomically."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.known: dict[str, BugVerdict] = {}
        self._folder = folder
        self._tell = tell

    def read(self, bug: str) -> BugVerdict | None:
        """Return a stored verdict; None if it is missing or unreadable."""
        try:
            return BugVerdict.model_validate_json(self._place(bug).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, verdict: BugVerdict) -> None:
        """Store a verdict and report it."""
        self.known[verdict.bug] = verdict
        place = self._place(verdict.bug)
        _replace(place, verdict.model_dump_json(exclude_none=True))
        self._tell(verdict)

    def _place(self, bug: str) -> Path:
        return self._folder / f"{bug}.json"


class _Validation:
    """The validation of one bug."""

    def __init__(
        self, client: AsyncClient, record: BugRecord, options: ValidateOptions, verdicts: _Verdicts
    ) -> None:
        self.client = client
        self.record = record
        self.options = options
        self.verdicts = verdicts
        self.stages: list[StageResult] = []

    async def go(self) -> None:
        """Take the bug through the stages until one is not passed."""
        before = self.verdicts.read(self.record.id)
        # A verdict that a machine's failure left open is tried again.
        if before is not None and before.final and before.title == self.record.title:
            self.verdicts.write(before)
            return
        try:
            bug = self._bug()
        except UserError as error:
            self._end(Stage.CACHED, Outcome.FAILED, error.message)
            return
        try:
            await self._tried(bug)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            done = {stage.stage for stage in self.stages}
            stage = next(candidate for candidate in Stage if candidate not in done)
            self._end(stage, Outcome.FAILED, error.message)

    async def _tried(self, bug: Bug) -> None:
        shown = await self._job(bug.calibration(self.options.attempts, self.options.seconds))
        known = self._shown(bug, shown)
        if known is None:
            return
        trial = TrialOptions(known=known)
        if bug.fix is None:
            self._end(Stage.FIXED, Outcome.FAILED, "the diff of its fix is not known")
            return
        tried = await self._job(bug.job(bug.fix, trial))
        if not self._fixed(bug, tried):
            return
        if bug.is_measured(trial):
            known = self._together(bug, tried, shown) or known
        self._deterministic(bug, known)

    def _shown(self, bug: Bug, job: JobView) -> Calibration | None:
        """Judge the stages of the kernel with the bug; return its calibration, if it shows."""
        build, step = job.step(BUILD_BEFORE), job.step(BEFORE)
        assert build is not None
        assert step is not None
        if build.state is not State.SUCCEEDED:
            self._end(Stage.CACHED, _of_failure(job), failure(job) or "", job=job.id)
            return None
        self._end(Stage.CACHED, Outcome.PASSED, job=job.id)
        result, side = reproduced(step), SideResult.of(job, step)
        known = None if result is None else calibration.measured(result, self._titles(bug))
        outcome = Outcome.PASSED if known else Outcome.FAILED
        # "No crash" is an answer about the bug; a machine's failure is not.
        if known is None and (result is None or side.verdict is Verdict.INCONCLUSIVE):
            outcome = Outcome.UNKNOWN
        counts = (side.crashed, side.completed) if known is None else (known.crashed, known.runs)
        self._end(Stage.REPRODUCES, outcome, side.reason or "", job=job.id, counts=counts)
        return known

    def _fixed(self, bug: Bug, job: JobView) -> bool:
        result = TrialResult.of(bug.name, job)
        after = result.after
        if after is None:
            self._end(Stage.FIXED, Outcome.UNKNOWN, result.before.reason or "", job=job.id)
            return False
        outcome = Outcome.PASSED if result.resolved else Outcome.FAILED
        reason = after.reason or ""
        if not result.resolved:
            reason = "; ".join(obstacle.message for obstacle in result.obstacles) or reason
            if conclusion(job).answer is not Answer.NO or result.before.verdict is not _SHOWN:
                outcome = Outcome.UNKNOWN if failed(job) is not Answer.USER else Outcome.FAILED
        counts = (after.crashed, after.completed)
        self._end(Stage.FIXED, outcome, reason, job=job.id, counts=counts)
        return result.resolved

    def _deterministic(self, bug: Bug, known: Calibration) -> None:
        options, counts = self.options, (known.crashed, known.runs)
        # A racy bug is fine as long as proving a fix does not take too many runs.
        wanted = calibration.effort(known, calibration.CONFIDENCES[0])
        if wanted is None or wanted.instances > options.most_runs:
            needed = f"{wanted.instances} runs" if wanted else "more runs than can be"
            reason = f"{known.crashed} of {known.runs} runs crashed: {needed} would prove a fix"
            self._end(Stage.DETERMINISTIC, Outcome.FAILED, reason, counts=counts)
            return
        source = self.options.kernel or str(getattr(bug.build.source, "commit", bug.name))
        validation = Validation(
            kernel=source,
            crashed=known.crashed,
            runs=known.runs,
            instances=wanted.instances,
            seconds=wanted.time,
        )
        reason = f"{wanted.instances} runs of {wanted.time:g} s prove a fix"
        self._end(Stage.DETERMINISTIC, Outcome.PASSED, reason, counts=counts, validation=validation)

    def _together(self, bug: Bug, *jobs: JobView) -> Calibration | None:
        """Return the pooled calibration of the runs with the bug, given the newest job first."""
        results = [reproduced(job.step(BEFORE)) for job in jobs]
        return calibration.pooled([result for result in results if result], self._titles(bug))

    def _bug(self) -> Bug:
        options = self.options
        bug = tried_bug(
            self.record,
            options.base,
            kernel=options.kernel,
            instances=options.attempts,
            seconds=options.seconds,
            configs=options.configs,
        )
        own = bug.file.reproducer.model_copy(
            update={"instances": options.attempts, "time": options.seconds}
        )
        return replace(bug, file=bug.file.model_copy(update={"reproducer": own}))

    def _titles(self, bug: Bug) -> Sequence[str]:
        """Return the titles that count: on another kernel version, any crash does."""
        return [] if self.options.kernel is not None else bug.titles

    async def _job(self, request: JobRequest) -> JobView:
        if self.options.kernel is not None:
            steps = [
                step.model_copy(update={"titles": []}) if isinstance(step, ReproduceSpec) else step
                for step in request.steps
            ]
            request = request.model_copy(update={"steps": steps})
        return await kept_job(self.client, request, self.options.sweep)

    def _end(
        self,
        stage: Stage,
        outcome: Outcome,
        reason: str = "",
        *,
        job: int | None = None,
        counts: tuple[int | None, int | None] = (None, None),
        validation: Validation | None = None,
    ) -> None:
        line = " ".join(reason.split())[:_REASON]
        self.stages.append(
            StageResult(
                stage=stage,
                outcome=outcome,
                reason=line,
                job=job,
                crashed=counts[0],
                completed=counts[1],
            )
        )
        self.verdicts.write(
            BugVerdict(
                bug=self.record.id,
                title=self.record.title,
                stages=list(self.stages),
                validation=validation,
            )
        )


_SHOWN = Verdict.SAME_CRASH


def _of_failure(job: JobView) -> Outcome:
    return Outcome.FAILED if failed(job) is Answer.USER else Outcome.UNKNOWN


def _claim(folder: Path, dataset: Dataset, options: ValidateOptions) -> None:
    """Record dataset and options in the folder; raise UserError if it belongs to others."""
    about = AboutValidation(
        sha256=dataset.about.sha256,
        base=options.base,
        kernel=options.kernel,
        attempts=options.attempts,
        seconds=options.seconds,
        most_runs=options.most_runs,
    )
    place = folder / "validation.json"
    try:
        there = AboutValidation.model_validate_json(place.read_bytes())
    except OSError:
        _replace(place, about.model_dump_json(indent=1))
        return
    except ValidationError as error:
        raise UserError("another_validation", f"{place} cannot be read: {error}") from error
    if there != about:
        raise UserError(
            "another_validation",
            f"{folder} holds the verdicts of other bugs or options: take another folder",
        )


def _replace(place: Path, text: str) -> None:
    with file_errors(place, "cannot_write"):
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, text)
