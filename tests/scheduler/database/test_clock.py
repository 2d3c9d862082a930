"""Schedulers whose hosts disagree about the time agree about leases."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgym.api.states import State
from kgym_scheduler.job_store import JobStore
from tests.scheduler.parts import WELL, claim_of, job

pytestmark = pytest.mark.anyio

LEASE = 3.0
LIMIT = 60


@pytest.fixture
def ahead(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that runs on a host whose clock is a minute ahead."""
    source, library = Path(__file__).with_name("clock_ahead.c"), tmp_path / "ahead.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    env = os.environ | {"LD_PRELOAD": str(library)}
    seen = [sys.executable, "-c", "import time; print(time.time())"]
    there, here = (
        float(subprocess.run(seen, env=environment, check=True, capture_output=True).stdout)
        for environment in (env, os.environ)
    )
    assert there > here + 50
    return env


async def test_a_scheduler_a_minute_ahead_ends_no_lease_that_is_alive(
    postgresql_url: str, ahead: dict[str, str], tmp_path: Path
) -> None:
    store = JobStore(postgresql_url, LEASE)
    views = {name: (await store.submit(job()))[0] for name in ("reports", "silent")}
    claims = {name: (await store.claim(claim_of(name)))[0] for name in views}
    leases = {name: claimed.assignments[0].lease for name, claimed in claims.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "kgym_cli", "scheduler", "--port", "0", "--lease", str(LEASE)),
        env=ahead | {"KGYM_DATABASE": postgresql_url, "KGYM_STORAGE": str(tmp_path)},
    )
    try:
        async with asyncio.timeout(LIMIT):
            while (await store.state(claims["silent"].assignments[0].job_id)) is State.RUNNING:
                assert await store.report(leases["reports"], "", None), "the lease was ended"
                await asyncio.sleep(0.1)
        assert await store.finish(leases["reports"], WELL)
        assert await store.finish(leases["silent"], WELL) is None
    finally:
        process.kill()
        await process.wait()
        await store.close()
