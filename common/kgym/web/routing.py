"""Helpers of routes: routers with an access rule, their documentation, and answers of models."""

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Header, Response
from pydantic import BaseModel
from pydantic_core import to_json

from kgym.web.access import EVERYBODY, needs
from kgym.web.problems import documented
from kgym.web.scopes import Scope
from kgym.web.strict_requests import StrictRoute


def router(scope: Scope | None, *tags: str, kind: type[StrictRoute] = StrictRoute) -> APIRouter:
    """Return a router of /v1 for callers with this scope; None admits everybody."""
    dependencies = [needs(scope) if scope else EVERYBODY]
    return APIRouter(prefix="/v1", tags=[*tags], route_class=kind, dependencies=dependencies)


def add_routes(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Add the routes of the routers to the application."""
    # `include_router` builds each route a second time: a tenth of a second for each application.
    app.router.routes.extend(route for router in routers for route in router.routes)


def described(
    summary: str,
    answer: Any,
    *problems: int,
    answers: dict[int | str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the arguments of a route: its summary, the type of its answer, and its problems.

    The answer is that of status 200, or of the route's `status_code`: a model, a list of models, or
    a class of responses. `answers` documents others.
    """
    is_response = isinstance(answer, type) and issubclass(answer, Response)
    kind = "response_class" if is_response else "response_model"
    return {"summary": summary, kind: answer, "responses": documented(*problems, answers=answers)}


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the model as JSON. FastAPI would validate it a second time."""
    return Response(model.model_dump_json(), status, headers, "application/json")


def as_json_list(models: Sequence[BaseModel]) -> Response:
    """Return the models as a JSON list."""
    return Response(to_json(models, by_alias=False), media_type="application/json")


def key_header(description: str, longest: int = 200) -> Any:
    """Return the header of an idempotency key."""
    return Header(min_length=1, max_length=longest, pattern="^[!-~]+$", description=description)
