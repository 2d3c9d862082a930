"""Messages about wrong fields of files. Pure."""

import difflib
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

Place = tuple[int | str, ...]


def faults_of(error: ValidationError, model: Any, most: int) -> Iterator[tuple[Place, str]]:
    """Yield place and message of the first faults that pydantic found in a `model`.

    An unknown field is most often a misspelt one, so the most similar field of the model is named.
    """
    fields: set[str] | None = None
    for fault in error.errors(include_url=False)[:most]:
        place, message = fault["loc"], fault["msg"]
        if fault["type"] == "extra_forbidden":
            fields = set(_fields(model)) if fields is None else fields
            # Comparing takes quadratic time.
            similar = difflib.get_close_matches(str(place[-1])[:100], fields, 1)
            message = "unknown field" + "".join(f"; did you mean {name}?" for name in similar)
        yield place, message


def _fields(model: Any) -> Iterator[str]:
    schema = TypeAdapter(model).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", ())
