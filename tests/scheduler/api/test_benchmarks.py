"""Benchmarks over REST: what is published is read as it was, once, by whom it is allowed."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from kgym.api.benchmarks.attempts import AttemptRecord, Outcome, Overlap, Setup, Votes
from kgym.api.benchmarks.bugs import BugFacts, PublishedBug
from kgym.api.benchmarks.publication import AttemptFilter, BenchmarkAbout
from kgym.client import AsyncClient, Refused
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database import benchmarks
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import problem

pytestmark = pytest.mark.anyio

ABOUT = BenchmarkAbout(description="d", bugs=2, sha256="ab" * 32)
ONE, OTHER = Setup(agent="one", model="m"), Setup(agent="one", model="m", feedback=True)


def bug(name: str, **known: Any) -> PublishedBug:
    facts = BugFacts.model_validate(
        {"id": name, "title": "T", "status": "fixed", "type": "BUG", "crash_class": "BUG", **known}
    )
    return PublishedBug(facts=facts, diff="+fix\n")


def attempt(bug: str = "a", run: int = 1, setup: Setup = ONE, **known: Any) -> AttemptRecord:
    known = {"outcome": Outcome.PASS, "diff": f"+{bug}{run}\n", **known}
    return AttemptRecord.model_validate({"bug": bug, "run": run, "setup": setup, **known})


@pytest.fixture
async def user(scheduler: Scheduler) -> AsyncIterator[Callable[..., Any]]:
    """Makes clients of users, each with a token of its own."""
    tokens = Tokens(scheduler.database)
    clients: list[AsyncClient] = []

    async def make(name: str, scope: str = "submit") -> AsyncClient:
        clients.append(AsyncClient(address.url, await tokens.create(name, [scope], 0)))
        return clients[-1]

    async with serve(create_app(scheduler)) as address:
        yield make
        for client in clients:
            await client.close()


@pytest.fixture
async def alice(user: Callable[..., Any]) -> AsyncClient:
    """Has published a benchmark of two bugs."""
    client: AsyncClient = await user("alice")
    await client.publish("b", ABOUT)
    await client.publish_bugs("b", [bug("a"), bug("b:1")])
    return client


async def test_what_is_published_is_read_as_it_was(alice: AsyncClient) -> None:
    full = attempt(
        votes=Votes(yes=5, no=4),
        files=Overlap(common=1, all=2),
        clean=True,
        dollars=1.5,
        seconds=60,
        tokens=1 << 40,
    )
    given = [full, attempt(run=2, outcome=Outcome.BAD, diff=None), attempt("b:1", setup=OTHER)]
    assert (await alice.publish_attempts("b", given)).changed == 3
    view = await alice.benchmark("b")
    assert (view.submitter, view.bugs, view.published, view.attempts) == ("alice", 2, 2, 3)
    numbers = {one.setup: one.number for one in view.setups}
    assert {one.setup: one.attempts for one in view.setups} == {ONE: 2, OTHER: 1}
    rows = (await alice.benchmark_attempts("b", AttemptFilter())).attempts
    assert {(one.bug, one.setup, one.run) for one in rows} == {
        (one.bug, numbers[one.setup], one.run) for one in given
    }
    for one in given:
        assert await alice.benchmark_attempt("b", one.bug, numbers[one.setup], one.run) == one
    assert await alice.benchmark_bug("b", "b:1") == bug("b:1")
    assert [one.id async for one in alice.benchmark_bugs("b")] == ["a", "b:1"]
    assert [(one.name, one.attempts, one.setups) async for one in alice.benchmarks()] == [
        ("b", 3, 2)
    ]


async def test_the_same_once_more_changes_nothing(alice: AsyncClient) -> None:
    first = await alice.publish_attempts("b", [attempt(), attempt("b:1")])
    again = await alice.publish_attempts("b", [attempt(), attempt("b:1")])
    assert (again.changed, again.version) == (0, first.version)
    assert (await alice.publish_bugs("b", [bug("a")])).changed == 0
    assert (await alice.publish("b", ABOUT)).version == first.version
    assert (await alice.benchmark("b")).attempts == 2


async def test_who_has_read_a_version_reads_on_from_it(alice: AsyncClient) -> None:
    many = [attempt(run=run) for run in range(1, 8)]
    version = (await alice.publish_attempts("b", many)).version
    changed = [attempt(run=3, dollars=2.0), attempt(run=9)]
    await alice.publish_attempts("b", changed)
    page = await alice.benchmark_attempts("b", AttemptFilter(cursor=f"{version + 1}-0"))
    assert [(one.run, one.dollars) for one in page.attempts] == [(3, 2.0), (9, None)]
    seen, cursor = [], None
    while True:
        page = await alice.benchmark_attempts("b", AttemptFilter(cursor=cursor, limit=3))
        seen += [one.run for one in page.attempts]
        if (cursor := page.next) is None:
            break
    assert seen == [1, 2, 4, 5, 6, 7, 3, 9]


async def test_a_published_dataset_never_changes(alice: AsyncClient) -> None:
    with pytest.raises(Refused, match="another dataset") as refused:
        await alice.publish("b", ABOUT.model_copy(update={"sha256": "cd" * 32}))
    assert (refused.value.status, refused.value.reason) == (409, "benchmark_exists")
    with pytest.raises(Refused, match="one of 2 bugs") as refused:
        await alice.publish_bugs("b", [bug("c")])
    assert refused.value.reason == "too_many_bugs"
    assert (await alice.benchmark("b")).published == 2


async def test_attempts_need_their_bug(alice: AsyncClient) -> None:
    with pytest.raises(Refused, match="no bug zz") as refused:
        await alice.publish_attempts("b", [attempt(), attempt("zz")])
    assert refused.value.reason == "unknown_bug"
    assert (await alice.benchmark("b")).attempts == 0


@pytest.mark.attack
async def test_nobody_changes_another_s_benchmark(
    alice: AsyncClient, user: Callable[..., Any]
) -> None:
    bob, reader, admin = await user("bob"), await user("r", "read"), await user("root", "admin")
    for change in (
        bob.publish_attempts("b", [attempt()]),
        bob.publish_bugs("b", [bug("a")]),
        bob.remove_benchmark("b"),
    ):
        with pytest.raises(Refused, match="alice's") as refused:
            await change
        assert (refused.value.status, refused.value.reason) == (403, "not_your_benchmark")
    with pytest.raises(Refused, match="submit"):
        await reader.publish("c", ABOUT)
    assert (await reader.benchmark("b")).published == 2
    await admin.publish_attempts("b", [attempt()])
    await admin.remove_benchmark("b")
    with pytest.raises(Refused, match="no benchmark"):
        await alice.benchmark("b")
    assert [one async for one in alice.benchmarks()] == []


@pytest.mark.attack
async def test_a_benchmark_is_bounded(alice: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "SETUPS", 1)
    monkeypatch.setattr(benchmarks, "ATTEMPTS", 2)
    await alice.publish_attempts("b", [attempt()])
    with pytest.raises(Refused, match="as many as may"):
        await alice.publish_attempts("b", [attempt(setup=OTHER)])
    with pytest.raises(Refused, match="more than 2 attempts"):
        await alice.publish_attempts("b", [attempt(run=run) for run in (2, 3)])
    view = await alice.benchmark("b")
    assert (view.attempts, len(view.setups)) == (1, 1)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none", "benchmark_missing"),
        ("none/bugs", "benchmark_missing"),
        ("none/attempts", "benchmark_missing"),
        ("b/bugs/none", "benchmark_bug_missing"),
        ("b/bugs/a/attempts/0/1", "attempt_missing"),
    ],
)
async def test_what_is_not_there_is_said(http: httpx.AsyncClient, path: str, reason: str) -> None:
    await http.put("/v1/benchmarks/b", json=ABOUT.model_dump())
    problem(await http.get(f"/v1/benchmarks/{path}"), 404, reason)
