"""The jobs of a run: show and trace the crash, check and try patches.

All jobs of a run form one group. Each has an idempotency key made of the run and its purpose: the
name of the work, or the patch that it tries. A resumed run therefore finds its jobs without a
record of them, and no patch is tried twice, whichever node proposes it.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from kgym.api import trusted_tags
from kgym.api.agent.nodes import Crash, Tried
from kgym.api.jobs import Artifact, JobFilter, JobRequest, JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    BuildArtifact,
    InstanceArtifact,
    Patch,
    ReproduceSpec,
    VariantCrashKind,
    Verdict,
)
from kgym.bugs import earlier_jobs, ended_job, tracing_job
from kgym.bugs.bug import AFTER, BEFORE, BUILD_BEFORE, Bug, TrialOptions
from kgym.bugs.conclusion import Answer, conclusion, failed, reproduced
from kgym.bugs.consoles import printed, shortened
from kgym.bugs.execution import execution
from kgym.bugs.sweep_rows import not_shown
from kgym.client import AsyncClient, Refused
from kgym.crash.report.repeats import counted
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host.scratch import scratch
from kgym_crashfixer import outcome
from kgym_crashfixer.platform_protocol import Submitted
from kgym_crashfixer.search.work import Check, Checked, Seen, Trace, Try, Unanswered

# Attempts of a job that the platform fails; the search itself repeats only tries of patches.
_TRIES = 3
# Jobs at a time.
_UNDER_WAY = 32
# Runs of one patch: more than any search wants.
_MOST_RUNS = 100
_PATCH = "the patch"
_REPORT_BYTES = 4 << 20
# Bytes of the compiler's commands; those of a distribution's kernel have 40 MB.
_COMMANDS_BYTES = 128 << 20
# Characters of a crash report: the middle of longer ones is omitted.
_REPORT = 60_000
_ABORT_SECONDS = 10.0
_UNTAGGED = re.compile(r"[^\w.:=/@+-]")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run's jobs."""

    key: str
    """Key of the run, a part of its jobs' idempotency keys."""
    group: str
    """Group of its jobs."""
    patience: float = 3600
    """Seconds for which the scheduler may be unreachable."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The crash that a run has to fix, and the job that showed it."""

    job: int
    crash: Crash
    traced: tuple[str, ...] = ()
    """Files whose functions are traced, in tries that want a trace."""


