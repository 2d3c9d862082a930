"""Messages about wrong fields of files and requests. Pure."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter


def message_of(fault: Mapping[str, Any], model: Any) -> str:
    """Return the message of a fault that pydantic found in a `model`.

    An unknown field is most often a misspelt one, so the most similar field of the model is named.
    """
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"])
    # Comparing takes quadratic time.
    name = str(fault["loc"][-1])[:100]
    similar = difflib.get_close_matches(name, set(_fields(model)), 1)
    return f"unknown field; did you mean {similar[0]}?" if similar else "unknown field"


def _fields(model: Any) -> Iterator[str]:
    schema = TypeAdapter(model).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", ())
