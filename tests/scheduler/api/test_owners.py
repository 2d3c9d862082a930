"""What one user can do to another's jobs, and make others believe: nothing."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from anyio.to_thread import run_sync

from kgym.api import trusted_tags
from kgym.api.jobs import JobFilter, JobRequest
from kgym.api.steps import BuildSpec, Patch, Reproducer
from kgym.bugs import bundle, earlier_jobs
from kgym.client import Client
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.scheduler import Scheduler
from tests.conftest import NEARBY
from tests.scheduler.api.test_app import JOB, problem
from tests.scheduler.parts import BUILD, WELL, claim_of, job, reproduce

pytestmark = [pytest.mark.anyio, pytest.mark.attack]
DATABASE = "sqlite"
BUG = bundle.load("watch-queue-filter")
User = httpx.AsyncClient


@pytest.fixture
async def users(scheduler: Scheduler) -> AsyncIterator[Callable[..., Any]]:
    """Makes users: each has a client with a token of its own."""
    tokens = Tokens(scheduler.store.database)
    clients: list[User] = []

    async def user(name: str, scope: str = "submit", priority: int = 0) -> User:
        headers = {"Authorization": f"Bearer {await tokens.create(name, [scope], priority)}"}
        clients.append(httpx.AsyncClient(base_url=address.url, headers=headers, **NEARBY))
        return clients[-1]

    async with serve(create_app(scheduler)) as address:
        yield user
        for client in clients:
            await client.aclose()


async def submitted(user: User, request: JobRequest | None = None, **headers: str) -> Any:
    body = (request or job()).model_dump(mode="json")
    answer = await user.post("/v1/jobs", json=body, headers=headers)
    assert answer.is_success, answer.text
    return answer.json()


# --- another's job --------------------------------------------------------------------------

CHANGES = [("POST", "abort"), ("POST", "restart"), ("PUT", "tags")]


@pytest.mark.parametrize(("method", "change"), CHANGES)
@pytest.mark.thorough
async def test_a_job_is_changed_only_by_its_submitter_and_by_admins(
    users: Callable[..., Any], method: str, change: str
) -> None:
    alice, mallory = await users("alice"), await users("mallory")
    root = await users("root", "admin")
    number = (await submitted(alice))["id"]
    path = f"/v1/jobs/{number}/{change}"
    before = (await alice.get(f"/v1/jobs/{number}")).json()
    problem(await mallory.request(method, path, json=["x"]), 403, "not_your_job")
    assert (await mallory.get(f"/v1/jobs/{number}")).json() == before  # seen, and unchanged
    for user in (alice, root):  # 409: it is not finished, which only these are told
        assert (await user.request(method, path, json=["x"])).status_code in {200, 409}
    answer = await mallory.request(method, f"/v1/jobs/99/{change}", json=["x"])
    problem(answer, 404, "job_not_found")


async def test_idempotency_keys_are_each_submitters_own(users: Callable[..., Any]) -> None:
    alice, mallory = await users("alice"), await users("mallory")
    first = await submitted(mallory, **{"Idempotency-Key": "night-1"})
    second = await submitted(alice, job(tags=("other",)), **{"Idempotency-Key": "night-1"})
    assert first["id"] != second["id"]
    assert (await submitted(mallory, **{"Idempotency-Key": "night-1"}))["id"] == first["id"]


async def test_a_priority_is_bounded_by_the_token(users: Callable[..., Any]) -> None:
    alice, urgent = await users("alice"), await users("urgent", priority=7)
    refused = await alice.post("/v1/jobs", json=JOB | {"priority": 1})
    assert problem(refused, 403, "priority_too_high")["limit"] == 0
    for user, priority in ((alice, 0), (alice, -100), (urgent, 7)):
        answer = await user.post("/v1/jobs", json=JOB | {"priority": priority})
        assert answer.status_code == 201
    problem(await urgent.post("/v1/jobs", json=JOB | {"priority": 8}), 403, "priority_too_high")
    root = await users("root", "admin")
    assert (await root.post("/v1/jobs", json=JOB | {"priority": 100})).status_code == 201


async def test_an_entry_that_all_share_is_made_anew_only_by_admins(
    users: Callable[..., Any],
) -> None:
    alice, root = await users("alice"), await users("root", "admin")
    for cache, status in (("refresh", 403), ("fresh", 201)):
        step = {**BUILD.model_dump(mode="json"), "cache": cache}
        assert (await alice.post("/v1/jobs", json={"steps": [step]})).status_code == status
        assert (await root.post("/v1/jobs", json={"steps": [step]})).status_code == 201


async def test_what_one_job_may_not_ask_for_many_may_not_either(users: Callable[..., Any]) -> None:
    mallory, alice = await users("mallory"), await users("alice")
    refreshed = {"steps": [{**BUILD.model_dump(mode="json"), "cache": "refresh"}]}
    urgent = JOB | {"priority": 1}
    for wrong, reason in ((urgent, "priority_too_high"), (refreshed, "refresh_needs_admin")):
        answer = await mallory.post("/v1/jobs/bulk", json={"jobs": [JOB, wrong]})
        problem(answer, 403, reason)
    lied = JOB | {"tags": [BUG.calibration_tag]}
    assert (await mallory.post("/v1/jobs/bulk", json={"jobs": [lied]})).status_code == 422
    number = (await submitted(alice))["id"]
    answer = await mallory.post("/v1/jobs/abort", json={"jobs": [number]})
    problem(answer, 403, "not_your_job")
    headers = {"Idempotency-Key": "night"}
    made = [
        (await user.post("/v1/jobs/bulk", json={"jobs": [JOB]}, headers=headers)).status_code
        for user in (mallory, alice, mallory)
    ]
    assert made == [201, 201, 200]


# --- marks: tags that are believed ----------------------------------------------------------


def forged(request: JobRequest) -> JobRequest:
    """A job with the same tags, whose reproducer is another."""
    build, run = request.steps
    other = Reproducer(text="int main(void) { *(volatile int *)0 = 0; }")
    return request.model_copy(
        update={"steps": [build, run.model_copy(update={"reproducer": other})]}
    )


async def test_a_mark_that_is_not_true_of_the_steps_is_refused(users: Callable[..., Any]) -> None:
    mallory = await users("mallory")
    honest = BUG.calibration(10)
    assert trusted_tags.marks(honest.tags) == [BUG.calibration_tag]
    wrong = [
        forged(honest),
        JobRequest(steps=honest.steps[:1]).model_copy(update={"tags": honest.tags}),
        JobRequest(steps=BUG.job(None).steps, tags=[]).model_copy(update={"tags": honest.tags}),
        job().model_copy(update={"tags": [trusted_tags.request(honest.steps)]}),
        job().model_copy(update={"tags": ["request=x"]}),
    ]
    for request in wrong:
        answer = await mallory.post("/v1/jobs", json=request.model_dump(mode="json"))
        problem(answer, 422, "invalid_request")
    number = (await submitted(mallory, honest))["id"]
    assert (await submitted(mallory))["id"] == number + 1


async def test_a_mark_can_be_neither_given_nor_taken_away_later(users: Callable[..., Any]) -> None:
    mallory = await users("mallory")
    honest = BUG.calibration(10)
    plain = (await submitted(mallory, job(tags=("a",))))["id"]
    marked = (await submitted(mallory, honest))["id"]
    for tag in (BUG.calibration_tag, "request=1", trusted_tags.request(honest.steps)):
        answer = await mallory.put(f"/v1/jobs/{plain}/tags", json=["a", tag])
        problem(answer, 422, "false_mark")
    assert (await mallory.get(f"/v1/jobs/{plain}")).json()["tags"] == ["a"]
    kept = (await mallory.put(f"/v1/jobs/{marked}/tags", json=["mine"])).json()
    assert kept["tags"] == ["mine", BUG.calibration_tag]
    again = await mallory.put(f"/v1/jobs/{marked}/tags", json=kept["tags"])
    assert again.json()["tags"] == kept["tags"]
    listed = await mallory.get("/v1/jobs", params={"tag": BUG.calibration_tag})
    assert [row["id"] for row in listed.json()["jobs"]] == [marked]


def test_the_mark_of_a_request_tells_its_steps_apart() -> None:
    fixes = [BUG.fix, Patch(name="fix", diff="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"), None]
    requests = [BUG.job(fix) for fix in fixes] + [BUG.calibration(10), BUG.calibration(11)]
    assert len({trusted_tags.request(request.steps) for request in requests}) == len(requests)
    other = BuildSpec.model_validate(BUG.build.model_dump() | {"compiler": "gcc-9"})
    assert trusted_tags.calibration(other, BUG.reproducers, BUG.file.vm) != BUG.calibration_tag


async def test_a_command_takes_up_its_own_job_and_nobody_elses(
    scheduler: Scheduler, users: Callable[..., Any]
) -> None:
    mallory, alice = await users("mallory"), await users("alice")
    request = job(BUILD, reproduce())
    mark = trusted_tags.request(request.steps)
    await submitted(mallory, request.model_copy(update={"tags": [mark]}))
    token = alice.headers["Authorization"].removeprefix("Bearer ")

    def twice() -> list[tuple[int, bool]]:
        with Client(str(alice.base_url), token) as client:
            done = [earlier_jobs.submit(client, request) for _ in range(2)]
            mine = list(client.jobs(JobFilter(mine=True)))
            assert [view.submitter for view in mine] == ["alice"]
            return [(submission.job.id, submission.taken_up) for submission in done]

    assert await run_sync(twice) == [(2, False), (2, True)]
    claimed = await scheduler.claim(claim_of())
    assert await scheduler.finish(claimed.assignments[0].lease, WELL)
