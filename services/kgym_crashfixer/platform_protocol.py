"""The interface of a platform that tries patches; `platform.py` implements it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pydantic import Field

from kgym.api.agent.nodes import CauseCommit, Crash
from kgym.api.steps import Strict
from kgym_crashfixer.search.work import PlatformWork, Question, Result

# Called with the name of a piece of work and its job, as soon as the job exists.
Submitted = Callable[[str, int], Awaitable[None]]
# Name of the work that shows the bug.
BEGIN = "begin"


class Begun(Strict):
    """The start of a search, which a resumed run reuses."""

    crash: Crash = Field(description="of the kernel with the bug")
    files: dict[str, str] = Field(
        description="candidate files, most likely first: whole, as builds see them, by path"
    )
    notes: list[str] = Field(
        [], description="remarks for the user: a missing trace, files that were skipped"
    )
    trace: list[str] = Field([], description="files through whose functions it can be traced")
    job: int | None = Field(None, description="that showed the bug")
    cause: CauseCommit | None = Field(None, description="the commit that introduced the bug")
    program: str = Field("", description="the program that crashes the kernel, for prompts")
    discussion: bool = Field(False, description="whether the model may read mails on the bug")


class Platform(Protocol):
    """The work of one run."""

    async def begin(self) -> Begun:
        """Crash the unpatched kernel, before the model costs anything.

        Raises UserError `does_not_reproduce` if it does not crash, and another KgymError if the
        platform fails.
        """

    async def resume(self, begun: Begun) -> None:
        """Continue with the result of an earlier `begin`."""

    async def do(self, name: str, work: PlatformWork) -> Result:
        """Carry out a piece of work. The same name refers to the same job again.

        Waits for an unreachable platform. Impossible work is `Unanswered`, an inconclusive try is a
        `Tried`. Cancelling the task aborts the job. Raises KgymError only for errors that would
        affect all further work.
        """

    def fitted(self, question: Question) -> Question:
        """Return the question with its files cut to the model's window.

        The same question is always cut in the same way. Comments mark omitted parts.
        """
