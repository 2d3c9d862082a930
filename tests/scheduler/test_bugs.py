"""Bugs and SuiteCache entries: what their jobs add up to."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgym.api.bugs import BugFilter, BugView
from kgym.api.jobs import JobFilter, JobRequest
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import InstanceOutcome, InstanceResult, ReproduceResult, StepResult, Verdict
from kgym.api.suitecache import EntryFilter, HeldEntry
from kgym.api.worker_calls import AttemptEnding
from kgym.bugs.bug import AFTER, BEFORE
from kgym.errors import Conflict
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from kgym_scheduler.suitecache_entries import SuiteCacheEntries
from tests.results import built, ran
from tests.scheduler import parts
from tests.scheduler.conftest import NewDatabase

pytestmark = pytest.mark.anyio

ENTRY = "ab" * 20
TITLE = "KASAN: slab-out-of-bounds Write in f"


def crashed(verdict: Verdict = Verdict.SAME_CRASH) -> ReproduceResult:
    """A run that showed the bug, with a report that has source lines."""
    instance = InstanceResult(
        number=0, outcome=InstanceOutcome.CRASH, title=TITLE, guilty_file="net/ipv4/udp.c"
    )
    return ran(verdict, TITLE, instances=[instance])


async def done(store: JobStore, request: JobRequest, *results: AttemptEnding | StepResult) -> int:
    """Submit a job, and let its steps answer so; one that is told of no answer stays as it is."""
    view, _ = await store.submit(request)
    if results:
        await parts.end(store, *results)
    return view.id


async def counted(store: JobStore, **wanted: object) -> list[BugView]:
    """Return the matching bugs."""
    return (await store.counts.bugs(BugFilter.model_validate(wanted))).bugs


async def paged(store: JobStore, **conditions: object) -> list[str]:
    """Return the names of the matching bugs of all pages."""
    names, cursor = [], None
    while True:
        page = await store.counts.bugs(BugFilter.model_validate({**conditions, "cursor": cursor}))
        names += [bug.name for bug in page.bugs]
        if (cursor := page.next) is None:
            return names


def trial(bug: str, *tags: str) -> JobRequest:
    return parts.job(parts.BUILD, parts.reproduce(0), tags=(f"bug={bug}", *tags))


def fix(bug: str) -> JobRequest:
    request = parts.job(
        parts.BUILD.model_copy(update={"name": "build_before"}),
        parts.reproduce(0).model_copy(update={"name": BEFORE}),
        parts.BUILD.model_copy(update={"name": "build_after"}),
        parts.reproduce(2).model_copy(update={"name": AFTER}),
    )
    return request.model_copy(update={"tags": [f"bug={bug}"]})


async def test_a_bug_is_counted_by_what_its_jobs_came_to(store: JobStore) -> None:
    first = await done(store, trial("udp"), parts.BUILT, crashed())
    await done(store, trial("udp"), parts.badly("user"))
    waiting, _ = await store.submit(trial("udp", "night:1"))
    await store.submit(parts.job())
    [bug] = await counted(store)
    assert (bug.name, bug.jobs) == ("udp", 3)
    assert bug.outcomes == {Outcome.REPRODUCED: 1, Outcome.REFUSED: 1, Outcome.WAITING: 1}
    assert (bug.crash_class, bug.subsystem) == ("KASAN slab-out-of-bounds", "net/ipv4")
    assert (bug.title, bug.outcome, bug.judged_job) == (TITLE, Outcome.REPRODUCED, first)
    assert (bug.patch, bug.resolved_job) == ("untried", None)
    assert bug.created_at == (await store.get(first)).created_at
    assert bug.active_at == (await store.get(waiting.id)).updated_at
    await store.abort(waiting.id)
    [bug] = await counted(store)
    assert bug.outcomes == {Outcome.REPRODUCED: 1, Outcome.REFUSED: 1, Outcome.ABORTED: 1}
    assert await counted(store) == [bug]


async def test_a_fix_makes_a_bug_resolved_until_its_job_runs_again(store: JobStore) -> None:
    fixed = await done(store, fix("udp"), parts.BUILT, crashed(), parts.BUILT, ran())
    [bug] = await counted(store)
    assert (bug.patch, bug.outcomes, bug.resolved_job) == ("resolved", {Outcome.RESOLVED: 1}, fixed)
    assert (bug.outcome, bug.title) == (Outcome.RESOLVED, TITLE)  # of the run without the fix
    assert bug.subsystem == "net/ipv4"
    other = await done(store, fix("udp"), parts.BUILT, crashed(), parts.BUILT, crashed())
    [bug] = await counted(store)
    assert bug.outcomes == {Outcome.RESOLVED: 1, Outcome.NOT_RESOLVED: 1}
    assert (bug.outcome, bug.judged_job) == (Outcome.NOT_RESOLVED, other)
    assert (bug.patch, bug.resolved_job) == ("resolved", fixed)
    await store.restart(fixed, 0)
    [bug] = await counted(store)
    assert (bug.patch, bug.resolved_job) == ("unresolved", None)
    assert bug.outcomes == {Outcome.NOT_RESOLVED: 1, Outcome.WAITING: 1}


async def test_other_tags_make_it_another_bug_s_job(store: JobStore) -> None:
    job_id = await done(store, trial("a"), parts.BUILT, crashed())
    await store.tag(job_id, ["bug=b", "bug=c"])
    bugs = {bug.name: bug for bug in await counted(store)}
    assert set(bugs) == {"b", "c"}
    assert all(bug.outcomes == {Outcome.REPRODUCED: 1} for bug in bugs.values())
    await store.tag(job_id, [])
    assert await counted(store) == []


async def test_shipped_bugs_are_known_before_they_crash(store: JobStore) -> None:
    await store.submit(trial("watch-queue-filter"))
    [bug] = await counted(store)
    assert (bug.crash_class, bug.subsystem) == ("KASAN slab-out-of-bounds", "kernel")


@pytest.mark.thorough
async def test_a_list_is_filtered_and_paged(store: JobStore, clock: parts.Clock) -> None:
    await done(store, trial("udp"), parts.BUILT, crashed())
    await done(store, fix("fixed"), parts.BUILT, crashed(), parts.BUILT, ran())
    clock.advance(1)
    for number in range(3):
        await store.submit(trial(f"new-{number}"))
        clock.advance(1)
    assert [bug.name for bug in await counted(store)][:3] == ["new-2", "new-1", "new-0"]

    async def names(**wanted: object) -> set[str]:
        return {bug.name for bug in await counted(store, **wanted)}

    assert await names(subsystem="net") == {"udp", "fixed"} == await names(subsystem="net/ipv4")
    assert await names(subsystem="ne") == set()
    assert await names(crash_class="KASAN slab-out-of-bounds") == {"udp", "fixed"}
    assert await names(patch="resolved") == {"fixed"} == await names(outcome=Outcome.RESOLVED)
    assert await names(patch="untried") == {"udp", "new-0", "new-1", "new-2"}
    assert await names(patch="unresolved") == set()
    assert await names(text="SLAB-out") == {"udp", "fixed"}
    assert await names(text="ew-1") == {"new-1"}
    assert await names(name="new-1") == {"new-1"}
    assert await names(text="%") == set()

    assert sorted(await paged(store, limit=2)) == ["fixed", "new-0", "new-1", "new-2", "udp"]
    assert await paged(store, limit=2, patch="untried") == ["new-2", "new-1", "new-0", "udp"]
    assert await paged(store, limit=1, patch="resolved") == ["fixed"]


async def test_bugs_of_one_moment_are_paged_without_gaps(
    store: JobStore, clock: parts.Clock
) -> None:
    names = {f"bug-{number}" for number in range(7)}
    await store.submit(parts.job(tags=[f"bug={name}" for name in names]))
    listed = await paged(store, limit=2)
    assert (len(listed), set(listed)) == (7, names)


async def test_only_tags_that_begin_with_bug_name_bugs(store: JobStore) -> None:
    await store.submit(parts.job(tags=["BUG=a", "bug=", "debug=b", "bug=c"]))
    assert [bug.name for bug in await counted(store)] == ["c"]


async def test_the_jobs_of_an_entry_are_found_and_counted(store: JobStore) -> None:
    good = built(tree=ENTRY)
    used = await done(store, trial("udp"), good, crashed())
    other = await done(store, parts.job(), good)
    await done(store, parts.job(), built(tree="../../etc"))
    await done(store, parts.job(), parts.BUILT)
    runs = await done(store, trial("udp"), good)
    entries = await store.counts.entries()
    assert set(entries) == {ENTRY}
    assert entries[ENTRY].outcomes == {Outcome.REPRODUCED: 1, Outcome.BUILT: 1, Outcome.WAITING: 1}

    async def jobs_of(**wanted: object) -> list[int]:
        asked = JobFilter.model_validate({"entry": ENTRY, **wanted})
        return [row.id for row in (await store.page(asked)).jobs]

    assert await jobs_of() == [runs, other, used]
    assert await jobs_of(outcome=Outcome.REPRODUCED) == [used]
    assert await jobs_of(outcome=Outcome.WAITING) == [runs]
    assert await jobs_of(outcome=Outcome.WAITING, state=State.RUNNING) == []
    assert await jobs_of(state=State.QUEUED) == [runs]
    await store.abort(runs)
    assert await jobs_of(state=State.ABORTED) == [runs]
    assert await jobs_of(entry="cd" * 20) == []


async def test_entries_are_told_by_storage_and_by_workers(
    scheduler: Scheduler, platform: parts.Platform, store: JobStore, tmp_path: Path
) -> None:
    about = tmp_path / "about.json"
    about.write_text(
        '{"kernel_release": "6.1.192", "compiler_version": "gcc 12", "backports": ["b"],'
        ' "source_identity": "package:linux", "config": "CONFIG_X=y"}'
    )
    await platform.storage.put(f"suitecache/{ENTRY}/about.json", about)
    await platform.storage.put(f"suitecache/{ENTRY}/0123/image.squashfs", tmp_path / "about.json")
    about.write_text("{")
    await platform.storage.put("suitecache/broken/about.json", about)
    held = [HeldEntry(name=ENTRY, bytes=7), HeldEntry(name="local", bytes=3)]
    await store.claim(parts.claim_of("host:1").model_copy(update={"entries": held}))
    await store.claim(parts.claim_of("host:1"))  # says nothing of them: it knows they are known
    await done(store, parts.job(), built(tree=ENTRY))
    page = await scheduler.entries.page(EntryFilter())
    assert {entry.name for entry in page.entries} == {ENTRY, "broken", "local"}
    assert page.number == 3
    first = page.entries[0]
    assert (first.name, first.kernel_release, first.jobs) == (ENTRY, "6.1.192", 1)
    assert (first.compiler_version, first.backports) == ("gcc 12", ["b"])
    (holder,) = first.holders
    assert (holder.worker, holder.bytes, holder.state) == ("host:1", 7, "live")
    assert None not in (first.bytes, first.used_at, first.touched_at)
    local = next(entry for entry in page.entries if entry.name == "local")
    assert (local.bytes, local.kernel_release, local.used_at) == (None, None, None)
    page = await scheduler.entries.page(EntryFilter(name="broken"))
    assert [entry.kernel_release for entry in page.entries] == [None]
    for words in ("GCC 12", "6.1.192", ENTRY[:5]):
        entries = (await scheduler.entries.page(EntryFilter(text=words))).entries
        assert [entry.name for entry in entries] == [ENTRY]
    begun = await scheduler.entries.page(EntryFilter(limit=2))
    rest = await scheduler.entries.page(EntryFilter(limit=2, cursor=begun.next))
    assert [len(begun.entries), len(rest.entries), rest.next] == [2, 1, None]
    await store.claim(parts.claim_of("host:1").model_copy(update={"entries": []}))
    names = {entry.name for entry in (await scheduler.entries.page(EntryFilter())).entries}
    assert names == {ENTRY, "broken"}
    await store.leave("host:1")


async def test_the_interface_lists_both(http: httpx.AsyncClient, scheduler: Scheduler) -> None:
    await scheduler.submit(trial("udp"))
    bugs = (await http.get("/v1/bugs?text=ud")).json()["bugs"]
    assert [bug["name"] for bug in bugs] == ["udp"]
    assert (await http.get("/v1/bugs?patch=perhaps")).status_code == 422
    nothing = {"entries": [], "bytes": 0, "number": 0, "next": None}
    assert (await http.get("/v1/suitecache")).json() == nothing


async def test_storage_is_not_walked_for_each_who_asks(
    store: JobStore, platform: parts.Platform
) -> None:
    walks = 0
    storage = platform.storage
    sizes = storage.sizes

    async def walked(prefix: str, depth: int) -> dict[str, int]:
        nonlocal walks
        walks += 1
        return await sizes(prefix, depth)

    storage.sizes = walked  # type: ignore[method-assign]
    entries = SuiteCacheEntries(store, storage)
    await asyncio.gather(*(entries.page(EntryFilter()) for _ in range(10)))
    assert walks == 1


async def act(store: JobStore, number: int, done_now: str, last: int | None) -> None:
    """Do one of the things that change how a job counts."""
    if done_now in {"end", "crash"}:
        for assignment in (await store.claim(parts.claim_of()))[0].assignments:
            builds = assignment.spec.kind == "build"
            result = parts.BUILT if builds else crashed() if done_now == "crash" else ran()
            await store.finish(assignment.lease, AttemptEnding(result=result))
    elif last is not None and done_now == "tag":
        await store.tag(last, [f"bug=bug-{(number + 1) % 2}"])
    elif last is not None and done_now == "abort":
        with contextlib.suppress(Conflict):
            await store.abort(last)
    elif last is not None:
        with contextlib.suppress(Conflict):
            await store.restart(last, 0)


@pytest.mark.thorough
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(["new", "end", "crash", "abort", "restart", "tag"])))
async def test_whatever_happens_counts_are_those_of_the_jobs(
    new_sqlite: NewDatabase, acts: list[str]
) -> None:
    store, last = JobStore(new_sqlite()), None
    for number, deed in enumerate(acts):
        if deed == "new":
            last = (await store.submit(trial(f"bug-{number % 2}")))[0].id
        else:
            await act(store, number, deed, last)
    counts = {bug.name: bug.outcomes for bug in await counted(store)}
    outcomes = defaultdict[str, Counter[Outcome]](Counter)
    for job_now in (await store.page(JobFilter())).jobs:
        [tag] = job_now.tags
        bug = tag.removeprefix("bug=")
        outcomes[bug][job_now.outcome] += 1
    assert counts == outcomes
    await store.close()
