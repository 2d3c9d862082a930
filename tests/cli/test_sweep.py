"""`kgym sweep`: every pair gets one right row, whoever is killed meanwhile."""

import csv
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import (
    BuildSpec,
    CheckResult,
    CheckSpec,
    Control,
    ControlName,
    ControlOutcome,
    Diagnostic,
    Evidence,
    PatchCheck,
    PatchOutcome,
    ReproduceSpec,
    StepKind,
    StepResult,
    Verdict,
)
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_cli.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.worked import working
from tests.results import built, ran

BUG = "watch-queue-filter"
SECOND = "epoll-loop"
GOOD = Evidence(controls=[Control(name=ControlName.PANIC, outcome=ControlOutcome.REPORTED)])
BROKEN = Diagnostic(file="drivers/a.c", line=7, severity="error", message="expected ';'")


def diff(word: str) -> str:
    """Return a patch whose trial ends as the word says."""
    return f"--- a/drivers/a.c\n+++ b/drivers/a.c\n@@ -1 +1 @@\n-int a;\n+int {word};\n"


class Farm:
    """Workers that answer by what a patch says, and count what they are asked."""

    def __init__(self, before: Verdict = Verdict.SAME_CRASH) -> None:
        self.before = before
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
        self.done += [f"check {one.name}" for one in spec.patches]
        return CheckResult(
            source_identity="",
            kernel_release="",
            compiler_version="",
            tree="",
            tree_cached=True,
            patches=[self._checked(one.name, one.diff or "") for one in spec.patches],
            seconds={},
        )

    def _checked(self, name: str, text: str) -> PatchCheck:
        if "@@" not in text:
            details = {"reason": "malformed_patch"}
            outcome, reason = PatchOutcome.DOES_NOT_APPLY, "no hunks"
            return PatchCheck(name=name, outcome=outcome, reason=reason, details=details, seconds=0)
        if "broken" in text:
            outcome = PatchOutcome.DOES_NOT_COMPILE
            return PatchCheck(name=name, outcome=outcome, diagnostics=[BROKEN], seconds=0.5)
        return PatchCheck(name=name, outcome=PatchOutcome.COMPILES, seconds=0.5)

    def build(self, run: StepContext) -> StepResult:
        """Build, unless the patch does not link."""
        spec = run.assignment.spec
        assert isinstance(spec, BuildSpec)
        if spec.review:
            self.done.append(f"build {spec.review[0]}")
        if any("unlinked" in (one.diff or "") for one in spec.patches):
            raise UserError("does_not_compile", "undefined reference to `a'")
        return built(tree=spec.patches[-1].diff or "")

    def reproduce(self, run: StepContext) -> StepResult:
        """Crash, or not."""
        spec, kernel = run.assignment.spec, run.assignment.inputs["build"].result
        assert isinstance(spec, ReproduceSpec)
        title = spec.titles[0]
        if spec.baseline is None:
            self.done.append("show")
            shown = title if self.before is Verdict.SAME_CRASH else None
            return ran(self.before, shown, evidence=Evidence())
        if not self.hold.is_set():
            self.held.set()
            self.hold.wait(60)
        self.done.append("run")
        assert kernel is not None
        if "mends" in getattr(kernel, "tree", ""):
            return ran(evidence=GOOD, baseline=self.before)
        return ran(Verdict.SAME_CRASH, title, evidence=Evidence(), baseline=self.before)


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """Patches of all kinds for the bug, one of them for all bugs."""
    own = tmp_path / "patches" / BUG
    own.mkdir(parents=True)
    for name in ("mends", "useless", "broken", "unlinked"):
        (own / f"{name}.patch").write_text(diff(name))
    (own / "again.diff").write_text(diff("mends"))
    (own / "words.patch").write_text("I would change a.c\n")
    (own / "binary.patch").write_bytes(b"\0\1\2\0")
    (own.parent / "every.patch").write_text(diff("everywhere"))
    (own / "notes.txt").write_text("no patch\n")
    return own.parent


WANTED = {
    "every.patch": ("not_resolved", "same_crash"),
    "again.diff": ("resolved", "no_crash"),
    "binary.patch": ("refused", None),
    "broken.patch": ("does_not_compile", None),
    "mends.patch": ("resolved", "no_crash"),
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
        assert sorted(farm.done) == asked  # nothing ran twice
    rows = rows_of(done.out)
    assert rows["broken.patch"]["reason"] == "drivers/a.c:7: expected ';'"
    assert rows["broken.patch"]["diagnostic"]["line"] == 7
    assert rows["mends.patch"]["same_as"] == "again.diff"
    assert rows["mends.patch"]["job"] == rows["again.diff"]["job"]
    assert "undefined reference" in rows["unlinked.patch"]["reason"]
    summary = done.json
    assert (summary["kind"], summary["pairs"]) == ("summary", 8)
    assert summary["outcomes"]["resolved"] == 2
    assert summary["bugs"] == {BUG: summary["outcomes"]}
    with table.open() as file:
        written = {row["patch"]: row["outcome"] for row in csv.DictReader(file)}
    assert written == {name: outcome for name, (outcome, _) in WANTED.items()}
    shown = [line.split()[1:3] for line in again.out.splitlines()[1:]]
    assert shown == [[name, outcome] for name, (outcome, _) in WANTED.items()]
    assert again.status == 2
