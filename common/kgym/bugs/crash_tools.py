"""Tools with which models look at a crash: its program, console and kernel. See `SourceTools`."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import BuildArtifact
from kgym.bugs.bug import BEFORE, BUILD_BEFORE, Bug
from kgym.bugs.consoles import artifact_text, console
from kgym.bugs.kernel_run import Change
from kgym.bugs.kernel_run_text import MOST, bounded, quoted
from kgym.client import AsyncClient
from kgym.crash import report as reports
from kgym.source.comments import bare_program

# Characters of a program in a prompt; longer ones are cut to their system calls.
_PROGRAM = 3000
_CALL = re.compile(r"\b(?:syscall|syz_\w+)\s*\(")
_Lines = Annotated[int, Field(ge=1, le=1000, description="lines before it")]
_Part = Annotated[str, Field(max_length=100, description="of a symbol, e.g. `KASAN`")]
_Function = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][\w.]*$")]
_Offset = Annotated[int, Field(ge=0, lt=1 << 20, description="as in `function+0x…`")]
_Type = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_]\w*$")]


class Vmlinux(Protocol):
    """Access to the vmlinux with the bug. It needs a sandbox, which an agent may not have."""

    async def machine_code(self, function: str, offset: int) -> str:
        """Return the source lines and instructions of a place; empty if it is ambiguous."""

    async def layout(self, name: str) -> str:
        """Return the members of a struct or union."""


@dataclass(frozen=True, slots=True)
class BugWork:
    """A bug with its jobs, for its tools."""

    client: AsyncClient
    bug: Bug
    shown: Callable[[], Awaitable[JobView]]
    """Returns the job that shows the bug, once it has ended."""
    ended: Callable[[JobRequest], Awaitable[JobView]]
    """Returns the job of a request, once it has ended; equal requests share it."""
    change: Callable[[], Awaitable[Change]]
    """Returns the change that is tried if a call names none."""
    vmlinux: Vmlinux


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

    def __init__(self, work: BugWork) -> None:
        self._work = work
        self.tools = (
            *(self.reproducer, self.console, self.kernel_config),
            *(self.machine_code, self.layout),
        )

    async def reproducer(self) -> str:
        """Return the programs that crash the kernel, without their comments."""
        return "\n".join(
            f"{program.kind} program:\n{quoted('program', bare_program(program.text), 4 * MOST)}"
            for program in self._work.bug.reproducers
        )

    async def console(self, lines: _Lines = 60) -> str:
        """Return what the kernel with the bug printed before the crash, and the crash report."""
        job = await self._work.shown()
        step = job.step(BEFORE)
        log = (await console(self._work.client, job, step) if step else "").encode()
        report = await asyncio.to_thread(reports.parse, log)
        if report is None:
            return "there is no console of the crash"
        above = log[: report.start].decode(errors="replace").split("\n")[-lines - 1 :]
        crash = log[report.start : report.end].decode(errors="replace")
        text = "\n".join(above)[-MOST:]
        return f"{quoted('console', text, MOST)}\n{quoted('crash_report', crash, MOST)}"

    async def kernel_config(self, part: _Part = "") -> str:
        """Return lines of the kernel's config: those whose symbols contain `part`."""
        job = await self._work.shown()
        step = job.step(BUILD_BEFORE)
        name = BuildArtifact.CONFIG
        text = await artifact_text(self._work.client, job, step, name) if step else ""
        lines = [line for line in text.split("\n") if part.upper() in line and "CONFIG_" in line]
        return f"{len(lines)} lines\n{quoted('file', chr(10).join(lines), MOST)}"

    async def machine_code(self, function: _Function, offset: _Offset) -> str:
        """Return the source line, and the instructions, of an address of the kernel with the bug.

        Reports give addresses as function+offset/size.
        """
        text = await self._work.vmlinux.machine_code(function, offset)
        return quoted("machine_code", text or f"{function} is not there, or is ambiguous", MOST)

    async def layout(self, name: _Type) -> str:
        """Return the members of a struct or union, with their offsets and sizes (pahole)."""
        return quoted("file", await self._work.vmlinux.layout(name), MOST)
