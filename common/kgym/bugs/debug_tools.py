"""Tools with which models debug on a real kernel: traces, and programs of their own."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.steps import Edit, MinimalTrace, Reproducer, ReproduceSpec, TraceCall, Verdict
from kgym.bugs import tracing_job
from kgym.bugs.bug import BEFORE, Bug
from kgym.bugs.conclusion import failure, reproduced
from kgym.bugs.consoles import artifact_text, console, debugging, shortened
from kgym.bugs.crash_tools import BugJobs
from kgym.bugs.execution import execution
from kgym.bugs.kernel_run import Change, as_patch, crash_report, is_empty
from kgym.bugs.kernel_run_text import MOST, bounded, named, quoted
from kgym.bugs.source_tools import SourceTools
from kgym.bugs.tracing_job import TraceResult
from kgym.client import AsyncClient
from kgym.crash.report.repeats import counted
from kgym.errors import UserError

# Files that are traced if the caller names none.
_TRACED = 8
# Folders whose frames are in nearly every report: entry code and the detectors themselves.
_NOT_THE_CAUSE = ("arch/", "lib/", "mm/kasan/", "mm/kfence/", "mm/kmsan/")
# Seconds for which a model's program runs, at most.
_SECONDS = 60.0
# Characters of a program's own output, and of a crash report.
_OUTPUT, _REPORT = 2000, 5000
PatchText = Annotated[str, Field(description="a unified diff against the tree with the bug")]
Edits = Annotated[
    list[Edit],
    Field(description="instead of `patch`: `original` must occur exactly once in `file`"),
]
_WORDS = {
    Verdict.SAME_CRASH: "crash reproduced",
    Verdict.OTHER_CRASH: "another crash",
    Verdict.NO_CRASH: "no crash",
    Verdict.INCONCLUSIVE: "no answer",
}


async def chosen(
    patch: str, edits: Sequence[Edit], otherwise: Callable[[], Awaitable[Change]]
) -> Change:
    """Return the change of a call; raise UserError `bad_option` if it gives both forms."""
    if patch.strip() and edits:
        raise UserError("bad_option", "give `patch` or `edits`, not both")
    return edits or patch if patch.strip() or edits else await otherwise()


class DebugTools:
    """Tools that run kernels, none of which is a trial: they never say that a bug is fixed."""

    def __init__(self, client: AsyncClient, bug: Bug, jobs: BugJobs, source: SourceTools) -> None:
        self._client, self._bug, self._jobs, self._source = client, bug, jobs, source
        self.tools = (self.trace, self.run_program)

    async def trace(
        self,
        functions: Annotated[
            list[str], Field(description="only these are shown", max_length=50)
        ] = [],  # noqa: B006
        files: Annotated[
            list[str], Field(description="C files whose functions are recorded", max_length=100)
        ] = [],  # noqa: B006
        patch: PatchText = "",
        edits: Edits = [],  # noqa: B006
    ) -> str:
        """Return the functions that the kernel ran before it crashed.

        Without `functions` and `files`, the files on the crash's stack are recorded. Without
        `patch` and `edits`, your changes so far are on the kernel. Takes a build and a run.
        """
        if (why := tracing_job.untraceable(self._bug.build)) is not None:
            return f"no trace: {why}"
        wanted = [*files]
        for function in functions:
            wanted += await self._source.files_of(function)
        if functions and not wanted:
            return f"no trace: no C file of the kernel defines {named(functions)}"
        wanted = list(dict.fromkeys(wanted))[:100] or await self._files_of_the_crash()
        bug = await self._changed(patch, edits)
        how = tracing_job.tracing(bug, wanted, "hypervisor")
        trace = TraceResult.of(await self._jobs.ended(tracing_job.traced(bug.job(None), how)))
        minimal = trace.trace
        if minimal is not None and functions:
            minimal = _only(minimal, functions)
        text = execution(minimal) if minimal is not None else None
        if text is None:
            return f"no trace: {trace.reason or 'these have no record of the crash'}"
        line = f"calls of functions of {named(wanted, 10)}, from earliest to most recent:"
        return bounded(f"{line}\n{quoted('trace', text, MOST - 1000)}", MOST)

    async def run_program(
        self,
        program: Annotated[
            str, Field(max_length=1 << 20, description="text of a whole program; it runs as root")
        ],
        kind: Annotated[
            Literal["c", "syz"], Field(description="C, or syzkaller's with its options")
        ] = "c",
        patch: PatchText = "",
        edits: Edits = [],  # noqa: B006
    ) -> str:
        """Run a program of your own, such as a changed reproducer, in a VM for up to a minute.

        Without `patch` and `edits`, your changes so far are on the kernel. Returns its output, the
        crash, if any, and what `pr_info("kgym: …")` prints. This is no test of a fix.
        """
        syzkallers = [each.syzkaller for each in self._bug.reproducers if each.kind == "syz"]
        commit = next(iter(syzkallers), None) if kind == "syz" else None
        own = Reproducer(kind=kind, text=program, syzkaller=commit)
        bug = replace(await self._changed(patch, edits), reproducers=(own,), on_request=())
        request = bug.job(None)
        limits: dict[str, object] = {
            "instances": 1,
            "time": min(_SECONDS, bug.file.reproducer.time),
            "bundle": "none",
        }
        # The program may end as it likes: it is not the bug's own.
        limits |= {"completed": ["killed", *(f"exit {status}" for status in range(31))]}
        steps = [
            step.model_copy(update=limits) if isinstance(step, ReproduceSpec) else step
            for step in request.steps
        ]
        job = await self._jobs.ended(request.model_copy(update={"steps": steps}))
        step = job.step(BEFORE)
        result = reproduced(step)
        if step is None or result is None:
            return bounded(f"no answer: {failure(job) or f'job {job.id} is {job.state}'}", MOST)
        log = debugging(await console(self._client, job, step))
        output = await artifact_text(self._client, job, step, r"reproducer-0(?:-retry-\d+)?\.log")
        report = (await crash_report(self._client, job, step)).get("report")
        parts = [f"{_WORDS[result.verdict]}: {result.title or result.reason}"]
        parts += [quoted("program", shortened(output, _OUTPUT), _OUTPUT + 100)] if output else []
        parts += [quoted("console", log, 2 * MOST)] if log else []
        parts += [quoted("crash_report", counted(str(report)), _REPORT)] if report else []
        return "\n".join(parts)

    async def _changed(self, patch: str, edits: Sequence[Edit]) -> Bug:
        """Return the bug on a kernel with a change: that of the call, or the one so far."""
        change = await chosen(patch, edits, self._jobs.change)
        if is_empty(change):
            return self._bug
        build = self._bug.build
        patches = [*build.patches, as_patch(change)]
        return replace(self._bug, build=build.model_copy(update={"patches": patches}))

    async def _files_of_the_crash(self) -> list[str]:
        """Return the C files on the crash's stack, without those of the crash detectors."""
        job = await self._jobs.shown()
        step = job.step(BEFORE)
        report = await crash_report(self._client, job, step) if step is not None else {}
        frames = report.get("frames")
        named_files: list[object] = [report.get("guilty_file")]
        if isinstance(frames, list):
            named_files += [frame.get("file") for frame in frames if isinstance(frame, dict)]
        files = [entry for entry in named_files if isinstance(entry, str)]
        wanted = [
            path
            for path in dict.fromkeys(files)
            if path.endswith(".c") and not path.startswith(_NOT_THE_CAUSE)
        ]
        if not wanted:
            raise UserError("no_files", "the crash report names no file to trace: name some")
        return wanted[:_TRACED]


def _only(trace: MinimalTrace, functions: Collection[str]) -> MinimalTrace:
    """Return a trace with the calls of these functions alone."""

    def kept(calls: Sequence[TraceCall]) -> list[TraceCall]:
        return [call for call in calls if any(each.name in functions for each in call.pattern)]

    related = [thread.model_copy(update={"calls": kept(thread.calls)}) for thread in trace.related]
    return trace.model_copy(update={"calls": kept(trace.calls), "related": related})
