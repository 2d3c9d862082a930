"""Dumps of a real kernel, and what comes in their way; the verdict is the same with and without."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from kgym.api import steps
from kgym.api.jobs import JobRequest
from kgym.api.worker_calls import Input
from kgym.bugs import bundle
from kgym.worker.context import StepContext
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from kgym_vmmanager.vm.qemu_provider import LIMITS, Qemu
from tests.conftest import fetched, kgym
from tests.vmmanager.conftest import BUILT, NewStep
from tests.vmmanager.reproduce.test_instances import IMPATIENT, program

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

# The capture kernel takes minutes; guests that hang or crash leave dumps by the hypervisor, too.
BUILDS_A_KERNEL = pytest.mark.exhaustive
CRASHES = program("sleep(1); crash(); sleep(60); return 0;")
# How the files begin.
ZSTD, GZIP, KDUMP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"KDUMP   "


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bzImage of the capture kernel."""
    status, job = kgym(
        "job", "submit", "-", "--wait", stdin=JobRequest(steps=[bundle.kernel("capture")])
    )
    assert status == 0, job
    return fetched(job, 0, "bzImage", tmp_path_factory.mktemp("capture"))


async def with_capture(run: StepContext, kernel: Path) -> StepContext:
    image = await run.storage.put("steps/1/bzImage", kernel)
    run.assignment.inputs["capture"] = Input(result=BUILT, artifacts=[image])
    return run


async def begins_with(run: StepContext, instance: steps.InstanceResult) -> bytes:
    """Return the first bytes of the instance's dump, which is checked against its result."""
    assert instance.dump is not None, instance
    assert instance.dump.failure is None, instance.dump
    (artifact,) = [kept for kept in run.artifacts if kept.name == instance.dump.artifact]
    assert artifact.size == instance.dump.size > 1 << 20
    path = run.folder / "fetched"
    await run.storage.get(artifact.key, path)
    with path.open("rb") as file:
        return file.read(8)


@pytest.mark.exhaustive
async def test_a_crash_that_does_not_panic_leaves_one(new_step: NewStep, cache: Path) -> None:
    body = 'raise_fault("warning"); sleep(60);'
    run = await new_step(program(body), time=60, append="panic_on_warn=0", dump="hypervisor")
    (instance,) = (await Reproduce(cache)(run)).instances
    assert (instance.outcome, instance.title) == (
        steps.InstanceOutcome.CRASH,
        "WARNING in kgym_control_assert",
    )
    assert (await begins_with(run, instance)).startswith(ZSTD)


async def test_a_guest_that_hangs_leaves_one(new_step: NewStep, cache: Path) -> None:
    run = await new_step(program("hog_cpu();"), dump="hypervisor")
    result = await Reproduce(cache, provider=Qemu(IMPATIENT))(run)
    assert (result.verdict, result.instances[0].outcome) == (
        steps.Verdict.INCONCLUSIVE,
        steps.InstanceOutcome.HUNG,
    )
    assert (await begins_with(run, result.instances[0])).startswith(ZSTD)


@BUILDS_A_KERNEL
@pytest.mark.parametrize("cpus", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
async def test_a_capture_kernel(new_step: NewStep, cache: Path, capture: Path, cpus: int) -> None:
    run = await new_step(CRASHES, time=60, cpus=cpus, dump="kdump", capture=steps.StepRef(step=1))
    result = await Reproduce(cache)(await with_capture(run, capture))
    assert result.verdict is steps.Verdict.SAME_CRASH
    assert await begins_with(run, result.instances[0]) == KDUMP


async def failed(
    new_step: NewStep, cache: Path, kernel: Path, *, append: str = ""
) -> tuple[steps.ReproduceResult, steps.DumpFailure | None, str]:
    """Return the result of a crash without a dump, and why that is not there."""
    run = await new_step(
        CRASHES, time=60, append=append, dump="kdump", capture=steps.StepRef(step=1)
    )
    limits = {
        name: dataclasses.replace(limits_of_kind, boot=60)
        for name, limits_of_kind in LIMITS.items()
    }
    result = await Reproduce(cache, provider=Qemu(limits))(await with_capture(run, kernel))
    dump = result.instances[0].dump
    assert dump is not None
    assert dump.artifact is None
    return result, dump.failure, dump.message


@BUILDS_A_KERNEL
@pytest.mark.exhaustive  # takes a second kernel
async def test_without_reserved_memory(new_step: NewStep, cache: Path, capture: Path) -> None:
    """There is the verdict, and the reason for the missing dump."""
    result, failure, _ = await failed(new_step, cache, capture, append="crashkernel=0")
    assert (result.verdict, failure) == (steps.Verdict.SAME_CRASH, steps.DumpFailure.NO_RESERVATION)


@pytest.mark.exhaustive
async def test_what_is_no_kernel_is_refused(new_step: NewStep, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "bzImage"
    other.write_bytes(bytes(10000))
    result, failure, message = await failed(new_step, cache, other)
    assert (result.verdict, failure) == (steps.Verdict.SAME_CRASH, steps.DumpFailure.KEXEC_REFUSED)
    assert "no bzImage" in message


@BUILDS_A_KERNEL
@pytest.mark.exhaustive  # takes a second kernel
async def test_silent_capture(
    new_step: NewStep, cache: Path, capture: Path, tmp_path: Path
) -> None:
    """A capture kernel that stays silent is given up."""
    image = bytearray(capture.read_bytes())
    entry = (image[0x1F1] + 1) * 512 + 0x200
    image[entry : entry + 3] = b"\xf4\xeb\xfd"  # hlt, again and again
    silent = tmp_path / "bzImage"
    silent.write_bytes(image)
    result, failure, message = await failed(new_step, cache, silent)
    assert (result.verdict, failure) == (steps.Verdict.SAME_CRASH, steps.DumpFailure.CAPTURE_SILENT)
    assert "not up after 60 s" in message


@BUILDS_A_KERNEL
@pytest.mark.exhaustive  # takes a second kernel
async def test_without_makedumpfile_all_of_the_memory_comes(
    new_step: NewStep, tmp_path: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):
        for path in Path(folder).glob("*"):
            if path.name != "makedumpfile":
                (programs / path.name).unlink(missing_ok=True)
                (programs / path.name).symlink_to(path)
    run = await new_step(CRASHES, time=60, dump="kdump", capture=steps.StepRef(step=1))
    monkeypatch.setenv("PATH", str(programs))
    result = await Reproduce(tmp_path / "cache")(await with_capture(run, capture))
    assert (await begins_with(run, result.instances[0])).startswith(GZIP)
    path = run.folder / "fetched"
    elf = subprocess.run(["gzip", "-dc", path], check=True, capture_output=True, timeout=120).stdout
    assert elf.startswith(b"\x7fELF")
    assert len(elf) > 256 << 20
