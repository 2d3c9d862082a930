"""Requests that are made to be costly, or to be taken for others: a clear answer, soon."""

import asyncio
import time

import httpx
import pytest

from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.api.caller_limits import CallerLimits
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import JOB, problem
from tests.scheduler.parts import job, served

pytestmark = [pytest.mark.anyio, pytest.mark.attack]
DATABASE = "sqlite"
LONG = {"Content-Type": "application/json"}


# --- costly ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/healthz", "/v1/nothing"])
async def test_a_query_of_many_names_is_refused_unread(http: httpx.AsyncClient, path: str) -> None:
    for query in ("&".join(f"n{n}" for n in range(51)), "a" * (8 << 10) + "b"):
        problem(await http.get(f"{path}?{query}"), 414, "query_too_long")


async def test_of_many_faults_the_first_are_told_and_their_number(http: httpx.AsyncClient) -> None:
    query = "&".join(f"n{n}&n{n}" for n in range(24))
    document = problem(await http.get(f"/v1/jobs?{query}"), 422, "invalid_request")
    assert document["error_count"] == 24
    assert [error["location"] for error in document["errors"]] == [f"query.n{n}" for n in range(20)]
    steps = [JOB["steps"][0] | {"colour": "red", f"unknown{n}": [1]} for n in range(90)]
    document = problem(await http.post("/v1/jobs", json={"steps": steps}), 422, "invalid_request")
    assert (len(document["errors"]), document["error_count"]) == (20, 180)


async def test_what_was_sent_is_not_sent_back(http: httpx.AsyncClient) -> None:
    name = "x" * 1_000_000
    bodies = [{name: 1}, {"steps": [{"kind": name}]}, {"steps": [JOB["steps"][0] | {name: 1}]}]
    for body in bodies:
        response = await http.post("/v1/jobs", json=body)
        problem(response, 422, "invalid_request")
        assert len(response.content) < 5_000


BOMBS = [
    b'{"tags":[' + b"1," * 3_000_000 + b"1]}",
    b'{"tags":[' + b"[]," * 2_000_000 + b"1]}",
    b'{"tags":[' + b'"",' * 2_000_000 + b"1]}",
    b'{"tags":[' + b'"\\",",' * 1_000_000 + b"1]}",
    b"{" + b",".join(b'"%d":0' % n for n in range(60_000)) + b"}",
]


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/worker/calls"])
async def test_a_body_of_millions_of_values_is_refused_before_they_are_made(
    http: httpx.AsyncClient, path: str
) -> None:
    for body in BOMBS[: 4 if "worker" in path else None]:
        began = time.process_time()
        response = await http.post(path, content=body, headers=LONG)
        problem(response, 413, "body_too_large")
        assert time.process_time() - began < 2


async def test_text_may_hold_any_number_of_commas_and_quotes(http: httpx.AsyncClient) -> None:
    text = '+\tcall("a,b", [1, 2], "\\\\", \'{:\');\n' * 20_000
    step = JOB["steps"][0] | {"patches": [{"diff": text}]}
    response = await http.post("/v1/jobs", json={"steps": [step]})
    assert response.status_code != 413


async def test_no_number_is_too_long_for_an_answer(http: httpx.AsyncClient) -> None:
    many = "9" * 4_400
    await http.post("/v1/jobs", json=JOB)
    for path in (f"/v1/jobs/{many}", f"/v1/jobs?limit={many}", f"/v1/jobs/1/log?step={many}"):
        problem(await http.get(path), 422, "invalid_request")
    response = await http.get("/v1/jobs/1/events", headers={"Last-Event-ID": many})
    problem(response, 422, "invalid_request")
    body = b'{"steps": [], "priority": ' + many.encode() + b"}"
    problem(await http.post("/v1/jobs", content=body, headers=LONG), 422, "invalid_request")


async def test_streams_that_are_opened_at_once_are_counted(scheduler: Scheduler) -> None:
    await scheduler.submit(job())
    async with serve(create_app(scheduler, CallerLimits(streams=5))) as address:
        request = b"GET /v1/jobs/1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"

        async def status() -> tuple[int, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
            writer.write(request)
            return int((await reader.readline()).split()[1]), writer

        answers = await asyncio.gather(*(status() for _ in range(40)))
        statuses = [status for status, _ in answers]
        assert (statuses.count(200), statuses.count(429)) == (5, 35)
        for _, writer in answers:
            writer.close()


@pytest.mark.thorough
async def test_jobs_that_are_submitted_at_once_are_counted(scheduler: Scheduler) -> None:
    async with served(scheduler, CallerLimits(unfinished_jobs=5)) as http:
        answers = await asyncio.gather(*(http.post("/v1/jobs", json=JOB) for _ in range(30)))
        assert [answer.status_code for answer in answers].count(201) == 5


# --- taken for others -----------------------------------------------------------------------


@pytest.mark.parametrize("number", ["1%0a", "%201", "+1", "1_0", "1.0", "%D9%A1", "01x", "1%00"])
async def test_a_number_in_a_path_is_digits(http: httpx.AsyncClient, number: str) -> None:
    await http.post("/v1/jobs", json=JOB)
    for method, path in (
        ("GET", f"/v1/jobs/{number}"),
        ("GET", f"/v1/jobs/{number}/log"),
        ("GET", f"/v1/jobs/{number}/events"),
        ("POST", f"/v1/jobs/{number}/abort"),
        ("GET", f"/v1/jobs/1/steps/{number}/artifacts"),
        ("GET", f"/v1/jobs/1/log?step={number.replace('+', '%2B')}"),
        ("GET", f"/v1/jobs?limit={number.replace('+', '%2B')}"),
    ):
        problem(await http.request(method, path), 422, "invalid_request")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://{own}"},
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")),
        *({"Host": host} for host in ("evil.example:8420", "192.0.2.7")),
        {"Host": "evil_host.example:8420"},  # browsers take the underscore, URL parsers do not
        {"Host": "evil.example:8420:1"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "[::1"},
        {"Host": ""},
    ],
)
@pytest.mark.thorough
async def test_what_another_sites_page_could_send_changes_nothing(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    await http.post("/v1/jobs", json=JOB)
    own = f"127.0.0.1:{http.base_url.port}"
    headers = {name: value.replace("{own}", own) for name, value in headers.items()}
    problem(await http.post("/v1/jobs/1/abort", headers=headers), 403, "foreign_page")
    assert (await http.get("/v1/jobs/1")).json()["state"] == "queued"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_page_of_this_server_may_do_all(http: httpx.AsyncClient, host: str) -> None:
    await http.post("/v1/jobs", json=JOB)
    headers = {"Host": f"{host}:8420", "Origin": f"http://{host}:8420"}
    assert (await http.post("/v1/jobs/1/abort", headers=headers)).status_code == 200


NAMES = ["a\0b", "", "a b", "a\n", "x" * 201, "\ud7ff", "é\0"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_a_worker_says_is_one_that_can_be_kept(
    http: httpx.AsyncClient, name: str
) -> None:
    lease = "00000000-0000-0000-0000-000000000001"
    for call in ({"call": "leave", "worker": name}, {"call": "hold", "lease": lease, "name": name}):
        response = await http.post("/v1/worker/calls", json={"calls": [call]})
        problem(response, 422, "invalid_request")
