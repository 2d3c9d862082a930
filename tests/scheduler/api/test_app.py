"""The REST interface, on a real server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text as sql

from kgym.api.jobs import EVENTS, Artifact, Progress
from kgym.api.steps import StepKind
from kgym.api.worker_calls import AttemptEnding, attempt_folder
from kgym.errors import UserError
from kgym.web.request_limits import BODY_LIMIT
from kgym.web.server import serve
from kgym.worker.context import StepContext
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database.connection import Database
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler import parts

pytestmark = pytest.mark.anyio

JOB = json.loads(parts.job().model_dump_json())


def problem(response: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    """Check that the answer is a problem document of this kind; return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == f"urn:kgymsuite:problem:{reason}"
    assert document["status"] == status
    assert document["instance"] == response.request.url.path
    assert document["title"]
    assert document["detail"]
    return document


# --- jobs -----------------------------------------------------------------------------------


async def test_a_submitted_job_is_created_at_a_location(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/jobs", json=JOB)
    assert response.status_code == 201
    assert response.headers["location"] == "/v1/jobs/1"
    shown = await http.get(response.headers["location"])
    assert shown.json() == response.json() | {"last_event": 1}
    assert shown.json()["steps"][0]["spec"] == JOB["steps"][0]
    created = shown.json()["created_at"]
    assert created.endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()) < 60


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (JOB, "abc"),
        (JOB | {"priority": 101}, "abc"),
        (JOB | {"unknown": 1}, "abc"),
        (JOB, "a b"),
        (JOB, ""),
        (JOB, "a" * 201),
        ([], "abc"),
    ],
)
async def test_a_plain_submission_is_answered_as_one_that_goes_through_the_framework(
    http: httpx.AsyncClient, body: object, key: str
) -> None:
    answers = []
    for media_type in ("application/json", "application/json; charset=utf-8"):
        headers = {"Content-Type": media_type, "Idempotency-Key": key}
        answer = await http.post("/v1/jobs", content=json.dumps(body), headers=headers)
        answers.append((answer.status_code == 422, answer.headers.get("location")))
        if answer.status_code == 422:
            assert problem(answer, 422, "invalid_request")["errors"]
    assert answers[0] == answers[1]