class RunJobs:
    """A run's work, carried out as jobs.

    Every method raises InfrastructureError if the scheduler is unreachable for longer than
    `options.patience`, Refused if it rejects this caller altogether, and UserError `run_changed` if
    the job of this name had another request. Cancelling a method aborts its job.
    """

    def __init__(
        self, client: AsyncClient, bug: Bug, options: Options, submitted: Submitted
    ) -> None:
        self._client = client
        self._bug = bug
        self._options = options
        self._submitted = submitted
        self._turn = asyncio.Semaphore(_UNDER_WAY)
        self._showing = asyncio.Lock()
        # Jobs that this process saw running.
        self._seen: set[int] = set()
        self._trial_options: TrialOptions | None = None

    async def show(self, name: str = "begin") -> Shown:
        """Crash the unpatched kernel.

        Raises UserError `does_not_reproduce` if it does not crash as the bundle says, `bad_bundle`
        for an unusable bundle, and InfrastructureError without a verdict.
        """
        request = self._bug.shown(await self._trial())
        mark = trusted_tags.request(request.steps)
        if (known := await self._known(mark)) is not None:
            await self._submitted(name, known.job)
            return known
        request = request.model_copy(update={"tags": [*request.tags, mark]})
        job = await self.answered(name, request)
        if (problem := not_shown(job)) is not None:
            raise _not_shown(job, problem)
        step = job.step(BEFORE)
        assert step is not None
        crash = await self._crash(job, step)
        if crash is None:
            message = f"job {job.id} left no report of its crash"
            raise InfrastructureError("no_report", message, job=job.id)
        return Shown(job.id, crash)

    async def _known(self, mark: str) -> Shown | None:
        """Return the crash that an earlier job of this caller has shown, with the same steps."""
        earlier = JobFilter(tag=mark, mine=True, state=State.SUCCEEDED, limit=1)
        jobs = (await self._patiently(lambda: self._client.page(earlier))).jobs
        if not jobs:
            return None
        job = await self._patiently(lambda: self._client.job(jobs[0].id))
        step = job.step(BEFORE)
        crash = await self._crash(job, step) if step and not_shown(job) is None else None
        return Shown(job.id, crash) if crash is not None else None

    # --- the pieces of work -----------------------------------------------------------------

    async def trace(self, name: str, work: Trace) -> Seen | Unanswered:
        """Trace the crash of the unpatched kernel."""
        text, why = await self._traced(name, self._bug, self._bug.titles, work.files)
        return Unanswered(reason=why or "") if text is None else Seen(text=text)

    async def check(self, name: str, work: Check) -> Checked | Unanswered:
        """Check which patches apply and compile."""
        try:
            job = await self.answered(name, self._bug.check(work.patches, upstream=work.upstream))
        except Refused as error:
            return _unanswered(error)
        checked = outcome.checked(job)
        if checked is not None and len(checked.patches) == len(work.patches):
            return checked
        return Unanswered(reason=conclusion(job).reason or f"job {job.id} is {job.state}")

    async def compiled(self, job_id: int, paths: Collection[str]) -> Collection[str]:
        """Return those of the C files that a job's first kernel was compiled from, if known."""
        job = await self._patiently(lambda: self._client.job(job_id))
        step, name = job.step(BUILD_BEFORE), BuildArtifact.COMPILE_COMMANDS
        kept = next((each for each in step.artifacts if each.name == name), None) if step else None
        text = await self._text(job, step, kept, _COMMANDS_BYTES) if step else None
        # A path in the list is absolute, below wherever the tree was mounted.
        if text is None:
            return paths
        return {path for path in paths if not path.endswith(".c") or f'/{path}"' in text}

    async def run(self, name: str, work: Try, shown: Shown) -> Tried | Unanswered:
        """Build a patched kernel, run the reproducer on it, and trace its crash, if any.

        An earlier try of the same patch in this run counts, unless it had no verdict, or
        `work.fresh` wants another run.
        """
        try:
            job, tried = await self._tried(name, work, shown)
            step = job.step(AFTER)
            lines = await self._patiently(lambda: printed(self._client, job, step, work.diff))
            tried = tried.model_copy(update={"printed": lines})
            if tried.verdict not in {Verdict.SAME_CRASH, Verdict.OTHER_CRASH}:
                if step is None or tried.resolved:
                    return tried
                # The next cycle can fix the cause of a variant's crash, as of any other.
                variant = await self._variant_crash(job, step)
                return tried.model_copy(update={"crash": variant})
            crash = await self._crash(job, step) if step else None
            if crash is None:
                why = f"job {job.id} left no report of its crash"
                return tried.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": why})
            if work.traced:
                crash = await self._with_trace(name, work.diff, crash, shown.traced)
            return tried.model_copy(update={"crash": crash})
        except Refused as error:
            return _unanswered(error)

    async def _tried(self, name: str, work: Try, shown: Shown) -> tuple[JobView, Tried]:
        """Return the job that tries a patch, and its result.

        A job from before this process that ended without a verdict is skipped for the next one.
        """
        patch = Patch(name=_PATCH, diff=work.diff)
        for number in range(work.fresh, _MOST_RUNS):
            request = await self._trial_of(patch, shown, number)
            does = f"try {_digest(work.diff)} {number}"
            try:
                job = await self.ended(name, request, does)
            except Refused as error:
                if error.reason != "bad_reference":
                    raise
                await self._show_again(shown.job)
                job = await self.ended(name, request, does)
            tried = outcome.tried(job)
            if tried.verdict is not Verdict.INCONCLUSIVE or tried.obstacles or job.id in self._seen:
                break
        return job, tried

    async def _with_trace(self, name: str, diff: str, crash: Crash, files: Sequence[str]) -> Crash:
        """Add a trace to the crash of a patched kernel, if possible."""
        build, patch = self._bug.build, Patch(name=_PATCH, diff=diff)
        patched = build.model_copy(update={"patches": [*build.patches, patch]})
        bug = replace(self._bug, build=patched)
        does = f"trace {_digest(diff)}"
        text, _ = await self._traced(name, bug, [crash.title], files, does)
        return crash.model_copy(update={"trace": text})

    async def _traced(
        self, name: str, bug: Bug, titles: Sequence[str], files: Sequence[str], does: str = ""
    ) -> tuple[str | None, str | None]:
        """Return the trace of a crash with one of the titles, or why there is none."""
        # A separate kernel and run: trace records change the kernel, and no verdict may depend on
        # them.
        if not files:
            return None, "there is no C file to trace"
        how = tracing_job.tracing(bug, files, "hypervisor")
        request = tracing_job.traced(bug.job(None), how)
        try:
            job = await self.ended(name, _reproducing(request, titles=list(titles)), does)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            return None, error.message
        minimized, ran = outcome.minimized(job.steps[-1]), reproduced(job.step(BEFORE))
        if minimized is None:
            return None, conclusion(job).reason or f"job {job.id} is {job.state}"
        if ran is None or ran.verdict is not Verdict.SAME_CRASH:
            return None, f"the traced kernel crashed differently: {minimized.title}"
        text = execution(minimized.trace)
        return text, None if text else "no record of these files is in the trace"

    # --- requests ---------------------------------------------------------------------------

    async def _trial(self) -> TrialOptions:
        """Return the trial options, with the measurements of the bug from before the run."""
        # A resumed run finds its jobs by their exact steps, so no later measurement may count.
        if self._trial_options is None:
            trial = TrialOptions(variants=True)
            began = None
            try:
                group = await self._patiently(lambda: self._client.group(self._options.group))
                began = group.created_at
            except Refused as error:
                if error.reason != "group_missing":
                    raise
            self._trial_options = await self._patiently(
                lambda: earlier_jobs.informed_async(self._client, self._bug, trial, began)
            )
        return replace(self._trial_options, variants=False)

    async def _thorough(self) -> TrialOptions:
        """Return the trial options with variants. Learns the bug's variants if no job has."""
        # Not earlier than the first patch that survives: most searches never get there.
        trial = replace(await self._trial(), variants=True)
        if trial.learned is None:
            job = await self.answered("learn variants", self._bug.shown(trial))
            trial = replace(trial, learned=job.id if job.state is State.SUCCEEDED else None)
        return trial

    async def _trial_of(self, patch: Patch, shown: Shown, fresh: int) -> JobRequest:
        """Return the job request that tries a patch.

        A `fresh` run is another job: the kernel is a copy, the instances are new, one of them runs
        the smoke test, and variants of the program run, since this may be the last run before
        `resolved` is claimed.
        """
        if not fresh:
            return self._bug.trial(patch, shown.job, await self._trial())
        request = self._bug.trial(patch, shown.job, await self._thorough())
        return _reproducing(request, smoke=True)

    # --- jobs -------------------------------------------------------------------------------

    async def answered(self, name: str, request: JobRequest) -> JobView:
        """Return the ended job; submit it again if the platform failed."""
        for number in range(_TRIES):
            job = await self.ended(name, request, f"{name} again {number}" if number else "")
            if failed(job) is not Answer.INFRASTRUCTURE:
                break
        return job

    async def ended(self, name: str, request: JobRequest, does: str = "") -> JobView:
        """Return the job for this work once it has ended.

        There is one job for each purpose (`does`, or else the name). A job that was aborted when
        the run was stopped is restarted.
        """
        does = does or name
        tag = f"work={_UNTAGGED.sub('_', does)[:90]}"
        more = {"group": self._options.group, "tags": [*request.tags, tag]}
        request = request.model_copy(update=more)
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
                # Shielded: a second cancellation must not leave a job running that nobody waits
                # for.
                await asyncio.shield(asyncio.create_task(self._abort(request, key, known)))
                raise
            except Refused as error:
                if error.reason != "key_reused":
                    raise
                message = (
                    "the bug's bundle, the options or kGymSuite have changed since the run began:"
                    " start another run"
                )
                raise UserError("run_changed", message) from error

    async def _abort(self, request: JobRequest, key: str, known: Sequence[int]) -> None:
        """Abort a job, whose submission may still be in flight."""
        with contextlib.suppress(KgymError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                job = known[-1] if known else (await self._client.submit(request, key)).id
                await self._client.abort(job)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await ended_job.patiently(lambda _: call(), self._options.patience)

    async def _show_again(self, job_id: int) -> None:
        """Run the job that shows the crash again, since retention removed its artifacts."""
        async with self._showing:
            patience = self._options.patience
            await ended_job.shown_again(self._client, job_id, patience=patience)

    async def _crash(self, job: JobView, step: StepView) -> Crash | None:
        """Return the crash of a reproduce step; None without a report."""
        result = reproduced(step)
        instance = outcome.crashed_instance(result) if result else None
        if instance is None or instance.title is None:
            return None
        kept = outcome.report_artifact(step.artifacts, instance.number)
        text = await self._report(job, step, kept)
        return None if text is None else Crash(title=instance.title, report=text)

    async def _variant_crash(self, job: JobView, step: StepView) -> Crash | None:
        """Return the crash of a variant that refutes the patch, with what the variant changes."""
        result = reproduced(step)
        for crash in result.variants.crashes if result and result.variants else ():
            if crash.kind not in {VariantCrashKind.SAME, VariantCrashKind.NEW}:
                continue
            name = InstanceArtifact.REPORT.of(crash.instance)
            kept = next((each for each in step.artifacts if each.name == name), None)
            text = await self._report(job, step, kept)
            if text is not None:
                how = "; ".join(crash.changes) or "what differs from the reproducer is not known"
                words = f"A program close to the reproducer crashes: {how}"
                return Crash(title=crash.title, report=f"{words}\n\n{text}")
        return None

    async def _report(self, job: JobView, step: StepView, kept: Artifact | None) -> str | None:
        """Return a crash report that a guest wrote; None if it is missing or huge."""
        text = await self._text(job, step, kept, _REPORT_BYTES)
        return None if text is None else shortened(counted(text), _REPORT)

    async def _text(
        self, job: JobView, step: StepView, kept: Artifact | None, most: int
    ) -> str | None:
        """Return an artifact's text; None if it is missing, or has more than `most` bytes."""
        if kept is None or kept.size > most:
            return None
        with scratch("fix") as folder:
            path = Path(folder, "artifact")
            try:
                await self._patiently(
                    lambda: self._client.download(job.id, step.number, kept.name, path)
                )
            except UserError:  # retention has removed it
                return None
            return (await asyncio.to_thread(path.read_bytes)).decode(errors="replace")


def _reproducing(request: JobRequest, **fields: object) -> JobRequest:
    """Return the request with other fields of its reproduce steps."""
    steps = [
        step.model_copy(update=fields) if isinstance(step, ReproduceSpec) else step
        for step in request.steps
    ]
    return request.model_copy(update={"steps": steps})


def _digest(diff: str) -> str:
    return sha256(diff.encode()).hexdigest()[:32]


def _unanswered(error: Refused) -> Unanswered:
    """Return the result for a refused request; raise errors that concern all requests."""
    if not ended_job.concerns_one_request(error):
        raise error
    return Unanswered(reason=error.message)


def _not_shown(job: JobView, problem: str) -> KgymError:
    """Return the error for a bug that did not crash the unpatched kernel."""
    if failed(job) is Answer.USER:
        return UserError("bad_bundle", problem, job=job.id)
    if conclusion(job).verdict in {Verdict.NO_CRASH, Verdict.OTHER_CRASH}:
        message = f"{problem}; there is nothing to fix, and no model was asked"
        return UserError("does_not_reproduce", message, job=job.id)
    return InfrastructureError("not_shown", problem, job=job.id)
