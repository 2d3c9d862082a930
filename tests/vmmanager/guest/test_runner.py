"""The guest's runner, run on this host: it runs a program until its stdin ends."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from kgym_vmmanager.guest.runner_log import RunnerLog

MARKER = "31415.9265"


@dataclass
class Ran:
    log: RunnerLog
    lines: list[str]
    output: str
    seconds: float
    status: int


class Host:
    def __init__(self, runner: Path, folder: Path) -> None:
        self.runner, self.folder = runner, folder

    def run(self, script: str, seconds: float = 0.4) -> Ran:
        program = self.folder / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return self.run_program(program, seconds)

    def run_program(self, program: Path, seconds: float) -> Ran:
        begin = time.monotonic()
        with subprocess.Popen(
            [self.runner, self.folder / "runs", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            out, err = process.communicate(timeout=20)
        log = RunnerLog()
        log.feed(out)
        took = time.monotonic() - begin
        return Ran(log, out.decode().splitlines(), err.decode(), took, process.returncode)


@pytest.fixture
def host(runner: Path, tmp_path: Path) -> Host:
    return Host(runner, tmp_path)


def left_over() -> bool:
    argv = ["pgrep", "-f", f"^sleep {MARKER}"]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("script", "end", "is_quick"),
    [
        ("exit 0", "exit status 0", False),
        ("exit 7", "exit status 7", True),
        ("kill -SEGV $$", "signal 11", True),
    ],
)
@pytest.mark.thorough
def test_ended_programs_are_repeated(host: Host, script: str, end: str, is_quick: bool) -> None:
    log = host.run(script).log
    assert log.over
    assert log.runs > 2
    assert log.quick == (log.runs if is_quick else 0)
    assert log.last_end.startswith(end)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [
        f"trap '' TERM INT HUP; sleep {MARKER}",
        f"setsid setsid sleep {MARKER} & exit 0",
        f"for i in 1 2 3 4 5; do (setsid sleep {MARKER} &) ; done; sleep {MARKER}",
    ],
    ids=["ignores signals", "daemons", "fork storm"],
)
def test_whatever_a_program_leaves_is_killed(host: Host, script: str) -> None:
    ran = host.run(script)
    assert (ran.log.over, ran.log.stuck) == (True, 0)
    assert ran.seconds < 3
    assert not left_over()


@pytest.mark.thorough
def test_it_ticks_while_the_program_runs(host: Host) -> None:
    ran = host.run("sleep 60", seconds=1.3)
    assert [line for line in ran.lines if line.startswith("tick")] == ["tick 1 0"] * 2
    assert ran.lines[-1] == "over 1 0"


@pytest.mark.thorough
def test_ends_are_summed_up(host: Host) -> None:
    ran = host.run("[ -e ../../once ] && exit 3; touch ../../once; kill -SEGV $$")
    assert ran.log.ends["signal", 11] == 1
    assert f"ends exit 3 {ran.log.ends['exit', 3]}" in ran.lines
    assert ran.log.ends.total() in (ran.log.runs, ran.log.runs - 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user without other processes")
def test_where_nothing_can_be_started_it_ends_with_its_stdin(runner: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        shutil.copy(runner, folder / "run")
        argv = ["prlimit", "--nproc=0", "setpriv", "--reuid=61184", "--clear-groups"]
        begin = time.monotonic()
        done = subprocess.run(
            [*argv, folder / "run", folder / "runs", "/bin/true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=10,
        )
        assert time.monotonic() - begin < 5
    assert done.stdout == b"failed 11\n", done


def test_what_cannot_be_executed_is_said_once(host: Host) -> None:
    ran = host.run_program(host.folder / "missing", 5)
    assert ran.log.failed == 2
    assert ran.status == 1
    assert ran.seconds < 3


@pytest.mark.thorough
def test_each_run_has_a_fresh_folder(host: Host) -> None:
    ran = host.run("[ -e file ] && exit 9; mkdir file; pwd; touch file/x")
    assert ran.log.last_end.startswith("exit status 0")
    folders = ran.output.split()
    assert len(set(folders)) == len(folders)
    assert not list((host.folder / "runs").iterdir())


@pytest.mark.thorough
def test_the_programs_output_is_passed_on(host: Host) -> None:
    ran = host.run("echo out; echo err >&2; sleep 60")
    assert ran.output == "out\nerr\n"


@pytest.mark.thorough
def test_a_flood_of_output_is_cut(host: Host) -> None:
    ran = host.run("exec yes", seconds=0.4)
    assert len(ran.output) < 1_500_000
    assert ran.log.over


@pytest.mark.thorough
def test_a_lost_reader_ends_it(host: Host) -> None:
    program = host.folder / "program"
    program.write_text(f"#!/bin/sh\nsleep {MARKER}\n")
    program.chmod(0o755)
    with subprocess.Popen(
        [host.runner, host.folder / "runs", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(5) == 0
    assert not left_over()


@pytest.mark.thorough
def test_each_run_has_another_name(host: Host) -> None:
    ran = host.run('echo "${0##*/}"; cat /proc/$PPID/comm')
    names = ran.output.split()
    assert len(set(names[::2])) == len(names[::2]) > 2
    assert not {"program", "run"} & set(names)
    assert not list((host.folder / "runs").iterdir())
