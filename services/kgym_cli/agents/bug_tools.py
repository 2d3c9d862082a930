"""Tools of the MCP server for one bug; each answers with text."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated

from pydantic import Field, ValidationError

from kgym.api import faults
from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import Edit
from kgym.bugs import tracing_job, tree_changes
from kgym.bugs.bug import BEFORE, Bug
from kgym.bugs.conclusion import failure
from kgym.bugs.kernel_run import (
    Change,
    RunOptions,
    check_patch,
    crash_report,
    is_empty,
    kept,
    run_kernel,
    shown,
)
from kgym.bugs.kernel_run_text import MOST, bounded, check_text, named, quoted, run_text
from kgym.bugs.source_tools import Look, SourceTools, T
from kgym.bugs.sweep import Moved, kept_job
from kgym.bugs.sweep_rows import Row
from kgym.bugs.tracing_job import TraceResult
from kgym.bugs.tree_changes import SourceTree
from kgym.client import AsyncClient
from kgym.errors import KgymError, UserError
from kgym_crashfixer.execution import execution

# Files that are traced if the caller names none.
_TRACED = 8
# Folders whose frames are in nearly every report: entry code and the detectors themselves.
_NOT_THE_CAUSE = ("arch/", "lib/", "mm/kasan/", "mm/kfence/", "mm/kmsan/")
# Of each call: what it is doing, for progress notifications.
stage_of_call: ContextVar[list[str]] = ContextVar("stage_of_call")
_Patch = Annotated[str, Field(description="a unified diff against the tree with the bug")]
_Edits = Annotated[
    list[Edit],
    Field(description="instead of `patch`: `original` must occur exactly once in `file`"),
]


class BugTools:
    """Tools for one bug. `tree`: optional working tree whose changes are tried by default."""

    # No tool takes a job id: a report or a source file may contain text that instructs the model,
    # and such text must reach no other job. Foreign text stands between tags as data.
    # Models see the names, parameters and docstrings of the methods in `tools`.

    def __init__(
        self, client: AsyncClient, bug: Bug, tree: SourceTree | None, options: RunOptions
    ) -> None:
        self._client = client
        self._bug = bug
        self._tree = tree
        self._options = options
        self._source: asyncio.Task[int] | None = None
        self.tools = (
            *(self.check, self.run_kernel, self.trace),
            *SourceTools(client, self._look).tools,
        )

    async def check(self, patch: _Patch = "", edits: _Edits = []) -> str:  # noqa: B006
        """Check in about a second whether a change applies and compiles.

        Without `patch` and `edits`, the changes in the working tree are used, if there is one.
        """
        change = await self._change(patch, edits)
        if is_empty(change):
            raise UserError("empty_patch", "nothing is changed: give `patch` or `edits`")
        check = await check_patch(self._client, self._bug, change, self._options)
        return f"no answer: {check}" if isinstance(check, str) else check_text(check)

    async def run_kernel(
        self,
        patch: _Patch = "",
        edits: _Edits = [],  # noqa: B006
        wait_seconds: Annotated[
            float,
            Field(
                gt=0, le=86400, description="seconds to wait; the same call again goes on waiting"
            ),
        ] = 3600,
    ) -> str:
        """Build the kernel with a change and run the reproducer: is the crash gone?

        Without `patch` and `edits`, the changes in the working tree are used; without any
        change, the bug is reproduced. Repeating a change costs nothing.
        """
        change = await self._change(patch, edits)
        options = replace(self._options, seconds=wait_seconds)

        def tell(news: Moved | Row) -> None:
            if isinstance(news, Moved):
                stage_of_call.get()[:] = [str(news.stage)]

        return run_text(await run_kernel(self._client, self._bug, change, options, tell))

    async def trace(
        self,
        files: Annotated[
            list[str], Field(description="C files whose functions are recorded", max_length=100)
        ] = [],  # noqa: B006
    ) -> str:
        """Return the functions that the kernel with the bug ran before it crashed.

        Without `files`, the files on the crash's stack are recorded. Takes a build and a run.
        """
        wanted = [*files] or await self._files_of_the_crash()
        how = tracing_job.tracing(self._bug, wanted, "hypervisor")
        job = await self._ended(tracing_job.traced(self._bug.job(None), how))
        trace = TraceResult.of(job)
        text = execution(trace.trace) if trace.trace is not None else None
        if text is None:
            return f"no trace: {trace.reason or 'these files have no record of the crash'}"
        line = f"calls of functions of {named(wanted, 10)}, from earliest to most recent:"
        return bounded(f"{line}\n{quoted('trace', text, MOST - 1000)}", MOST)

    async def _change(self, patch: str, edits: Sequence[Edit]) -> Change:
        if patch.strip() and edits:
            raise UserError("bad_option", "give `patch` or `edits`, not both")
        if patch.strip() or edits or self._tree is None:
            return edits or patch
        return await asyncio.to_thread(tree_changes.changes, self._tree)

    async def _ended(self, request: JobRequest) -> JobView:
        return await kept_job(self._client, request, kept(self._bug, self._options))

    async def _files_of_the_crash(self) -> list[str]:
        """Return the C files on the crash's stack, without those of the crash detectors."""
        job = await shown(self._client, self._bug, self._options)
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

    async def _look(self, call: Callable[[int, Look], Awaitable[T]], look: Look) -> T:
        return await call(await self._source_job(), look)

    async def _source_job(self) -> int:
        """Return the job whose source tree is read; concurrent calls share it."""
        if self._source is None or (self._source.done() and self._source.exception()):
            self._source = asyncio.create_task(self._made_source())
        # Shielded: one cancelled call must not cancel the job for the others. A failed job is not
        # kept, so the next call retries.
        return await asyncio.shield(self._source)

    async def _made_source(self) -> int:
        job = await self._ended(self._bug.source())
        if job.state is not State.SUCCEEDED:
            raise UserError("no_source", f"the source cannot be read: {failure(job)}")
        return job.id


async def answered(work: Awaitable[T]) -> T:
    """Await a tool's answer; raise UserError `bad_argument` for invalid arguments."""
    try:
        return await work
    except ValidationError as error:
        raise UserError("bad_argument", faults.in_words(error)) from error


def words(error: KgymError) -> str:
    """Return an error as text for a model."""
    return bounded(f"{error.reason}: {error.message}", 2000)
