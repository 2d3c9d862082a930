"""Tools with which models debug on a real kernel: traces, and programs of their own."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.steps import Edit, MinimalTrace, Reproducer, ReproduceSpec, TraceCall
from kgym.bugs import tracing_job
from kgym.bugs.bug import BEFORE, Bug
from kgym.bugs.conclusion import failure, reproduced
from kgym.bugs.consoles import artifact_text, console, debugging, shortened
from kgym.bugs.crash_tools import BugWork
from kgym.bugs.execution import execution
from kgym.bugs.kernel_run import Change, as_patch, crash_report, is_empty
from kgym.bugs.kernel_run_text import MOST, bounded, named, quoted
from kgym.bugs.source_tools import SourceTools
from kgym.bugs.tracing_job import TraceResult
from kgym.crash.report.repeats import counted
from kgym.errors import UserError

# Functions of the crash's stack, and their files, that are traced if the caller names none.
_STACK, _TRACED = 16, 8
# Folders whose functions are on nearly every stack: entry code and the detectors themselves.
_NOT_THE_CAUSE = ("arch/", "kernel/kcsan/", "lib/", "mm/kasan/", "mm/kfence/", "mm/kmsan/")
# Seconds for which a model's program runs, at most.
_SECONDS = 60.0
# However a model's program ends, it is not the bug's own: no end is wrong.
_ENDS = ["killed", *(f"exit {status}" for status in range(31))]
# Characters of a program's own output, and of a crash report.
_OUTPUT, _REPORT = 2000, 5000
PatchText = Annotated[str, Field(description="a unified diff against the tree with the bug")]
Edits = Annotated[
    list[Edit],
    Field(description="instead of `patch`: `original` must occur exactly once in `file`"),
]
_Functions = Annotated[list[str], Field(description="only these are shown", max_length=50)]
_Files = Annotated[
    list[str], Field(description="C files whose functions are recorded", max_length=100)
]
_Program = Annotated[str, Field(max_length=1 << 20, description="its text; it runs as root")]
_Kind = Annotated[Literal["c", "syz"], Field(description="C, or syzkaller's with its options")]


async def chosen(
    patch: str, edits: Sequence[Edit], otherwise: Callable[[], Awaitable[Change]]
) -> Change:
    """Return the change of a call; raise UserError `bad_option` if it gives both forms."""
    if patch.strip() and edits:
        raise UserError("bad_option", "give `patch` or `edits`, not both")
    return edits or patch if patch.strip() or edits else await otherwise()


class DebugTools:
    """Tools that run kernels. None of them tries a fix: they never say that a bug is fixed."""

    def __init__(self, work: BugWork, source: SourceTools) -> None:
        self._work, self._source = work, source
        self.tools = (self.trace, self.run_program)

    async def trace(
        self,
        functions: _Functions = [],  # noqa: B006
        files: _Files = [],  # noqa: B006
        patch: PatchText = "",
        edits: Edits = [],  # noqa: B006
    ) -> str:
        """Return the functions that the kernel ran before it crashed.

        Without `functions` and `files`, the files on the crash's stack are recorded. Without
        `patch` and `edits`, your changes so far are on the kernel. Takes a build and a run.
        """
        bug = await self._changed(patch, edits)
        if (why := tracing_job.untraceable(bug.build)) is not None:
            raise UserError("no_tracing", f"this kernel cannot be traced: {why}")
        wanted = [*files, *await self._files_of(functions)]
        if not functions and not files:
            stack = await self._files_of(await self._stack())
            wanted = [path for path in stack if not path.startswith(_NOT_THE_CAUSE)][:_TRACED]
        if not wanted:
            return "no trace: no C file of the kernel defines these functions"
        how = tracing_job.tracing(bug, wanted, "hypervisor")
        job = await self._work.ended(tracing_job.traced(bug.job(None), how))
        trace = TraceResult.of(job)
        text = execution(_only(trace.trace, functions)) if trace.trace is not None else None
        if text is None:
            why = trace.reason if job.steps[-1].failure else failure(job) or trace.reason
            why = why or "none of these functions ran before the crash"
            return bounded(f"no trace: {why}", MOST)
        line = f"calls of functions of {named(wanted, 10)}, from earliest to most recent:"
        return bounded(f"{line}\n{quoted('trace', text, MOST - 1000)}", MOST)

    async def run_program(
        self,
        program: _Program,
        kind: _Kind = "c",
        patch: PatchText = "",
        edits: Edits = [],  # noqa: B006
    ) -> str:
        """Run a program of your own, such as a changed reproducer, in a VM for up to a minute.

        Without `patch` and `edits`, your changes so far are on the kernel. Returns its output, the
        crash, if any, and what `pr_info("kgym: …")` prints. This is no test of a fix.
        """
        bug, client = await self._changed(patch, edits), self._work.client
        syzkallers = [known.syzkaller for known in bug.reproducers if known.kind == kind == "syz"]
        own = Reproducer(kind=kind, text=program, syzkaller=next(iter(syzkallers), None))
        seconds = min(_SECONDS, bug.file.reproducer.time)
        limits = {"instances": 1, "time": seconds, "completed": _ENDS, "bundle": "none"}
        request = replace(bug, reproducers=(own,), on_request=()).job(None)
        steps = [
            step.model_copy(update=limits) if isinstance(step, ReproduceSpec) else step
            for step in request.steps
        ]
        job = await self._work.ended(request.model_copy(update={"steps": steps}))
        step = job.step(BEFORE)
        result = reproduced(step)
        if step is None or result is None:
            return bounded(f"no answer: {failure(job) or f'job {job.id} is {job.state}'}", MOST)
        output = await artifact_text(client, job, step, r"reproducer-0(-retry-\d+)?\.log")
        report = (await crash_report(client, job, step)).get("report", "")
        texts = {
            "program": shortened(output, _OUTPUT),
            "console": debugging(await console(client, job, step)),
            "crash_report": bounded(counted(str(report)), _REPORT),
        }
        parts = [quoted(tag, text, 2 * MOST) for tag, text in texts.items() if text]
        return "\n".join([f"{result.verdict}: {result.title or result.reason}", *parts])

    async def _changed(self, patch: str, edits: Sequence[Edit]) -> Bug:
        """Return the bug on a kernel with a change: that of the call, or the one so far."""
        bug, change = self._work.bug, await chosen(patch, edits, self._work.change)
        patches = [*bug.build.patches, *([] if is_empty(change) else [as_patch(change)])]
        return replace(bug, build=bug.build.model_copy(update={"patches": patches}))

    async def _files_of(self, functions: Sequence[str]) -> list[str]:
        files = [await self._source.files_of(name.partition(".")[0]) for name in functions]
        return list(dict.fromkeys(path for paths in files for path in paths if path.endswith(".c")))

    async def _stack(self) -> Sequence[str]:
        """Return the functions on the stack of the bug's crash, innermost first."""
        result = reproduced((await self._work.shown()).step(BEFORE))
        stacks = [run.stack for run in result.instances if run.stack] if result else []
        return stacks[0][:_STACK] if stacks else ()


def _only(trace: MinimalTrace, functions: Collection[str]) -> MinimalTrace:
    """Return a trace with the calls of these functions alone, or of all."""

    def kept(calls: Sequence[TraceCall]) -> list[TraceCall]:
        wanted = (any(each.name in functions for each in call.pattern) for call in calls)
        return [call for call, shown in zip(calls, wanted, strict=True) if shown or not functions]

    related = [thread.model_copy(update={"calls": kept(thread.calls)}) for thread in trace.related]
    return trace.model_copy(update={"calls": kept(trace.calls), "related": related})
