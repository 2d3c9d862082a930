"""One patch on one bug, for authors of patches: does it compile, and does its kernel crash?

A run is a sweep of one patch (`kgym.bugs.sweep`): the patch is checked, and tried if it compiles;
the crash is shown once for each bug. The same patch again gets the same jobs, even while they run.
"""

import asyncio
import json
import re
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import Field

from kgym.api.faults import refused_at
from kgym.api.jobs import JobView, StepView
from kgym.api.outcomes import Outcome
from kgym.api.steps import (
    CheckResult,
    Diagnostic,
    Edit,
    InstanceArtifact,
    Number,
    Patch,
    PatchCheck,
    ReproduceResult,
    Severity,
    Strict,
    VariantCrashKind,
    Verdict,
)
from kgym.api.steps.compilers import SUBSTITUTION
from kgym.bugs import checklist, earlier_jobs
from kgym.bugs.bug import AFTER, BEFORE, DEFAULT_OPTIONS, Bug, TrialOptions
from kgym.bugs.conclusion import Answer, findings, in_one_line, reproduced, seconds
from kgym.bugs.consoles import printed
from kgym.bugs.ended_job import PATIENCE_SECONDS, Submitted
from kgym.bugs.resolution import Obstacle
from kgym.bugs.sweep import Candidate, Moved, Stage, Subject, SweepOptions, Tell, kept_job, sweep
from kgym.bugs.sweep_rows import Pair, Row, not_shown, status
from kgym.bugs.trial_result import JudgedFinding, judged
from kgym.client import AsyncClient
from kgym.errors import KgymError

# Bytes: larger crash reports are not read.
_LARGEST_REPORT = 4 << 20
_MOST_FINDINGS = 50
_REFUTING = {VariantCrashKind.SAME, VariantCrashKind.NEW}
# A unified diff, or edits.
Change = str | Sequence[Edit]
_UNNAMED = re.compile(r"[^\w.:=@+-]")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a patch is tried."""

    trial: TrialOptions = DEFAULT_OPTIONS
    accepted: frozenset[str] = frozenset()
    """Reasons of findings that are accepted."""
    fresh: bool = False
    """Try the patch again, although it was tried before."""
    drop_binaries: bool = False
    """Leave out binary files of the patch."""
    upstream: bool = False
    """Whether checks also answer what a maintainer asks."""
    seconds: float | None = None
    """How long to wait for the answer. The jobs go on, and the same run continues with them."""
    patience: float = PATIENCE_SECONDS
    """Seconds for which the scheduler may be away."""
    submitted: Submitted | None = None
    """Called with each job that is waited for."""


class KernelRun(Strict):
    """The result of a patch; `answer` puts it in a few words."""

    bug: str
    answer: str = Field(description="in a few words, such as `crash resolved`")
    outcome: Outcome
    reason: str = Field(description="what decided, in one line")
    pending: bool = Field(False, description="whether its jobs go on: the same call waits for them")
    verdict: Verdict | None = Field(None, description="of the kernel, if it ran")
    title: str | None = Field(None, description="of its crash")
    report: str | None = Field(None, description="the crash report, with source lines")
    printed: str = Field(
        "", description="the console's lines with `kgym: `, which the patch prints for debugging"
    )
    obstacles: list[Obstacle] = Field(
        [], description="why it is not a fix, although the kernel does not crash"
    )
    findings: list[JudgedFinding] = Field([], description="about the patch; the first 50")
    evidence: str | None = Field(None, description="what the verdict rests on, in one line")
    confidence: Number | None = Field(
        None, description="that the bug is gone, if the kernel did not crash; null: not measured"
    )
    diagnostics: list[Diagnostic] = Field(
        [], description="the compiler's errors, and the warnings that the patch adds"
    )
    output: str = Field("", description="the compiler's own words")
    left_out: list[str] = Field([], description="untracked files of the tree")
    job: int | None = Field(None, description="that tried it")
    shown_by: int | None = Field(None, description="the job that showed the bug")
    checked_by: int | None = Field(None, description="the job that checked it")
    compiler_substitution: str = Field("", description=SUBSTITUTION)
    seconds: dict[str, float] = Field({}, description="of its steps, and `total` of this call")

    @property
    def row(self) -> Row:
        """The same result as a row of a sweep."""
        return Row(bug=self.bug, patch="", outcome=self.outcome, reason=self.reason)

    @property
    def whose(self) -> Answer:
        """YES for `crash resolved`; else NO, or who is at fault for the missing answer."""
        return status([self.row])


def group(bug: Bug) -> str:
    """Return the name of the group of jobs of all runs on a bug."""
    return f"run-kernel-{_UNNAMED.sub('_', bug.name)[:80]}"


async def run_kernel(
    client: AsyncClient,
    bug: Bug,
    change: Change,
    options: RunOptions = RunOptions(),
    tell: Tell = lambda _: None,
) -> KernelRun:
    """Try a change on a bug; an empty change only shows the bug.

    Args:
        client: The scheduler's client.
        bug: The bug; `kgym.bugs.bundle.load` reads one.
        change: A unified diff, mails with diffs, or edits of its source.
        options: How it is tried, and how long to wait.
        tell: Called with progress.

    Returns the result. A patch that does not apply or compile is a result too, not an error.

    Raises:
        KgymError: The scheduler cannot be used, or the patch exceeds the limits of a job.
    """
    begun = time.monotonic()
    run = _Run(client, bug, options, tell)
    try:
        async with asyncio.timeout(options.seconds):
            result = await (run.unpatched() if is_empty(change) else run.patched(change))
    except TimeoutError:
        result = run.pending()
    total = round(time.monotonic() - begun, 2)
    return result.model_copy(update={"seconds": {**result.seconds, "total": total}})


async def shown(client: AsyncClient, bug: Bug, options: RunOptions = RunOptions()) -> JobView:
    """Return the job that shows the bug for all runs on it, once it has ended."""
    request = bug.shown(await _known(client, bug, options))
    return await kept_job(client, request, kept(bug, options), lambda job: not not_shown(job))


async def check_patch(
    client: AsyncClient, bug: Bug, change: Change, options: RunOptions = RunOptions()
) -> PatchCheck | str:
    """Return whether a change applies and compiles, or the reason why there is no answer."""
    patch = as_patch(change)
    request = bug.check([patch], upstream=options.upstream)
    job = await kept_job(client, request, kept(bug, options))
    result = job.steps[0].result
    if isinstance(result, CheckResult):
        return result.patches[0]
    failure = job.steps[0].failure
    return failure.message if failure else f"job {job.id} is {job.state}"


async def crash_report(client: AsyncClient, job: JobView, step: StepView) -> dict[str, object]:
    """Return the report of the crash that decided a reproduce step, as `CrashReport.as_dict`.

    Without one, that of a variant with which the kernel crashes because of the patch.

    Empty without a crash, or if its report is gone or cannot be read.
    """
    if not isinstance(step.result, ReproduceResult) or step.artifacts_gone_at is not None:
        return {}
    sizes = {artifact.name: artifact.size for artifact in step.artifacts}
    title = step.result.title
    # The instance whose crash decided the verdict comes first.
    runs = sorted(step.result.instances, key=lambda instance: instance.title != title)
    crashes = step.result.variants.crashes if step.result.variants else []
    refuting = [crash.instance for crash in crashes if crash.kind in _REFUTING]
    names: list[int | str] = [*(run.number for run in runs), *refuting]
    for instance in names:
        name = InstanceArtifact.REPORT_JSON.of(instance)
        if sizes.get(name, _LARGEST_REPORT + 1) > _LARGEST_REPORT:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="kgym-report-") as folder:
                await client.download(job.id, step.number, name, path := Path(folder, name))
                return _read(path)
        except (KgymError, OSError, ValueError):
            return {}
    return {}


async def _known(client: AsyncClient, bug: Bug, options: RunOptions) -> TrialOptions:
    """Return the trial's options with the calibration known when the first run on the bug began."""
    # A later calibration would make another job of the same patch.
    begun = await earlier_jobs.begun_async(client, group(bug))
    return await earlier_jobs.informed_async(client, bug, options.trial, begun)


