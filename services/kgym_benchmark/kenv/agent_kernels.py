"""Kernel runs of agents, whose answers tell nothing about the fix or about other attempts."""

import asyncio
import time
from dataclasses import dataclass, field, replace

from kgym.api.outcomes import Outcome
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.kernel_run import KernelRun, RunOptions, run_kernel
from kgym.client import AsyncClient
from kgym.crash.report import guilty_file

_MOST_PATH = 1000


@dataclass(frozen=True, slots=True)
class AgentKernels:
    """Tries patches of an agent on a bug; `report` is the crash report that it got."""

    client: AsyncClient
    bug: Bug
    report: str
    trial: TrialOptions
    own: set[int | None] = field(default_factory=set)
    """Jobs that this agent has waited for; grows."""

    async def run(self, diff: str) -> KernelRun:
        """Return the result of a patch, no sooner than its jobs took."""
        begun = time.monotonic()
        bug, options = self._blamed(), RunOptions(trial=self.trial, drop_binaries=True)
        run = await run_kernel(self.client, bug, diff, options)
        if run.outcome is Outcome.INCONCLUSIVE:
            # A machine has failed, which is not the agent's fault: try once more.
            run = await run_kernel(self.client, bug, diff, options)
        # An earlier attempt may have tried the same patch. An immediate answer would reveal that.
        job = run.checked_by if run.job is None else run.job
        if job not in self.own:
            took = sum(seconds for step, seconds in run.seconds.items() if step != "total")
            await asyncio.sleep(begun + took - time.monotonic())
        self.own.add(job)
        findings = [finding for finding in run.findings if finding.reason != "outside_files"]
        return run.model_copy(update={"findings": findings})

    def _blamed(self) -> Bug:
        """Return the bug with the file that its crash report blames as its only file."""
        # A bundle's files are often those of the fix, and blocking findings would reveal them.
        blamed = guilty_file(self.report)
        files = [blamed[:_MOST_PATH]] if blamed else []
        return replace(self.bug, file=self.bug.file.model_copy(update={"files": files}))
