"""Commands that use one data folder at a time, without `kgym up`: they share one platform."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec
from kgym_cli.platforms.platform_clients import joined
from kgym_cli.platforms.running_platform import is_taken, running
from kgym_cli.platforms.shared_platform import platform_of
from tests.cli.conftest import Kgym
from tests.cli.test_commands import running as sleeping
from tests.cli.test_commands import slow_job, wait_for
from tests.conftest import turns

pytestmark = [pytest.mark.timeout(240), pytest.mark.thorough]

Start = Callable[..., "subprocess.Popen[str]"]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def start(data: Path, tmp_path: Path) -> Iterator[Start]:
    """Start `kgym job submit --wait` on the test's own data folder; kill what is left of it."""
    with ExitStack() as stack:

        def start(request: JobRequest) -> "subprocess.Popen[str]":
            file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
            file.write_text(request.model_dump_json())
            process = subprocess.Popen(
                [sys.executable, "-m", "kgym_cli", "job", "submit", str(file), "--wait", "--json"],
                env={**os.environ, "KGYM_DATA": str(data)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start
    wait_for(lambda: not is_taken(data))


def small(build: BuildSpec, marker: str | None = None) -> JobRequest:
    """A job with a build of the small tree; with a marker, it sleeps until it is killed."""
    return JobRequest(steps=[build]) if marker is None else slow_job(build, marker)


@pytest.mark.parametrize("number", turns([signal.SIGINT, signal.SIGKILL], 1))
def test_the_end_of_the_first_command_is_not_the_end_of_the_second(
    start: Start, data: Path, fake_build: BuildSpec, number: signal.Signals
) -> None:
    marker = f"7381.{number}"
    first = start(small(fake_build, marker))
    wait_for(lambda: sleeping(marker))
    second = start(small(fake_build))
    time.sleep(1)
    assert second.poll() is None  # the only place for builds is taken
    first.send_signal(number)
    out, err = second.communicate(timeout=PATIENCE_SECONDS)
    assert (second.returncode, json.loads(out)["state"]) == (0, "succeeded"), err
    assert first.wait(PATIENCE_SECONDS) == (130 if number is signal.SIGINT else -number)
    wait_for(lambda: not is_taken(data))
    assert not sleeping(marker)


def test_the_end_of_the_second_command_is_not_the_end_of_the_first(
    start: Start, kgym: Kgym, fake_build: BuildSpec
) -> None:
    first = start(small(fake_build, "7382.1"))
    wait_for(lambda: sleeping("7382.1"))
    second = start(small(fake_build))
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=PATIENCE_SECONDS)
    assert sleeping("7382.1")
    (job,) = [
        job_view["id"]
        for job_view in kgym("job", "list", "--json").json
        if job_view["state"] == "running"
    ]
    assert kgym("job", "abort", job).status == 0
    out, err = first.communicate(timeout=PATIENCE_SECONDS)
    assert (first.returncode, json.loads(out)["state"]) == (3, "aborted"), err


def test_a_killed_command_leaves_nothing_running(
    start: Start, data: Path, fake_build: BuildSpec
) -> None:
    command = start(small(fake_build, "7383.1"))
    wait_for(lambda: sleeping("7383.1"))
    command.kill()
    wait_for(lambda: not is_taken(data))
    assert not sleeping("7383.1")
    assert running(data) is None
    assert list((data / "work").glob("*/*")) == []


def test_a_command_whose_platform_was_killed_says_so_and_goes_on_when_it_is_repeated(
    start: Start, data: Path, fake_build: BuildSpec, kgym: Kgym
) -> None:
    command = start(small(fake_build, "7385.1"))
    wait_for(lambda: sleeping("7385.1"))
    [platform] = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    os.kill(int(platform), signal.SIGKILL)
    _, error_text = command.communicate(timeout=60)
    assert command.returncode == 3
    assert "this machine's platform has ended" in error_text
    assert "its jobs are kept" in error_text
    assert not sleeping("7385.1")
    assert kgym("job", "abort", 1).status == 0


def test_commands_that_begin_together_share_one_platform(
    start: Start, data: Path, fake_build: BuildSpec
) -> None:
    commands = [start(small(fake_build)) for _ in range(4)]
    for command in commands:
        out, err = command.communicate(timeout=PATIENCE_SECONDS)
        assert (command.returncode, json.loads(out)["state"]) == (0, "succeeded"), err
    assert not is_taken(data)


def test_a_commands_own_job_goes_first_and_older_ones_are_named(
    start: Start, kgym: Kgym, fake_build: BuildSpec
) -> None:
    left = start(small(fake_build, "7384.1"))
    wait_for(lambda: sleeping("7384.1"))
    left.send_signal(signal.SIGINT)
    left.communicate(timeout=PATIENCE_SECONDS)
    done = kgym("job", "submit", "-", "--wait", "--json", stdin=small(fake_build).model_dump_json())
    assert (done.status, done.json["id"]) == (0, 2), done.err
    assert "jobs 1 " in done.err
    (older,) = [job_view for job_view in kgym("job", "list", "--json").json if job_view["id"] == 1]
    assert older["state"] == "queued"
    assert "kgym job wait" in older["steps"][0]["waiting"]


def test_the_platform_of_a_command_that_only_looks_works_for_one_that_waits(
    kgym: Kgym, data: Path, fake_build: BuildSpec
) -> None:
    data.mkdir()
    with joined(data, work=False):  # as a command that looks
        url = platform_of(data).url
        request = small(fake_build).model_dump_json()
        assert kgym("job", "submit", "-", stdin=request).status == 0
        assert kgym("job", "show", 1, "--json").json["steps"][0]["attempt"] == 0
        assert kgym("job", "wait", 1).status == 0
        assert platform_of(data).url == url
    assert not is_taken(data)


@pytest.mark.exhaustive
def test_an_older_job_goes_on_when_a_command_waits_for_it(
    start: Start, kgym: Kgym, data: Path, fake_build: BuildSpec
) -> None:
    submitted = kgym("job", "submit", "-", "--json", stdin=small(fake_build).model_dump_json())
    assert submitted.json["state"] == "queued"
    assert kgym("job", "list", "--json").json[0]["state"] == "queued"
    assert kgym("job", "wait", 1, "--json").json["state"] == "succeeded"


@pytest.mark.exhaustive
def test_a_platform_that_stays_runs_what_was_left_behind(
    start: Start, kgym: Kgym, data: Path, fake_build: BuildSpec
) -> None:
    kgym("job", "submit", "-", stdin=small(fake_build).model_dump_json())
    up = subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", "up", "--port", "0"],
        env={**os.environ, "KGYM_DATA": str(data)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: kgym("job", "list", "--json").json[0]["state"] == "succeeded")
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE_SECONDS) == 130
