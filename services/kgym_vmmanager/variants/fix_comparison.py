"""Variants on a patched kernel, compared with those on the kernel with the developers' fix.

Each variant runs alone, with the same dictionary and pace on both kernels, so that a seed gives the
same program. Runs are counted in variants, never in seconds: hosts differ in speed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kgym.api.steps import Equivalence, InstanceOutcome, LearnedVariants, Pace
from kgym_vmmanager.guest.paths import WORDS_BEFORE
from kgym_vmmanager.variants.variant_search import Guest
from kgym_vmmanager.variants.variant_session import Part, Ran, VariantSession, steady_variants

# Seeds that run besides the quiet variants. Most of them still trigger the bug, and that is where
# fixes differ most.
_FURTHER_SEEDS = range(200)
# A variant that ends its guest costs a boot: after so many guests, the other variants do not run.
_MOST_GUESTS = 5


async def of_fix(kernel: Guest, learned: LearnedVariants) -> LearnedVariants:
    """Return how the kernel with the developers' fix behaves on the `learned` and further variants.

    Only variants that do the same in three guests are kept. Raises KgymError if a machine fails.
    """
    begin = time.monotonic()
    seeds = [*_FURTHER_SEEDS, *_seeds(learned)]
    first = await _run(kernel, "variants-fix", learned.pace, seeds)
    # In reverse order, so that variants whose results depend on earlier variants are not kept.
    again = await _run(kernel, "variants-fix-again", learned.pace, seeds[::-1])
    same = steady_variants(first.ended, again.ended)
    # As they will run on patched kernels: without the variants dropped so far. In either order,
    # fourteen variants of io-uring-no-read ran behind a dropped one, and behave otherwise alone.
    kept = await _run(kernel, "variants-fix-kept", learned.pace, sorted(same))
    same = steady_variants(same, kept.ended)
    missing = first.missing or again.missing or kept.missing
    if not same:
        return LearnedVariants(missing=missing or "no variant did the same in three runs")
    quiet = [same[seed] for seed in sorted(same)]
    update: dict[str, object] = {"quiet": quiet, "losses": None, "missing": missing}
    update |= {"ran": len(first.begun), "seconds": round(time.monotonic() - begin, 2)}
    return learned.model_copy(update=update)


async def compared(kernel: Guest, reference: LearnedVariants) -> Equivalence:
    """Return on how many variants this patched kernel behaves like the `reference`.

    Raises KgymError if a machine fails.
    """
    first = await _run(kernel, "variants-compared", reference.pace, _seeds(reference))
    same, again = first.same_as(reference), _Runs()
    if len(same) + len(first.crashed) < len(first.begun):
        # Repeated in the same order: a difference by chance does not show twice, but one that
        # depends on earlier variants does.
        seeds = [seed for seed in first.begun if seed not in first.crashed]
        again = await _run(kernel, "variants-compared-again", reference.pace, seeds)
    crashed = {*first.crashed, *again.crashed}
    # A variant without a second run is judged by its first.
    unsteady = ({*again.begun} & (same ^ again.same_as(reference))) - crashed
    steady = [seed for seed in first.begun if seed not in crashed | unsteady]
    return Equivalence(
        same=len(same.intersection(steady)),
        crashed=sorted(crashed),
        # A variant that hangs or is cut off counts as different.
        different=[seed for seed in steady if seed not in same],
        dropped=reference.ran - len(reference.quiet) + len(unsteady),
        missing=first.missing,
    )


def _seeds(learned: LearnedVariants) -> list[int]:
    return [variant.seed for variant in learned.quiet]


@dataclass(slots=True)
class _Runs:
    """Results of variants that each ran once."""

    begun: list[int] = field(default_factory=list)
    ended: dict[int, Ran] = field(default_factory=dict)
    """Without those that crashed the kernel, hung, or were cut off."""
    crashed: list[int] = field(default_factory=list)
    missing: str = ""

    def same_as(self, reference: LearnedVariants) -> set[int]:
        """Return the seeds of variants that ended and behaved as on the `reference` kernel."""
        quiet = [variant for variant in reference.quiet if variant.seed in self.ended]
        return {each.seed for each in quiet if self.ended[each.seed].digest.startswith(each.digest)}


async def _run(kernel: Guest, name: str, pace: Pace | None, seeds: Sequence[int]) -> _Runs:
    """Run variants in order; after one that ends its guest, continue in another guest."""
    runs = _Runs()
    for life in range(_MOST_GUESTS):
        left = seeds[len(runs.begun) :]
        if not left:
            break
        each = [range(seed, seed + 1) for seed in left]
        part = Part(each, pace=pace, words=WORDS_BEFORE, is_exact=True)
        result = await kernel(f"{name}-{life}", VariantSession(part))
        runs.begun += [order.start for order in part.orders]
        runs.ended |= part.log.ran
        why = result.detail or "their time was over"
        runs.missing = f"{len(seeds) - len(runs.begun)} of {len(seeds)} variants did not run: {why}"
        if result.outcome is InstanceOutcome.SURVIVED or not part.orders:
            break
        if result.outcome is InstanceOutcome.CRASH:
            runs.crashed.append(runs.begun[-1])
            runs.ended.pop(runs.begun[-1], None)
    if len(runs.begun) == len(seeds):
        runs.missing = ""
    return runs
