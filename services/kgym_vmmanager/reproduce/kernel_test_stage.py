"""The kernel's own tests: on the unpatched kernel once, and on a patched one."""

import asyncio
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kgym.api.steps import BuildArtifact, BuildResult, InstanceOutcome, KernelTestRun
from kgym.errors import KgymError
from kgym.worker import memo
from kgym_vmmanager.evidence.kernel_tests import (
    AFTER,
    BEFORE,
    Baseline,
    KernelTestEnd,
    KernelTestSession,
    Limits,
    compared,
)
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.cpio import CpioFile
from kgym_vmmanager.guest.paths import TESTS
from kgym_vmmanager.reproduce.instance_group import InstanceGroup
from kgym_vmmanager.reproduce.instance_plan import InstancePlan
from kgym_vmmanager.reproduce.preparation import plan_with
from kgym_vmmanager.vm.instance_ending import InstanceEnded

# Version of how tests run; part of the memo's key.
_LAYOUT = 1
# Guests of one run: after a test that ends its guest, the next tests run in another guest.
_MOST_GUESTS = 2
_BOOTED = (BuildArtifact.KERNEL, BuildArtifact.MODULES)


async def result(group: InstanceGroup) -> KernelTestRun | None:
    """Return the results of tests on this step's patched kernel; None if none were requested.

    The instances of `group` have run.
    """
    built = group.run.input("build", BuildResult).kernel_tests
    if built is None:
        return None
    try:
        with group.run.stage("kernel tests"):
            ran = await _compared(group, built.tests)
    except (InstanceEnded, KgymError, OSError) as error:  # the verdict does not need them
        ran = KernelTestRun(left_out=[f"no kernel tests ran: {error}"])
    return ran.model_copy(update={"left_out": [*built.left_out, *ran.left_out]})


async def _compared(group: InstanceGroup, tests: Sequence[str]) -> KernelTestRun:
    if not tests:
        return KernelTestRun()
    if group.spec.unpatched is None:
        return KernelTestRun(left_out=["no kernel tests ran: no unpatched kernel is named"])
    programs = group.plan.folder / BuildArtifact.TESTS
    await group.run.fetch("build", BuildArtifact.TESTS, programs)
    entries = await asyncio.to_thread(_entries, programs)
    baseline = await _baseline(group, tests, entries)
    if not baseline.parts:
        return compared(baseline, {}, {})
    plan = await _plan(group, "build", entries)
    counted = list(baseline.parts)
    first = await _run(group, plan, "tests", counted, AFTER)
    # A test that fails by chance must not block a correct patch.
    fails = bool(compared(baseline, first, first).failed)
    second = await _run(group, plan, "tests-again", counted, AFTER) if fails else {}
    return compared(baseline, first, second)


async def _baseline(
    group: InstanceGroup, tests: Sequence[str], entries: Sequence[CpioFile]
) -> Baseline:
    """Return what passes twice on the unpatched kernel: from a memo, or by running tests now."""
    run, plan = group.run, group.plan
    used = [each for each in run.input_artifacts("unpatched") if each.name in _BOOTED]
    used += [each for each in run.input_artifacts("build") if each.name == BuildArtifact.TESTS]
    disk = plan.disk.used if plan.disk else None
    where = [plan.shape, group.host.accelerator, plan.words, disk]
    name = memo.key(
        "kernel-tests-before", _LAYOUT, [each.sha256 for each in used], list(tests), where
    )
    if known := await memo.recall(run, name, Baseline):
        return known
    guest = await _plan(group, "unpatched", entries)
    first = await _run(group, guest, "tests-before", tests, BEFORE)
    second = await _run(group, guest, "tests-before-again", tests, BEFORE)
    baseline = Baseline.of(tests, first, second)
    await memo.remember(run, name, baseline)
    return baseline


async def _plan(group: InstanceGroup, build: str, entries: Sequence[CpioFile]) -> InstancePlan:
    folder = group.plan.folder / "tests" / build
    plan = await plan_with(group.run, group.plan, build, folder, entries)
    # Tests leak memory themselves, and scanning for leaks takes time.
    return replace(plan, leaks=False)


async def _run(
    group: InstanceGroup, plan: InstancePlan, name: str, tests: Sequence[str], limits: Limits
) -> dict[str, KernelTestEnd]:
    """Run tests in as few guests of a plan as possible.

    Raises InstanceEnded if a guest does not boot, or is lost before its first test.
    """
    ends: dict[str, KernelTestEnd] = {}
    left = tests
    for number in range(_MOST_GUESTS):
        if not left or limits.all < 1:
            break
        session = KernelTestSession(left, limits)
        guest = await group.run_variants(plan, f"{name}-{number}", session)
        ends |= session.test_ends
        if guest.outcome is InstanceOutcome.SURVIVED:
            break
        why = f"the guest is lost: {guest.outcome}: {guest.title or guest.detail}"
        if not session.begun:
            raise InstanceEnded(guest.outcome, why)
        # If the guest was lost after its tests were over, the last of them is to blame.
        ends[left[session.begun - 1]] = KernelTestEnd(frozenset(), why)
        left = left[session.begun :]
        limits = replace(limits, all=limits.all - session.seconds)
    return ends


def _entries(programs: Path) -> list[CpioFile]:
    """Return the programs as files of the guest."""
    folder = TESTS.lstrip("/")
    with tarfile.open(programs, "r:") as tar:
        return [
            cpio.folder(folder),
            *(
                cpio.file(f"{folder}/{member.name}", file.read(), 0o755)
                for member in tar
                if (file := tar.extractfile(member))
            ),
        ]
