"""What Prometheus scrapes, and whether the scheduler is ready."""

import asyncio
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kgym.api.states import State
from kgym.api.steps import BuildResult, StepKind
from kgym.api.worker_calls import AttemptEnding
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.bus import InProcessBus
from kgym.transport.rabbitmq import RabbitBus
from kgym.web import metrics
from kgym.worker.context import StepContext
from kgym_cli.platforms.servers import free_port
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.api.test_app import problem
from tests.scheduler.parts import BUILT, WELL, Clock, Platform, badly, claim_of, job, served, take

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 0.0)


async def samples(http: httpx.AsyncClient) -> dict[str, float]:
    """All samples, by name and the values of their labels: `kgym_queued_steps build`."""
    response = await http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_what_waits_and_runs_is_read_from_the_database(
    http: httpx.AsyncClient, scheduler: Scheduler, platform: Platform, clock: Clock
) -> None:
    for _ in range(3):
        await scheduler.submit(job())
    clock.advance(20)
    async with platform.scheduler() as other:
        await other.claim(claim_of("one"))
    measured = await samples(http)
    assert measured["kgym_queued_steps build"] == 2
    assert measured["kgym_running_steps build"] == 1
    assert measured["kgym_queued_steps reproduce"] == 0
    assert measured["kgym_queue_age_seconds build"] == pytest.approx(20, abs=5)
    assert (measured["kgym_workers live"], measured["kgym_workers draining"]) == (1, 0)


async def test_attempts_are_counted_by_their_outcome(
    http: httpx.AsyncClient, scheduler: Scheduler, clock: Clock
) -> None:
    await scheduler.submit(job())
    await scheduler.submit(job())
    endings = [
        badly("infrastructure"),
        WELL,
        AttemptEnding(result=BUILT.model_copy(update={"tree_cached": True})),
    ]
    for ending in endings:
        assignment = await take(scheduler)
        clock.advance(5)
        await scheduler.finish(assignment.lease, ending)
    measured = await samples(http)
    assert measured["kgym_attempt_seconds_count build failed"] == 1
    assert measured["kgym_attempt_seconds_count build succeeded"] == 2
    assert measured["kgym_attempt_seconds_sum build succeeded"] == pytest.approx(10, abs=2)
    assert measured["kgym_retries_total build"] == 1
    assert measured["kgym_build_trees_total true"] == measured["kgym_build_trees_total false"] == 1


@pytest.mark.thorough
async def test_lost_workers_are_counted_and_steps_given_back_are_no_retries(
    platform: Platform, clock: Clock
) -> None:
    async with platform.scheduler(alone=True) as scheduler, served(scheduler) as http:
        await scheduler.submit(job())
        assignment = await take(scheduler)
        await scheduler.release(assignment.lease)
        assert "kgym_retries_total build" not in await samples(http)
        await scheduler.claim(claim_of())
        clock.advance(61)
        async with asyncio.timeout(10):
            while "kgym_lease_expiries_total build" not in (measured := await samples(http)):
                await asyncio.sleep(0.1)
    assert measured["kgym_lease_expiries_total build"] == measured["kgym_retries_total build"] == 1


async def test_answers_are_counted_by_route_and_status(http: httpx.AsyncClient) -> None:
    for path in ("/v1/jobs/7", "/v1/jobs/8", "/v1/jobs", "/nothing/1", "/nothing/2"):
        await http.get(path)
    await http.request("BREW", "/v1/jobs")
    measured = await samples(http)
    assert measured["kgym_http_requests_total GET /v1/jobs/{job_id} 404"] == 2
    assert measured["kgym_http_requests_total GET /v1/jobs 200"] == 1
    assert measured["kgym_http_requests_total GET none 404"] == 2
    assert not [name for name in measured if "BREW" in name]


@pytest.mark.thorough
async def test_schedulers_in_one_process_have_metrics_of_their_own(
    http: httpx.AsyncClient, platform: Platform
) -> None:
    await http.get("/v1/jobs")
    async with platform.scheduler() as other, served(other) as client:
        assert "kgym_http_requests_total GET /v1/jobs 200" not in await samples(client)


@pytest.mark.thorough
async def test_a_scheduler_that_is_not_ready_says_what_is_missing(platform: Platform) -> None:
    async with RabbitBus(f"amqp://127.0.0.1:{free_port()}") as bus:
        scheduler = Scheduler(platform.store(), bus, platform.storage)
        async with scheduler, served(scheduler) as http:
            for path in ("/readyz", "/v1/readyz"):
                document = problem(await http.get(path), 503, "not_ready")
                assert document["detail"] == "not ready: bus"
                assert [(part["name"], part["ready"]) for part in document["dependencies"]] == [
                    ("database", True),
                    ("bus", False),
                    ("disk", True),
                ]
            assert (await http.get("/healthz")).status_code == 200


class Full(LocalStorage):
    """Storage on a disk that is nearly full."""

    free = 5 << 20

    async def room(self) -> tuple[int, int] | None:
        return self.free, 1 << 40


async def test_a_scheduler_whose_disk_is_full_says_what_to_do(
    platform: Platform, tmp_path: Path
) -> None:
    scheduler = Scheduler(platform.store(), InProcessBus(), Full(tmp_path / "full"))
    async with scheduler, served(scheduler) as http:
        document = problem(await http.get("/readyz"), 503, "not_ready")
        assert document["detail"] == "not ready: disk"
        details = {part["name"]: part["detail"] for part in document["dependencies"]}
        assert "has 5 MiB left" in details["disk"]
        assert "kgym gc" in details["disk"]


@pytest.mark.thorough
async def test_jobs_stay_queued_without_attempts_while_the_disk_is_full(
    platform: Platform, tmp_path: Path
) -> None:
    platform.storage = storage = Full(tmp_path / "full")
    ran: list[StepContext] = []

    async def build(run: StepContext) -> BuildResult:
        ran.append(run)
        return BUILT

    scheduler = platform.scheduler()
    async with scheduler, platform.worker(scheduler, {StepKind.BUILD: build}):
        view, _ = await scheduler.submit(job())
        assert (await scheduler.claim(claim_of())).assignments == []
        [step] = (await scheduler.job(view.id)).steps
        assert (step.state, step.attempt, ran) == (State.QUEUED, 0, [])
        assert "5 MiB left, and a job needs 512: see `kgym du`" in (step.waiting or "")
        storage.free = 1 << 30
        async with asyncio.timeout(30):
            async for _ in scheduler.follow(view.id):
                pass
        [step] = (await scheduler.job(view.id)).steps
        assert (step.state, step.attempt, step.waiting) == (State.SUCCEEDED, 1, None)
