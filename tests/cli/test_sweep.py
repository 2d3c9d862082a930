"""`kgym sweep`: every pair gets one right row, whoever is killed meanwhile."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobView
from kgym.api.steps import (
    BuildSpec,
    CheckSpec,
    Diagnostic,
    Evidence,
    PatchCheck,
    PatchOutcome,
    ReproduceSpec,
    StepKind,
    StepResult,
    Verdict,
)
from kgym.bugs import bundle
from kgym.client import Client
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_commands import wait_for
from tests.cli.worked import working
from tests.conftest import turns
from tests.demo import given_steps
from tests.results import GOOD, built, checked, crash, ran

BUG = "watch-queue-filter"
SECOND = "epoll-loop"
INSTEAD = "gcc-12 (Debian 12.2.0) instead of gcc 9"
BROKEN = Diagnostic(file="drivers/a.c", line=7, severity="error", message="expected ';'")


def diff(word: str) -> str:
    """Return a patch whose trial ends as the word says."""
    return f"--- a/drivers/a.c\n+++ b/drivers/a.c\n@@ -1 +1 @@\n-int a;\n+int {word};\n"


class Farm:
    """Workers that answer by what a patch says, and count what they are asked."""

    def __init__(self, *, hidden: str = "") -> None:
        # The title of a bug that does not show.
        self.hidden = hidden
        self.done: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.held = threading.Event()

    @property
    def answers(self) -> dict[StepKind, Any]:
        """What `working` takes."""
        return {
            StepKind.CHECK: self.check,
            StepKind.BUILD: self.build,
            StepKind.REPRODUCE: self.reproduce,
        }

    def check(self, run: StepContext) -> StepResult:
        """Say which patches compile."""
        spec = run.assignment.spec
        assert isinstance(spec, CheckSpec)
        self.done += [f"check {patch.name}" for patch in spec.patches]
        return checked([_checked(patch.name, patch.diff or "") for patch in spec.patches])

    def build(self, run: StepContext) -> StepResult:
        """Build, unless the patch does not link."""
        spec = run.assignment.spec
        assert isinstance(spec, BuildSpec)
        if spec.review:
            self.done.append(f"build {spec.review[0]}")
        if any("unlinked" in (patch.diff or "") for patch in spec.patches):
            raise UserError("does_not_compile", "undefined reference to `a'")
        return built(tree=spec.patches[-1].diff or "", compiler_substitution=INSTEAD)

    def reproduce(self, run: StepContext) -> StepResult:
        """Crash, or not."""
        spec, kernel = run.assignment.spec, run.assignment.inputs["build"].result
        assert isinstance(spec, ReproduceSpec)
        title = spec.titles[0]
        if spec.baseline is None:
            self.done.append("show")
            if title == self.hidden:
                return ran(Verdict.NO_CRASH)
            crashes = [crash(title, number) for number in range(5)]
            measured = {"instances": crashes, "sample": [2, 3, 4]}
            return ran(Verdict.SAME_CRASH, title, evidence=Evidence(), **measured)
        if not self.hold.is_set():
            self.held.set()
            self.hold.wait(60)
        self.done.append("run")
        assert kernel is not None
        if "mends" in getattr(kernel, "tree", ""):
            return ran(evidence=GOOD, baseline=Verdict.SAME_CRASH)
        return ran(Verdict.SAME_CRASH, title, evidence=Evidence(), baseline=Verdict.SAME_CRASH)


def _checked(name: str, text: str) -> PatchCheck:
    if "@@" not in text:
        return PatchCheck(name=name, outcome=PatchOutcome.REFUSED, reason="no hunks", seconds=0)
    if "broken" in text:
        outcome = PatchOutcome.DOES_NOT_COMPILE
        return PatchCheck(name=name, outcome=outcome, diagnostics=[BROKEN], seconds=0.5)
    return PatchCheck(name=name, outcome=PatchOutcome.COMPILES, seconds=0.5)


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """Patches of all kinds for the bug, one of them for all bugs."""
    own = tmp_path / "patches" / BUG
    own.mkdir(parents=True)
    for name in ("mends", "useless", "broken", "unlinked"):
        (own / f"{name}.patch").write_text(diff(name))
    (own / "again.diff").write_text(diff("mends"))
    mended = diff("mends")
    (own / "mends-crlf.patch").write_bytes(mended.replace("\n", "\r\n").encode())
    (own / "mends-mail.patch").write_text(f"Subject: fix it\n\nIt was wrong.\n---\n{mended}")
    (own / "mends-short.patch").write_text(mended.rstrip("\n"))
    (own / "words.patch").write_text("I would change a.c\n")
    (own / "binary.patch").write_bytes(b"\0\1\2\0")
    (own.parent / "every.patch").write_text(diff("everywhere"))
    (own / "notes.txt").write_text("no patch\n")
    return own.parent


SAME = ("mends-crlf.patch", "mends-mail.patch", "mends-short.patch", "mends.patch")
WANTED = {
    "every.patch": ("not_resolved", "same_crash"),
    "again.diff": ("resolved", "no_crash"),
    "binary.patch": ("refused", None),
    "broken.patch": ("does_not_compile", None),
    **dict.fromkeys(SAME, ("resolved", "no_crash")),
    "unlinked.patch": ("does_not_compile", None),
    "useless.patch": ("not_resolved", "same_crash"),
    "words.patch": ("refused", None),
}


def rows_of(out: str) -> dict[str, dict[str, Any]]:
    """Return the rows that --json has printed, by patch."""
    lines = [json.loads(line) for line in out.splitlines()]
    rows = [line for line in lines if line["kind"] == "pair"]
    assert len({(row["bug"], row["patch"]) for row in rows}) == len(rows)
    return {row["patch"]: row for row in rows}


def outcomes(out: str) -> dict[str, tuple[str, str | None]]:
    return {name: (row["outcome"], row["verdict"]) for name, row in rows_of(out).items()}


@contextmanager
def platform_process(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a platform that does no steps as a process that can be killed; with its URL."""
    code = (
        "import pathlib, sys, time\n"
        "from kgym_cli.platforms.embedded_platform import Platform\n"
        "with Platform(pathlib.Path(sys.argv[1]), work=False) as one:\n"
        "    print(one.url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def begun(data: Path, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """Begin a command, which is killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", *map(str, words)],
        env={**os.environ, "KGYM_DATA": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def jobs_of(platform: Platform) -> list[JobView]:
    with Client(platform.url) as client:
        return list(client.jobs())


def test_every_patch_gets_a_row(kgym: Kgym, idle: Platform, data: Path, patches: Path) -> None:
    farm = Farm()
    table = patches.parent / "table.csv"
    words = ("--server", idle.url, "sweep", BUG, "--patches", patches)
    with working(idle, data, farm.answers):
        done = kgym(*words, "--csv", table, "--json")
        assert outcomes(done.out) == WANTED
        assert done.status == 2  # of some files nothing can be tried
        assert farm.done.count("show") == 1
        assert farm.done.count("run") == 3
        asked = sorted(farm.done)
        again = kgym(*words)
        assert sorted(farm.done) == asked  # nothing ran twice, though the bug is known by now
    rows = rows_of(done.out)
    assert rows["broken.patch"]["reason"] == "drivers/a.c:7: expected ';'"
    assert rows["broken.patch"]["diagnostic"]["line"] == 7
    for other in SAME:
        assert rows[other]["same_as"] == "again.diff"
    assert rows["mends.patch"]["compiler_substitution"] == INSTEAD
    assert f"compiler: {INSTEAD}" in again.err
    assert rows["mends.patch"]["job"] == rows["again.diff"]["job"]
    assert "undefined reference" in rows["unlinked.patch"]["reason"]
    summary = done.json
    assert (summary["kind"], summary["pairs"]) == ("summary", 11)
    assert summary["outcomes"]["resolved"] == 5
    assert summary["bugs"] == {BUG: summary["outcomes"]}
    with table.open() as file:
        written = {row["patch"]: row["outcome"] for row in csv.DictReader(file)}
    assert written == {name: outcome for name, (outcome, _) in WANTED.items()}
    cells = [line.split() for line in again.out.splitlines()[1:]]
    shown = [[row[3], row[1]] for row in cells]
    assert shown == [[name, outcome] for name, (outcome, _) in WANTED.items()]
    assert again.status == 2


def test_a_bug_that_does_not_show_leaves_the_others_alone(
    kgym: Kgym, idle: Platform, data: Path, patches: Path
) -> None:
    farm = Farm(hidden=bundle.load(BUG).file.title)
    with working(idle, data, farm.answers):
        done = kgym("--server", idle.url, "sweep", BUG, SECOND, "--patches", patches, "--json")
    assert done.status == 3
    lines = [json.loads(line) for line in done.out.splitlines()[:-1]]
    rows = {(row["bug"], row["patch"]): row for row in lines}
    assert len(rows) == len(lines) == len(WANTED) + 1
    assert rows[SECOND, "every.patch"]["outcome"] == "not_resolved"
    hidden = rows[BUG, "mends.patch"]
    assert hidden["outcome"] == "inconclusive"
    assert "does not show without the patch" in hidden["reason"]
    assert rows[BUG, "broken.patch"]["outcome"] == "does_not_compile"
    assert farm.done.count("run") == 1


def test_an_interrupted_sweep_keeps_its_table_and_goes_on(
    kgym: Kgym, idle: Platform, data: Path, patches: Path
) -> None:
    farm, table = Farm(), patches.parent / "table.csv"
    words = ("--server", idle.url, "sweep", BUG, "--patches", patches, "--csv", table)
    farm.hold.clear()
    with working(idle, data, farm.answers):
        with begun(data, *words) as first:
            assert farm.held.wait(60)
            first.send_signal(signal.SIGINT)
            _, error_text = first.communicate(timeout=60)
        assert first.returncode == 130
        assert b"interrupted: repeat the command" in error_text
        with table.open() as file:
            early = {row["patch"]: row["outcome"] for row in csv.DictReader(file)}
        assert early["broken.patch"] == "does_not_compile"
        assert "useless.patch" not in early
        farm.hold.set()
        done = kgym(*words, "--json")
        assert outcomes(done.out) == WANTED
    assert farm.done.count("show") == 1
    assert len(jobs_of(idle)) == 6  # the check, the crash, and four trials


@pytest.mark.thorough
def test_a_sweep_goes_on_after_command_and_platform_were_killed(
    kgym: Kgym, data: Path, patches: Path
) -> None:
    farm = Farm()
    farm.hold.clear()
    with platform_process(data) as (process, url):
        words = ("--server", url, "sweep", BUG, "--patches", patches, "--name", "mine")
        with given_steps.working(url, data, farm.answers), begun(data, *words):
            assert farm.held.wait(60)
            process.kill()
            process.wait()
    with Platform(data, work=False) as second:
        farm.hold.set()
        with working(second, data, farm.answers):
            words = ("--server", second.url, *words[2:])
            done = kgym(*words, "--json")
            assert outcomes(done.out) == WANTED
            assert outcomes(kgym(*words, "--json").out) == WANTED
        jobs = jobs_of(second)
    assert len(jobs) == 6
    assert {job.group for job in jobs} == {"mine"}


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "status"), turns([("job", 0), ("sweep", 2)], 1))
def test_a_follower_outlasts_a_restart_of_the_scheduler_and_says_so(
    data: Path, patches: Path, command: str, status: int
) -> None:
    with ExitStack() as running:
        with Platform(data, work=False) as first, Client(first.url) as client:
            job = client.submit(bundle.load(SECOND).job(None)).id
            words = (
                ["job", "wait", job] if command == "job" else ["sweep", BUG, "--patches", patches]
            )
            follower = running.enter_context(begun(data, "--server", first.url, *words))
            assert follower.stderr is not None
            assert follower.stderr.readline()
            wait_for(lambda: len(jobs_of(first)) == (1 if command == "job" else 3))
        lines = iter(follower.stderr.readline, b"")
        assert any(b"trying again for 5 minutes" in line for line in lines)
        port = int(first.url.rpartition(":")[2])
        running.enter_context(second := Platform(data, port=port, work=False))
        running.enter_context(working(second, data, Farm().answers))
        follower.communicate(timeout=100)
        assert follower.returncode == status


def test_what_has_no_answer_is_run_again_if_asked(
    kgym: Kgym, idle: Platform, data: Path, patches: Path
) -> None:
    farm = Farm()
    words = ("--server", idle.url, "sweep", SECOND, "--patches", patches)
    checks = {StepKind.CHECK: farm.check}
    with working(idle, data, checks), begun(data, *words) as first:
        wait_for(lambda: len(jobs_of(idle)) == 2)
        with Client(idle.url) as client:
            client.abort(next(job.id for job in jobs_of(idle) if len(job.steps) == 2))
        out, error_text = first.communicate(timeout=60)
    assert first.returncode == 3
    assert b"inconclusive" in out
    assert b"--retry" in error_text
    with working(idle, data, farm.answers):
        assert kgym(*words).status == 3
        assert not farm.done.count("show")
        assert kgym(*words, "--retry").status == 1
