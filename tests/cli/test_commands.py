"""The commands, without a real kernel."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildSpec, Edit, Patch
from kgym.client import Client
from kgym_cli.platforms import running_platform
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym, small_disk
from tests.tables import json_rows

LOG = Path(__file__).with_name("use_after_free.log").read_text()


def test_a_report_is_parsed_to_json(kgym: Kgym, tmp_path: Path) -> None:
    (tmp_path / "crash.log").write_text(LOG)
    crash = kgym("report", "parse", tmp_path / "crash.log", "--json").json
    assert crash["title"] == "KASAN: use-after-free Read in demo_release"
    assert set(crash) >= {"title", "alt_titles", "type", "corrupted", "report", "frames"}
    assert "demo_release" in [frame["function"] for frame in crash["frames"]]


def test_the_shipped_bugs_are_listed_and_shown(kgym: Kgym) -> None:
    names = [bug["name"] for bug in kgym("bug", "list", "--json").json]
    assert "watch-queue-filter" in names
    shown = kgym("bug", "show", "watch-queue-filter", "--json").json
    assert [step["kind"] for step in shown["job"]["steps"]] == ["build", "reproduce"] * 2


def test_a_syz_bundle_shows_its_options_and_what_its_config_cannot_detect(
    kgym: Kgym, tmp_path: Path
) -> None:
    header = '# {"threaded":true,"repeat":true,"procs":3,"sandbox":"namespace"}\n'
    (tmp_path / "repro.syz").write_text(f"{header}r0 = socket(0x2, 0x1, 0x0)\n")
    (tmp_path / "full.config").write_text("CONFIG_BUG=y\n# CONFIG_KASAN_GENERIC is not set\n")
    (tmp_path / "bug.toml").write_text(
        'title = "KASAN: use-after-free Read in f"\n[kernel]\ngit = "https://k/l.git"\n'
        'commit = "v6.1"\nconfig = "full.config"\n[reproducer]\nfile = "repro.syz"\nkind = "syz"\n'
    )
    shown = kgym("bug", "show", tmp_path)
    assert (shown.status, "procs=3" in shown.out, "sandbox=namespace" in shown.out) == (
        0,
        True,
        True,
    )
    assert "kasan_use_after_free is not detected: no CONFIG_KASAN_GENERIC" in shown.out
    answer = kgym("bug", "show", tmp_path, "--json").json
    assert answer["options"][0]["sandbox"] == "namespace"
    assert len(answer["config_findings"]) == 2


@pytest.mark.parametrize(("words", "status", "complaint"), json_rows(__file__, "errors.jsonl"))
def test_an_error_says_what_and_the_status_whose(
    kgym: Kgym, words: list[str], status: int, complaint: str
) -> None:
    answer = kgym(*words)
    assert (answer.status, complaint in answer.err) == (status, True), answer.err
    assert "Traceback" not in answer.err


@pytest.mark.thorough
def test_a_job_is_submitted_waited_for_and_listed(kgym: Kgym, build_job: str) -> None:
    done = kgym("job", "submit", "-", "--wait", "--json", stdin=build_job)
    assert (done.status, done.json["state"]) == (0, "succeeded"), done.err
    (listed,) = kgym("job", "list", "--tag", "small", "--json").json
    assert listed["id"] == done.json["id"]
    assert "tree" in kgym("job", "log", listed["id"]).out


@pytest.mark.thorough
def test_a_job_that_fails_by_the_users_fault_gives_status_2(
    kgym: Kgym, fake_build: BuildSpec
) -> None:
    patch = Patch(edits=[Edit(file="no.c", original="x", replacement="y")])
    request = JobRequest(steps=[fake_build.model_copy(update={"patches": [patch]})])
    done = kgym("job", "submit", "-", "--wait", stdin=request.model_dump_json())
    assert done.status == 2
    assert "no.c is not in the tree" in done.out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"steps": []}, "steps"),
        ({"surprise": 1}, "surprise"),
        ({"steps": [{"kind": "check"}]}, "steps.0.check.source"),
    ],
)
def test_a_bad_job_is_refused_with_the_place(
    kgym: Kgym, build_job: str, change: dict[str, object], complaint: str
) -> None:
    done = kgym("job", "submit", "-", stdin=json.dumps({**json.loads(build_job), **change}))
    assert (done.status, complaint in done.err) == (2, True), done.err


@pytest.mark.thorough
def test_a_program_of_syzkallers_is_refused_where_no_binaries_are(
    kgym: Kgym, build_job: str
) -> None:
    program = {"kind": "syz", "text": "getpid()\n"}
    step = {"kind": "reproduce", "build": {"step": 0}, "reproducer": program}
    request = json.loads(build_job)
    request["steps"].append(step)
    for words in (("--wait",), ()):
        done = kgym("job", "submit", "-", *words, stdin=json.dumps(request))
        assert (done.status, "KGYM_SYZKALLER" in done.err) == (2, True), done.err
    assert kgym("job", "list", "--json").json == []


def test_commands_use_the_platform_that_runs(
    kgym: Kgym, platform: Platform, build_job: str
) -> None:
    with Client(platform.url) as client:
        job = client.submit(JobRequest.model_validate_json(build_job))
        assert client.wait(job.id).state is State.SUCCEEDED
    assert [listed["id"] for listed in kgym("job", "list", "--json").json] == [job.id]


@pytest.mark.thorough
def test_a_second_platform_on_the_same_data_is_refused(kgym: Kgym, platform: Platform) -> None:
    answer = kgym("up", "--port", "0")
    assert answer.status == 2
    assert platform.url in answer.err


@pytest.mark.thorough
def test_a_port_in_use_is_named(kgym: Kgym, tmp_path: Path) -> None:
    with Platform(tmp_path / "other") as other:
        port = httpx.URL(other.url).port
        answer = kgym("up", "--port", port)
    assert (answer.status, f"port {port}" in answer.err) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
@pytest.mark.thorough
def test_a_full_disk_is_the_cause_and_the_job_can_be_restarted(
    kgym: Kgym, data: Path, fake_build: BuildSpec
) -> None:
    # A request for more than the disk has is refused at once, and takes no memory.
    small = "[ `stat -f -c %b .` -gt 200000 ] || fallocate -l 700M $@ && objcopy -S $< $@"
    fill = Edit(file="Makefile", original="@objcopy -S $< $@", replacement=small)
    spec = fake_build.model_copy(update={"patches": [Patch(edits=[fill])]})
    request = JobRequest(steps=[spec]).model_dump_json()
    with small_disk(data, "530m"):
        done = kgym("job", "submit", "-", "--wait", "--json", stdin=request)
        failure = done.json["steps"][0]["failure"]
        assert (done.status, failure["cause"], failure["reason"]) == (
            3,
            "infrastructure",
            "disk_full",
        )
        assert failure["message"].startswith(f"no space left on {data}/work/")
        assert list((data / "work").glob("*/*")) == []
        subprocess.run(["mount", "-o", "remount,size=2g", data], check=True)
        again = kgym("job", "restart", done.json["id"], "--wait", "--json")
        assert (again.status, again.json["state"]) == (0, "succeeded")


def slow_job(fake_build: BuildSpec, marker: str) -> JobRequest:
    """A job whose build sleeps."""
    edit = Edit(file="Makefile", original="@objcopy -S $< $@", replacement=f"sleep {marker}")
    return JobRequest(steps=[fake_build.model_copy(update={"patches": [Patch(edits=[edit])]})])


def running(marker: str) -> bool:
    argv = ["pgrep", "-f", f"^sleep {marker}"]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


@pytest.mark.thorough
def test_an_abort_ends_what_runs_within_two_seconds(
    kgym: Kgym, platform: Platform, fake_build: BuildSpec
) -> None:
    with Client(platform.url) as client:
        job = client.submit(slow_job(fake_build, "7371.1"))
        wait_for(lambda: running("7371.1"))
        answer = kgym("job", "abort", job.id, "--json")
        start = time.monotonic()
        assert answer.json["state"] == "aborted"
        wait_for(lambda: not running("7371.1"))
        assert time.monotonic() - start < 10  # 2 where nothing else runs


@pytest.mark.thorough
def test_ctrl_c_leaves_nothing_running_and_the_job_is_resumed(
    kgym: Kgym, data: Path, fake_build: BuildSpec, tmp_path: Path
) -> None:
    # The first run hangs in make; the second finds the job again and goes on with it.
    request = tmp_path / "job.json"
    request.write_text(slow_job(fake_build, "7372.1").model_dump_json())
    command = [sys.executable, "-m", "kgym_cli", "job", "submit", str(request), "--wait"]
    process = subprocess.Popen(command, env={**os.environ, "KGYM_DATA": str(data)})
    wait_for(lambda: running("7372.1"))
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert not running("7372.1")
    assert list((data / "work").glob("*/*")) == []
    (job,) = kgym("job", "list", "--json").json
    assert job["state"] == "queued"
    with Platform(data) as platform, Client(platform.url) as client:
        wait_for(lambda: running("7372.1"))
        assert client.abort(job["id"]).state is State.ABORTED


@pytest.mark.thorough
def test_a_killed_platform_loses_no_job(kgym: Kgym, data: Path, fake_build: BuildSpec) -> None:
    command = [sys.executable, "-m", "kgym_cli", "up", "--port", "0"]
    process = subprocess.Popen(command, env={**os.environ, "KGYM_DATA": str(data)})
    wait_for(lambda: running_platform.running(data) is not None)
    submitted = kgym("job", "submit", "-", stdin=slow_job(fake_build, "7373.1").model_dump_json())
    assert submitted.status == 0
    wait_for(lambda: running("7373.1"))
    process.kill()
    process.wait(10)
    wait_for(lambda: not running("7373.1"))
    with Platform(data) as platform, Client(platform.url) as client:
        wait_for(lambda: running("7373.1"))
        (job,) = client.jobs()
        assert client.abort(job.id).state is State.ABORTED
        assert job.steps[0].attempt == 2


def wait_for(condition: Callable[[], bool], limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
