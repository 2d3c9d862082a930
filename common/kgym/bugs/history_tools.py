"""Tools with which models read the history of a kernel's source. See `SourceTools`."""

from typing import Annotated, Any

from pydantic import Field

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import HistoryArtifact, HistoryLook, HistorySpec
from kgym.bugs.consoles import artifact_text
from kgym.bugs.crash_tools import BugWork
from kgym.bugs.kernel_run_text import MOST, quoted

_NONE = (
    "there is no history: the kernel's source is no Git repository, or is changed to have the bug"
    " again, and the bug's bundle names no other ([history])"
)
_Path = Annotated[str | None, Field(description="only what changes this file or folder")]
_Function = Annotated[
    str | None, Field(description="only what changes this function of the file at `path`")
]
_Words = Annotated[str | None, Field(description="expression (ERE) that the message matches")]
_Commit = Annotated[str, Field(description="its id; at least 7 digits")]
_LineNumber = Annotated[int, Field(ge=1, lt=1 << 31)]


class HistoryTools:
    """Tools that read the commits up to the one that has the bug, and none after it."""

    def __init__(self, work: BugWork) -> None:
        self._work = work
        self.tools = (self.git_log, self.git_show, self.git_blame)

    async def git_log(
        self,
        path: _Path = None,
        function: _Function = None,
        words: _Words = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
    ) -> str:
        """List commits before the bug was found, newest first: id, date and subject.

        Fixes of similar bugs, found by the words of their messages, show how this code is mended.
        """
        return await self._look("log", path=path, function=function, words=words, limit=limit)

    async def git_show(self, commit: _Commit, path: _Path = None) -> str:
        """Return a commit's message and diff."""
        return await self._look("show", commit=commit, path=path)

    async def git_blame(self, path: str, start: _LineNumber = 1, end: _LineNumber = 100) -> str:
        """Return lines of a file with the commits that they come from."""
        return await self._look("blame", path=path, first=start, last=end)

    async def _look(self, kind: str, **how: Any) -> str:
        look, bug = HistoryLook.model_validate({"kind": kind, **how}), self._work.bug
        if bug.history is None:
            return _NONE
        spec = HistorySpec(source=bug.history, look=look)
        job = await self._work.ended(JobRequest(steps=[spec], tags=[f"bug={bug.name}"]))
        if job.state is not State.SUCCEEDED:
            # Other messages may name the fix: the source may be its parent.
            fault = job.steps[0].failure
            tells = fault is not None and fault.reason in {"no_mirror", "not_in_history"}
            return f"error: {fault.message if fault and tells else 'no history can be read now'}"
        text = await artifact_text(self._work.client, job, job.steps[0], HistoryArtifact.LOOK)
        return quoted("commits", text or "no commit", 2 * MOST)
