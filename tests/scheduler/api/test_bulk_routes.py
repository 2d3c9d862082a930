"""Many jobs at once: all are added or none; the rules of one job hold for each."""

import pytest

from kgym.api.bulk import JOBS, AbortFilter, AbortRequest
from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.api.steps import StepKind
from kgym.client import AsyncClient
from kgym.client.protocol import Refused
from kgym.errors import Forbidden, UserError
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.api.caller_limits import CallerLimits
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from tests.refused import refused
from tests.scheduler.parts import BUILD, WELL, claim_of, job, reproduce

pytestmark = pytest.mark.anyio


@pytest.mark.thorough
async def test_a_thousand_jobs_are_added_in_order_and_once_for_each_key(store: JobStore) -> None:
    requests = [job(tags=(f"n:{number}",)) for number in range(JOBS)]
    ids, changes = await store.submit_all(requests, "night", "me")
    assert (len(ids), len(changes)) == (JOBS, JOBS)
    assert ids == sorted(ids)
    assert (await store.get(ids[417])).tags == ["n:417"]
    again, changes = await store.submit_all(requests, "night", "me")
    assert (again, changes) == (ids, [])
    others, _ = await store.submit_all(requests[:2], "night", "you")
    assert not set(others) & set(ids)
    with refused("key_reused", "job 1 of the request", UserError):
        await store.submit_all([requests[0], requests[0]], "night", "me")


async def test_one_job_that_is_wrong_refuses_all_and_is_named(store: JobStore) -> None:
    with pytest.raises(UserError, match="job 2 of the request: there is no step 0") as error:
        await store.submit_all([job(), job(), job(reproduce(0, 99)), job()], None, "me")
    assert error.value.details["errors"] == [
        {"location": "body.jobs.2.steps.0.build", "message": "there is no step 0 of job 99"}
    ]
    assert (await store.page(JobFilter(), "me")).jobs == []


async def test_a_bulk_abort_ends_what_is_unfinished_and_says_what_it_did(store: JobStore) -> None:
    ids, _ = await store.submit_all([job(), job(BUILD, reproduce()), job()], None, "me")
    claimed, _ = await store.claim(claim_of())
    lease = claimed.assignments[0].lease
    await store.finish(lease, WELL)
    running, _ = await store.claim(claim_of())
    wanted = AbortRequest(jobs=[*ids, 4711, ids[0]])
    done, changes = await store.abort_all(wanted, "me", "me")
    assert (done.aborted, done.finished, done.missing) == (ids[1:], ids[:1], [4711])
    assert {changed.job_id for changed in changes} == set(ids[1:])
    assert await store.finish(running.assignments[0].lease, WELL) is None
    assert [await store.state(job_id) for job_id in ids] == ["succeeded", "aborted", "aborted"]
    again, changes = await store.abort_all(wanted, "me", "me")
    assert (again.aborted, changes) == ([], [])


async def test_a_bulk_abort_touches_nobody_elses_jobs(store: JobStore) -> None:
    mine, _ = await store.submit_all([job(), job(tags=("night",))], None, "me")
    yours, _ = await store.submit_all([job(tags=("night",))], None, "you")
    with pytest.raises(Forbidden):
        await store.abort_all(AbortRequest(jobs=[*mine, *yours]), "me", "me")
    everybody = AbortRequest(filter=AbortFilter(tag="night", mine=False))
    with pytest.raises(Forbidden):
        await store.abort_all(everybody, "me", "me")
    assert [await store.state(job_id) for job_id in (*mine, *yours)] == ["queued"] * 3
    own = AbortRequest(filter=AbortFilter(tag="night", kind=StepKind.BUILD))
    done, _ = await store.abort_all(own, "me", "me")
    assert done.aborted == mine[1:]
    done, _ = await store.abort_all(everybody, "root", None)
    assert done.aborted == yours
    assert (await store.state(mine[0])) is State.QUEUED


@pytest.mark.thorough
async def test_a_filter_aborts_a_thousand_and_says_that_there_are_more(store: JobStore) -> None:
    ids: list[int] = []
    for _ in range(2):
        added, _ = await store.submit_all([job()] * 600, None, "me")
        ids += added
    wanted = AbortRequest(filter=AbortFilter())
    done, _ = await store.abort_all(wanted, "me", "me")
    assert (done.aborted, done.more) == (ids[:JOBS], True)
    done, _ = await store.abort_all(wanted, "me", "me")
    assert (done.aborted, done.more) == (ids[JOBS:], False)


async def test_many_jobs_over_rest_within_the_quota(scheduler: Scheduler) -> None:
    app = create_app(scheduler, CallerLimits(unfinished_jobs=50))
    async with serve(app) as address, AsyncClient(address.url) as client:
        done = await client.submit_all([job(), job()])
        assert done.created == 2
        assert (await client.submit_all([job()], "key")).created == 1
        repeated = await client.submit_all([job()], "key")
        assert (repeated.created, len(repeated.jobs)) == (0, 1)
        with pytest.raises(Refused, match="the limit is 50"):
            await client.submit_all([job()] * 48)
        aborted = await client.abort_all(done.jobs)
        assert aborted.aborted == done.jobs
        rest = await client.abort_all(AbortFilter())
        assert rest.aborted == repeated.jobs
