"""What commands print with --json: models, whose schemas --json-schema prints.

Each has all of its keys always; what is not known is null.
"""

from types import FunctionType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema, to_json


class Answer(BaseModel):
    """The base of what commands answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(BaseModel):
    """What every command prints instead of its answer when it fails: RFC 9457, as REST has it.

    Further members go with the reason.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(description="`urn:kgymsuite:problem:` and the reason")
    title: str = Field(description="the status in words")
    status: int = Field(
        description="as HTTP would have it; the exit status tells whose fault it is"
    )
    detail: str = Field(description="what happened, to what, and what to do")
    instance: str = Field(description="the command, or the path of the request that failed")
    reason: str = Field(description="the kind of problem as one stable word")


class _AllKeys(GenerateJsonSchema):
    """Says that every key is there, as it is in what is printed."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        """Say that every field is always there."""
        return True


def schema(answer: Any) -> dict[str, Any]:
    """Return the JSON schema of what a command prints with --json: its answer, or a problem.

    A function stands for what it returns: for answers whose import needs an extra.
    """
    answer = answer() if isinstance(answer, FunctionType) else answer
    either: TypeAdapter[Any] = TypeAdapter(answer | Problem)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **either.json_schema(mode="serialization", schema_generator=_AllKeys),
    }


def text(value: object) -> str:
    """Return the answer as one line of JSON, in ASCII: whatever the terminal takes."""
    return to_json(value, inf_nan_mode="null", ensure_ascii=True).decode()
