"""Variants on a patched kernel, compared with those on the kernel with the developers' fix.

Each variant runs alone, from the same dictionary and pace on both kernels, so that a seed is the
same program. Runs are counted in variants, never in seconds: hosts differ in speed.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kgym.api.steps import Equivalence, InstanceOutcome, LearnedVariants, Pace, QuietVariant
from kgym_vmmanager.guest.paths import WORDS_BEFORE
from kgym_vmmanager.variants.variant_search import Guest
from kgym_vmmanager.variants.variant_session import Part, Ran, VariantSession

# Beside the quiet variants: most of these still do what crashes the unpatched kernel, and there,
# fixes differ most.
_FURTHER_SEEDS = range(200)
# A variant that ends its guest costs a boot: after so many, the others are not compared.
_MOST_GUESTS = 5


async def learned_of_fix(kernel: Guest, learned: LearnedVariants) -> LearnedVariants:
    """Return what the kernel with the developers' fix does with variants; some are `learned`.

    Only variants that do the same in two guests are kept. Raises KgymError if a machine fails.
    """
    begin = time.monotonic()
    seeds = [*_FURTHER_SEEDS, *(quiet.seed for quiet in learned.quiet)]
    first, again = _Runs(kernel, learned.pace), _Runs(kernel, learned.pace)
    await first.run("variants-fix", seeds)
    # In reverse: what depends on the variants before it is not kept.
    await again.run("variants-fix-again", seeds[::-1])
    digests = {seed: ran.digest for seed, ran in first.ran.items()}
    same = [seed for seed in seeds if seed in digests and again.does(seed, digests)]
    return LearnedVariants(
        engine=learned.engine,
        dictionary=learned.dictionary,
        pace=learned.pace,
        quiet=[
            QuietVariant(seed=seed, digest=digests[seed], failed=first.ran[seed].failed)
            for seed in same
        ],
        ran=len(first.begun),
        of_fix=True,
        missing=first.missing or ("" if same else "no variant did the same in two runs"),
        seconds=round(time.monotonic() - begin, 2),
    )


async def compared(kernel: Guest, reference: LearnedVariants) -> Equivalence:
    """Return how many variants do on this patched kernel what `reference` says of the fixed one.

    Raises KgymError if a machine fails.
    """
    known = {variant.seed: variant.digest for variant in reference.quiet}
    first, again = _Runs(kernel, reference.pace), _Runs(kernel, reference.pace)
    await first.run("variants-compared", list(known))
    others = [
        seed for seed in first.begun if not first.does(seed, known) and seed not in first.crashed
    ]
    # Once more: what differs by chance, or because a host was busy, does not differ twice.
    await again.run("variants-compared-again", others)
    crashed = [*first.crashed, *again.crashed]
    # A variant that a patch makes hang, or cuts off, is one that differs.
    different = [seed for seed in others if not again.does(seed, known) and seed not in crashed]
    return Equivalence(
        compared=len(first.begun),
        same=len(first.begun) - len(crashed) - len(different),
        crashed=crashed,
        different=different,
        missing=first.missing,
    )


@dataclass(slots=True)
class _Runs:
    """Variants that run once each, in order; behind one that ends its guest, in another guest."""

    kernel: Guest
    pace: Pace | None
    begun: list[int] = field(default_factory=list)
    ran: dict[int, Ran] = field(default_factory=dict)
    """Of those that came to their end."""
    crashed: list[int] = field(default_factory=list)
    missing: str = ""

    async def run(self, name: str, seeds: Sequence[int]) -> None:
        left: Collection[int] = seeds
        for life in range(_MOST_GUESTS):
            if not left:
                return
            each = [range(seed, seed + 1) for seed in left]
            part = Part(each, pace=self.pace, words=WORDS_BEFORE, is_exact=True)
            result = await self.kernel(f"{name}-{life}", VariantSession(part))
            self.ran |= part.log.ran
            self.begun += [order.start for order in part.orders]
            left = seeds[len(self.begun) :]
            if result.outcome is InstanceOutcome.CRASH and part.orders:
                self.crashed.append(self.begun[-1])
            elif result.outcome is InstanceOutcome.SURVIVED or not part.orders:
                break
        if left:
            self.missing = f"{len(left)} of {len(seeds)} variants did not run: {result.detail}"

    def does(self, seed: int, digests: Mapping[int, str]) -> bool:
        """Return whether the variant came to its end and did what `digests` says."""
        return (
            seed in self.ran and seed not in self.crashed and self.ran[seed].digest == digests[seed]
        )
