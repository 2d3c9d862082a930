"""Validation: bugs come through its stages, each by jobs that run once, whatever is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgym.api import steps
from kgym.bench import dataset as datasets
from kgym.bench.bug_record import BugRecord, Crash, DeveloperPatch, FoundText
from kgym.bench.dataset import About, Dataset
from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from kgym_benchmark.validation.validate import BugVerdict, Outcome, Stage, ValidateOptions, validate
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.worked import working
from tests.refused import refused
from tests.results import GOOD, built, ran

# Of five runs.
CRASHES = {"steady": 5, "racy": 3, "rare": 1, "quiet": 0, "unfixed": 5}


def record(name: str, **changed: object) -> BugRecord:
    """Return a bug whose kernel is told apart by its commit's message."""
    diff = f"--- a/{name}.c\n+++ b/{name}.c\n@@ -1 +1 @@\n-bad {name}\n+good\n"
    known: dict[str, object] = {
        "id": name,
        "title": f"BUG: {name}",
        "status": "fixed",
        "crashes": [
            Crash(
                repository="https://k/linux.git",
                commit="c" * 40,
                config=FoundText(text=f"CONFIG_{name.upper()}=y\n"),
                c_reproducer=FoundText(text="int main(void) { return 0; }\n"),
            )
        ],
        "patch": DeveloperPatch(diff=diff, parent="d" * 40),
    }
    return BugRecord.model_validate(known | changed)


BUGS = Dataset.of(
    "some",
    [
        *map(record, CRASHES),
        record("broken"),
        record("lost"),
        record("unknown", crashes=[]),
        record("unpatched", patch=DeveloperPatch(parent="d" * 40)),
    ],
)


