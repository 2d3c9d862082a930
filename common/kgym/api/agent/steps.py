"""What a debug cycle did, step by step, and excerpts of what was said to a model."""

from datetime import datetime

from pydantic import AwareDatetime, Field

from kgym.api.steps import Strict


class RunStep(Strict):
    """A piece of work of a debug cycle: a question, a check, a kernel, a look at the source."""

    name: str = Field(description="in its run; of a question, the name of the call")
    node: str
    work: str = Field(
        description="the purpose of a question (`hypothesis`, `patch` …), or `check`, `try`,"
        " `source`"
    )
    asked: int = Field(1, description="how often it was begun: again after a kill")
    begun_at: datetime
    ended_at: datetime | None = None
    outcome: str = Field(
        "", description="of a kernel the verdict, of a check what became of each patch"
    )
    unanswered: str | None = Field(None, description="why there is no answer")
    jobs: list[int] = Field([], description="of the scheduler")
    tokens: int | None = Field(None, description="in and out")
    price: float | None = Field(None, description="in US dollars; null where it is not known")
    seconds: float | None = Field(None, description="that the model took")


class CallExcerpt(Strict):
    """A question to the model in short, or the place in it that was searched for."""

    name: str
    node: str
    purpose: str
    asked_at: AwareDatetime
    answered_at: AwareDatetime | None
    error: str | None
    tokens: int | None = Field(description="in and out; null without an answer")
    price: float | None
    seconds: float | None
    part: str = Field(description="what the excerpt is of: `prompt`, `turn`, `answer` or `system`")
    excerpt: str = Field(description="a few lines of that, about what was searched for")


class CallPage(Strict):
    """Questions that meet a search, the first asked first."""

    calls: list[CallExcerpt]
    next: int | None = Field(
        None, description="give it as `cursor` to look further; there may be no more that match"
    )