async def test_an_idempotency_key_gives_the_first_job_again(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "abc"}
    first = await http.post("/v1/jobs", json=JOB, headers=headers)
    again = await http.post("/v1/jobs", json=JOB, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == "/v1/jobs/1"
    other = await http.post("/v1/jobs", json=JOB | {"priority": 5}, headers=headers)
    problem(other, 422, "key_reused")


async def test_all_unknown_fields_are_named(http: httpx.AsyncClient) -> None:
    body = JOB | {"colour": "red", "steps": [JOB["steps"][0] | {"cores": 3}]}
    document = problem(await http.post("/v1/jobs", json=body), 422, "invalid_request")
    places = [error["location"] for error in document["errors"]]
    assert places == ["body.steps.0.build.cores", "body.colour"]
    assert all("unknown" in error["message"] for error in document["errors"])


ROUTES = Path(__file__).with_name("routes.txt").read_text().splitlines()


@pytest.mark.parametrize("text", ["CONFIG_ARM64=y\n", "# Linux/s390 6.1.0 Kernel Configuration\n"])
async def test_a_config_of_another_architecture_does_not_wait_for_a_worker(
    http: httpx.AsyncClient, text: str
) -> None:
    step = JOB["steps"][0] | {"config": {"full": text}}
    document = problem(
        await http.post("/v1/jobs", json=JOB | {"steps": [step]}), 422, "wrong_architecture"
    )
    assert "use one for x86_64" in document["detail"]


async def test_an_unknown_query_parameter_is_named(http: httpx.AsyncClient) -> None:
    for method, path in map(str.split, ROUTES):
        body = JOB if method == "POST" else []
        response = await http.request(method, f"{path}?colour=red", json=body)
        document = problem(response, 422, "invalid_request")
        assert document["errors"][0]["location"] == "query.colour"


# Method, path, status and reason.
ERRORS = Path(__file__).with_name("errors.tsv").read_text().splitlines()


async def test_every_error_is_a_problem_document(http: httpx.AsyncClient) -> None:
    await http.post("/v1/jobs", json=JOB)
    for line in ERRORS:
        method, path, status, reason = line.split("\t")
        problem(await http.request(method, path), int(status), reason)


NOT_JSON = [
    b'{"steps": [',
    b'{"steps": [], "priority": NaN}',
    b'{"tags": ["\\ud800"]}',
    b'{"steps":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b"\xff\xfe",
    b"",
]


async def test_a_body_that_is_not_json_is_refused(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    for body in NOT_JSON:
        response = await http.post("/v1/jobs", content=body, headers=headers)
        [error] = problem(response, 422, "invalid_request")["errors"]
        assert error["location"] == "body"


async def test_a_body_of_another_form_is_refused(http: httpx.AsyncClient) -> None:
    bodies: list[Any] = ["text", [], {"steps": 3}, {"steps": [3]}, {"steps": [{"kind": ["x"]}]}]
    for body in bodies:
        problem(await http.post("/v1/jobs", json=body), 422, "invalid_request")


async def test_a_body_over_the_limit_is_refused(http: httpx.AsyncClient) -> None:
    body = b" " * (BODY_LIMIT + 1)
    headers = {"Content-Type": "application/json"}

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    for content in (body, chunks()):
        response = await http.post("/v1/jobs", content=content, headers=headers)
        problem(response, 413, "body_too_large")


async def test_a_database_that_fails_is_a_problem_that_may_pass(
    http: httpx.AsyncClient, platform: parts.Platform, caplog: pytest.LogCaptureFixture
) -> None:
    await http.post("/v1/jobs", json=JOB)
    database = Database(platform.url)
    async with database.write() as connection:
        await connection.execute(sql("DROP TABLE events"))
    await database.close()
    problem(await http.post("/v1/jobs/1/abort"), 503, "database_failed")


async def test_an_unforeseen_error_is_a_problem_without_its_innards(
    http: httpx.AsyncClient, platform: parts.Platform
) -> None:
    await http.post("/v1/jobs", json=JOB)
    database = Database(platform.url)
    async with database.write() as connection:
        await connection.execute(sql("UPDATE jobs SET tags = '{'"))
    await database.close()
    document = problem(await http.get("/v1/jobs/1"), 500, "internal_error")
    assert "Traceback" not in json.dumps(document)


# --- events and logs ------------------------------------------------------------------------


async def sse(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> list[list[str]]:
    """Read the events of job 1 to the end: the lines of each."""
    async with http.stream("GET", "/v1/jobs/1/events", headers=headers, timeout=10) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = "".join([part async for part in response.aiter_text()])
    return [message.split("\n") for message in text.strip().split("\n\n")]


async def test_events_are_sent_until_the_job_has_finished(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    await http.post("/v1/jobs", json=JOB)
    reading = asyncio.create_task(sse(http))
    assignment = await parts.take(scheduler)
    await scheduler.report(assignment.lease, "made\n", None)
    await scheduler.finish(assignment.lease, parts.WELL)
    messages = await reading
    heads = [message[0] for message in messages]
    assert heads == [*(f"id: {number}" for number in range(1, 5)), "event: end"]
    assert [m[1] for m in messages[:4]] == ["event: state"] * 2 + ["event: log", "event: state"]
    event = json.loads(messages[2][2].removeprefix("data: "))
    assert (event["job"], event["step"], event["data"]["text"]) == (1, 0, "made\n")


async def test_a_follower_after_a_restart_need_not_hear_the_old_end(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    await http.post("/v1/jobs", json=JOB)
    await http.post("/v1/jobs/1/abort")
    again = (await http.post("/v1/jobs/1/restart")).json()
    assert again["last_event"] == (await http.get("/v1/jobs/1")).json()["last_event"]
    await http.post("/v1/jobs/1/abort")
    messages = await sse(http, {"Last-Event-ID": str(again["last_event"])})
    heads = [message[0] for message in messages]
    assert heads == [f"id: {again['last_event'] + 1}", "event: end"]


@pytest.mark.thorough
async def test_the_keys_of_an_events_data_are_those_that_are_described(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    await scheduler.submit(parts.job(parts.BUILD, parts.reproduce(0)))
    for ending in (parts.badly("infrastructure"), parts.badly("user")):
        async with asyncio.timeout(20):
            while not (assignments := (await scheduler.claim(parts.claim_of())).assignments):
                await asyncio.sleep(0.1)
        progress = Progress(stage="make", done=1, total=2, unit="objects")
        await scheduler.report(assignments[0].lease, "made\n", progress)
        await scheduler.finish(assignments[0].lease, ending)
    heard = [json.loads(lines[2].removeprefix("data: ")) for lines in (await sse(http))[:-1]]
    described = (await http.get("/openapi.json")).json()["components"]["schemas"]
    names = {"state": "StateEvent", "progress": "ProgressEvent", "log": "LogEvent"}
    for event in heard:
        EVENTS[event["kind"]].model_validate_json(json.dumps(event["data"]))
        assert set(event["data"]) <= set(described[names[event["kind"]]]["properties"])
    assert {event["kind"] for event in heard} >= {"state", "log"}
    assert set(described["JobEvent"]["properties"]) == set(heard[0])


async def test_the_log_is_plain_text_by_step_and_attempt(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    await scheduler.submit(parts.job(parts.BUILD, parts.BUILD))
    for step_id in (1, 2):
        assignment = await parts.take(scheduler)
        await scheduler.report(assignment.lease, f"step {step_id}\n", None)
        await scheduler.finish(assignment.lease, parts.WELL)
    log = await http.get("/v1/jobs/1/log")
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert log.text == "step 1\nstep 2\n"
    assert (await http.get("/v1/jobs/1/log?step=1&attempt=1")).text == "step 2\n"
    assert (await http.get("/v1/jobs/1/log?step=1&attempt=2")).text == ""


# --- artifacts ------------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 8192  # two chunks of storage


@pytest.fixture
async def artifact(
    http: httpx.AsyncClient, platform: parts.Platform, scheduler: Scheduler, tmp_path: Path
) -> Artifact:
    """A file that the first step of job 1 has left."""
    (tmp_path / "vmlinux").write_bytes(CONTENT)

    async def build(run: StepContext) -> Any:
        await run.keep(tmp_path / "vmlinux")
        return parts.BUILT

    async with platform.worker(scheduler, {StepKind.BUILD: build}):
        await scheduler.submit(parts.job())
        async for _ in scheduler.follow(1):
            pass
    [kept] = [a for a in await scheduler.store.artifacts(1, 0) if a.name == "vmlinux"]
    return kept


URL = "/v1/jobs/1/steps/0/artifacts/vmlinux"


async def test_an_artifact_is_sent_whole(http: httpx.AsyncClient, artifact: Artifact) -> None:
    listed = (await http.get("/v1/jobs/1/steps/0/artifacts")).json()
    assert json.loads(artifact.model_dump_json()) in listed
    head = await http.head(URL)
    assert (head.headers["content-length"], head.content) == (str(artifact.size), b"")
    response = await http.get(URL)
    assert response.status_code == 200
    assert response.content == CONTENT
    assert response.headers["etag"] == f'"{artifact.sha256}"'
    assert response.headers["content-length"] == str(len(CONTENT))
    assert response.headers["accept-ranges"] == "bytes"
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''vmlinux"


RANGES = [
    ("bytes=5-9", 5, 10),
    ("bytes=1048570-1048590", 1048570, 1048591),
    ("bytes=-100", 2097052, 2097152),
]


async def test_one_range_is_sent_as_asked(http: httpx.AsyncClient, artifact: Artifact) -> None:
    for range_, start, stop in RANGES:
        response = await http.get(URL, headers={"Range": range_})
        assert response.status_code == 206
        assert response.content == CONTENT[start:stop]
        assert response.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"
    response = await http.get(URL, headers={"Range": "bytes=0-1,5-6"})
    assert (response.status_code, len(response.content)) == (200, len(CONTENT))
    response = await http.get(URL, headers={"Range": "bytes=2097152-"})
    problem(response, 416, "range_not_satisfiable")
    assert response.headers["content-range"] == "bytes */2097152"


async def test_a_range_of_another_content_gives_the_whole(
    http: httpx.AsyncClient, artifact: Artifact
) -> None:
    headers = {"Range": "bytes=5-9", "If-Range": '"other"'}
    assert (await http.get(URL, headers=headers)).status_code == 200
    headers["If-Range"] = f'"{artifact.sha256}"'
    assert (await http.get(URL, headers=headers)).status_code == 206


async def test_an_artifact_that_storage_has_lost_is_a_problem(
    http: httpx.AsyncClient, platform: parts.Platform, artifact: Artifact
) -> None:
    (platform.storage.root / artifact.key).unlink()
    problem(await http.get(URL), 503, "artifact_missing")


async def test_an_empty_artifact_is_sent(
    http: httpx.AsyncClient, platform: parts.Platform, scheduler: Scheduler, tmp_path: Path
) -> None:
    await scheduler.submit(parts.job())
    assignment = await parts.take(scheduler)
    (tmp_path / "vmlinux").touch()
    key = f"{attempt_folder(assignment.step_id, assignment.lease)}/vmlinux"
    kept = await platform.storage.put(key, tmp_path / "vmlinux")
    await scheduler.finish(assignment.lease, AttemptEnding(result=parts.BUILT, artifacts=[kept]))
    response = await http.get(URL)
    assert (response.status_code, response.content) == (200, b"")


# --- the server -----------------------------------------------------------------------------


async def test_the_scheduler_says_that_it_lives_and_is_ready(http: httpx.AsyncClient) -> None:
    for prefix in ("", "/v1"):
        assert (await http.get(f"{prefix}/healthz")).json() == {"status": "ok"}
        assert (await http.get(f"{prefix}/readyz")).json() == {"status": "ready"}


async def test_the_documentation_is_where_the_root_leads(http: httpx.AsyncClient) -> None:
    response = await http.get("/", follow_redirects=True)
    assert response.status_code == 200
    assert response.url.path == "/docs"


@pytest.mark.thorough
async def test_every_operation_is_documented_with_its_problems(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert "Problem" in document["components"]["schemas"]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            assert "HTTPValidationError" not in json.dumps(operation), (method, path)
            assert {"422", "503"} <= set(operation["responses"]), (method, path)


@pytest.mark.thorough
async def test_the_documented_example_is_a_job(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    example = body["examples"]["fix"]["value"]
    assert (await http.post("/v1/jobs", json=example)).status_code == 201


async def test_the_server_stops_within_two_seconds_while_events_are_read(
    scheduler: Scheduler,
) -> None:
    await scheduler.submit(parts.job())
    began = time.monotonic()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        async with serve(create_app(scheduler)) as address:
            request = client.build_request("GET", f"{address.url}/v1/jobs/1/events")
            response = await client.send(request, stream=True)
            lines = response.aiter_lines()
            assert await anext(lines) == "id: 1"
            began = time.monotonic()
        assert time.monotonic() - began < 10  # 2 where nothing else runs
        assert "event: end" not in [line async for line in lines]


async def test_a_port_in_use_is_an_error_that_names_it(scheduler: Scheduler) -> None:
    app = create_app(scheduler)
    async with serve(app) as address:
        with pytest.raises(UserError, match=f"port {address.port} of 127.0.0.1 is in use") as error:
            async with serve(app, port=address.port):
                pass
    assert error.value.reason == "port_in_use"


async def test_an_address_of_another_host_is_an_error(scheduler: Scheduler) -> None:
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1"):
        async with serve(create_app(scheduler), "192.0.2.1"):
            pass
