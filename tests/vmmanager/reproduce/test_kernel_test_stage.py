"""The kernel's own tests in a reproduce step, on scripted guests of two kernels."""

import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import (
    BuildArtifact,
    Finding,
    KernelTestRun,
    KernelTests,
    ReproduceResult,
    Severity,
    StepRef,
    Verdict,
)
from kgym.api.worker_calls import Input
from kgym_vmmanager.evidence.kernel_tests import Limits
from kgym_vmmanager.reproduce import kernel_test_stage
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from tests.results import built
from tests.vmmanager.conftest import NewStep
from tests.vmmanager.scripted_vms import CRASH, CRASH_TITLE, Guest, ScriptedVms

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, pytest.mark.timeout(180)]

BEFORE, AFTER = b"kernel with the bug", b"kernel with the fix"
NAMES = ("good", "parts", "broken", "absent")
TESTS = [f"a/b/{name}" for name in NAMES]


class Kernels(Guest):
    """Guests of both kernels: `broken` fails, and `absent` is skipped."""

    begun = 0
    """Guests of this kind that have begun `parts`."""

    @property
    def is_patched(self) -> bool:
        """Whether it boots the kernel with the fix."""
        return self.boot.kernel.read_bytes() == AFTER

    def answers(self, command: str) -> tuple[int, bytes]:
        """Run one test."""
        match next((word for word in NAMES if f"./{word}" in command), ""):
            case "broken":
                return 1, b"no such device\n"
            case "absent":
                return 4, b"needs the network\n"
            case "parts":
                type(self).begun += 1
                return self.parts()
            case name:
                return self.patched() if self.is_patched and name else (0, b"fine\n")

    def parts(self) -> tuple[int, bytes]:
        """Run the test with parts, of which the second always fails."""
        return 1, b"ok 1 first\nnot ok 2 second\n"

    def patched(self) -> tuple[int, bytes]:
        """Run `good` on the patched kernel."""
        return 0, b"fine\n"


class Fails(Kernels):
    def patched(self) -> tuple[int, bytes]:
        return 1, b"one\ngot 3, wanted 2\n"


class Skips(Kernels):
    def patched(self) -> tuple[int, bytes]:
        return 4, b"no such call\n"


class FailsInPart(Kernels):
    def parts(self) -> tuple[int, bytes]:
        word = b"not ok" if self.is_patched else b"ok"
        return 1, word + b" 1 first\nnot ok 2 second\n"


class Flaky(Kernels):
    """In every second run of all, a part fails."""

    def parts(self) -> tuple[int, bytes]:
        return 1, b"%s 1 first\nnot ok 2 second\n" % (b"not ok", b"ok")[type(self).begun % 2]


class FailsOnce(Kernels):
    """On the patched kernel, a part fails in the first run only."""

    def parts(self) -> tuple[int, bytes]:
        is_third = type(self).begun == 3
        return 1, b"%s 1 first\nnot ok 2 second\n" % (b"ok", b"not ok")[is_third]


class Hangs(Kernels):
    def patched(self) -> tuple[int, bytes]:
        return 137, b"waits\n"


class Crashes(Kernels):
    def patched(self) -> tuple[int, bytes]:
        self.say(CRASH)
        self.over.wait(60)
        raise EOFError


class Resets(Kernels):
    def patched(self) -> tuple[int, bytes]:
        self.stopped("guest-reset")
        self.over.wait(60)
        raise EOFError


class ResetsBoth(Resets):
    @property
    def is_patched(self) -> bool:
        return True


