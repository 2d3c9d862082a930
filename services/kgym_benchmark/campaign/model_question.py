"""Which requests of an agent are questions to its own model. Pure.

An attempt is told under the name of one model, and counted by its prices. So nothing else goes to
the endpoint: no other model, and nothing that costs or shows the account's owner something, such
as images, files or what others have asked.
"""

import json
import re
from typing import Any

QUESTION = 16 << 20
"""Bytes of a question."""
_VALUES = 1_000_000
"""Commas and brackets of a question: no more values than that are made of it."""
_PATH = re.compile(r"(?:/[\w.:@-]*)+", re.ASCII)
_LIST = re.compile(r".*/models(?:/[^/]+)?")
_ASKS = re.compile(
    r".*(?:/(?:chat|generate|completions|responses|messages|count_tokens)"
    r"|:(?:generateContent|streamGenerateContent|countTokens|rawPredict|streamRawPredict))"
)
_IN_PATH = re.compile(r"/(?:models|deployments|engines)/([^/:]+)")
_ENDS = re.compile(r"[/:]")


def names(model: str) -> frozenset[str]:
    """Return by which names a model may be asked for: `a/b/c` also as `b/c` and `c`."""
    return frozenset({model, *(model[one.end() :] for one in _ENDS.finditer(model))} - {""})


def refusal(method: str, path: str, body: bytes, known: frozenset[str]) -> str | None:
    """Return why a request is not passed on; None if it is a question to a model of these names."""
    if not _PATH.fullmatch(path) or ".." in path:
        return f"{path[:200]!r} is no path of a model"
    if method == "GET" and _LIST.fullmatch(path):
        return None
    if method != "POST" or not _ASKS.fullmatch(path):
        return f"{method} {path[:200]} is no question to a model"
    try:
        asked = {*_IN_PATH.findall(path)} | _named(body)
    except (ValueError, RecursionError) as error:
        return f"the question cannot be read: {error}"
    return _others(asked, known)


def _others(asked: set[str], known: frozenset[str]) -> str | None:
    if not asked:
        return "the question names no model"
    if others := sorted(asked - known):
        return (
            f"this attempt is of {' or '.join(sorted(known))}, and not of {others[0][:200]}; a"
            " campaign lists further `names` of a model"
        )
    return None


def _named(body: bytes) -> set[str]:
    if sum(body.count(one) for one in (b",", b"[", b"{")) > _VALUES:
        raise ValueError("it has too many values")
    said = json.loads(body, object_pairs_hook=_once)
    if not isinstance(said, dict):
        raise ValueError("it is no object")
    name = said.get("model")
    return {name} if isinstance(name, str) else set()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; a field that is there twice could mean one thing here, another there."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there twice")
    return found