class _Run:
    """One run in progress."""

    def __init__(self, client: AsyncClient, bug: Bug, options: RunOptions, tell: Tell) -> None:
        self.client = client
        self.bug = bug
        self.options = options
        self.tell = tell
        self.last: Moved | None = None

    async def unpatched(self) -> KernelRun:
        """Show the bug."""
        job = await shown(self.client, self.bug, self.options)
        why = not_shown(job)
        outcome = Outcome.NOT_RESOLVED if why is None else Outcome.INCONCLUSIVE
        row = Pair(self.bug.name, "").row(outcome, why or "nothing is changed", shown_by=job.id)
        step = job.step(BEFORE)
        result = reproduced(step)
        shown_row = row.model_copy(
            update={
                "verdict": result.verdict if result else None,
                "title": result.title if result else None,
            }
        )
        report = await crash_report(self.client, job, step) if step else {}
        return _answered(shown_row, report=_text(report), seconds=_seconds(job))

    async def patched(self, change: Change) -> KernelRun:
        """Check and try a patch."""
        patch = as_patch(change, fresh=self.options.fresh)
        patch = patch.model_copy(update={"drop_binaries": self.options.drop_binaries})
        known = await _known(self.client, self.bug, self.options)
        subject = Subject(self.bug, [Candidate(patch.name, patch)], known)
        row: asyncio.Future[Row] = asyncio.get_running_loop().create_future()

        def hear(event: Moved | Row) -> None:
            if isinstance(event, Moved):
                self.last = event
            elif not row.done():
                row.set_result(event)
            self.tell(event)

        options = kept(self.bug, self.options)
        work = asyncio.create_task(sweep(self.client, [subject], options, hear))
        try:
            # A patch that does not compile has its answer before the bug was shown.
            either: list[asyncio.Future[Any]] = [work, row]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not row.done():
                await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return await self._with_job_facts(row.result(), patch.model_dump_json())

    def pending(self) -> KernelRun:
        """Return a pending result that says which stage the jobs are at."""
        stage = self.last.stage if self.last else Stage.SHOW
        job = self.last.job if self.last else None
        of = f" (job {job})" if job else ""
        reason = f"it goes on at {stage}{of}; the same call again waits for it"
        row = Pair(self.bug.name, "").row(Outcome.INCONCLUSIVE, reason, job=job)
        return _answered(row, pending=True)

    async def _with_job_facts(self, row: Row, change: str) -> KernelRun:
        """Return the row of a change together with the details of its jobs."""
        facts: dict[str, object] = {}
        seconds: dict[str, float] = {}
        if row.checked_by is not None:
            job = await self.client.job(row.checked_by)
            seconds |= _seconds(job)
            facts |= _compiled(job)
        if row.job is not None:
            job = await self.client.job(row.job)
            seconds |= _seconds(job)
            facts |= await self._ran(job)
            facts["printed"] = await printed(self.client, job, job.step(AFTER), change)
            result = reproduced(job.step(AFTER))
            # The evidence, which decided, has a line of its own.
            if row.outcome is Outcome.RESOLVED and result is not None:
                facts["reason"] = in_one_line(result.reason)
        return _answered(row, **facts, seconds=seconds)

    async def _ran(self, job: JobView) -> dict[str, object]:
        step = job.step(AFTER)
        result = reproduced(step)
        if step is None or result is None:
            failure = next((step.failure for step in job.steps if step.failure), None)
            diagnostics = failure.details.get("diagnostics") if failure else None
            return {"diagnostics": diagnostics} if isinstance(diagnostics, list) else {}
        all_findings = findings(job, step)
        blocking_first = sorted(
            all_findings, key=lambda finding: finding.severity is not Severity.BLOCKING
        )
        report = await crash_report(self.client, job, step)
        return {
            "findings": judged(blocking_first[:_MOST_FINDINGS], self.options.accepted),
            "evidence": checklist.line(checklist.checklist(None, result, all_findings)),
            "report": _text(report),
            "confidence": result.confidence,
        }


