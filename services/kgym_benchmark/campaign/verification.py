"""Whether a patch resolves its bug: by many VMs, once for all attempts that came to it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from kgym.api.jobs import JobView
from kgym.api.steps import (
    CRASHED_AT_BOOT,
    InstanceOutcome,
    InstanceResult,
    ReproduceResult,
    Verdict,
)
from kgym.bench.attempt_record import AttemptRecord, Outcome
from kgym.bugs.bug import AFTER, TrialOptions
from kgym.bugs.conclusion import reproduced
from kgym.bugs.kernel_run import KernelRun, RunOptions, run_kernel
from kgym.bugs.sweep_rows import Outcome as Ran
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError
from kgym_benchmark.campaign.subjects import Subject

_VERDICTS = {
    Verdict.NO_CRASH: Outcome.PASS,
    Verdict.SAME_CRASH: Outcome.TRIGGER,
    Verdict.OTHER_CRASH: Outcome.OTHER,
}
_OUTCOMES = {
    Ran.NOT_COMPILED: Outcome.TRIGGER,  # the kernel stays as it was
    Ran.DOES_NOT_COMPILE: Outcome.COMPILE,
    Ran.DOES_NOT_APPLY: Outcome.BAD,
    Ran.REFUSED: Outcome.BAD,
}


@dataclass(frozen=True, slots=True)
class Verified:
    """What a patch came to."""

    outcome: Outcome
    crashed: int | None = None
    completed: int | None = None
    clean: bool | None = None


class Verification:
    """Verifies patches, each change of a bug once; `known` are attempts that were verified."""

    def __init__(
        self, client: AsyncClient, trial: TrialOptions, known: Iterable[AttemptRecord] = ()
    ) -> None:
        self._client = client
        self._trial = trial
        self._found: dict[tuple[str, str], asyncio.Task[Verified]] = {}
        self._known = {
            (one.bug, one.patch): Verified(one.outcome, one.crashed, one.completed, one.clean)
            for one in known
            if one.patch is not None
        }

    async def verify(self, subject: Subject, diff: str, change: str) -> Verified:
        """Return what a patch comes to; `change` is its identity (`kgym.bench.patch_identity`).

        Raises InfrastructureError `no_verdict` where that could not be found out.
        """
        key = (subject.id, change)
        if key in self._known:
            return self._known[key]
        if key not in self._found:
            self._found[key] = asyncio.create_task(self._verify(subject, diff))
        task = self._found[key]
        try:
            found = await asyncio.shield(task)
        except Exception:
            self._found.pop(key, None)
            raise
        self._known[key] = found
        return found

    async def close(self) -> None:
        """End what is under way; the jobs go on, and the same call again takes them up."""
        for task in self._found.values():
            task.cancel()
        await asyncio.gather(*self._found.values(), return_exceptions=True)

    async def _verify(self, subject: Subject, diff: str) -> Verified:
        run = await run_kernel(self._client, subject.bug, diff, RunOptions(trial=self._trial))
        result = None
        if run.job is not None:
            result = _result(await self._client.job(run.job))
        return judged(run, result)


def judged(run: KernelRun, result: ReproduceResult | None) -> Verified:
    """Return what a run of a kernel says of its patch; raise InfrastructureError `no_verdict`."""
    crashed, completed = (result.crashed, result.completed) if result is not None else (None, None)
    if run.outcome in _OUTCOMES:
        return Verified(_OUTCOMES[run.outcome], crashed, completed, clean=False)
    if result is not None and result.verdict in _VERDICTS:
        outcome = _VERDICTS[result.verdict]
        return Verified(outcome, crashed, completed, clean=run.outcome is Ran.RESOLVED)
    instances = result.instances if result is not None else []
    if instances and all(map(_crashed_at_boot, instances)):
        return Verified(Outcome.BOOT, crashed, completed, clean=False)
    raise InfrastructureError("no_verdict", f"{run.bug}: {run.answer}: {run.reason}")


def _crashed_at_boot(one: InstanceResult) -> bool:
    """Tell whether a kernel does not boot by its own fault: a busy machine boots none, either."""
    return one.outcome is InstanceOutcome.BOOT_FAILED and one.detail.startswith(CRASHED_AT_BOOT)


def _result(job: JobView) -> ReproduceResult | None:
    return reproduced(job.step(AFTER))
