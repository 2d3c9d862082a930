"""What the models of all step kinds share."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kgym.errors import Cause

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TreePath = Annotated[str, Field(min_length=1, max_length=1000, description="path in the tree")]


class Strict(BaseModel):
    """A model that refuses unknown fields and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StepKind(StrEnum):
    """What a step does; each kind has its own queue and workers."""

    BUILD = "build"
    CHECK = "check"
    REPRODUCE = "reproduce"
    MINIMIZE = "minimize"


class StepRef(Strict):
    """A step of this job (`job` left out: an earlier one) or a finished step of another job."""

    job: int | None = Field(None, ge=1, lt=1 << 63)
    step: int = Field(ge=0, lt=100)


class Failure(Strict):
    """Why a step failed."""

    cause: Cause
    reason: str
    message: str
    details: dict[str, object] = {}
