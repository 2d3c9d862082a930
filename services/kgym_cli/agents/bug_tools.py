"""Tools of the MCP server for one bug; each answers with text."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated

from pydantic import Field, ValidationError

from kgym.api import faults
from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.bugs import tree_changes
from kgym.bugs.bug import Bug
from kgym.bugs.conclusion import failure
from kgym.bugs.crash_tools import BugWork, CrashTools
from kgym.bugs.debug_tools import DebugTools, Edits, PatchText, chosen
from kgym.bugs.discussion_tools import DiscussionTools
from kgym.bugs.history_tools import HistoryTools
from kgym.bugs.kernel_run import Change, RunOptions, check_patch, is_empty, kept, run_kernel, shown
from kgym.bugs.kernel_run_text import bounded, check_text, run_text
from kgym.bugs.source_tools import Look, SourceTools, T
from kgym.bugs.sweep import Moved, kept_job
from kgym.bugs.sweep_rows import Row
from kgym.bugs.tree_changes import SourceTree
from kgym.client import AsyncClient
from kgym.errors import KgymError, UserError
from kgym_crashfixer.vmlinux import Vmlinux

# Of each call: what it is doing, for progress notifications.
stage_of_call: ContextVar[list[str]] = ContextVar("stage_of_call")


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
        source = SourceTools(client, self._look)
        vmlinux = Vmlinux(client, self._shown)
        work = BugWork(client, bug, self._shown, self._ended, self._change, vmlinux)
        self.tools = (
            *(self.check, self.run_kernel, *DebugTools(work, source).tools),
            *(*CrashTools(work).tools, *source.tools, *HistoryTools(work).tools),
            *(DiscussionTools(bug).tools if bug.mboxes else ()),
        )

    async def check(self, patch: PatchText = "", edits: Edits = []) -> str:  # noqa: B006
        """Check in about a second whether a change applies and compiles.

        Without `patch` and `edits`, the changes in the working tree are used, if there is one.
        """
        change = await chosen(patch, edits, self._change)
        if is_empty(change):
            raise UserError("empty_patch", "nothing is changed: give `patch` or `edits`")
        check = await check_patch(self._client, self._bug, change, self._options)
        return f"no answer: {check}" if isinstance(check, str) else check_text(check)

    async def run_kernel(
        self,
        patch: PatchText = "",
        edits: Edits = [],  # noqa: B006
        wait_seconds: Annotated[
            float,
            Field(
                gt=0, le=86400, description="seconds to wait; the same call again goes on waiting"
            ),
        ] = 3600,
    ) -> str:
        """Build the kernel with a change and run the reproducer: is the crash gone?

        Without `patch` and `edits`, the changes in the working tree are used; without any
        change, the bug is reproduced. Repeating a change costs nothing. What `pr_info("kgym: …")`
        prints comes back; such lines have to be gone before a change counts as a fix.
        """
        change = await chosen(patch, edits, self._change)
        options = replace(self._options, seconds=wait_seconds)

        def tell(news: Moved | Row) -> None:
            if isinstance(news, Moved):
                stage_of_call.get()[:] = [str(news.stage)]

        return run_text(await run_kernel(self._client, self._bug, change, options, tell))

    async def _shown(self) -> JobView:
        """Return the job that shows the bug, once it has ended."""
        return await shown(self._client, self._bug, self._options)

    async def _ended(self, request: JobRequest) -> JobView:
        """Return the job of this request, once it has ended."""
        return await kept_job(self._client, request, kept(self._bug, self._options))

    async def _change(self) -> Change:
        """Return the changes in the working tree, if there is one."""
        if self._tree is None:
            return ""
        return await asyncio.to_thread(tree_changes.changes, self._tree)

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
