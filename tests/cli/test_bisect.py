"""`kgym bisect`: a commit is found by real builds of a history, and nothing is done twice."""

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kgym.api import steps
from kgym.errors import InfrastructureError, UserError
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.platforms.step_registry import Equipment, handlers
from tests.builder.kernel_source.test_git_repositories import git
from tests.bundles import small_bundle
from tests.cli.conftest import Kgym
from tests.cli.test_sweep import begun, jobs_of, platform_process
from tests.cli.worked import working
from tests.conftest import ROOT
from tests.demo import given_steps
from tests.results import built, ran

pytestmark = pytest.mark.thorough

TITLE = "WARNING in watch_filter"
FILE = "kernel/watch_queue.c"
BOUND = "type >= WATCH_TYPE__NR"


@dataclass
class Linux:
    """A history of the small make tree, whose branch `side` is merged into `main`."""

    folder: Path
    commits: dict[str, str] = field(default_factory=dict)

    def commit(self, name: str, file: str = "lib/string.c", **edit: str) -> None:
        """Commit a change: another comment, or `old` to `new` in a file."""
        path = self.folder / file
        text = path.read_text()
        old, new = edit.get("old", ""), edit.get("new", "")
        assert not old or old in text
        path.write_text(text.replace(old, new) if old else f"{text}/* {name} */\n")
        git(self.folder, "commit", "-q", "-a", "-m", name)
        self.commits[name] = git(self.folder, "rev-parse", "HEAD")

    def has(self, commit: str, name: str) -> bool:
        """Tell whether a commit is the named one, or comes after it."""
        inside = git(self.folder, "rev-list", commit).split()
        return self.commits[name] in inside


@pytest.fixture
def linux(tmp_path: Path) -> Linux:
    """A history: `cause` is on the branch, `broken` does not compile, and `mend` ends that."""
    folder = tmp_path / "linux"
    shutil.copytree(ROOT / "tests" / "fakelinux", folder)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A", "-f")
    linux = Linux(folder)
    linux.commit("good")
    git(folder, "checkout", "-q", "-b", "side")
    linux.commit("side", "fs/open.c")
    linux.commit("cause", FILE, old=BOUND, new="type >= 100")
    linux.commit("after", "fs/open.c")
    git(folder, "checkout", "-q", "main")
    for name in ("1", "2"):
        linux.commit(name)
    linux.commit("broken", "kernel/fork.c", old="{", new="{ nonsense")
    linux.commit("mend", "kernel/fork.c", old="{ nonsense", new="{")
    git(folder, "merge", "-q", "-m", "merge", "side")
    for name in ("3", "4"):
        linux.commit(name)
    linux.commit("fix", FILE, old="type >= 100", new=BOUND)
    linux.commit("5")
    return linux


@pytest.fixture
def bundle(tmp_path: Path, linux: Linux) -> Path:
    kernel = f'git = "{linux.folder}"\ncommit = "{linux.commits["4"]}"'
    return small_bundle(tmp_path / "my-bug", kernel, "time = 20\n")


class Farm:
    """Workers that crash where a commit is before this one, in the place of VMs."""

    def __init__(self, linux: Linux) -> None:
        self.linux = linux
        # The commits whose kernels were run.
        self.ran: list[str] = []
        self.specs: list[steps.ReproduceSpec] = []
        # A commit on which a machine fails.
        self.unwell = ""
        self.no_boot = ""
        self.hold = threading.Event()
        self.hold.set()
        self.held = threading.Event()

    @property
    def answers(self) -> dict[steps.StepKind, Any]:
        return {steps.StepKind.BUILD: self.build, steps.StepKind.REPRODUCE: self.reproduce}

    def build(self, run: StepContext) -> steps.StepResult:
        """Answer as a build does, at once."""
        spec = run.assignment.spec
        assert isinstance(spec, steps.BuildSpec)
        assert isinstance(spec.source, steps.GitSource)
        assert not spec.patches
        if spec.source.commit == self.linux.commits["broken"]:
            raise UserError("does_not_compile", "kernel/fork.c: nonsense")
        return built(source_identity=f"git:{spec.source.commit}")

    def reproduce(self, run: StepContext) -> steps.StepResult:
        """Crash if the kernel has the bug."""
        spec, kernel = run.assignment.spec, run.assignment.inputs["build"].result
        assert isinstance(spec, steps.ReproduceSpec)
        assert isinstance(kernel, steps.BuildResult)
        commit = kernel.source_identity.removeprefix("git:")
        if commit == self.linux.commits.get(self.unwell):
            raise InfrastructureError("qemu_failed", "the disk is full")
        if len(self.ran) == 3 and not self.hold.is_set():
            self.held.set()
            self.hold.wait(60)
        self.ran.append(commit)
        self.specs.append(spec)
        count = range(spec.instances)
        if commit == self.linux.commits.get(self.no_boot):
            detail = f"{steps.CRASHED_AT_BOOT}: general protection fault"
            outcome = steps.InstanceOutcome.BOOT_FAILED
            boots = [steps.InstanceResult(number=n, outcome=outcome, detail=detail) for n in count]
            return ran(steps.Verdict.INCONCLUSIVE, completed=0, instances=boots)
        if self.linux.has(commit, "cause") and not self.linux.has(commit, "fix"):
            crashes = [
                steps.InstanceResult(
                    number=n, outcome=steps.InstanceOutcome.CRASH, run_seconds=2, title=TITLE
                )
                for n in count
            ]
            crashed = {"crashed": len(crashes), "completed": len(crashes)}
            return ran(steps.Verdict.SAME_CRASH, TITLE, instances=crashes, **crashed)
        return ran(completed=spec.instances)


