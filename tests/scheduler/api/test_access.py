"""Every route says who may use it, and what nobody has opened is closed."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles

from kgym.web.access import EVERYBODY, needs
from kgym.web.scopes import Scope
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import problem
from tests.scheduler.parts import served
from tests.tables import json_rows

pytestmark = pytest.mark.anyio
DATABASE = "sqlite"


@pytest.fixture
async def http(scheduler: Scheduler) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a token, of a scheduler that asks for one."""
    await Tokens(scheduler.store.database).create("alice", ["read"])
    async with served(scheduler) as client:
        yield client


async def _answer() -> str:
    return "secret"


def _plain(app: FastAPI) -> None:
    app.add_api_route("/v1/new", _answer)


def _of_a_router(app: FastAPI) -> None:
    router = APIRouter(prefix="/v1")
    router.add_api_route("/new", _answer)
    app.include_router(router)


def _starlettes(app: FastAPI) -> None:
    app.add_route("/v1/new", _answer)  # type: ignore[arg-type]


def _mounted(app: FastAPI) -> None:
    app.mount("/v1/new", StaticFiles(packages=[("fastapi_offline", "static")]))


@pytest.mark.parametrize("add", [_plain, _of_a_router, _starlettes, _mounted])
async def test_a_route_that_does_not_say_who_may_use_it_keeps_the_scheduler_from_starting(
    scheduler: Scheduler, add: Callable[[FastAPI], None]
) -> None:
    app = create_app(scheduler)
    add(app)
    with pytest.raises(RuntimeError, match="the route /v1/new has no access rule"):
        async with serve(app):
            pass


@pytest.mark.parametrize(
    ("path", "access", "complaint"),
    [
        ("/healthz", needs(Scope.ADMIN), "/healthz is open for some of its methods only"),
        ("/files/{name}", EVERYBODY, "cannot have parameters"),
    ],
)
async def test_what_is_everybodys_is_one_path_by_all_of_its_methods(
    scheduler: Scheduler, path: str, access: Any, complaint: str
) -> None:
    app = create_app(scheduler)
    app.add_api_route(path, _answer, methods=["POST"], dependencies=[access])
    with pytest.raises(RuntimeError, match=complaint):
        async with serve(app):
            pass


async def test_a_route_that_says_it_is_served(scheduler: Scheduler) -> None:
    app = create_app(scheduler)
    app.add_api_route("/v1/new", _answer, dependencies=[needs(Scope.READ)])
    async with serve(app) as address, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(f"{address.url}/v1/new")).json() == "secret"


@pytest.mark.parametrize("path", ["/v1/jobs", "/metrics", "/nothing", "/docs/", "/swaggers"])
async def test_paths_that_nobody_has_opened_need_a_token(
    http: httpx.AsyncClient, path: str
) -> None:
    problem(await http.get(path), 401, "token_needed")


@pytest.mark.thorough
@pytest.mark.parametrize("path", json_rows(__file__, "open_paths.jsonl"))
async def test_open_paths_do_not(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 200
