"""Verification of agents' patches on many VMs, once for all attempts with the same change."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from kgym import tasks
from kgym.api.jobs import JobView
from kgym.api.outcomes import Outcome as Ran
from kgym.api.steps import (
    CRASHED_AT_BOOT,
    InstanceOutcome,
    InstanceResult,
    Patch,
    ReproduceResult,
    Verdict,
)
from kgym.bench.attempt_record import AttemptRecord, Outcome, Overlap
from kgym.bench.campaign import Campaign
from kgym.bench.patch_overlap import changed_parts, overlap
from kgym.bugs.bug import AFTER, TrialOptions
from kgym.bugs.conclusion import reproduced
from kgym.bugs.kernel_run import KernelRun, RunOptions, run_kernel
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import separate_process
from kgym.source import patching
from kgym_benchmark.campaign.subjects import Subject

# Characters of a patch that is parsed within this process.
SMALL = 32 << 10
NO_VERDICT = "no_verdict"
P = ParamSpec("P")
T = TypeVar("T")
_VERDICTS = {
    Verdict.NO_CRASH: Outcome.PASS,
    Verdict.SAME_CRASH: Outcome.TRIGGER,
    Verdict.OTHER_CRASH: Outcome.OTHER,
}
_OUTCOMES = {
    Ran.NOT_BUILT: Outcome.TRIGGER,  # the kernel stays as it was
    Ran.DOES_NOT_COMPILE: Outcome.COMPILE,
    Ran.DOES_NOT_APPLY: Outcome.BAD,
    Ran.REFUSED: Outcome.BAD,
}
# Instances that ran to their end without a crash, whether or not the program did its work.
_QUIET = {InstanceOutcome.SURVIVED, InstanceOutcome.NOT_DONE, InstanceOutcome.ENDED_EARLY}


@dataclass(frozen=True, slots=True)
class Verified:
    """The verdict on a patch."""

    outcome: Outcome
    crashed: int | None = None
    completed: int | None = None
    clean: bool | None = None
    equivalence: Overlap | None = None


def trial_of(campaign: Campaign) -> TrialOptions:
    """Return the options by which a campaign tries patches."""
    return TrialOptions(
        instances=campaign.instances,
        time=campaign.time,
        validate=True,
        variants=True,
        # Only here: an agent never sees what the fix does.
        compare_fix=campaign.compare_fix,
    )


class Verification:
    """Verifier of patches, each change of a bug once; `known` are already verified attempts."""

    def __init__(
        self, client: AsyncClient, trial: TrialOptions, known: Iterable[AttemptRecord] = ()
    ) -> None:
        self._client = client
        self._trial = trial
        self._tasks: dict[tuple[str, str], asyncio.Task[Verified]] = {}
        self._known = {
            (record.bug, record.patch): Verified(
                record.outcome, record.crashed, record.completed, record.clean, record.equivalence
            )
            for record in known
            if record.patch is not None and record.outcome is not Outcome.UNKNOWN
        }

    async def verify(self, subject: Subject, diff: str, change: str) -> Verified:
        """Return the verdict on a patch; `change` is its identity (`change_of`).

        Raises InfrastructureError `no_verdict` if a machine failed.
        """
        key = (subject.id, change)
        if key in self._known:
            return self._known[key]
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._verify(subject, diff))
        # Shared by all attempts with this change: cancelling one must not cancel it for the others.
        task = self._tasks[key]
        try:
            verified = await asyncio.shield(task)
        except Exception:
            # The next attempt with this change tries again.
            self._tasks.pop(key, None)
            raise
        self._known[key] = verified
        return verified

    async def close(self) -> None:
        """Stop waiting. The jobs continue, and verifying the same patch again gets them."""
        await tasks.end(self._tasks.values())

    async def _verify(self, subject: Subject, diff: str) -> Verified:
        options = RunOptions(trial=self._trial, drop_binaries=True)
        run = await run_kernel(self._client, subject.bug, diff, options)
        result = None
        if run.job is not None:
            result = _result(await self._client.job(run.job))
        return judged(run, result)


def judged(run: KernelRun, result: ReproduceResult | None) -> Verified:
    """Return the verdict of a run on its patch; raise InfrastructureError `no_verdict`."""
    crashed, completed = (result.crashed, result.completed) if result is not None else (None, None)
    if run.outcome in _OUTCOMES:
        return Verified(_OUTCOMES[run.outcome], crashed, completed, clean=False)
    counted = result.variants.equivalence if result and result.variants else None
    equivalence = None
    if counted is not None and counted.compared:
        equivalence = Overlap(common=counted.same, all=counted.compared)
    if result is not None and result.verdict in _VERDICTS:
        # A variant may crash the patched kernel in the comparison with the fix alone.
        clean = run.outcome is Ran.RESOLVED and not (counted and counted.crashed)
        return Verified(_VERDICTS[result.verdict], crashed, completed, clean, equivalence)
    instances = result.instances if result is not None else []
    if instances and all(map(_crashed_at_boot, instances)):
        return Verified(Outcome.BOOT, crashed, completed, clean=False)
    # The patch itself shows why its program does no work, so further runs would decide nothing.
    quiet = bool(instances) and all(each.outcome in _QUIET for each in instances)
    if quiet and run.outcome is Ran.NOT_RESOLVED:
        return Verified(Outcome.PASS, crashed, completed, False, equivalence)
    raise InfrastructureError(NO_VERDICT, f"{run.bug}: {run.answer}: {run.reason}")


def _crashed_at_boot(instance: InstanceResult) -> bool:
    # On a busy machine, no kernel boots in time: only a crash is the patch's fault.
    failed = instance.outcome is InstanceOutcome.BOOT_FAILED
    return failed and instance.detail.startswith(CRASHED_AT_BOOT)


def _result(job: JobView) -> ReproduceResult | None:
    return reproduced(job.step(AFTER))


# --- the identity of a patch's change, and its overlap with the fix ------------------


def identity(diff: str, tree: Mapping[str, bytes]) -> str:
    """Return a SHA-256 that is equal for two diffs with the same effect on the tree.

    A diff that does not apply is identified by its text.
    """
    # Verdicts are shared by the patched tree, not by the patch's text: agents often arrive at the
    # same lines, and 25 VMs cost minutes. The same lines with context that does not fit are another
    # patch: one that does not apply.
    try:
        applied = patching.apply(Patch(diff=diff, drop_binaries=True), tree)
    except (UserError, ValueError):  # the latter: longer than a patch may be
        return text_identity(diff)
    digest = hashlib.sha256()
    for change in sorted(applied.changes, key=lambda change: change.path):
        content = change.content
        if content is not None and content == tree.get(change.path) and not change.executable:
            continue
        state = "gone" if content is None else hashlib.sha256(content).hexdigest()
        line = f"{change.path}\0{state}\0{change.executable}\0{change.mode_of}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def text_identity(diff: str) -> str:
    """Return the SHA-256 of a diff's text."""
    return hashlib.sha256(diff.encode(errors="replace")).hexdigest()