@pytest.fixture
def farm(linux: Linux) -> Iterator[Farm]:
    farm = Farm(linux)
    yield farm
    farm.hold.set()


def real(data: Path, *kinds: steps.StepKind) -> Any:
    return handlers(kinds, Equipment(data / "cache", Origins.named((), (), (Path("/"),))))


def lines(out: str, kind: str) -> list[dict[str, Any]]:
    """Return the lines of this kind that --json has printed."""
    return [line for line in map(json.loads, out.splitlines()) if line["kind"] == kind]


def test_the_commit_of_a_merged_branch_is_found_by_real_builds(
    kgym: Kgym, idle: Platform, data: Path, bundle: Path, linux: Linux, farm: Farm
) -> None:
    words = ("--server", idle.url, "bisect", bundle, "--good", linux.commits["good"])
    builds = real(data, steps.StepKind.HISTORY, steps.StepKind.BUILD)
    with working(idle, data, {steps.StepKind.REPRODUCE: farm.reproduce}, builds):
        dry = kgym(*words, "--dry-run", "--json")
        assert not farm.ran
        done = kgym(*words, "--json")
        ran_once = list(farm.ran)
        again = kgym(*words)
    assert dry.status == 0, dry.err
    assert (dry.json["commits"], dry.json["tests"]) == (10, 5)
    assert done.status == 0, done.err
    answer = done.json
    assert (answer["outcome"], answer["fix"]) == ("found", False)
    assert [culprit["commit"] for culprit in answer["culprits"]] == [linux.commits["cause"]]
    assert answer["confidence"] >= 0.95
    assert answer["tests"] <= 7
    tests = lines(done.out, "test")
    assert tests[0]["commit"] == linux.commits["good"]
    assert all(
        tested["saw"] == ("crash" if linux.has(tested["commit"], "cause") else "quiet")
        for tested in tests
        if tested["saw"] != "skipped"
    )
    assert again.status == 0
    assert f"{linux.commits['cause']} introduced the bug: 9" in again.out
    assert farm.ran == ran_once  # nothing ran twice
    # Ten runs measure the bug, to their end; tests rest on that, and ask for evidence.
    first, *others = farm.specs
    assert (first.instances, first.stop_at_first_crash) == (10, False)
    for other in others:
        assert (other.instances, other.time, other.evidence) == (2, 5.0, True)
        assert other.baseline is not None


@pytest.mark.exhaustive
def test_a_fix_is_found_and_what_does_not_boot_hides_it(
    kgym: Kgym, idle: Platform, data: Path, bundle: Path, linux: Linux, farm: Farm
) -> None:
    words = ("--server", idle.url, "bisect", bundle, "--fix", "--good", "main")
    words = (*words, "--bad", linux.commits["mend"] + "^", "--repo", linux.folder)
    early = (*words[:-4], "--bad", linux.commits["after"], "--repo", linux.folder)
    with working(idle, data, farm.answers, real(data, steps.StepKind.HISTORY)):
        no_bug = kgym(*words, "--json")
        planned = kgym(*early, "--json")
        farm.no_boot = "fix"
        hidden = kgym(*early, "--name", "hidden", "--json")
    assert (no_bug.status, no_bug.json["reason"]) == (2, "does_not_compile")
    assert planned.status == 0, planned.err
    assert planned.json["culprits"][0]["commit"] == linux.commits["fix"]
    assert hidden.status == 1
    answer = hidden.json
    assert (answer["outcome"], answer["left"], answer["skipped"]) == ("several", 2, 1)
    wanted = {linux.commits["fix"], linux.commits["5"]}
    assert {culprit["commit"] for culprit in answer["culprits"]} == wanted
    assert answer["confidence"] >= 0.95


