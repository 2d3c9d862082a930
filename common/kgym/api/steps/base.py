"""Types and models that all kinds of steps share."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic_core import from_json, to_json

from kgym.errors import Cause

# --- bounded types: no value of any sender is unlimited -----------------------------------


def _cut(most: int) -> BeforeValidator:
    return BeforeValidator(lambda text: text[:most] if isinstance(text, str) else text)


# Maximum bytes of a failure's details as JSON.
DETAILS = 1 << 20


def _bounded(details: object) -> object:
    text = to_json(details, fallback=str, inf_nan_mode="null")
    return from_json(text) if len(text) <= DETAILS else {"omitted": f"{len(text)} bytes of details"}


Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
TreePath = Annotated[str, Field(min_length=1, max_length=1000, description="path in the tree")]
# Output of a compiler, a kernel or a guest is cut, as a patch could make it too long for a readable
# result. Lists that are too long are refused: the entry that matters might be cut.
Name = Annotated[str, Field(max_length=1000), _cut(1000)]
Line = Annotated[str, Field(max_length=10_000), _cut(10_000)]
Words = Annotated[str, Field(max_length=200_000), _cut(200_000)]
# Seconds, dollars or a share; bounded, so that no sum of them is infinite.
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
# Seconds, by stage of the work.
Seconds = Annotated[dict[Annotated[str, Field(max_length=100)], Number], Field(max_length=100)]
# Details of a failure for programs; dropped if they are too large.
Details = Annotated[
    dict[Annotated[str, Field(max_length=1000)], JsonValue],
    Field(max_length=1000, json_schema_extra={"x-bytes": DETAILS}),
    BeforeValidator(_bounded),
]


class Strict(BaseModel):
    """An immutable model that refuses unknown fields, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StepKind(StrEnum):
    """Kind of a step; each has its own queue and workers."""

    BUILD = "build"
    CHECK = "check"
    REPRODUCE = "reproduce"
    MINIMIZE = "minimize"
    SOURCE = "source"
    SYZKALLER = "syzkaller"
    HISTORY = "history"


# Begins with a letter, so that a reference is either a number or a name.
StepName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=60)]
StepNumber = Annotated[int, Field(ge=0, lt=100)]


class StepRef(Strict):
    """A step of this job (`job` left out: an earlier one) or a finished step of another job."""

    job: int | None = Field(None, ge=1, lt=1 << 63)
    step: StepNumber | StepName = Field(description="its name, or its number, from 0")


@dataclass(frozen=True, slots=True)
class StepInput:
    """A reference to an earlier step: the input's name, the step, and its required kind."""

    name: str
    ref: StepRef
    kind: StepKind


# Steps with equal needs share a lane (`kgym.api.capabilities`), so there must be few values.
class Needs(Strict):
    """Requirements on a worker's host; null and 0 require nothing."""

    architecture: str | None = None
    compiler: str | None = None
    compilers: list[str] = []
    """Alternatives, the best first."""
    cores: int = 0
    memory: int = 0
    """MiB, rounded up to 2^k or 3/2 * 2^k, to keep lanes few."""
    syzkaller: list[str] = []
    dump: str | None = None
    """A method of saving a guest's memory that not every worker has."""


class Failure(Strict):
    """Why a step failed: `reason` is a stable word for programs, `message` for people."""

    cause: Cause = Field(description="the user, or the infrastructure: then the step is retried")
    reason: Annotated[str, Field(max_length=100), _cut(100)]
    message: Words
    details: Details = {}


class Step(Strict):
    """Base of all specifications."""

    name: StepName | None = Field(
        None, description="name for references of later steps and other jobs; unique in a job"
    )

    def inputs(self) -> list[StepInput]:
        """Return the references to other steps."""
        return []

    def needs(self) -> Needs:
        """Return the requirements on its worker's host."""
        return Needs()

    def unmet(self, result: Strict) -> Failure | None:
        """Return why the step fails although it has this result; None if it succeeds."""
        return None