def kept(bug: Bug, options: RunOptions = RunOptions()) -> SweepOptions:
    """Return the options of the sweep to which all runs on a bug belong."""
    return SweepOptions(
        group(bug),
        accepted=options.accepted,
        retry=True,
        patience=options.patience,
        submitted=options.submitted,
    )


def is_empty(change: Change) -> bool:
    """Return whether a change is empty."""
    return not (change.strip() if isinstance(change, str) else change)


def as_patch(change: Change, *, fresh: bool = False) -> Patch:
    """Return a change as a patch; raise UserError `patch_too_large`."""
    # Named by its content, so that the same change is the same job; `fresh` makes it another one.
    content = change if isinstance(change, str) else "".join(map(str, change))
    digest = sha256(content.encode(errors="replace")).hexdigest()[:12]
    name = f"patch-{digest}-{uuid.uuid4().hex[:8]}" if fresh else f"patch-{digest}"
    with refused_at("the patch", "patch_too_large"):
        if isinstance(change, str):
            return Patch(name=name, diff=change)
        return Patch(name=name, edits=list(change))


def _compiled(job: JobView) -> dict[str, object]:
    result = job.steps[0].result
    if not isinstance(result, CheckResult):
        return {}
    check = result.patches[0]
    return {"diagnostics": check.diagnostics, "output": check.output}


def _answered(row: Row, **facts: object) -> KernelRun:
    # An agent reads the answer: what the known fix does is not in it.
    left_out = {"patch", "check", "diagnostic", "same_as", "seconds", "behavioural_equivalence"}
    known = row.model_dump(exclude=left_out)
    fields = {**known, "answer": _words(row), **facts}
    return KernelRun.model_validate(fields)


_WORDS = {
    Outcome.RESOLVED: "crash resolved",
    Outcome.NOT_BUILT: "changes nothing",
    Outcome.DOES_NOT_COMPILE: "does not compile",
    Outcome.DOES_NOT_APPLY: "does not apply",
    Outcome.REFUSED: "no patch",
    Outcome.INCONCLUSIVE: "no answer",
}
_RAN = {
    Verdict.SAME_CRASH: "crash reproduced",
    Verdict.OTHER_CRASH: "another crash",
    Verdict.NO_CRASH: "does not crash, but this is no fix",
    Verdict.INCONCLUSIVE: "this is no fix",
}


def _words(row: Row) -> str:
    if row.outcome is Outcome.NOT_RESOLVED and row.verdict in _RAN:
        return _RAN[row.verdict]
    return _WORDS.get(row.outcome, str(row.outcome))


def _read(path: Path) -> dict[str, object]:
    read = json.loads(path.read_bytes())
    return read if isinstance(read, dict) else {}


def _text(report: dict[str, object]) -> str | None:
    text = report.get("report")
    return text if isinstance(text, str) else None


def _seconds(job: JobView) -> dict[str, float]:
    return {
        step.name or str(step.kind): round(seconds(step), 2)
        for step in job.steps
        if step.started_at and step.finished_at
    }
