"""What people are told of a job that does not begin: why, its place in the queue, how soon."""

import threading
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, StepKind, StepResult
from kgym.client import Client
from kgym.worker.context import StepContext
from kgym_cli.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_commands import wait_for
from tests.cli.worked import working
from tests.results import built

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
        assert f"job {jobs[0]} waits: {NOBODY}" in kgym("job", "list").err
        enough = threading.Timer(12, client.abort, [jobs[2]])
        enough.start()
        waited = kgym("--server", idle.url, "job", "wait", jobs[2])
        enough.join()
        assert f"step 0: waits: {NOBODY}" in waited.err


@pytest.mark.thorough
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
            assert "1 step before it; begins in about" in kgym("job", "show", jobs[2]).out
        finally:
            done.set()
