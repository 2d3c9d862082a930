"""Messages about wrong fields, of files and of arguments. Pure."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kgym.errors import UserError

Place = tuple[int | str, ...]


def in_words(error: ValidationError, model: Any = None, most: int = 10) -> str:
    """Return the first faults, each with its place, in one line."""
    return "; ".join(
        f"{'.'.join(map(str, place)) or 'the file'}: {message}"
        for place, message in faults_of(error, model, most)
    )


def first_fault(error: ValidationError) -> str:
    """Return the first wrong field and the reason; omit the input, which may be hostile."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg'][:200]}"


@contextmanager
def refused_at(where: str, reason: str = "bad_bug_data") -> Iterator[None]:
    """Raise UserError, with the place and the field, for data that a record does not accept."""
    try:
        yield
    except ValidationError as error:
        raise UserError(reason, f"{where}: {first_fault(error)}") from error


def faults_of(error: ValidationError, model: Any, most: int) -> Iterator[tuple[Place, str]]:
    """Yield place and message of the first faults that pydantic found in a `model`.

    An unknown field is most often a misspelt one, so the most similar field of the model is named,
    if there is a model.
    """
    fields: set[str] | None = None
    for fault in error.errors(include_url=False)[:most]:
        place, message = fault["loc"], fault["msg"]
        if model is not None and fault["type"] == "extra_forbidden":
            fields = set(_fields(model)) if fields is None else fields
            # Comparing takes quadratic time.
            similar = difflib.get_close_matches(str(place[-1])[:100], fields, 1)
            message = "unknown field" + "".join(f"; did you mean {name}?" for name in similar)
        yield place, message


def _fields(model: Any) -> Iterator[str]:
    schema = TypeAdapter(model).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", ())
