"""Each patch of the labelled set is what its label says."""

import random
import subprocess
from collections import ChainMap, Counter
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    BuildSpec,
    InstanceOutcome,
    Patch,
    Reproducer,
    ReproduceResult,
    ReproduceSpec,
    StepRef,
)
from kgym.bugs import bundle
from kgym.bugs.bug import BUILD_AFTER, Bug
from kgym.client import Client
from kgym.source import patching
from kgym.source.source_folder import SourceFolder
from tests.alone import alone
from tests.conftest import DATA, SEED, chosen
from tests.honesty.labelled import MISBEHAVES, PROGRAMS, Right, Wrong, all_labelled, labelled

PATCHES = all_labelled()
# A program runs again and again for so long; those of leaks and races need many runs.
_SECONDS = 30
# Kinds of which at least five patches are wanted; one caller and one type count together.
MOST_COMMON = (
    {"off-by-one"},
    {"one-sign"},
    {"wrong-result"},
    {"success-without-work"},
    {"leak"},
    {"one-caller", "one-type"},
    {"loop-of-one"},
)


def test_the_set_has_enough_patches_of_enough_kinds() -> None:
    wrong = [patch for _, patch in PATCHES if isinstance(patch, Wrong)]
    kinds: Counter[str] = Counter(patch.kind for patch in wrong)
    assert len(wrong) >= 80
    assert len(kinds) >= 10
    assert all(sum(kinds[kind] for kind in group) >= 5 for group in MOST_COMMON)
    assert len(PATCHES) - len(wrong) >= 40
    assert len({(bug, patch.name) for bug, patch in PATCHES}) == len(PATCHES)
    assert {patch.program for patch in wrong} == {path.name for path in PROGRAMS.iterdir()}


@pytest.mark.parametrize("name", bundle.names())
def test_each_patch_applies(kernel_source: Path, name: str) -> None:
    files = ChainMap[str, bytes]({}, SourceFolder(kernel_source))  # type: ignore[arg-type]
    for regression in bundle.load(name).build.patches:
        changes = patching.apply(regression, files).changes
        files |= {change.path: change.content or b"" for change in changes}
    of_bug = labelled(name)
    for each in (*of_bug.wrong, *of_bug.right):
        assert patching.apply(each.patch, files).changes


@pytest.mark.thorough
@pytest.mark.parametrize("program", sorted(PROGRAMS.iterdir()), ids=lambda path: path.stem)
def test_each_program_compiles_without_a_warning(program: Path) -> None:
    command = ["gcc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", chosen(bundle.names(), 1))
def test_labels_are_proved_on_the_real_kernel(name: str) -> None:
    """Two wrong patches, and a right one with three programs, which the commit chooses.

    All of them take hours.
    """
    bug, of_bug = bundle.load(name), labelled(name)
    dice, mislabelled = random.Random(SEED), {}
    with alone(DATA) as client:
        for patch in (*dice.sample(of_bug.wrong, 2), dice.choice(of_bug.right)):
            proofs = dice.sample(of_bug.proofs, min(3, len(of_bug.proofs)))
            programs = [patch.proof] if isinstance(patch, Wrong) else proofs
            result = tried(client, bug, patch.patch, programs)
            if shows_a_fault(result) != isinstance(patch, Wrong) or not completed(result, patch):
                mislabelled[patch.name] = result.model_dump(include={"reason", "instances"})
    assert mislabelled == {}


def tried(client: Client, bug: Bug, patch: Patch, programs: list[Reproducer]) -> ReproduceResult:
    """Return how the programs end on the kernel with the patch, each on a VM of its own."""
    steps = {step.name: step for step in bug.job(patch).steps}
    build = steps[BUILD_AFTER]
    assert isinstance(build, BuildSpec)
    run = ReproduceSpec(
        build=StepRef(step=BUILD_AFTER),
        reproducer=programs[0],
        others=programs[1:],
        vm=bug.file.vm,
        instances=len(programs),
        time=_SECONDS,
        completed=["exit 0", f"exit {MISBEHAVES}"],
        stop_at_first_crash=False,
    )
    job = client.wait(client.submit(JobRequest(steps=[build, run], tags=["labelled"])).id)
    assert all(step.failure is None for step in job.steps), job.steps
    result = job.steps[-1].result
    assert isinstance(result, ReproduceResult)
    return result


def shows_a_fault(result: ReproduceResult) -> bool:
    """Whether the kernel crashed or hung, or a program was not satisfied."""
    bad = {InstanceOutcome.CRASH, InstanceOutcome.HUNG}
    return any(
        instance.outcome in bad
        or any((end.how, end.value) == ("exit", MISBEHAVES) for end in instance.ends)
        for instance in result.instances
    )


def completed(result: ReproduceResult, patch: Right) -> bool:
    """Whether programs that prove a patch right ran to their end."""
    return isinstance(patch, Wrong) or all(
        instance.outcome is InstanceOutcome.SURVIVED for instance in result.instances
    )
