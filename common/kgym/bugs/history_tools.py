"""Tools with which models read the history of a kernel's source. See `SourceTools`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import HistoryArtifact, HistoryLook, HistorySpec
from kgym.bugs.bug import Bug
from kgym.bugs.conclusion import failure
from kgym.bugs.consoles import artifact_text
from kgym.bugs.crash_tools import BugJobs
from kgym.bugs.kernel_run_text import MOST, quoted
from kgym.client import AsyncClient

_NONE = (
    "there is no history: the kernel's source is no Git repository, or is changed to have the bug"
    " again, and the bug's bundle names no other ([history])"
)
_Path = Annotated[str | None, Field(description="only what changes this file or folder")]
_LineNumber = Annotated[int, Field(ge=1, lt=1 << 31)]


class HistoryTools:
    """Tools that read the commits up to the one that has the bug, and none after it."""

    def __init__(self, client: AsyncClient, bug: Bug, jobs: BugJobs) -> None:
        self._client, self._bug, self._jobs = client, bug, jobs
        self.tools = (self.git_log, self.git_show, self.git_blame)

    async def git_log(
        self,
        path: _Path = None,
        function: Annotated[
            str | None, Field(description="only what changes this function of the file at `path`")
        ] = None,
        words: Annotated[
            str | None, Field(description="expression (ERE) that the message matches")
        ] = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
    ) -> str:
        """List commits before the bug was found, newest first: id, date and subject.

        Fixes of similar bugs, found by the words of their messages, show how this code is mended.
        """
        return await self._look("log", path=path, function=function, words=words, limit=limit)

    async def git_show(
        self,
        commit: Annotated[str, Field(description="its id; at least 7 digits")],
        path: _Path = None,
    ) -> str:
        """Return a commit's message and diff."""
        return await self._look("show", commit=commit, path=path)

    async def git_blame(self, path: str, start: _LineNumber = 1, end: _LineNumber = 100) -> str:
        """Return lines of a file with the commits that they come from."""
        return await self._look("blame", path=path, first=start, last=end)

    async def _look(self, kind: Literal["log", "show", "blame"], **how: Any) -> str:
        look = HistoryLook(kind=kind, **how)
        if (source := self._bug.history) is None:
            return _NONE
        spec = HistorySpec(source=source, look=look)
        job = await self._jobs.ended(JobRequest(steps=[spec], tags=[f"bug={self._bug.name}"]))
        if job.state is not State.SUCCEEDED:
            return f"error: {failure(job) or f'job {job.id} is {job.state}'}"
        text = await artifact_text(self._client, job, job.steps[0], HistoryArtifact.LOOK)
        return quoted("commits", text or "no commit", 2 * MOST)
