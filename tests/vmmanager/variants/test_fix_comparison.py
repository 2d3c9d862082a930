"""Variants on a patched kernel, compared with the developers' fix, on scripted guests."""

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kgym.api.steps import (
    ENGINE,
    BuildArtifact,
    Equivalence,
    LearnedVariants,
    Pace,
    QuietVariant,
    ReproduceResult,
    StepRef,
    Verdict,
)
from kgym.api.worker_calls import Input
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from tests.results import built, ran
from tests.vmmanager.conftest import NewStep
from tests.vmmanager.scripted_vms import CRASH, Crashing, Guest, ScriptedVms, Varier

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, pytest.mark.timeout(180)]

EINVAL = 22
QUIET = range(1 << 32, (1 << 32) + 20)
RANDOM, CRASHES = 9, 5
LEARNED = LearnedVariants(
    engine=ENGINE,
    pace=Pace(calls=2, milliseconds=1, pause=1),
    quiet=[QuietVariant(seed=seed, digest="0" * 16, failed=0) for seed in QUIET],
)


class Fixed(Guest):
    """The developers' fix: it refuses some requests, and has another bug."""

    results = itertools.count()

    def varies(self, varier: Varier, words: str) -> None:
        """Run variants of the program with the unpatched kernel's dictionary."""
        del words
        varier.obey(lambda seed, mask: self.does(seed), lambda: self.say(CRASH))

    def does(self, seed: int) -> int | None:
        """Return the error of a variant's call; None: the kernel crashes."""
        if seed == RANDOM:
            return next(self.results)
        return None if seed == CRASHES else self.refuses(seed)

    def refuses(self, seed: int) -> int:
        """Return the error of a variant that the kernel survives."""
        return EINVAL if seed % 10 == 1 else 0


class RefusesMore(Fixed):
    """A patch that refuses more than the fix."""

    def refuses(self, seed: int) -> int:
        return EINVAL if seed % 10 < 2 else 0


class CrashesMore(Fixed):
    """A patch that misses two values."""

    def does(self, seed: int) -> int | None:
        return None if seed in (40, 41) else super().does(seed)


class ChangesItsMind(Fixed):
    """A patch that refuses one value the first time."""

    seen = itertools.count()

    def refuses(self, seed: int) -> int:
        return EINVAL if seed == 42 and not next(self.seen) else super().refuses(seed)


class CrashesFixed(Crashing, Fixed):
    """A fix that is none."""


RunOn = Callable[..., Awaitable[ReproduceResult]]


@pytest.fixture
def run_on(scripted_step: NewStep, cache: Path, tmp_path: Path) -> RunOn:
    """Perform a step with these results of earlier steps on guests of this kind."""

    async def run_on(kind: type[Guest], **earlier: ReproduceResult) -> ReproduceResult:
        refs = {name: StepRef(step=number) for number, name in enumerate(earlier, start=1)}
        run = await scripted_step(time=0.3, variants=100, **refs)
        image = tmp_path / "image"
        image.write_bytes(b"kernel")
        kernel = await run.storage.put(f"steps/1/{BuildArtifact.KERNEL}", image)
        run.assignment.inputs["build"] = Input(result=built(), artifacts=[kernel])
        for name, result in earlier.items():
            run.assignment.inputs[name] = Input(result=result, artifacts=[])
        return await Reproduce(cache, provider=ScriptedVms(kind))(run)

    return run_on


async def compared(run_on: RunOn, kind: type[Guest], fixed: ReproduceResult) -> Equivalence:
    """Return how a kind of patched guests compares with the developers' fix."""
    shown = ran(Verdict.SAME_CRASH, "scripted", learned=LEARNED)
    result = await run_on(kind, baseline=shown, reference=fixed)
    assert result.verdict is Verdict.NO_CRASH, result.reason
    assert result.variants is not None
    assert result.variants.equivalence is not None
    return result.variants.equivalence


async def test_a_patch_is_compared_with_what_the_fix_does_twice(run_on: RunOn) -> None:
    fixed = await run_on(Fixed, learned=ran(Verdict.SAME_CRASH, "scripted", learned=LEARNED))
    assert fixed.learned is None
    assert fixed.reference is not None
    assert not fixed.reference.missing
    kept = {variant.seed: int(variant.digest[:16], 16) for variant in fixed.reference.quiet}
    # What differs from run to run, and what crashes the fixed kernel as well, is left out.
    seeds = {*range(200), *QUIET} - {RANDOM, CRASHES}
    assert kept == {seed: EINVAL if seed % 10 == 1 else 0 for seed in seeds}
    assert fixed.reference.ran == len(kept) + 2

    same = await compared(run_on, Fixed, fixed)
    assert same == Equivalence(same=len(kept), dropped=2)

    refuses = await compared(run_on, RefusesMore, fixed)
    assert refuses.different == [seed for seed in kept if seed % 10 == 0]
    assert refuses.same == len(kept) - len(refuses.different)

    # Behind a crash, the others are compared nevertheless.
    crashes = await compared(run_on, CrashesMore, fixed)
    assert crashes == Equivalence(same=len(kept) - 2, crashed=[40, 41], dropped=2)

    # What differs on the patched kernel only the first time is dropped, too.
    unsteady = await compared(run_on, ChangesItsMind, fixed)
    assert unsteady == Equivalence(same=len(kept) - 1, dropped=3)


async def test_a_fix_that_crashes_is_no_reference(run_on: RunOn) -> None:
    shown = ran(Verdict.SAME_CRASH, "scripted", learned=LEARNED)
    fixed = await run_on(CrashesFixed, learned=shown)
    assert fixed.reference is not None
    assert fixed.reference.pace is None
    missing = (await compared(run_on, Fixed, fixed)).missing
    assert missing.startswith("the kernel with the fix crashes: BUG: ")


async def test_only_the_fix_is_compared_with(run_on: RunOn) -> None:
    shown = ran(Verdict.SAME_CRASH, "scripted", learned=LEARNED)
    alike = await compared(run_on, Fixed, shown)
    assert alike == Equivalence(missing="the step that is named for them ran no variants")
