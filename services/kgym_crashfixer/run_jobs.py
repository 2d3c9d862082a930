"""The jobs of a run: the crash is shown and traced, patches are checked and tried.

All jobs of a run are one group, and each has an idempotency key made of the run and of what it
does: the name of the work, or the patch that it tries. So a run that was killed and goes on finds
the jobs that are there, and tries no patch twice.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from kgym.api.agent.nodes import Crash, Tried
from kgym.api.jobs import JobRequest, JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    Calibration,
    DumpMethod,
    Patch,
    ReproduceSpec,
    Verdict,
)
from kgym.bugs import earlier_jobs, ended_job, tracing_job
from kgym.bugs.bug import AFTER, BEFORE, Bug, TrialOptions
from kgym.bugs.calibration import CONFIDENCES
from kgym.bugs.conclusion import Answer, conclusion, failed, reproduced
from kgym.bugs.sweep_rows import not_shown
from kgym.client import AsyncClient, Refused
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_crashfixer import outcome
from kgym_crashfixer.execution import execution
from kgym_crashfixer.search.work import Check, Checked, Try, Unanswered

# Of a job that the platform fails, and that no search asks for again by itself.
_TRIES = 3
# Of one patch: more than any search asks for.
_MOST_RUNS = 100
_PATCH = "the patch"
_REPORT_BYTES = 4 << 20
# Characters of a crash report: longer ones lose their middle.
_REPORT = 60_000
_ABORT_SECONDS = 10.0
_UNTAGGED = re.compile(r"[^\w.:=/@+-]")
T = TypeVar("T")


# Is told the name of a piece of work and the job that does it, as soon as there is one.
Submitted = Callable[[str, int], Awaitable[None]]


async def _nobody(name: str, job: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Options:
    """How a run uses the platform; None leaves it to the bundle."""

    key: str
    """Of the run: what its jobs' idempotency keys are made of."""
    group: str
    """Of its jobs."""
    instances: int | None = None
    time: float | None = None
    confidence: float = CONFIDENCES[0]
    """Of `no_crash`, as far as the bug can be measured."""
    accepted: frozenset[str] = frozenset()
    """Reasons of findings that do not count against a patch."""
    dump: DumpMethod = "hypervisor"
    """How traces get out of crashed kernels."""
    validate: bool = False
    """Also look at a patch's style, and try whether its kernel works."""
    under_way: int = 32
    """Jobs at a time."""
    patience: float = 3600
    """Seconds for which the scheduler may be away."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """The crash that a run is to remove: how it shows, and the job that has shown it."""

    job: int
    crash: Crash
    traced: tuple[str, ...] = ()
    """Files whose functions traces hold; none where there are no traces."""


class RunJobs:
    """Does a run's work by jobs.

    Every method raises InfrastructureError where the scheduler is away for longer than
    `options.patience`, Refused where it takes nothing from this caller at all, and UserError
    `run_changed` where a job of this name was another one. What is cancelled ends its job.
    """

    def __init__(
        self, client: AsyncClient, bug: Bug, options: Options, submitted: Submitted = _nobody
    ) -> None:
        self._client = client
        self._bug = bug
        self._options = options
        self._submitted = submitted
        self._turn = asyncio.Semaphore(options.under_way)
        self._showing = asyncio.Lock()
        # Jobs that had not ended yet when they were submitted, or found.
        self._seen: set[int] = set()
        self._measured: Calibration | None = None
        self._is_measured = False

    async def show(self, name: str = "begin") -> Shown:
        """Crash the unpatched kernel.

        Raises UserError `does_not_reproduce` where it does not crash as the bundle says,
        `bad_bundle` where the bundle cannot work; InfrastructureError where there is no verdict.
        """
        request = self._bug.shown(self._trial(await self._known()))
        job = await self.answered(name, request)
        if (problem := not_shown(job)) is not None:
            raise _not_shown(job, problem)
        step = job.step(BEFORE)
        assert step is not None
        crash = await self._crash(job, step)
        if crash is None:
            message = f"job {job.id} left no report of the crash that it has shown"
            raise InfrastructureError("no_report", message, job=job.id)
        return Shown(job.id, crash)

    async def trace(self, shown: Shown, files: Sequence[str]) -> tuple[Shown, str | None]:
        """Return the crash with its trace, through functions of these files; or why there is none.

        Crashes of patched kernels get one only where this crash did.
        """
        named = tuple(path for path in files if path.endswith(".c"))
        text, why = await self._traced("begin trace", self._bug, self._bug.titles, named)
        if text is None:
            return shown, why
        crash = shown.crash.model_copy(update={"trace": text})
        return replace(shown, crash=crash, traced=named), None

    # --- the pieces of work -----------------------------------------------------------------

    async def check(self, name: str, work: Check) -> Checked | Unanswered:
        """Say which patches apply and compile."""
        try:
            job = await self.answered(name, self._bug.check(work.patches))
        except Refused as error:
            return _unanswered(error)
        checked = outcome.checked(job)
        if checked is not None and len(checked.patches) == len(work.patches):
            return checked
        return Unanswered(reason=conclusion(job).reason or f"job {job.id} is {job.state}")

    async def run(self, name: str, work: Try, shown: Shown) -> Tried | Unanswered:
        """Build a patched kernel, run the reproducer on it, and trace its crash if it has one.

        A patch that this run has tried before is not tried again, whoever asks for it, unless
        that came to no verdict, or `work.fresh` wants another run.
        """
        try:
            job, tried = await self._tried(name, work, shown)
            if tried.verdict not in {Verdict.SAME_CRASH, Verdict.OTHER_CRASH}:
                return tried
            step = job.step(AFTER)
            crash = await self._crash(job, step) if step else None
            if crash is None:
                why = f"job {job.id} left no report of its crash"
                return tried.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": why})
            if shown.traced:
                crash = await self._with_trace(name, work.diff, crash, shown.traced)
            return tried.model_copy(update={"crash": crash})
        except Refused as error:
            return _unanswered(error)

    async def _tried(self, name: str, work: Try, shown: Shown) -> tuple[JobView, Tried]:
        """Return the job that tries a patch, and what it came to.

        A job that was there already, and ended without a verdict, is left for the next one.
        """
        patch = Patch(name=_PATCH, diff=work.diff)
        for number in range(work.fresh, _MOST_RUNS):
            request = self._trial_of(patch, shown, await self._known(), number)
            does = f"try {_digest(work.diff)} {number}"
            try:
                job = await self.ended(name, request, does)
            except Refused as error:
                if error.reason != "bad_reference":
                    raise
                await self._show_again(shown.job)
                job = await self.ended(name, request, does)
            tried = outcome.tried(job, self._options.accepted)
            if tried.verdict is not Verdict.INCONCLUSIVE or job.id in self._seen:
                break
        return job, tried

    async def _with_trace(self, name: str, diff: str, crash: Crash, files: Sequence[str]) -> Crash:
        """Return the crash of a patched kernel with its trace, where one can be had."""
        build, patch = self._bug.build, Patch(name=_PATCH, diff=diff)
        patched = build.model_copy(update={"patches": [*build.patches, patch]})
        bug = replace(self._bug, build=patched)
        does = f"trace {_digest(diff)}"
        text, _ = await self._traced(name, bug, [crash.title], files, does)
        return crash.model_copy(update={"trace": text})

    async def _traced(
        self, name: str, bug: Bug, titles: Sequence[str], files: Sequence[str], does: str = ""
    ) -> tuple[str | None, str | None]:
        """Return the trace of a crash with one of the titles; or why there is none.

        It comes from a kernel and a run of their own: records make another kernel, and no
        verdict shall rest on that.
        """
        if not files:
            return None, "there is no C file to trace"
        how = tracing_job.tracing(bug, files, self._options.dump)
        request = tracing_job.traced(bug.job(None), how)
        steps = [
            step.model_copy(update={"titles": list(titles)})
            if isinstance(step, ReproduceSpec)
            else step
            for step in request.steps
        ]
        try:
            job = await self.ended(name, request.model_copy(update={"steps": steps}), does)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            return None, error.message
        minimized, ran = outcome.minimized(job.steps[-1]), reproduced(job.step(BEFORE))
        if minimized is None:
            return None, conclusion(job).reason or f"job {job.id} is {job.state}"
        if ran is None or ran.verdict is not Verdict.SAME_CRASH:
            return None, f"the traced kernel crashed otherwise: {minimized.title}"
        text = execution(minimized.trace)
        return text, None if text else "no record of these files is in the trace"

    # --- requests ---------------------------------------------------------------------------

    def _trial(self, known: Calibration | None) -> TrialOptions:
        chosen = self._options
        return TrialOptions(
            instances=chosen.instances,
            time=chosen.time,
            known=known,
            validate=chosen.validate,
            confidence=chosen.confidence,
        )

    def _trial_of(
        self, patch: Patch, shown: Shown, known: Calibration | None, fresh: int
    ) -> JobRequest:
        """Return the job that tries a patch.

        Another run of the same is another job: its kernel is a copy, its instances are new.
        They include one for the smoke test, since this run may be the last one before a claim.
        """
        request = self._bug.trial(patch, shown.job, self._trial(known))
        if not fresh:
            return request
        steps = [
            step.model_copy(update={"smoke": True}) if isinstance(step, ReproduceSpec) else step
            for step in request.steps
        ]
        return request.model_copy(update={"steps": steps})

    async def _known(self) -> Calibration | None:
        """Return what was measured of the bug before the run: the same whenever it is asked."""
        if self._is_measured:
            return self._measured
        began = None
        try:
            group = await self._patiently(lambda: self._client.group(self._options.group))
            began = group.created_at
        except Refused as error:
            if error.reason != "group_missing":
                raise
        self._measured = await self._patiently(
            lambda: earlier_jobs.known_async(self._client, self._bug, began)
        )
        self._is_measured = True
        return self._measured

    # --- jobs -------------------------------------------------------------------------------

    async def answered(self, name: str, request: JobRequest) -> JobView:
        """Return the job once it has ended; another one, where the platform has failed it."""
        for number in range(_TRIES):
            job = await self.ended(name, request, f"{name} again {number}" if number else "")
            if failed(job) is not Answer.INFRASTRUCTURE:
                break
        return job

    async def ended(self, name: str, request: JobRequest, does: str = "") -> JobView:
        """Return the job that does this work, once it has ended.

        There is one for each thing that is done (`does`, else the name). One that was aborted
        when the run was stopped goes on.
        """
        does = does or name
        tag = f"work={_UNTAGGED.sub('_', does)[:90]}"
        more = {"group": self._options.group, "priority": self._options.priority}
        request = request.model_copy(update={**more, "tags": [*request.tags, tag]})
        key = f"fix-{sha256(f'{self._options.key} {does}'.encode()).hexdigest()}"
        known: list[int] = []

        async def submitted(job: JobView) -> None:
            if job.id not in known:
                await self._submitted(name, job.id)
            known.append(job.id)
            if not job.state.final:
                self._seen.add(job.id)

        async with self._turn:
            try:
                return await ended_job.ended(
                    self._client,
                    request,
                    key,
                    patience=self._options.patience,
                    restarts=lambda job: job.state is State.ABORTED,
                    submitted=submitted,
                )
            except asyncio.CancelledError:
                await asyncio.shield(asyncio.create_task(self._abort(request, key, known)))
                raise
            except Refused as error:
                if error.reason != "key_reused":
                    raise
                message = (
                    "the bug's bundle, the options or kGymSuite are others than those that the run"
                    " began with: start another run"
                )
                raise UserError("run_changed", message) from error

    async def _abort(self, request: JobRequest, key: str, known: Sequence[int]) -> None:
        """End a job; the request that submits it may still be on its way."""
        with contextlib.suppress(KgymError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                job = known[-1] if known else (await self._client.submit(request, key)).id
                await self._client.abort(job)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await ended_job.patiently(lambda _: call(), self._options.patience)

    async def _show_again(self, job_id: int) -> None:
        """Show the crash again, in the same job: retention has removed what it had left."""
        async with self._showing:
            patience = self._options.patience
            await ended_job.shown_again(self._client, job_id, patience=patience)

    async def _crash(self, job: JobView, step: StepView) -> Crash | None:
        """Return the crash that a reproduce step has seen; None if it left no report."""
        result = reproduced(step)
        instance = outcome.crashed_instance(result) if result else None
        if instance is None or instance.title is None:
            return None
        kept = outcome.report_artifact(step.artifacts, instance.number)
        if kept is None or kept.size > _REPORT_BYTES:
            return None
        with tempfile.TemporaryDirectory(prefix="kgym-fix-") as folder:
            path = Path(folder, "report.txt")
            try:
                await self._patiently(
                    lambda: self._client.download(job.id, step.number, kept.name, path)
                )
            except UserError:  # retention has removed it
                return None
            text = (await asyncio.to_thread(path.read_bytes)).decode(errors="replace")
        return Crash(title=instance.title, report=_shortened(text))


def _digest(diff: str) -> str:
    return sha256(diff.encode()).hexdigest()[:32]


def _unanswered(error: Refused) -> Unanswered:
    """Return what a search is told that asks for what no job can do; raise other errors."""
    if not ended_job.concerns_one_request(error):
        raise error
    return Unanswered(reason=error.message)


def _not_shown(job: JobView, problem: str) -> KgymError:
    """Return the error for a crash that did not show: whose fault it is, and what to do."""
    if failed(job) is Answer.USER:
        return UserError("bad_bundle", problem, job=job.id)
    if conclusion(job).verdict in {Verdict.NO_CRASH, Verdict.OTHER_CRASH}:
        message = f"{problem}; there is nothing to fix, and no model was asked"
        return UserError("does_not_reproduce", message, job=job.id)
    return InfrastructureError("not_shown", problem, job=job.id)


def _shortened(text: str) -> str:
    if len(text) <= _REPORT:
        return text
    half = _REPORT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
