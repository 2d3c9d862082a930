"""Files of this machine: its user may name them as kernel sources, owners of tokens may not."""

import asyncio
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import BuildSpec, SourceSpec
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tokens import Tokens

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(120)]


def outcome(job: JobView) -> State | str:
    failure = job.steps[0].failure
    return failure.reason if failure else job.steps[0].state


async def first_token(data: Path) -> str:
    database = Database(f"sqlite+aiosqlite:///{data / 'kgym.db'}")
    try:
        return await Tokens(database).create("stranger", ["read", "submit"])
    finally:
        await database.close()


def test_a_token_opens_no_file_of_the_machine_even_if_it_is_the_first(
    fake_build: BuildSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's job, queued before the token was made, may still read them."""
    monkeypatch.delenv("KGYM_SOURCES", raising=False)
    jobs = [JobRequest(steps=[spec]) for spec in (fake_build, SourceSpec(source=fake_build.source))]
    with Platform(tmp_path, work=False) as platform:
        with Client(platform.url) as user:
            own = [user.submit(job).id for job in jobs]
        token = asyncio.run(first_token(tmp_path))
        with Client(platform.url, token) as other:
            foreign = [other.submit(job).id for job in jobs]
            platform.work()
            assert [outcome(other.wait(job)) for job in own] == [State.SUCCEEDED] * 2
            # The user's kernel is in the SuiteCache by now; that opens its source to nobody.
            assert [outcome(other.wait(job)) for job in foreign] == ["source_not_allowed"] * 2
            again = [other.submit(job).id for job in jobs]
            assert [outcome(other.wait(job)) for job in again] == ["source_not_allowed"] * 2
