"""What a run needs of a platform that tries patches; `platform.py` does it by the scheduler."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pydantic import Field

from kgym.api.agent.nodes import CauseCommit, Crash
from kgym.api.steps import Strict
from kgym_crashfixer.search.work import Check, Question, Result, Source, Try

# Is told the name of a piece of work and the job that does it, as soon as there is one.
Submitted = Callable[[str, int], Awaitable[None]]
# The name under which the job that shows the bug is told.
BEGIN = "begin"


class Begun(Strict):
    """The bug as the search begins with it; a resumed run begins with the same."""

    crash: Crash = Field(description="of the kernel with the bug, its trace included")
    files: dict[str, str] = Field(
        description="candidate files, most likely first: whole, as builds see them, by path"
    )
    notes: list[str] = Field(
        [], description="what the user has to know: no trace, files that were passed over"
    )
    job: int | None = Field(None, description="that showed the bug")
    cause: CauseCommit | None = Field(None, description="the commit that brought the bug in")


class Platform(Protocol):
    """Does the work of one run."""

    async def begin(self) -> Begun:
        """Crash the kernel with the bug, before any money is spent.

        Raises UserError `does_not_reproduce` where it does not crash; other KgymError where the
        platform cannot say.
        """
        ...

    async def resume(self, begun: Begun) -> None:
        """Go on with what an earlier `begin` has returned."""
        ...

    async def do(self, name: str, work: Check | Try | Source) -> Result:
        """Do a piece of work. Asked again under the same name, it takes up the same job.

        A platform that does not answer is waited for; what it cannot do is `Unanswered`, and
        an inconclusive try is a `Tried`. If the task is cancelled, its job is aborted. Raises
        KgymError only for what no further work would be spared either.
        """
        ...

    def fitted(self, question: Question) -> Question:
        """Return the question with its files cut to what fits the model's window.

        The same question is always cut in the same way. What was left out, the question says.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds; jobs stay."""
        ...
