"""What a search asks for, and what it is told: the only words between it and the world."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Tried
from kgym.api.steps import Edit, Patch, PatchCheck, Strict


class Purpose(StrEnum):
    """What a model is asked for; each has a folder of templates in `prompts/`."""

    FILES = "files"
    """The next call of a tool, on the way to further files that the fix needs."""
    HYPOTHESIS = "hypothesis"
    HYPOTHESES = "hypotheses"
    """Several in one answer, weighed and ranked."""
    REFLECTION = "reflection"
    """To weigh hypotheses against each other, and to choose one."""
    PATCH = "patch"
    """Edits that do what a hypothesis says."""
    PATCHES = "patches"
    """Several of them in one answer."""
    DEFINITIONS = "definitions"
    """The next definitions that the model wants to see before it patches."""
    FUNCTIONS = "functions"
    """A patch as whole functions."""
    DIFF = "diff"
    """A patch as `git diff` writes it, at once."""
    REPAIR = "repair"
    """To mend edits that do not apply, or do not compile."""
    CONSISTENCY = "consistency"
    """To choose, of patches that compile, the one that does what the hypothesis says."""
    SUMMARY = "summary"
    """Of a patch that failed, for those that come after it."""
    TOOL = "tool"
    """The next call of a tool."""


class Question(Strict):
    """A question to the model: the values of its template, and the turns after it."""

    kind: Literal["question"] = "question"
    node: str = Field(description="the debug cycle that asks")
    purpose: Purpose
    values: dict[str, Any] = Field(description="of the template of its purpose")
    turns: list[Turn] = []
    temperature: float = Field(ge=0, le=2)
    occurrence: str = Field("", description="tells equal questions apart: the name of the work")

    @property
    def word(self) -> str:
        """Its part of the name of the work."""
        return str(self.purpose)


class Answer(Strict):
    """What the model said; empty where it said nothing."""

    kind: Literal["answer"] = "answer"
    text: str = ""
    calls: list[ToolCall] = []


class Check(Strict):
    """Whether patches apply to the tree and compile, each alone."""

    kind: Literal["check"] = "check"
    node: str
    patches: list[Patch] = Field(min_length=1)

    word: Literal["check"] = "check"


class Checked(Strict):
    """What became of the patches, in their order."""

    kind: Literal["checked"] = "checked"
    patches: list[PatchCheck]


class Try(Strict):
    """Build the kernel with the patch, and run the reproducer on it.

    `fresh` is another run of the same: the final validation, or after one without an answer.
    """

    kind: Literal["try"] = "try"
    node: str
    diff: str = Field(description="against the tree that has the bug")
    fresh: int = 0

    word: Literal["try"] = "try"


class Source(Strict):
    """A look at the source: a file, a folder, a search, a symbol; with the edits made so far."""

    kind: Literal["source"] = "source"
    node: str
    tool: Literal["read_file", "list_folder", "search", "symbol", "definition"]
    arguments: dict[str, JsonValue]
    edits: list[Edit] = []

    word: Literal["source"] = "source"


class Seen(Strict):
    """What a look at the source showed, or why it showed nothing."""

    kind: Literal["seen"] = "seen"
    text: str
    succeeded: bool = True
    paths: list[str] = Field([], description="of a definition: the files that it is in")


class Unanswered(Strict):
    """Work that could not be done, and that another try would not do either."""

    kind: Literal["unanswered"] = "unanswered"
    reason: str


Asking = Annotated[Question | Check | Try | Source, Field(discriminator="kind")]
Result = Annotated[Answer | Checked | Tried | Seen | Unanswered, Field(discriminator="kind")]