@pytest.fixture
def tried(scripted_step: NewStep, cache: Path, tmp_path: Path) -> Any:
    """Run the tests on guests of this kind."""
    archive = tmp_path / "tests.tar"
    with tarfile.open(archive, "w") as tar:
        for name in NAMES:
            tar.addfile(tarfile.TarInfo(name), BytesIO())

    async def tried(kind: type[Guest], **changes: Any) -> ReproduceResult:
        refs = {"baseline": StepRef(step=1), "unpatched": StepRef(step=0)} | changes
        run = await scripted_step(time=0.3, titles=[CRASH_TITLE], variants=1, **refs)
        kept = []
        for name, content in (("before", BEFORE), ("after", AFTER)):
            path = tmp_path / name
            path.write_bytes(content)
            kept.append(await run.storage.put(f"steps/{name}/{BuildArtifact.KERNEL}", path))
        programs = await run.storage.put(f"steps/after/{BuildArtifact.TESTS}", archive)
        made = KernelTests(tests=TESTS, left_out=["x/y: it does not build: no"])
        inputs = run.assignment.inputs
        inputs["build"] = Input(result=built(kernel_tests=made), artifacts=[kept[1], programs])
        inputs["unpatched"] = Input(result=built(), artifacts=[kept[0]])
        kind.begun = 0  # type: ignore[attr-defined]
        return await Reproduce(cache, provider=ScriptedVms(kind))(run)

    return tried


def outcome(result: ReproduceResult) -> tuple[KernelTestRun, list[Finding]]:
    assert result.verdict is Verdict.NO_CRASH, result.reason
    assert result.kernel_tests is not None
    return result.kernel_tests, [each for each in result.findings if each.check == "tests"]


async def test_tests_that_pass_on_both_kernels_are_counted(tried: Any) -> None:
    run, findings = outcome(await tried(Kernels))
    assert (run.passed, run.failed, findings) == (2, [], [])
    fails = "it does not pass on the unpatched kernel, either"
    assert run.left_out == [
        "x/y: it does not build: no",
        f"a/b/broken: {fails}: no such device",
        f"a/b/absent: {fails}: needs the network",
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Fails, "a/b/good: as a whole: one got 3, wanted 2"),
        (Skips, "a/b/good: as a whole: no such call"),
        (Hangs, "a/b/good: as a whole: waits"),
        (FailsInPart, "a/b/parts: first (1): not ok 1 first"),
        (Crashes, f"a/b/good: as a whole: the guest is lost: crash: {CRASH_TITLE}"),
        (Resets, "a/b/good: as a whole: the guest is lost: rebooted: "),
    ],
)
async def test_a_new_failure_blocks(tried: Any, kind: type[Guest], words: str) -> None:
    run, (finding,) = outcome(await tried(kind))
    assert (finding.reason, finding.severity) == ("kernel_tests_fail", Severity.BLOCKING)
    assert finding.message.startswith(f"it passes on the unpatched kernel and fails here: {words}")
    # After a guest that is lost, the other tests go on in the next one.
    assert (run.passed, len(run.failed)) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Flaky, "a/b/parts: it does not pass on the unpatched kernel, either: not ok 1 first"),
        (FailsOnce, "a/b/parts: it fails, but not in two runs: not ok 1 first"),
        (ResetsBoth, "a/b/good: it does not pass on the unpatched kernel, either: the guest is"),
    ],
)
async def test_what_differs_without_the_patch_is_reported_only(
    tried: Any, kind: type[Guest], why: str
) -> None:
    run, findings = outcome(await tried(kind))
    assert (findings, run.failed) == ([], [])
    assert [line for line in run.left_out if line.startswith(why)], run.left_out


async def test_the_unpatched_kernel_runs_its_tests_once(tried: Any) -> None:
    first, _ = outcome(await tried(Kernels))
    again, _ = outcome(await tried(Kernels))
    assert (Kernels.begun, again.passed) == (1, first.passed)


async def test_what_does_not_fit_is_reported(tried: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_test_stage, "AFTER", Limits(0, 20))
    run, findings = outcome(await tried(Kernels))
    assert (run.passed, findings) == (0, [])
    assert "a/b/good: it does not fit into 60 s" in run.left_out


async def test_without_an_unpatched_kernel_nothing_is_compared(tried: Any) -> None:
    run, findings = outcome(await tried(Fails, unpatched=None))
    assert (run.passed, findings) == (0, [])
    assert run.left_out[-1] == "no kernel tests ran: no unpatched kernel is named"
