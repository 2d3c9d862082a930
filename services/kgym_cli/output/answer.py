"""JSON output of commands: models, so that --json-schema and the output come from the same code.

All keys are always present; unknown values are null.
"""

from functools import reduce
from operator import or_
from pkgutil import resolve_name
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema, to_json


class Answer(BaseModel):
    """Base of all answers of commands."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(BaseModel):
    """What a failed command prints instead of its answer: RFC 9457, as in REST.

    Further members depend on the reason.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(description="`urn:kgymsuite:problem:` and the reason")
    title: str = Field(description="the status in words")
    status: int = Field(
        description="as in HTTP; the exit status tells user errors from platform errors"
    )
    detail: str = Field(description="what happened, to what, and what to do")
    instance: str = Field(description="the command, or the path of the failed request")
    reason: str = Field(description="the kind of problem as one stable word")


class _AllKeys(GenerateJsonSchema):
    """Schema generator that marks every key as required: all are always printed."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        """Return True: every field is always printed."""
        return True


def schema(*answers: Any) -> dict[str, Any]:
    """Return the JSON schema of a command's --json: one of its answers or a problem.

    A type whose import needs an extra is given by name, as `package.module:Type`.
    """
    types = [resolve_name(answer) if isinstance(answer, str) else answer for answer in answers]
    either: TypeAdapter[Any] = TypeAdapter(reduce(or_, [*types, Problem]))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **either.json_schema(mode="serialization", schema_generator=_AllKeys),
    }


def text(value: object) -> str:
    """Return the answer as one line of JSON, in ASCII for any terminal."""
    return to_json(value, inf_nan_mode="null", ensure_ascii=True).decode()
