"""Helpers of routes: routers with an access rule, and answers of models."""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, TypeAdapter

from kgym.web.access import EVERYBODY, needs
from kgym.web.scopes import Scope
from kgym.web.strict_requests import StrictRoute


def router(scope: Scope | None, kind: type[StrictRoute] = StrictRoute) -> APIRouter:
    """Return a router of /v1 for callers with this scope; None admits everybody."""
    dependencies = [needs(scope) if scope else EVERYBODY]
    return APIRouter(prefix="/v1", route_class=kind, dependencies=dependencies)


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the model as JSON. FastAPI would validate it a second time."""
    return Response(model.model_dump_json(), status, headers, "application/json")


def as_json_list(adapter: TypeAdapter[list[Any]], models: list[Any]) -> Response:
    """Return the models as a JSON list."""
    return Response(adapter.dump_json(models), media_type="application/json")
