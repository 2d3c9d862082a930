"""Source lines for the crash reports of a step, from the kernel that its build left."""

import asyncio
from pathlib import Path

from kgym.api.steps import BuildArtifact
from kgym.crash.report import CrashReport
from kgym.crash.symbolize import symbolize
from kgym.errors import KgymError
from kgym.worker.context import StepContext


class ReportSymbolizer:
    """The debug information of the step's kernel; fetched for the first crash."""

    def __init__(self, run: StepContext, folder: Path) -> None:
        self._run = run
        self._vmlinux = folder / "vmlinux"
        self._fetching = asyncio.Lock()

    async def add_to(self, report: CrashReport) -> CrashReport:
        """Return the report with its source lines; a failure is only reported."""
        try:
            async with self._fetching:
                if not self._vmlinux.exists():
                    await self._run.fetch("build", BuildArtifact.VMLINUX, self._vmlinux)
            return (await symbolize([report], self._vmlinux))[0]
        except (KgymError, OSError) as error:
            self._run.log(f"no source lines in the report: {error}")
            return report
