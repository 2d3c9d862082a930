"""Requests are refused where they hold what nobody asked for."""

from collections.abc import Callable, Coroutine
from functools import cache
from json import JSONDecodeError
from typing import Any, get_args, get_type_hints

from fastapi import Request, Response, params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from kgym_scheduler.problems import faulty_parameters


async def known_request(request: Request) -> None:
    """Refuse query parameters that the route does not have, and bodies that are not JSON."""
    known, has_body = _inputs(request.scope["endpoint"])
    given = [name for name, _ in request.query_params.multi_items()]
    faults = dict.fromkeys((n for n in given if n not in known), "unknown query parameter")
    faults |= dict.fromkeys((n for n in given if given.count(n) > 1), "given more than once")
    if faults:
        raise faulty_parameters(faults)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if has_body and media_type != "application/json":
        raise HTTPException(415, "the body has to be JSON, with `Content-Type: application/json`")


@cache
def _inputs(endpoint: Callable[..., object]) -> tuple[frozenset[str], bool]:
    """Return the names of the endpoint's query parameters, and whether it has a body."""
    names: set[str] = set()
    has_body = False
    for name, hint in get_type_hints(endpoint, include_extras=True).items():
        kind, *metadata = get_args(hint) or (hint,)
        has_body |= any(isinstance(item, params.Body) for item in metadata)
        if any(isinstance(item, params.Query) for item in metadata):
            model = isinstance(kind, type) and issubclass(kind, BaseModel)
            names |= set(kind.model_fields) if model else {name}
    return frozenset(names), has_body


class _StrictJson(Request):
    async def json(self) -> Any:
        """Read JSON as pydantic does: Python's own reader takes NaN and lone surrogates."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from error


class StrictRoute(APIRoute):
    """A route that reads bodies strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictJson(request.scope, request.receive))

        return handle_strictly
