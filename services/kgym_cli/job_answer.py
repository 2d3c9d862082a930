"""Jobs, checks and trials as commands answer them: with verdicts, failures and crash reports."""

import json
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import (
    CheckResult,
    Diagnostic,
    DumpPart,
    Evidence,
    Finding,
    InstanceDump,
    MinimalTrace,
    PatchCheck,
    ReproduceResult,
    StepKind,
    Verdict,
)
from kgym.errors import Cause, KgymError
from kgym_cli.answer import Answer
from kgym_cli.conclusion import conclusion
from kgym_cli.crash_answer import CrashAnswer

if TYPE_CHECKING:
    from kgym.client import Client

_LARGEST_REPORT = 4 << 20
"""Bytes of a crash report that is shown inline; all are artifacts."""
_DIAGNOSTICS: TypeAdapter[list[Diagnostic]] = TypeAdapter(list[Diagnostic])


class FailedStep(Answer):
    """Why a job has failed."""

    step: int
    kind: StepKind
    cause: Cause
    reason: str
    message: str
    diagnostics: list[Diagnostic] = Field(description="what the compiler said, if it was that")
    details: dict[str, Any]

    @classmethod
    def of(cls, job: JobView) -> Self | None:
        """Return the failure of the first step that has one."""
        step = next((one for one in job.steps if one.failure is not None), None)
        if step is None or step.failure is None:
            return None
        details = dict(step.failure.details)
        try:
            diagnostics = _DIAGNOSTICS.validate_python(details.pop("diagnostics", []))
        except ValidationError:
            diagnostics = []
        return cls(
            step=step.number,
            kind=step.kind,
            cause=step.failure.cause,
            reason=step.failure.reason,
            message=step.failure.message,
            diagnostics=diagnostics,
            details=details,
        )


class JobSummary(JobView):
    """A job in a list, and what it came to."""

    verdict: Verdict | None = Field(description="of its last reproduce step")
    resolved: bool | None = Field(description="null where no fix was tried, or not yet")
    failure: FailedStep | None

    @classmethod
    def fields_of(cls, job: JobView, accepted: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields of a job's summary."""
        came_to = conclusion(job, accepted)
        return {
            **dict(job),
            "verdict": came_to.verdict,
            "resolved": came_to.resolved,
            "failure": FailedStep.of(job),
        }

    @classmethod
    def of(cls, job: JobView) -> Self:
        """Return the job's summary."""
        return cls(**cls.fields_of(job))


class StepCrash(CrashAnswer):
    """The crash that decided a reproduce step, with its report."""

    step: int
    instance: int


class JobAnswer(JobSummary):
    """A job, what it came to, and the crashes that its reproduce steps saw."""

    crashes: list[StepCrash]

    @classmethod
    def with_crashes(cls, client: "Client", job: JobView) -> Self:
        """Return the job's answer, with the reports that can still be had."""
        return cls(**cls.fields_of(job), crashes=crashes(client, job))


class CheckAnswer(Answer):
    """What `kgym check` found; without a result, `failure` says why."""

    bug: str
    job: int
    failure: FailedStep | None
    source_identity: str | None = None
    kernel_release: str | None = None
    compiler_version: str | None = None
    tree: str | None = None
    tree_cached: bool | None = None
    patches: list[PatchCheck] = []
    seconds: dict[str, float] = {}

    @classmethod
    def of(cls, bug: str, job: JobView, result: CheckResult | None) -> Self:
        """Return the answer."""
        found = {} if result is None else dict(result)
        found.pop("kind", None)
        return cls(bug=bug, job=job.id, failure=FailedStep.of(job), **found)


class JudgedFinding(Finding):
    """A finding, and whether it was accepted by --accept-findings."""

    accepted: bool


class SideAnswer(Answer):
    """What one kernel of a trial showed."""

    verdict: Verdict
    title: str | None = None
    crashed: int = 0
    completed: int = 0
    requested: int | None = None
    reason: str | None
    unseen_chance: float | None = None
    confidence: float | None = None
    time: float | None = None
    accelerator: str | None = None
    evidence: Evidence | None = None
    told: str | None = Field(None, description="the evidence in one line")
    findings: list[JudgedFinding] = []
    crash: StepCrash | None = None


class ObstacleAnswer(Answer):
    """What stands between two right verdicts and `resolved`."""

    reason: str
    message: str


class TraceAnswer(Answer):
    """What the kernel did before its first crash; `trace` is null where `reason` says why."""

    instance: int | None = None
    title: str | None = None
    trace: MinimalTrace | None
    parts: list[DumpPart] = []
    seconds: dict[str, float] = {}
    dumps: list[InstanceDump]
    reason: str | None


class TrialAnswer(Answer):
    """What became of a trial; `after` is null where no fix was tried."""

    bug: str
    job: int
    before: SideAnswer
    after: SideAnswer | None
    resolved: bool
    obstacles: list[ObstacleAnswer]
    seconds: dict[str, float] = Field(description="by step, and `total`")
    failure: FailedStep | None
    trace: TraceAnswer | None = Field(description="null without --trace")

    @classmethod
    def of(cls, outcome: dict[str, Any], job: JobView, found: list[StepCrash]) -> Self:
        """Return the answer: `outcome` is the trial's summary, `found` are its crashes."""
        numbers = [step.number for step in job.steps if step.kind is StepKind.REPRODUCE]
        by_step = {one.step: one for one in found}
        sides = {
            name: outcome[name] and {**outcome[name], "crash": by_step.get(number)}
            for name, number in zip(("before", "after"), [*numbers, -1, -1], strict=False)
        }
        return cls.model_validate(
            {"trace": None, **outcome, **sides, "failure": FailedStep.of(job)}
        )


class RecommendedEffort(Answer):
    """What a fix has to survive for a confidence."""

    confidence: float
    instances: int
    time: float = Field(description="seconds, each instance")


class CalibrationAnswer(Answer):
    """How often and how soon a bug shows."""

    bug: str
    job: int
    runs: int
    crashed: int
    rate: float | None
    rate_at_least: float
    outcomes: dict[str, int] = Field(description="how many instances ended how")
    seconds_to_crash: dict[str, float] | None
    accelerator: str | None
    recommended: list[RecommendedEffort] = Field(
        description="what a fix has to survive, by all calibrations of the bug together"
    )
    reason: str | None = Field(description="why nothing was measured")
    failure: FailedStep | None


def crashes(client: "Client", job: JobView) -> list[StepCrash]:
    """Return the crash that decided each reproduce step, as far as its report can be had."""
    found = (_crash(client, job.id, step) for step in job.steps)
    return [one for one in found if one is not None]


def _crash(client: "Client", job: int, step: StepView) -> StepCrash | None:
    if not isinstance(step.result, ReproduceResult) or step.artifacts_gone_at is not None:
        return None
    sizes = {one.name: one.size for one in step.artifacts}
    title = step.result.title
    seen = sorted(step.result.instances, key=lambda one: one.title != title)
    for one in seen:
        name = f"report-{one.number}.json"
        if sizes.get(name, _LARGEST_REPORT + 1) > _LARGEST_REPORT:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="kgym-report-") as folder:
                client.download(job, step.number, name, path := Path(folder, name))
                values = {**json.loads(path.read_bytes()), "step": step.number}
                return StepCrash.model_validate(values)
        except (KgymError, OSError, ValueError):
            return None
    return None
