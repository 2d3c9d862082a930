"""Steps of a debug cycle, and excerpts of questions to a model."""

from datetime import datetime

from pydantic import AwareDatetime, Field

from kgym.api.agent.runs import CallView
from kgym.api.steps import Strict


class RunStep(Strict):
    """A piece of work of a debug cycle: a question, a check, a kernel, a source look-up."""

    name: str = Field(description="in its run; for a question, the name of the call")
    node: str
    work: str = Field(
        description="the purpose of a question (`hypothesis`, `patch` …), or `check`, `try`,"
        " `source`"
    )
    asked: int = Field(1, description="how often it was begun: again after a kill of the agent")
    begun_at: datetime
    ended_at: datetime | None = None
    outcome: str = Field(
        "", description="the verdict of a kernel, or each patch's outcome of a check"
    )
    unanswered: str | None = Field(None, description="why there is no answer")
    jobs: list[int] = Field([], description="of the scheduler")
    tokens: int | None = Field(None, description="input and output")
    price: float | None = Field(None, description="in US dollars; null if unknown")
    seconds: float | None = Field(None, description="of the model")


class CallExcerpt(Strict):
    """A short view of a question to the model, around the searched text."""

    name: str
    node: str
    purpose: str
    asked_at: AwareDatetime
    answered_at: AwareDatetime | None
    error: str | None
    tokens: int | None = Field(description="input and output; null without an answer")
    price: float | None
    seconds: float | None
    part: str = Field(description="source of the excerpt: `prompt`, `turn`, `answer` or `system`")
    excerpt: str = Field(description="the text around the searched one")


class CallViewPage(Strict):
    """Questions and answers in full, oldest first."""

    calls: list[CallView]
    next: int | None = Field(None, description="`cursor` of the next page")


class CallPage(Strict):
    """The questions that match a search, oldest first."""

    calls: list[CallExcerpt]
    next: int | None = Field(
        None, description="`cursor` to continue the search; further matches are not certain"
    )
