"""What people are told of a job that does not begin: why, its place in the queue, how soon."""

import asyncio
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, StepKind, StepResult
from kgym.client import Client
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_commands import wait_for
from tests.cli.worked import working
from tests.results import built

pytestmark = pytest.mark.thorough

NOBODY = "no live worker does `build` steps"


def test_a_job_that_no_worker_takes_says_why_and_where_it_stands(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec
) -> None:
    with Client(idle.url) as client:
        jobs = [client.submit(JobRequest(steps=[fake_build])).id for _ in range(3)]
        wait_for(lambda: client.job(jobs[2]).steps[0].ahead is not None)
        shown = kgym("job", "show", jobs[2])
        assert f"waits: {NOBODY}" in shown.out
        assert "2 steps before it" in shown.out
        step = kgym("job", "show", jobs[2], "--json").json["steps"][0]
        assert (step["ahead"], step["begins_in"]) == (2, None)
        assert f"  step 0 (build): {NOBODY}" in kgym("job", "list").out
        enough = threading.Timer(12, client.abort, [jobs[2]])
        enough.start()
        waited = kgym("--server", idle.url, "job", "wait", jobs[2])
        enough.join()
        assert f"step 0: waits: {NOBODY}" in waited.err


def test_a_job_whose_only_worker_was_drained_says_so(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec, data: Path
) -> None:
    with working(idle, data, {StepKind.BUILD: lambda _: built()}), Client(idle.url) as client:
        wait_for(lambda: bool(client.workers()))
        [worker] = kgym("worker", "list", "--json").json
        assert kgym("worker", "drain", worker["id"]).status == 0
        job = client.submit(JobRequest(steps=[fake_build])).id
        wait_for(lambda: client.job(job).steps[0].waiting is not None)
        assert f"waits: {NOBODY}" in kgym("job", "show", job).out
        assert f"  step 0 (build): {NOBODY}" in kgym("job", "list").out


def test_a_job_behind_others_says_about_how_soon_it_begins(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec, data: Path
) -> None:
    done = threading.Event()
    begun = threading.Event()

    def build(run: StepContext) -> StepResult:
        if run.assignment.job_id > 1:
            begun.set()
            done.wait(60)
        else:
            done.wait(1)
        return built()

    with working(idle, data, {StepKind.BUILD: build}), Client(idle.url) as client:
        try:
            first = client.submit(JobRequest(steps=[fake_build]))
            client.wait(first.id)
            jobs = [client.submit(JobRequest(steps=[fake_build])).id for _ in range(3)]
            assert begun.wait(30)
            wait_for(lambda: client.job(jobs[2]).steps[0].ahead == 1)
            step = client.job(jobs[2]).steps[0]
            assert step.begins_in is not None
            assert step.begins_in >= 2
            assert "1 step before it; starts in about" in kgym("job", "show", jobs[2]).out
        finally:
            done.set()


def plain(output: str) -> str:
    """Return what was said to a terminal, without what colours it or moves its cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)


def test_on_a_terminal_a_bar_says_how_long_it_still_takes(
    idle: Platform, fake_build: BuildSpec, data: Path
) -> None:
    async def build(run: StepContext) -> StepResult:
        for done in range(1000):
            run.progress("compile", done, 1000, "objects")
            await asyncio.sleep(0.1)
        return built()

    mine, theirs = pty.openpty()
    with working(idle, data, {}, {StepKind.BUILD: build}), Client(idle.url) as client:
        job = client.submit(JobRequest(steps=[fake_build])).id
        command = subprocess.Popen(
            [sys.executable, "-m", "kgym_cli", "job", "wait", str(job)],
            env={**os.environ, "KGYM_DATA": str(data), "TERM": "xterm", "COLUMNS": "160"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        output = ""
        try:
            while not re.search(r"compile.* \d+/1,000 objects.*\d:\d\d:\d\d left", plain(output)):
                output += os.read(mine, 4096).decode(errors="replace")
        finally:
            command.kill()
            command.wait()
            os.close(mine)
            client.abort(job)
