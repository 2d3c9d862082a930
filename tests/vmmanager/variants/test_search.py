"""Variants in a reproduce step, on scripted guests."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import (
    BuildArtifact,
    Finding,
    Reproducer,
    ReproduceResult,
    Severity,
    StepRef,
    VariantCrashKind,
    Verdict,
)
from kgym.api.worker_calls import Input
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from kgym_vmmanager.vm.provider import Boot
from tests.conftest import turns
from tests.results import built
from tests.vmmanager.conftest import NewStep
from tests.vmmanager.scripted_vms import (
    CRASH,
    CRASH_TITLE,
    Behaviour,
    Crashing,
    Execprog,
    Guest,
    Runner,
    ScriptedVms,
    Varier,
)

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, pytest.mark.timeout(180)]

EINVAL = 22
BEFORE, AFTER = b"kernel with the bug", b"kernel with the fix"
OTHER = CRASH.replace(b"scripted_crash", b"other_crash")
OTHER_TITLE = CRASH_TITLE.replace("scripted_crash", "other_crash")
COUNT = 200
SYZ = "futex(0xfff, 0xfff)\n"
STAND_INS = Path(__file__).parents[1] / "syzkaller"


class Kernels(Guest):
    """Guests of two kernels: with the bug, some variants crash."""

    shows_results = True
    report_after = CRASH
    report_before = CRASH
    leak = 0
    """Files that each run loses on the kernel with the fix."""

    def __init__(self, boot: Boot, say: Callable[[bytes], None]) -> None:
        super().__init__(boot, say)
        self.variers: list[Varier | Execprog] = []

    def answers(self, command: str) -> tuple[int, bytes]:
        """Return the kernel's counts: keys are lost on both kernels."""
        if "slabinfo" not in command:
            return super().answers(command)
        runs = sum(varier.runs for varier in self.variers)
        files = 100 + runs * self.leak * self.is_patched
        keys = 10 + runs * self.leak
        known = {"filp": files, "key": keys, "dentry": 500 + runs // 9}
        lines = "".join(f"{name} {count} 900 256 1\n" for name, count in known.items())
        return 0, lines.encode()

    @property
    def is_patched(self) -> bool:
        """Whether it boots the kernel with the fix."""
        return self.boot.kernel.read_bytes() == AFTER

    def runs(self, runner: Runner) -> None:
        """Run the program, as the runner or syz-execprog shows it."""
        runner.program_prints(f"executing program 0:\n{SYZ}CALL 0: errno 0\n".encode())
        super().runs(runner)

    def varies(self, varier: Varier, words: str) -> None:
        """Run variants."""
        del words
        self.variers.append(varier)
        varier.obey(*self.behaviour)

    def executes(self, execprog: Execprog) -> None:
        """Run variants of a syzkaller program."""
        self.variers.append(execprog)
        execprog.obey(*self.behaviour, shows_results=self.shows_results)

    @property
    def behaviour(self) -> tuple[Behaviour, Callable[[], None]]:
        """What variants do on this kernel, and how it crashes."""
        if self.is_patched:
            return self.patched, lambda: self.say(self.report_after)
        return self.unpatched, lambda: self.say(self.report_before)

    def unpatched(self, seed: int, mask: int) -> int | None:
        """Return what a variant does on the kernel with the bug."""
        del mask
        return None if seed < 0 or seed % 64 == 7 else 0

    def patched(self, seed: int, mask: int) -> int | None:
        """Return what a variant does on the kernel with the fix."""
        del seed, mask
        return 0


class WithBug(Crashing, Kernels):
    """A guest of the kernel with the bug."""


class MissesOne(Kernels):
    """A fix that misses one value, which one change passes."""

    def patched(self, seed: int, mask: int) -> int | None:
        return None if seed == 77 and mask & 2 else 0


class NewBug(MissesOne):
    """A fix that crashes in another way."""

    report_after = OTHER


class CrashesQuiet(NewBug):
    """A fix that crashes where the kernel with the bug did not."""

    def patched(self, seed: int, mask: int) -> int | None:
        return None if seed == 1 << 32 else 0


class OtherBug(NewBug):
    """A kernel with another bug, which the fix does not concern."""

    report_before = OTHER

    def unpatched(self, seed: int, mask: int) -> int | None:
        return self.patched(seed, mask) if seed == 77 else super().unpatched(seed, mask)


class Leaks(Kernels):
    """A fix that loses a file with each run."""

    leak = 1


class FreesLater(Kernels):
    """A fix that frees the file of each run, but later."""

    freed = 0

    def answers(self, command: str) -> tuple[int, bytes]:
        """Return the count of files: a few more are free each time."""
        if "slabinfo" not in command:
            return super().answers(command)
        runs = sum(varier.runs for varier in self.variers)
        self.freed = min(runs, self.freed + 40)
        return 0, f"filp {100 + runs - self.freed} 900 256 1\n".encode()


class FillsPool(Kernels):
    """A fix whose kernel keeps a thread for each of the first 400 runs, for later ones."""

    begin: int | None = None

    def answers(self, command: str) -> tuple[int, bytes]:
        """Return the count of threads, each with 32 KiB of stack."""
        if "slabinfo" not in command:
            return super().answers(command)
        runs = sum(varier.runs for varier in self.variers)
        self.begin = runs if self.begin is None else self.begin
        threads = 100 + self.is_patched * min(runs - self.begin, 400)
        memory = f"VmallocUsed: {900 + 32 * threads} kB\nKernelStack: {32 * threads} kB\n"
        return 0, f"task_struct {threads} 900 256 1\n{memory}".encode()


class Blind(Kernels):
    """Guests whose syz-execprog does not show the results of calls."""

    shows_results = False


class RefusesFew(Kernels):
    """A fix that refuses one request of ten."""

    def patched(self, seed: int, mask: int) -> int | None:
        return EINVAL if seed % 20 == 0 else 0


class RefusesAll(Kernels):
    """A patch that refuses every request."""

    def patched(self, seed: int, mask: int) -> int | None:
        return EINVAL


class WritesOther(Kernels):
    """A patch that leaves out the copy to the program, and reports success."""

    def patched(self, seed: int, mask: int) -> int | None:
        return -7


@pytest.fixture
def vmlinux(tmp_path: Path) -> Path:
    """Return a program that stands for a kernel's ELF file."""
    source, program = tmp_path / "kernel.c", tmp_path / "vmlinux"
    source.write_text("int scripted_crash(int x) { return x > 31; } int main(void) { return 0; }")
    subprocess.run(["gcc", "-O1", "-o", program, source], check=True, timeout=60)
    return program


@pytest.fixture
def mutating(syzkaller: Path, tmp_path: Path) -> Path:
    """A folder with stand-ins for syzkaller's programs and for the mutator."""
    folder = tmp_path / "syzkaller"
    shutil.copytree(syzkaller, folder)
    shutil.copy(STAND_INS / "syz-mutate.sh", folder / "syz-mutate")
    return folder


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Reproducer:
    """A reproducer of the test's kind, by default a C program."""
    kind = getattr(request, "param", "c")
    text = SYZ if kind == "syz" else "int main(void) { return 0; }\n"
    return Reproducer(kind=kind, text=text)


@pytest.fixture
def tried(
    scripted_step: NewStep,
    cache: Path,
    vmlinux: Path,
    tmp_path: Path,
    source: Reproducer,
    mutating: Path,
) -> Any:
    """Learn the variants of the kernel with the bug, and run them on guests of this kind."""

    async def step(kernel: bytes, kinds: list[type[Guest]], **what: Any) -> ReproduceResult:
        what |= {"time": 0.3, "titles": [CRASH_TITLE], "variants": COUNT}
        run = await scripted_step(source, **what)
        artifacts = []
        for name, content in (("before", BEFORE), ("after", AFTER)):
            path = tmp_path / name
            path.write_bytes(content)
            artifacts.append(await run.storage.put(f"steps/{name}/{BuildArtifact.KERNEL}", path))
        elf = await run.storage.put(f"steps/both/{BuildArtifact.VMLINUX}", vmlinux)
        inputs = run.assignment.inputs
        before, after = (Input(result=built(), artifacts=[each, elf]) for each in artifacts)
        inputs["build"] = after if kernel == AFTER else before
        inputs["unpatched"] = before
        if "baseline" in what:
            inputs["baseline"] = Input(result=learned[0], artifacts=[])
        return await Reproduce(cache, syzkaller=mutating, provider=ScriptedVms(*kinds))(run)

    learned: list[ReproduceResult] = []

    async def tried(kind: type[Guest]) -> ReproduceResult:
        learned.append(await step(BEFORE, [WithBug, kind]))
        refs = {"baseline": StepRef(step=1), "unpatched": StepRef(step=0)}
        return await step(AFTER, [kind], **refs)

    return tried


def of_variants(result: ReproduceResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.check == "variants"]


each_kind = pytest.mark.parametrize("source", turns(["c", "syz"], 1), indirect=True)
syz = pytest.mark.parametrize("source", ["syz"], indirect=True)


@each_kind
async def test_a_right_fix_passes_all_variants(tried: Any) -> None:
    result = await tried(Kernels)
    assert result.verdict is Verdict.NO_CRASH, result.reason
    variants = result.variants
    assert (variants.ran, variants.crashes, variants.missing) == (COUNT, [], "")
    assert variants.compared == variants.same >= 10
    assert of_variants(result) == []


@each_kind
async def test_a_variant_that_crashes_is_singled_out(tried: Any, source: Reproducer) -> None:
    result = await tried(MissesOne)
    assert result.verdict is Verdict.NO_CRASH, result.reason  # of the reproducer
    (crash,) = result.variants.crashes
    assert (crash.seed, crash.mask, crash.kind) == (77, 2, VariantCrashKind.SAME)
    # The order by which it runs by hand.
    assert (crash.pace is not None) == (source.kind == "c")
    words = "passes argument 2 0x4d instead of 0xfff"
    if source.kind == "syz":
        words = "is futex(0xfff, 0x4d) instead of futex(0xfff, 0xfff)"
    (change,) = crash.changes
    assert change.startswith("futex (call ")
    assert change.endswith(words)
    (finding,) = of_variants(result)
    assert (finding.reason, finding.severity) == ("variant_crashes", Severity.BLOCKING)
    assert crash.changes[0] in finding.message


@pytest.mark.parametrize(
    ("kind", "reason", "severity"),
    [
        (NewBug, "variant_new_crash", Severity.BLOCKING),
        (CrashesQuiet, "variant_new_crash", Severity.BLOCKING),
        (OtherBug, "variant_other_bug", Severity.NOTE),
    ],
)
async def test_another_crash_is_tried_on_the_unpatched_kernel(
    tried: Any, kind: type[Guest], reason: str, severity: Severity
) -> None:
    result = await tried(kind)
    (crash,) = result.variants.crashes
    assert crash.seed == (1 << 32 if kind is CrashesQuiet else 77)
    (finding,) = of_variants(result)
    assert (finding.reason, finding.severity) == (reason, severity)
    assert OTHER_TITLE in finding.message


@each_kind
async def test_what_a_fix_leaks_is_counted(tried: Any) -> None:
    result = await tried(Leaks)
    (finding,) = of_variants(result)
    assert (finding.reason, finding.severity) == ("leaks_objects", Severity.BLOCKING)
    assert finding.message.endswith(": 1 filp")


async def test_what_is_freed_later_is_no_leak(tried: Any) -> None:
    assert of_variants(await tried(FreesLater)) == []


async def test_a_pool_that_is_being_filled_is_no_leak(tried: Any) -> None:
    assert of_variants(await tried(FillsPool)) == []


@each_kind
async def test_refused_variants_are_counted(tried: Any) -> None:
    result = await tried(RefusesFew)
    assert 0 < len(result.variants.refused) < result.variants.compared
    (finding,) = of_variants(result)
    assert (finding.reason, finding.severity) == ("variants_refused", Severity.NOTE)
    assert "futex gives EINVAL instead of 0" in finding.message


@each_kind
async def test_a_patch_that_refuses_most_variants_is_no_fix(tried: Any) -> None:
    result = await tried(RefusesAll)
    assert len(result.variants.refused) == result.variants.compared
    (finding,) = of_variants(result)
    assert (finding.reason, finding.severity) == ("variants_refused", Severity.BLOCKING)


async def test_a_patch_that_writes_other_data_is_no_fix(tried: Any) -> None:
    result = await tried(WritesOther)
    assert len(result.variants.different) == result.variants.compared
    (finding,) = of_variants(result)
    assert (finding.reason, finding.severity) == ("variants_differ", Severity.BLOCKING)
    assert "futex writes other data" in finding.message


@syz
async def test_without_results_variants_are_checked_for_crashes_only(tried: Any) -> None:
    result = await tried(Blind)
    assert (result.variants.ran, result.variants.compared) == (COUNT, 0)
    assert "variants are checked for crashes only" in result.variants.missing


@syz
async def test_an_older_syzkaller_has_no_mutator(tried: Any, mutating: Path) -> None:
    (mutating / "syz-mutate").unlink()
    result = await tried(Kernels)
    assert (result.verdict, result.variants.ran) == (Verdict.NO_CRASH, 0)
    assert "has no mutator: build it again" in result.variants.missing


@syz
async def test_a_mutator_that_fails_is_noted(tried: Any, mutating: Path) -> None:
    (mutating / "syz-mutate").write_text("#!/bin/sh\necho no such target\nexit 1\n")
    result = await tried(Kernels)
    assert (result.verdict, result.variants.ran) == (Verdict.NO_CRASH, 0)
    assert "no such target" in result.variants.missing