async def change_of(diff: str, tree: Mapping[str, bytes]) -> str:
    """Return the identity of a patch's change, computed within limits of time and memory."""
    try:
        return await _within_limits(diff, identity, diff, tree)
    except KgymError:  # took too much time or memory
        return text_identity(diff)


async def with_overlap(
    record: AttemptRecord, fix: Patch | None, tree: Mapping[str, bytes]
) -> AttemptRecord:
    """Return the record with the overlap of its patch and the developers'.

    The overlap stays null if a patch is missing or does not apply, or if comparing takes too long.
    """
    diff = record.diff
    if diff is None or fix is None:
        return record
    try:
        theirs = await asyncio.to_thread(changed_parts, fix, tree)
        ours = await _within_limits(diff, changed_parts, diff, tree)
    except KgymError:
        return record
    files, functions = overlap(ours, theirs)
    return record.model_copy(update={"files": files, "functions": functions})


async def _within_limits(
    diff: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function of a patch in a thread; of a large patch, in a process with limits."""
    # A hostile patch may be made to cost time.
    if len(diff) <= SMALL:
        return await asyncio.to_thread(function, *args, **kwargs)
    seconds, memory = separate_process.SECONDS, separate_process.MEMORY
    return await separate_process.within(seconds, memory, function, *args, **kwargs)