def test_killed_it_goes_on_and_no_job_is_submitted_twice(
    kgym: Kgym, data: Path, bundle: Path, linux: Linux, farm: Farm
) -> None:
    history = real(data, steps.StepKind.HISTORY)
    farm.hold.clear()
    words = ("bisect", bundle, "--good", linux.commits["good"])
    with (
        platform_process(data) as (process, url),
        given_steps.working(url, data, farm.answers, history),
        begun(data, "--server", url, *words) as command,
    ):
        assert farm.held.wait(120)
        command.send_signal(signal.SIGKILL)
        command.wait()
        process.kill()
        process.wait()
    farm.hold.set()
    with Platform(data, work=False) as second:
        with working(second, data, farm.answers, history):
            done = kgym("--server", second.url, *words, "--json")
            jobs = len(jobs_of(second))
            assert kgym("--server", second.url, *words, "--json").status == 0
        assert len(jobs_of(second)) == jobs
    assert done.status == 0, done.err
    assert done.json["culprits"][0]["commit"] == linux.commits["cause"]
    assert jobs == 2 + done.json["tests"]


@pytest.mark.exhaustive
def test_what_a_machine_kept_from_an_answer_is_run_again_if_asked(
    kgym: Kgym, idle: Platform, data: Path, bundle: Path, linux: Linux, farm: Farm
) -> None:
    words = ("--server", idle.url, "bisect", bundle, "--good", linux.commits["good"], "--json")
    farm.unwell = "side"
    with working(idle, data, farm.answers, real(data, steps.StepKind.HISTORY)):
        stopped = kgym(*words)
        farm.unwell = ""
        same = kgym(*words)
        jobs = len(jobs_of(idle))
        done = kgym(*words, "--retry")
    assert (stopped.status, stopped.json["reason"]) == (3, "test_failed")
    assert "the disk is full" in stopped.json["detail"]
    assert same.json["detail"] == stopped.json["detail"]
    assert (done.status, done.json["outcome"]) == (0, "found")
    assert len(jobs_of(idle)) >= jobs


@pytest.mark.exhaustive
def test_what_cannot_be_bisected_is_told(
    kgym: Kgym, idle: Platform, data: Path, bundle: Path, linux: Linux, farm: Farm
) -> None:
    def reason(*words: object) -> tuple[int, str]:
        done = kgym("--server", idle.url, "bisect", *words, "--json")
        return done.status, done.json["reason"]

    main = linux.commits["5"]
    with working(idle, data, farm.answers, real(data, steps.StepKind.HISTORY)):
        assert reason(bundle, "--good", linux.commits["after"]) == (2, "good_has_bug")
        assert reason(bundle, "--good", "old", "--bad", main) == (2, "source_not_found")
        assert reason(bundle, "--good", "main", "--bad", linux.commits["1"]) == (
            *(2, "not_an_ancestor"),
        )
        shown = reason(bundle, "--good", linux.commits["good"], "--bad", main)
        assert shown == (2, "bug_not_shown")
        end = reason(bundle, "--good", linux.commits["broken"])
        assert end == (2, "end_not_tried")
    assert reason("watch-queue-filter", "--good", "v6.0") == (2, "no_history")
    assert reason(bundle, "--good", "--upload-pack=x") == (2, "bad_option")
    limited = ("--good", linux.commits["good"], "--most-tests", 2, "--json")
    with working(idle, data, farm.answers, real(data, steps.StepKind.HISTORY)):
        done = kgym("--server", idle.url, "bisect", bundle, *limited)
    assert (done.status, done.json["outcome"], done.json["tests"]) == (3, "open", 2)
    assert linux.commits["cause"] in {culprit["commit"] for culprit in done.json["culprits"]}
    hours = ("--good", linux.commits["good"], "--most-hours", 1e-9, "--json")
    with working(idle, data, farm.answers, real(data, steps.StepKind.HISTORY)):
        late = kgym("--server", idle.url, "bisect", bundle, *hours)
    assert (late.status, late.json["outcome"], late.json["tests"]) == (3, "open", 1)
    assert late.json["left"] > 1