class Farm:
    """Workers that build and crash by what the kernel's config names."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.lost = True

    def build(self, run: StepContext) -> steps.StepResult:
        """Build; `broken` does not."""
        spec = run.assignment.spec
        assert isinstance(spec, steps.BuildSpec)
        name = (spec.config.full or "").removeprefix("CONFIG_").partition("=")[0].lower()
        self.ran.append(f"build {name} {len(spec.patches)}")
        if name == "broken":
            raise UserError("build_failed", "f.c:1: it does not compile")
        if name == "lost" and self.lost:
            raise InfrastructureError("host_memory", "the host ran out of memory")
        return built(tree=name)

    def reproduce(self, run: StepContext) -> steps.StepResult:
        """Crash as often as it says above."""
        spec, kernel = run.assignment.spec, run.assignment.inputs["build"].result
        assert isinstance(spec, steps.ReproduceSpec)
        name = getattr(kernel, "tree", "")
        after = spec.baseline is not None
        self.ran.append(f"run {name} {after}")
        crashes = 0 if after and name != "unfixed" else CRASHES.get(name, 5)
        runs = spec.instances
        instances = [
            steps.InstanceResult(
                number=number,
                outcome=steps.InstanceOutcome.CRASH
                if number < crashes
                else steps.InstanceOutcome.SURVIVED,
                title=f"BUG: {name}" if number < crashes else None,
                run_seconds=2 if number < crashes else spec.time,
                runs=1,
            )
            for number in range(runs)
        ]
        known = {"baseline": steps.Verdict.SAME_CRASH} if after else {}
        facts = {
            "evidence": GOOD,
            "instances": instances,
            "completed": runs,
            "requested": runs,
            "crashed": min(crashes, runs),
            "time": spec.time,
            **known,
        }
        if crashes:
            return ran(steps.Verdict.SAME_CRASH, f"BUG: {name}", **facts)
        return ran(**facts)


@contextmanager
def farming(data: Path, farm: Farm) -> Iterator[str]:
    answers = {steps.StepKind.BUILD: farm.build, steps.StepKind.REPRODUCE: farm.reproduce}
    with Platform(data, work=False) as platform, working(platform, data, answers):
        yield platform.url


def validated(
    url: str, bugs: Dataset, folder: Path, *, retry: bool = False, seconds: float = 60
) -> tuple[dict[str, BugVerdict], About | None]:
    """Return the verdicts, by bug, and the dataset that was made."""
    verdicts: dict[str, BugVerdict] = {}
    options = ValidateOptions(SweepOptions("v", retry=retry), seconds=seconds)

    async def go() -> About | None:
        async with AsyncClient(url) as client:
            return await validate(
                client, bugs, folder, options, lambda row: verdicts.update({row.bug: row})
            )

    return verdicts, asyncio.run(go())


def last(verdict: BugVerdict) -> tuple[Stage, Outcome]:
    return verdict.stages[-1].stage, verdict.stages[-1].outcome


@pytest.mark.thorough
def test_each_bug_comes_as_far_as_it_can_and_nothing_runs_twice(tmp_path: Path) -> None:
    farm, into = Farm(), tmp_path / "v"
    with farming(tmp_path / "data", farm) as url:
        verdicts, made = validated(url, BUGS, into)
        assert {name: last(verdict) for name, verdict in verdicts.items()} == {
            "steady": (Stage.DETERMINISTIC, Outcome.PASSED),
            "racy": (Stage.DETERMINISTIC, Outcome.PASSED),
            "rare": (Stage.DETERMINISTIC, Outcome.FAILED),
            "quiet": (Stage.REPRODUCES, Outcome.FAILED),
            "unfixed": (Stage.FIXED, Outcome.FAILED),
            "broken": (Stage.CACHED, Outcome.FAILED),
            "lost": (Stage.CACHED, Outcome.UNKNOWN),
            "unknown": (Stage.CACHED, Outcome.FAILED),
            "unpatched": (Stage.FIXED, Outcome.FAILED),
        }
        assert made is not None
        accepted = datasets.load(into / "accepted" / made.sha256[:12])
        marks = {bug.id: bug.validation for bug in accepted.bugs}
        assert {name: mark.racy for name, mark in marks.items() if mark} == {
            "racy": True,
            "steady": False,
        }
        assert marks["racy"] is not None
        assert marks["racy"].kernel == "d" * 40
        before = len(farm.ran)
        again, made_again = validated(url, BUGS, into)
        assert (again, made_again, len(farm.ran)) == (verdicts, made, before)
        farm.lost = False
        mended, _ = validated(url, BUGS, into, retry=True)
        assert mended["lost"].accepted
        assert not [step for step in farm.ran[before:] if "lost" not in step]
    with refused("another_validation"):
        validated(url, BUGS, into, seconds=61)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_killed_in_the_middle_the_same_line_goes_on(tmp_path: Path) -> None:
    farm, into = Farm(), tmp_path / "v"
    farm.lost = False
    bugs = Dataset.of("few", [record("steady"), record("lost"), record("broken")])
    bugs.save(tmp_path / "bugs")
    with farming(tmp_path / "data", farm) as url:
        words = ["bench", "validate", tmp_path / "bugs", "--into", into, "--json", "--server", url]
        line = [sys.executable, "-m", "kgym_cli", *map(str, words)]
        env = {**os.environ, "KGYM_DATA": str(tmp_path / "other")}
        with subprocess.Popen(line, stdout=subprocess.PIPE, env=env) as first:
            assert first.stdout is not None
            first.stdout.readline()  # a stage has ended
            first.send_signal(signal.SIGKILL)
        env = {**os.environ, "KGYM_DATA": str(tmp_path / "other")}
        done = subprocess.run(
            line, capture_output=True, text=True, env=env, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["bugs"], summary["accepted"], summary["refused"]) == (3, 2, 1)
    assert sorted(farm.ran) == sorted(
        ["build broken 0"]
        + [
            step
            for name in ("steady", "lost")
            for step in (
                f"build {name} 0",
                f"run {name} False",
                f"build {name} 0",
                f"run {name} False",
                f"build {name} 1",
                f"run {name} True",
            )
        ]
    )
