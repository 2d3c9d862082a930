"""Tokens and scopes, on a real server."""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kgym.api.jobs import JobFilter
from kgym.client import AsyncClient, Refused
from kgym.errors import UserError
from kgym.web.loopback import is_loopback
from kgym.web.request_limits import WRONG_TOKENS
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import JOB, problem
from tests.scheduler.parts import job, served

pytestmark = pytest.mark.anyio
DATABASE = "sqlite"


@pytest.fixture
async def http(scheduler: Scheduler, tokens: Tokens) -> AsyncIterator[httpx.AsyncClient]:
    async with served(scheduler) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- the door -------------------------------------------------------------------------------


async def test_once_there_is_a_token_everybody_needs_one(
    http: httpx.AsyncClient, tokens: Tokens
) -> None:
    await tokens.create("alice", ["read"])
    response = await http.get("/v1/jobs")
    problem(response, 401, "token_needed")
    assert response.headers["www-authenticate"] == 'Bearer realm="kgym"'
    await tokens.revoke("alice")
    problem(await http.get("/v1/jobs"), 401, "token_needed")


async def test_an_invalid_token_is_refused_even_where_none_is_needed(
    http: httpx.AsyncClient, tokens: Tokens
) -> None:
    for token in ("kgym_1_" + "a" * 43, "x", "ä"):
        header = f"Bearer {token}".encode("latin1")
        response = await http.get("/v1/jobs", headers={b"Authorization": header})
        problem(response, 401, "token_invalid")
        assert 'error="invalid_token"' in response.headers["www-authenticate"]
    problem(await http.get("/v1/jobs", auth=("alice", "secret")), 401, "token_needed")


@pytest.mark.attack
async def test_tokens_cannot_be_guessed_quickly_and_right_ones_are_never_refused(
    http: httpx.AsyncClient, tokens: Tokens
) -> None:
    right = bearer(await tokens.create("alice", ["read"]))

    async def status(address: str, headers: dict[str, str]) -> int:
        # The connection is of this machine, which may be a proxy that says where it comes from.
        headers = {**headers, "X-Forwarded-For": address}
        return (await http.get("/v1/jobs", headers=headers)).status_code

    for network in ("192.0.2.1", "2001:db8::%x"):
        guesses = [
            await status(network.replace("%x", f"{number:x}"), bearer(f"kgym_1_{number}"))
            for number in range(WRONG_TOKENS + 1)
        ]
        assert guesses == [401] * WRONG_TOKENS + [429], network
        assert await status(network.replace("%x", "1"), right) == 200
    refused = await http.get(
        "/v1/jobs", headers={**bearer("kgym_1_x"), "X-Forwarded-For": "192.0.2.1"}
    )
    problem(refused, 429, "too_many_wrong_tokens")
    assert int(refused.headers["retry-after"]) > 0
    assert await status("192.0.2.2", bearer("kgym_1_x")) == 401


async def test_the_submitter_of_a_job_is_the_tokens_name_or_local_while_there_is_none(
    http: httpx.AsyncClient, tokens: Tokens
) -> None:
    created = await http.post("/v1/jobs", json=JOB)
    assert (created.status_code, created.json()["submitter"]) == (201, "local")
    headers = bearer(await tokens.create("alice", ["submit"]))
    created = await http.post("/v1/jobs", json=JOB, headers=headers)
    assert created.json()["submitter"] == "alice"
    assert (await http.get("/v1/jobs", headers=headers)).json()["jobs"][0]["submitter"] == "alice"


CALLS = {
    "read": [("GET", "/v1/jobs"), ("GET", "/v1/queues"), ("GET", "/metrics")],
    "submit": [("POST", "/v1/jobs"), ("POST", "/v1/jobs/1/abort"), ("PUT", "/v1/jobs/1/tags")],
}
ALLOWED = {
    "read": {"read"},
    "submit": {"read", "submit"},
    "admin": {"read", "submit"},
    "worker": set(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("scope", ALLOWED)
async def test_a_scope_allows_what_it_says_and_no_more(
    http: httpx.AsyncClient, tokens: Tokens, scheduler: Scheduler, scope: str
) -> None:
    await scheduler.submit(job(), submitter="alice")
    headers = bearer(await tokens.create("alice", [scope]))
    for needed, calls in CALLS.items():
        for method, path in calls:
            body: Any = [] if path.endswith("tags") else JOB
            response = await http.request(method, path, headers=headers, json=body)
            if needed in ALLOWED[scope]:
                assert response.is_success, response.text
            else:
                problem(response, 403, "scope_needed")
                assert f'scope="{needed}"' in response.headers["www-authenticate"]


@pytest.mark.thorough
async def test_every_operation_asks_for_a_scope(http: httpx.AsyncClient, tokens: Tokens) -> None:
    user = bearer(await tokens.create("alice", ["admin"]))
    worker = bearer(await tokens.create("worker", ["worker"]))
    document = (await http.get("/openapi.json")).json()
    for path, item in document["paths"].items():
        if path in {"/v1/healthz", "/v1/readyz"}:
            continue
        headers = user if path.startswith("/v1/worker/") else worker
        for method in item:
            place = re.sub(r"{\w+}", "1", path)
            response = await http.request(method, place, headers=headers, json={})
            problem(response, 403, "scope_needed")


async def test_a_stranger_cannot_make_the_server_read_a_body(
    http: httpx.AsyncClient, tokens: Tokens
) -> None:
    await tokens.create("alice", ["read"])
    response = await http.post("/v1/jobs", content=b"{" * 10_000_000)
    problem(response, 401, "token_needed")


@pytest.mark.attack
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
async def test_who_comes_by_a_proxy_is_not_of_this_machine(
    http: httpx.AsyncClient, header: str
) -> None:
    """Its connections are from here, and its clients choose the name that they ask for."""
    problem(await http.get("/v1/jobs", headers={header: "for=192.0.2.7"}), 401, "token_needed")


async def test_other_hosts_are_served_only_if_there_is_a_token(
    scheduler: Scheduler, tokens: Tokens
) -> None:
    with pytest.raises(UserError, match="can be reached from other hosts"):
        async with serve(create_app(scheduler), "0.0.0.0"):
            pass
    token = await tokens.create("alice", ["read"])
    async with serve(create_app(scheduler), "0.0.0.0") as address:
        url = f"http://127.0.0.1:{address.port}"
        async with AsyncClient(url, token) as client:
            assert (await client.page(JobFilter())).jobs == []
        async with AsyncClient(url) as client:
            with pytest.raises(Refused) as refused:
                await client.queues()
    assert refused.value.reason == "token_needed"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")),
        ("::ffff:127.0.0.1", True),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "")),
    ],
)
def test_only_this_machines_own_addresses_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
