"""Requests and results of a search: its only interface to the outside."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Tried
from kgym.api.steps import Edit, Patch, PatchCheck, Strict


class Purpose(StrEnum):
    """Kinds of questions to a model; each has a folder of templates in `prompts/`."""

    FILES = "files"
    """The next tool call in a search for further files."""
    HYPOTHESIS = "hypothesis"
    HYPOTHESES = "hypotheses"
    """Several hypotheses in one answer, weighed and ranked."""
    REFLECTION = "reflection"
    """Weigh hypotheses against each other, and choose one."""
    PATCH = "patch"
    """Edits that implement a hypothesis."""
    PATCHES = "patches"
    """Several patches in one answer."""
    DEFINITIONS = "definitions"
    """The next definitions to show before the patch."""
    FUNCTIONS = "functions"
    """A patch as whole functions."""
    DIFF = "diff"
    """A patch as a unified diff, without a hypothesis."""
    REPAIR = "repair"
    """Repair edits that do not apply or compile."""
    CONSISTENCY = "consistency"
    """Choose the compiling patch that fits the hypothesis best."""
    SUMMARY = "summary"
    """Lessons of a failed patch for later ones."""
    TOOL = "tool"
    """The next tool call of a plain agent."""
    REVIEW = "review"
    """What a maintainer would still change in a fix."""
    MESSAGE = "message"
    """The message of the commit, from the final diff."""


class Question(Strict):
    """A question to the model: the values of its template, and the turns so far."""

    kind: Literal["question"] = "question"
    node: str = Field(description="the debug cycle that asks")
    purpose: Purpose
    values: dict[str, Any] = Field(description="of the template of its purpose")
    turns: list[Turn] = []
    temperature: float = Field(ge=0, le=2)
    occurrence: str = Field("", description="name of the work: distinguishes equal questions")

    @property
    def word(self) -> str:
        """Its part of the work's name."""
        return str(self.purpose)


class Answer(Strict):
    """The model's answer; it may be empty."""

    kind: Literal["answer"] = "answer"
    text: str = ""
    calls: list[ToolCall] = []


class Check(Strict):
    """Check whether each patch applies to the tree and compiles."""

    kind: Literal["check"] = "check"
    node: str
    patches: list[Patch] = Field(min_length=1)
    upstream: bool = Field(False, description="also ask what a maintainer would")

    word: Literal["check"] = "check"


class Checked(Strict):
    """The results of a check, in the order of its patches."""

    kind: Literal["checked"] = "checked"
    patches: list[PatchCheck]


class Try(Strict):
    """Build the kernel with the patch, and run the reproducer on it.

    `fresh` numbers further runs of the same patch: the final validation, or after an inconclusive
    run.
    """

    kind: Literal["try"] = "try"
    node: str
    diff: str = Field(description="against the tree that has the bug")
    fresh: int = 0
    traced: bool = Field(False, description="whether to trace its crash")

    word: Literal["try"] = "try"


class Trace(Strict):
    """Trace the crash of the kernel without a patch, through the functions of some files."""

    kind: Literal["trace"] = "trace"
    node: str = Field("", description="empty: no debug cycle asks for it")
    files: list[str]

    word: Literal["trace"] = "trace"


class Source(Strict):
    """Call a tool of the model with the edits so far; `whole`, which reads a file, is no tool."""

    kind: Literal["source"] = "source"
    node: str
    tool: Annotated[str, Field(max_length=100)]
    arguments: dict[str, JsonValue]
    edits: list[Edit] = []

    word: Literal["source"] = "source"


class Seen(Strict):
    """The result of reading the source, or the reason why there is none; also a trace."""

    kind: Literal["seen"] = "seen"
    text: str
    succeeded: bool = True
    paths: list[str] = Field([], description="files of a definition")


class Unanswered(Strict):
    """Work that failed and would fail again."""

    kind: Literal["unanswered"] = "unanswered"
    reason: str


# What a platform does, in place of a model.
PlatformWork = Check | Try | Trace | Source
Asking = Annotated[Question | PlatformWork, Field(discriminator="kind")]
Result = Annotated[Answer | Checked | Tried | Seen | Unanswered, Field(discriminator="kind")]
