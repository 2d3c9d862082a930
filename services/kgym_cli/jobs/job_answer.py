"""Jobs, checks and trials in the commands' JSON output, and their exit statuses."""

import json
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
)
from kgym.bugs.bug import AFTER, BEFORE
from kgym.bugs.conclusion import Answer as JobOutcome
from kgym.bugs.tracing_job import TraceResult
from kgym.bugs.trial_result import CalibrationResult, SideResult, TrialResult
from kgym.errors import Cause, KgymError
from kgym.host.scratch import scratch
from kgym_cli.jobs.crash_answer import CrashAnswer
from kgym_cli.output import Exit
from kgym_cli.output.answer import Answer

if TYPE_CHECKING:
    from kgym.client import Client


# Most bytes of a crash report in an answer; larger ones are only artifacts.
_LARGEST_REPORT = 4 << 20
_DIAGNOSTICS: TypeAdapter[list[Diagnostic]] = TypeAdapter(list[Diagnostic])


class FailedStep(Answer):
    """The failure of a job."""

    step: int
    kind: StepKind
    cause: Cause
    reason: str
    message: str
    diagnostics: list[Diagnostic] = Field(description="the compiler's messages, if it failed")
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
    """A job in a list, with its failure."""

    failure: FailedStep | None

    @classmethod
    def of(cls, job: JobView) -> Self:
        """Return the summary of a job."""
        return cls(**dict(job), failure=FailedStep.of(job))


class StepCrash(CrashAnswer):
    """The crash that decided a reproduce step, with its report."""

    step: int
    instance: int


class JobAnswer(JobSummary):
    """A job with the crashes of its reproduce steps."""

    crashes: list[StepCrash]

    @classmethod
    def with_crashes(cls, client: "Client", job: JobView) -> Self:
        """Return the job's answer, with the reports that still exist."""
        failed = FailedStep.of(job)
        return cls(**dict(job), failure=failed, crashes=crashes(client, job))


class CheckAnswer(Answer):
    """Result of `kgym check`; without one, `failure` has the reason."""

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
    """Result of one kernel of a trial, with the report of its crash."""

    crash: StepCrash | None = None


class TrialAnswer(TrialResult):
    """Result of a trial; `after` is null if no fix was tested."""

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
        """Return the answer; `step_crashes` are the crashes of the job's steps."""
        by_step = {crash.step: crash for crash in step_crashes}

        def side(shown: SideResult, name: str) -> SideAnswer:
            step = job.step(name)
            return SideAnswer(**dict(shown), crash=by_step.get(step.number) if step else None)

        fields = dict(result)
        fields["before"] = side(result.before, BEFORE)
        fields["after"] = side(result.after, AFTER) if result.after else None
        return cls(**fields, failure=FailedStep.of(job), trace=trace)


class CalibrationAnswer(CalibrationResult):
    """Rate and time of a bug's reproduction."""

    failure: FailedStep | None


def crashes(client: "Client", job: JobView) -> list[StepCrash]:
    """Return the deciding crash of each reproduce step whose report still exists."""
    crash_answers = (_crash(client, job.id, step) for step in job.steps)
    return [answer for answer in crash_answers if answer is not None]


def _crash(client: "Client", job: int, step: StepView) -> StepCrash | None:
    if not isinstance(step.result, ReproduceResult) or step.artifacts_gone_at is not None:
        return None
    sizes = {artifact.name: artifact.size for artifact in step.artifacts}
    title = step.result.title
    # Instances with the step's title first: their report is the one that decided the verdict.
    seen = sorted(step.result.instances, key=lambda other: other.title != title)
    for other in seen:
        name = InstanceArtifact.REPORT_JSON.of(other.number)
        # An instance without a report (it hung, or was cut off) is skipped like one that is too
        # large.
        if sizes.get(name, _LARGEST_REPORT + 1) > _LARGEST_REPORT:
            continue
        try:
            with scratch("report") as folder:
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
    """Return the exit status of commands that wait for a job.

    A job that has not ended has no answer, which counts as a failure of the platform.
    """
    return Exit.INFRASTRUCTURE if answer is None else _STATUSES[answer]
