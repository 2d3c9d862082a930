"""Jobs, checks and trials as commands print them with --json, and the exit status of each."""

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
    InstanceArtifact,
    PatchCheck,
    ReproduceResult,
    StepKind,
    Verdict,
)
from kgym.bugs.bug import AFTER, BEFORE
from kgym.bugs.conclusion import Answer as JobOutcome
from kgym.bugs.conclusion import conclusion
from kgym.bugs.tracing_job import TraceResult
from kgym.bugs.trial_result import CalibrationResult, SideResult, TrialResult
from kgym.errors import Cause, KgymError
from kgym_cli.jobs.crash_answer import CrashAnswer
from kgym_cli.output import Exit
from kgym_cli.output.answer import Answer

if TYPE_CHECKING:
    from kgym.client import Client


# Bytes of a crash report that is shown inline; all are artifacts.
_LARGEST_REPORT = 4 << 20
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
        step = next((failed for failed in job.steps if failed.failure is not None), None)
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
        """Return the summary of a job of a list, which has what was stored when the job ended."""
        return cls(**dict(job), failure=FailedStep.of(job))


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
    source_tree: str | None = None
    kernel_release: str | None = None
    compiler_version: str | None = None
    compiler_substitution: str | None = None
    tree: str | None = None
    tree_cached: bool | None = None
    patches: list[PatchCheck] = []
    seconds: dict[str, float] = {}

    @classmethod
    def of(cls, bug: str, job: JobView, result: CheckResult | None) -> Self:
        """Return the answer for a finished check."""
        values = {} if result is None else dict(result)
        values.pop("kind", None)
        return cls(bug=bug, job=job.id, failure=FailedStep.of(job), **values)


class SideAnswer(SideResult):
    """What one kernel of a trial showed, with the report of its crash."""

    crash: StepCrash | None = None


class TrialAnswer(TrialResult):
    """What became of a trial; `after` is null where no fix was tried."""

    before: SideAnswer
    after: SideAnswer | None
    failure: FailedStep | None
    trace: TraceResult | None = Field(description="null without --trace")

    @classmethod
    def with_crashes(
        cls,
        result: TrialResult,
        trace: TraceResult | None,
        job: JobView,
        step_crashes: list[StepCrash],
    ) -> Self:
        """Return the answer; `found` are the crashes of the job's steps."""
        by_step = {crash.step: crash for crash in step_crashes}

        def side(shown: SideResult, name: str) -> SideAnswer:
            step = job.step(name)
            return SideAnswer(**dict(shown), crash=by_step.get(step.number) if step else None)

        fields = dict(result)
        fields["before"] = side(result.before, BEFORE)
        fields["after"] = side(result.after, AFTER) if result.after else None
        return cls(**fields, failure=FailedStep.of(job), trace=trace)


class CalibrationAnswer(CalibrationResult):
    """How often and how soon a bug shows."""

    failure: FailedStep | None


def crashes(client: "Client", job: JobView) -> list[StepCrash]:
    """Return the crash that decided each reproduce step, as far as its report can be had."""
    crash_answers = (_crash(client, job.id, step) for step in job.steps)
    return [answer for answer in crash_answers if answer is not None]


def _crash(client: "Client", job: int, step: StepView) -> StepCrash | None:
    if not isinstance(step.result, ReproduceResult) or step.artifacts_gone_at is not None:
        return None
    sizes = {artifact.name: artifact.size for artifact in step.artifacts}
    title = step.result.title
    seen = sorted(step.result.instances, key=lambda other: other.title != title)
    for other in seen:
        name = InstanceArtifact.REPORT_JSON.of(other.number)
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


_STATUSES = {
    JobOutcome.YES: Exit.OK,
    JobOutcome.NO: Exit.NEGATIVE,
    JobOutcome.USER: Exit.USER,
    JobOutcome.INFRASTRUCTURE: Exit.INFRASTRUCTURE,
}


def exit_status(answer: JobOutcome | None) -> Exit:
    """Return the exit status; a job that has not ended has no answer yet, so it is the platform's.

    For `bug reproduce`, `job wait` and all others that wait for a job.
    """
    return Exit.INFRASTRUCTURE if answer is None else _STATUSES[answer]
