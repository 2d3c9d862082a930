"""Groups of jobs over REST: what they count, list, abort and export."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from sqlalchemy import select

from kgym.api.groups import GroupFilter
from kgym.api.jobs import JobFilter, JobRequest
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.client import AsyncClient, Refused
from kgym.web.server import serve
from kgym_scheduler.api import group_routes
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database import counts as database_counts
from kgym_scheduler.database.counts import Counts
from kgym_scheduler.database.tables import groups
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import problem
from tests.scheduler.parts import badly, end, job

pytestmark = pytest.mark.anyio


def grouped(name: str | None, *tags: str) -> JobRequest:
    return job(tags=tags).model_copy(update={"group": name})


@pytest.fixture
async def user(scheduler: Scheduler) -> AsyncIterator[Callable[..., Any]]:
    """Makes clients of users, each with a token of its own."""
    tokens = Tokens(scheduler.store.database)
    clients: list[AsyncClient] = []

    async def make(name: str, scope: str = "submit") -> AsyncClient:
        clients.append(AsyncClient(address.url, await tokens.create(name, [scope], 0)))
        return clients[-1]

    async with serve(create_app(scheduler)) as address:
        yield make
        for client in clients:
            await client.close()


async def test_a_group_counts_the_jobs_that_its_submitter_has_given_its_name(
    store: JobStore,
) -> None:
    await store.submit_all([grouped("a"), grouped("b"), grouped("a"), grouped(None)], None, "me")
    await store.submit(grouped("a"), None, "you")
    await end(store)
    view = await store.group("me", "a")
    assert (view.name, view.submitter, view.jobs) == ("a", "me", 2)
    assert view.outcomes == {Outcome.WAITING: 1, Outcome.BUILT: 1}
    assert view.created_at < view.updated_at
    assert (await store.group("you", "a")).jobs == 1
    listed = await store.groups(GroupFilter(), "me")
    assert [(group.submitter, group.name) for group in listed.groups] == [
        *[("you", "a"), ("me", "b"), ("me", "a")]
    ]
    assert listed.groups[2] == view
    mine = await store.groups(GroupFilter(mine=True), "you")
    assert [(group.submitter, group.jobs) for group in mine.groups] == [("you", 1)]


async def test_counts_of_many_jobs_are_kept_for_a_moment_those_of_few_are_not(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.submit_all([grouped("a"), grouped("a"), grouped("b")], None, "me")
    counts = Counts(store.database, many=2)
    many, few = [await number(store, name) for name in "ab"]
    assert [await jobs_of(counts, group) for group in (many, few)] == [2, 1]
    await store.submit_all([grouped("a"), grouped("b")], None, "me")
    assert [await jobs_of(counts, group) for group in (many, few)] == [2, 2]
    await store.submit(grouped("new"), None, "me")
    new = await number(store, "new")
    together = await counts.groups([many, few, new])  # another page is another count
    assert {group: sum(row.jobs for row in own) for group, own in together.items()} == {
        many: 3,
        few: 2,
        new: 1,
    }
    assert await jobs_of(counts, many) == 2
    monkeypatch.setattr(database_counts, "KEPT_SECONDS", 0.0)
    at_once = await asyncio.gather(*(jobs_of(counts, many) for _ in range(3)))
    assert at_once == [3, 3, 3]


async def number(store: JobStore, name: str) -> int:
    """Return the number of a group of this name in the table."""
    async with store.database.read() as connection:
        group_id: int = await connection.scalar(select(groups.c.id).where(groups.c.name == name))
    return group_id


async def jobs_of(counts: Counts, group: int) -> int:
    return sum(row.jobs for row in (await counts.groups([group]))[group])


async def test_a_group_is_shown_with_its_jobs_and_lists_find_it(store: JobStore) -> None:
    first, _ = await store.submit(grouped("night"), "key", "me")
    again, changed = await store.submit(grouped("night"), "key", "me")
    other, _ = await store.submit(grouped("night"), None, "you")
    assert (first.group, again.id, changed) == ("night", first.id, None)
    assert (await store.get(first.id)).group == "night"
    page = await store.page(JobFilter(group="night"), "me")
    assert [(row.id, row.group) for row in page.jobs] == [(other.id, "night"), (first.id, "night")]
    mine = await store.page(JobFilter(group="night", mine=True, state=State.QUEUED), "me")
    assert [row.id for row in mine.jobs] == [first.id]
    assert (await store.page(JobFilter(group="day"), "me")).jobs == []


async def test_lists_and_patches_are_paged_without_gaps(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    requests = [grouped(f"g{number % 3}") for number in range(10)]
    ids = (await scheduler.submit_all(requests)).jobs
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        more = {"cursor": cursor} if cursor else {}
        page = (await http.get("/v1/groups", params={"limit": 2, **more})).json()
        seen += [group["name"] for group in page["groups"]]
        cursor = page["next"]
    assert sorted(seen) == ["g0", "g1", "g2"]
    path = "/v1/groups/g0/patches"
    page = (await http.get(path, params={"limit": 3})).json()
    assert [row["job"] for row in page["patches"]] == [ids[0], ids[3], ids[6]]
    page = (await http.get(path, params={"limit": 3, "cursor": page["next"]})).json()
    assert ([row["job"] for row in page["patches"]], page["next"]) == ([ids[9]], None)


@pytest.mark.parametrize("what", ["", "/patches", "/abort"])
async def test_a_group_that_is_not_there_is_named(http: httpx.AsyncClient, what: str) -> None:
    method = "POST" if what == "/abort" else "GET"
    document = problem(await http.request(method, f"/v1/groups/none{what}"), 404, "group_missing")
    assert (document["group"], document["submitter"]) == ("none", "local")
    params = {"submitter": "somebody"}
    answer = await http.request(method, f"/v1/groups/none{what}", params=params)
    assert problem(answer, 404, "group_missing")["submitter"] == "somebody"
    answer = await http.request(method, "/v1/groups/.x" + what)
    problem(answer, 422, "invalid_request")


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "=1+1", "-", "a b", "a\x00", "a" * 101])
def test_the_name_of_a_group_is_safe_in_a_path(name: str) -> None:
    with pytest.raises(ValidationError):
        JobRequest(steps=job().steps, group=name)


async def test_an_abort_ends_what_is_left_of_ones_own_group(
    user: Callable[..., Any], store: JobStore
) -> None:
    alice, bob, root = await user("alice"), await user("bob"), await user("root", "admin")
    ids = (await alice.submit_all([grouped("night"), grouped("night"), grouped("day")])).jobs
    theirs = await bob.submit(grouped("night"))
    await end(store, badly("user"))
    assert (await alice.abort_group("night")).aborted == ids[1:2]
    states = [await store.state(job_id) for job_id in (*ids, theirs.id)]
    assert states == ["failed", "aborted", "queued", "queued"]
    assert (await alice.abort_group("night")).aborted == []
    with pytest.raises(Refused, match="bob's") as refused:
        await alice.abort_group("night", "bob")
    assert (refused.value.status, refused.value.reason) == (403, "not_your_group")
    assert (await root.abort_group("night", "bob")).aborted == [theirs.id]
    assert (await alice.group("night", "bob")).outcomes == {Outcome.ABORTED: 1}  # seen by all
    assert [row.state for row in [row async for row in alice.group_patches("night")]] == [
        *[State.FAILED, State.ABORTED]
    ]


async def test_patches_come_as_csv_that_a_spreadsheet_cannot_run(
    http: httpx.AsyncClient, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_routes, "LINES", 2)  # several pages
    tags = [("=cmd",), ("+1", "b"), ("-1",), ("@a",), ("a.b",)]
    ids = (await scheduler.submit_all([grouped("g", *row) for row in tags])).jobs
    await scheduler.abort(ids[4])
    answer = await http.get("/v1/groups/g/patches", params={"format": "csv"})
    assert answer.headers["content-type"] == "text/csv; header=present; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["job"]) for row in rows] == ids
    assert [row["tags"] for row in rows] == ["'=cmd", "'+1 b", "'-1", "'@a", "a.b"]
    assert [row["state"] for row in rows] == ["queued"] * 4 + ["aborted"]
    assert [row["outcome"] for row in rows] == ["waiting"] * 4 + ["aborted"]
    assert {row["verdict"] for row in rows} == {""}
    async with AsyncClient(str(http.base_url)) as client:
        listed = [row async for row in client.group_patches("g")]
    assert [(row.job, row.tags) for row in listed] == list(zip(ids, map(list, tags), strict=True))
