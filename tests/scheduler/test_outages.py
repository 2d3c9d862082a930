"""Clients while the database is away, and clients that follow much at once."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text as sql

from kgym.api.jobs import JobEvent, JobFilter
from kgym.api.states import State
from kgym.client import AsyncClient, Client, ServerFailed
from kgym.errors import InfrastructureError
from kgym.web.server import serve
from kgym_cli.platforms.servers import PostgreSQL
from kgym_scheduler.api.app import create_app
from kgym_scheduler.database.connection import Database, upgrade
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import WELL, Clock, Platform, job, take
from tests.servers import require

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
DATABASE = "sqlite"


@pytest.fixture
async def server(scheduler: Scheduler) -> AsyncIterator[str]:
    async with serve(create_app(scheduler)) as address:
        yield address.url


async def rename(platform: Platform, table: str, name: str) -> None:
    database = Database(platform.url)
    async with database.write() as connection:
        await connection.execute(sql(f"ALTER TABLE {table} RENAME TO {name}"))
    await database.close()


async def hear(client: AsyncClient, job_id: int) -> list[JobEvent]:
    return [event async for event in client.events(job_id)]


def logs(events: list[JobEvent]) -> str:
    return "".join(event.data["text"] for event in events if event.kind == "log")


async def test_calls_and_new_followers_wait_while_the_database_is_away(
    server: str, platform: Platform
) -> None:
    async with AsyncClient(server) as client:
        view = await client.submit(job())
        await rename(platform, "jobs", "away")
        calls = [
            asyncio.create_task(client.job(view.id)),
            asyncio.create_task(client.page(JobFilter())),
            asyncio.create_task(client.submit(job(), "key")),
            asyncio.create_task(client.wait(view.id)),
        ]
        with pytest.raises(ServerFailed) as error:  # it may have been done already
            await client.restart(view.id)
        assert error.value.reason == "database_failed"
        await asyncio.sleep(0.5)
        assert not any(call.done() for call in calls)
        await rename(platform, "away", "jobs")
        await client.abort(view.id)
        await asyncio.gather(*calls)
        assert (await client.submit(job(), "key")).id == view.id + 1
        with Client(server) as blocking:
            assert (await asyncio.to_thread(blocking.job, view.id)).state is State.ABORTED


async def test_streams_outlast_a_database_that_is_away(
    server: str, platform: Platform, scheduler: Scheduler
) -> None:
    async with AsyncClient(server) as client:
        view = await client.submit(job())
        assignment = await take(scheduler)
        following = [asyncio.create_task(hear(client, view.id)) for _ in range(20)]
        await scheduler.report(assignment.lease, "before ", None)
        await asyncio.sleep(0.3)
        await rename(platform, "events", "away")
        with pytest.raises(InfrastructureError):
            await scheduler.report(assignment.lease, "meanwhile ", None)
        await asyncio.sleep(0.7)
        await rename(platform, "away", "events")
        await scheduler.report(assignment.lease, "after", None)
        await scheduler.finish(assignment.lease, WELL)
        for events in await asyncio.gather(*following):
            assert logs(events) == "before after"


@pytest.mark.thorough
async def test_any_number_of_streams_leaves_calls_their_connections(
    server: str, scheduler: Scheduler
) -> None:
    async with AsyncClient(server) as client:
        view = await client.submit(job())
        following = [asyncio.create_task(hear(client, view.id)) for _ in range(105)]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(30):
            jobs = await asyncio.gather(*(client.job(view.id) for _ in range(105)))
            assert {view.state for view in jobs} == {State.QUEUED}
            await client.abort(view.id)
            for events in await asyncio.gather(*following):
                assert events[-1].data["state"] == "aborted"


async def test_what_was_in_the_way_is_named() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    mute = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with mute, AsyncClient(f"http://127.0.0.1:{mute.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(InfrastructureError, match="ended the connection without an answer"):
            await client.job(1)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        taken = [os.dup(0) for _ in range(highest)]  # every number below has its file
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
            with pytest.raises(InfrastructureError, match="too many streams open"):
                await client.job(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for number in taken:
                os.close(number)


@pytest.mark.slow
async def test_followers_and_calls_outlast_a_restart_of_postgresql(tmp_path: Path) -> None:
    require(PostgreSQL)
    with PostgreSQL(tmp_path / "postgresql") as database:
        platform = Platform(database.url, tmp_path, Clock())
        await upgrade(platform.url)
        async with (
            platform.scheduler() as scheduler,
            serve(create_app(scheduler)) as address,
            AsyncClient(address.url) as client,
        ):
            view = await client.submit(job())
            assignment = await take(scheduler)
            following = [asyncio.create_task(hear(client, view.id)) for _ in range(120)]
            await scheduler.report(assignment.lease, "before ", None)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(database.kill)
            late = asyncio.create_task(hear(client, view.id))
            calls = [asyncio.create_task(client.job(view.id)) for _ in range(20)]
            await asyncio.sleep(2)
            await asyncio.to_thread(database.start)
            await asyncio.gather(*calls)
            assert await scheduler.report(assignment.lease, "after", None)
            assert await scheduler.finish(assignment.lease, WELL)
            for events in await asyncio.gather(late, *following):
                assert logs(events) == "before after"
