"""Strict requests: no unknown parameters or fields, and not too many values."""

from collections import Counter
from collections.abc import Callable, Coroutine
from functools import cache
from inspect import Parameter, signature
from json import JSONDecodeError
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from fastapi import Request, Response, params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from kgym.web.problems import BodyTooLarge, faulty_parameters

# Maximum of JSON values in a body. Validation takes microseconds for each, and many times as
# long for an invalid one.
VALUES = 50_000


def _check_known(request: Request) -> None:
    """Refuse unknown or repeated query parameters, and bodies that are not JSON."""
    known, body = _inputs(request.scope["endpoint"])
    given = Counter(name for name, _ in request.query_params.multi_items())
    faults = dict.fromkeys((n for n in given if n not in known), "unknown query parameter")
    # FastAPI would take the last one, a proxy perhaps the first.
    faults |= dict.fromkeys((n for n in given if given[n] > 1), "given more than once")
    if faults:
        raise faulty_parameters(faults)
    if body == "none" or (body == "optional" and not _has_body(request)):
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if media_type != "application/json":
        raise HTTPException(415, "the body has to be JSON, with `Content-Type: application/json`")


def _has_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


@cache
def _inputs(
    endpoint: Callable[..., object],
) -> tuple[frozenset[str], Literal["none", "optional", "required"]]:
    """Return the names of the endpoint's query parameters, and whether it has a body."""
    names: set[str] = set()
    body: Literal["none", "optional", "required"] = "none"
    defaults = signature(endpoint).parameters
    for name, hint in get_type_hints(endpoint, include_extras=True).items():
        kind, *metadata = get_args(hint) or (hint,)
        if any(isinstance(item, params.Body) for item in metadata):
            body = "required" if defaults[name].default is Parameter.empty else "optional"
        if any(isinstance(item, params.Query) for item in metadata):
            model = isinstance(kind, type) and issubclass(kind, BaseModel)
            names |= set(kind.model_fields) if model else {name}
    return frozenset(names), body


class StrictRoute(APIRoute):
    """A route that takes known requests only; `values` is its maximum of JSON values in a body."""

    values: ClassVar[int] = VALUES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that checks the request before it parses the body strictly."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            _check_known(request)
            return await handle(_StrictJson(request, self.values))

        return handle_strictly


class _StrictJson(Request):
    def __init__(self, request: Request, values: int) -> None:
        super().__init__(request.scope, request.receive)
        self._values = values

    async def json(self) -> Any:
        """Parse JSON as pydantic does: Python's own parser accepts NaN and lone surrogates."""
        body = await self.body()
        if _has_more(body, self._values):
            raise BodyTooLarge(f"the body holds more than {self._values} JSON values")
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from error


def _has_more(body: bytes, values: int) -> bool:
    """Return whether the body has more than `values` JSON values, without parsing it.

    Each value but the first follows a comma, a colon or an opening bracket outside of strings.
    """
    marks = b",:[{"
    if sum(body.count(mark) for mark in marks) <= values:
        return False
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 4 * values:  # two for a value's name, two for itself
        return True
    outside = unescaped.split(b'"')[::2]
    return sum(part.count(mark) for part in outside for mark in marks) > values
