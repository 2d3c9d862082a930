"""Tools with which models look at a crash: its program, console and kernel. See `SourceTools`."""

import asyncio
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import BuildArtifact
from kgym.bugs.bug import BEFORE, BUILD_BEFORE, Bug
from kgym.bugs.consoles import artifact_text, console
from kgym.bugs.kernel_run import Change
from kgym.bugs.kernel_run_text import MOST, bounded, quoted
from kgym.client import AsyncClient
from kgym.configs import data_folder
from kgym.crash import report as reports
from kgym.crash import symbolize
from kgym.errors import UserError
from kgym.host.folder_cache import FolderCache
from kgym.host.proc import ProgramFailed
from kgym.source.comments import bare_program

# Bytes of vmlinux files that this machine keeps.
_KEPT = 4 << 30
# Characters of a program in a prompt; longer ones are cut to their system calls.
_PROGRAM = 3000
_CALL = re.compile(r"\b(?:syscall|syz_\w+)\s*\(")


class BugJobs(Protocol):
    """The jobs of a bug, for its tools."""

    async def shown(self) -> JobView:
        """Return the job that shows the bug, once it has ended."""

    async def ended(self, request: JobRequest) -> JobView:
        """Return the job of this request, once it has ended; equal requests share it."""

    async def change(self) -> Change:
        """Return the change that is tried if a call names none."""


def brief_program(bug: Bug) -> str:
    """Return the bug's first program for a prompt, cut to its system calls if it is long."""
    text = bare_program(bug.reproducers[0].text)
    if len(text) <= _PROGRAM:
        return text
    # syzkaller's programs in C begin with hundreds of lines that set up their environment.
    calls = [line for line in text.split("\n") if _CALL.search(line)]
    return bounded("\n".join(calls) or text, _PROGRAM)


class CrashTools:
    """Tools that show a bug's program, and the console and the kernel of its crash."""

    def __init__(self, client: AsyncClient, bug: Bug, jobs: BugJobs) -> None:
        self._client, self._bug, self._jobs = client, bug, jobs
        self.tools = (
            *(self.reproducer, self.console, self.kernel_config),
            *(self.machine_code, self.layout),
        )

    async def reproducer(self) -> str:
        """Return the programs that crash the kernel, without their comments."""
        programs = [
            f"{program.kind} program:\n{quoted('program', bare_program(program.text), 4 * MOST)}"
            for program in self._bug.reproducers
        ]
        return "\n".join(programs)

    async def console(
        self, lines: Annotated[int, Field(ge=1, le=1000, description="lines before it")] = 60
    ) -> str:
        """Return what the kernel with the bug printed before the crash, and the crash report."""
        job = await self._jobs.shown()
        step = job.step(BEFORE)
        log = await console(self._client, job, step) if step is not None else ""
        if not log:
            return "there is no console of the crash"
        report = await asyncio.to_thread(reports.parse, log)
        # `start` and `end` count bytes.
        text = log.encode(errors="replace")
        end = report.end if report is not None else len(text)
        before = text[: report.start if report is not None else end].decode(errors="replace")
        crash = text[len(before.encode()) : end].decode(errors="replace")
        above = "".join(before.splitlines(keepends=True)[-lines:])
        return f"{quoted('console', above[-MOST:], MOST)}\n{quoted('crash_report', crash, MOST)}"

    async def kernel_config(
        self,
        part: Annotated[str, Field(max_length=100, description="of a symbol, e.g. `KASAN`")] = "",
    ) -> str:
        """Return lines of the kernel's config: those whose symbols contain `part`."""
        job = await self._jobs.shown()
        step = job.step(BUILD_BEFORE)
        name = BuildArtifact.CONFIG
        text = await artifact_text(self._client, job, step, name) if step is not None else ""
        lines = [line for line in text.split("\n") if part.upper() in line and "CONFIG_" in line]
        return f"{len(lines)} lines\n{quoted('file', chr(10).join(lines), MOST)}"

    async def machine_code(
        self,
        function: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][\w.]*$")],
        offset: Annotated[int, Field(ge=0, lt=1 << 20, description="as in `function+0x…`")],
    ) -> str:
        """Return the source line, and the instructions, of an address of the kernel with the bug.

        Reports give addresses as function+offset/size.
        """
        with ExitStack() as held:
            vmlinux = await self._vmlinux(held)
            text = await symbolize.machine_code(vmlinux, function, offset)
        return quoted("machine_code", text or f"{function} is not there, or is ambiguous", MOST)

    async def layout(
        self, name: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_]\w*$")]
    ) -> str:
        """Return the members of a struct or union, with their offsets and sizes (pahole)."""
        with ExitStack() as held:
            try:
                text = await symbolize.layout(await self._vmlinux(held), name)
            except ProgramFailed:
                return "pahole is not installed, or this kernel has no debug information"
        return quoted("file", text, MOST)

    async def _vmlinux(self, held: ExitStack) -> Path:
        """Return the vmlinux with the bug, on this machine, until `held` is closed."""
        job = await self._jobs.shown()
        step = job.step(BUILD_BEFORE)
        files = step.artifacts if step is not None and step.artifacts_gone_at is None else []
        file = next((each for each in files if each.name == BuildArtifact.VMLINUX), None)
        if step is None or file is None:
            raise UserError("no_vmlinux", "the kernel's vmlinux is gone, or there was none")
        number, name = step.number, file.name

        async def fetch(folder: Path) -> None:
            await self._client.download(job.id, number, name, folder / name)

        cache = FolderCache(data_folder().absolute() / "vmlinux")
        folder, there = await cache.get(file.sha256, fetch, held=held)
        if not there:
            await asyncio.to_thread(cache.trim, _KEPT)
        return folder / name
