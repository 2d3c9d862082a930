"""Variants on two kernels: learned on the unpatched one, searched for crashes on the patched one.

A variant costs a fork, a crash costs a boot. Where kernels are compared, runs are counted in
variants, never in seconds: hosts differ in speed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from kgym import tasks
from kgym.api.steps import (
    ENGINE,
    Dictionary,
    InstanceOutcome,
    InstanceResult,
    LearnedVariants,
    Loss,
    Pace,
    QuietVariant,
    VariantCrash,
    VariantCrashKind,
    VariantRun,
)
from kgym.bugs.known_noise import noise
from kgym.bugs.verdict import likeness
from kgym.errors import KgymError
from kgym_vmmanager.evidence.syscall_names import result_name
from kgym_vmmanager.guest.paths import WORDS_BEFORE
from kgym_vmmanager.variants.variant_session import (
    ALL_CHANGES,
    RESULTS,
    Part,
    Ran,
    Shown,
    VariantSession,
    steady_variants,
)

KEPT_QUIET = 60
# On the unpatched kernel, each guest tries variants until so many are quiet, so many have crashed
# it, or the time is over: most variants of some programs crash at once.
_WANTED_QUIET = 100
_MOST_CRASHES = 30
_LEARN_SECONDS = 110.0
# Each order is answered before the next: a crash loses the answers that are still under way.
_LEARN_BATCH = 1
# Seconds after a guest's start in which new variants begin there. A guest may have waited for room
# on this host: time before its start does not count, or a busy host would run no variants.
_SEARCH_SECONDS = 36.0
# First seeds of the two guests that learn quiet variants, beyond the seeds of the search. Those of
# the second guest always change the last call (LAST_CALL in vary.c): if the kernel crashes there,
# most variants that leave that call alone crash as well.
_QUIET_SEEDS = (1 << 32, 1 << 47)
# Crashes of other bugs after which a guest is given up.
_MOST_OTHER_BUGS = 2
_MOST_EXAMPLES = 3
# The guest that runs differing variants once more.
_SHOWN = "variants-shown"

# Boots a guest of a kernel, runs the session in it, and returns the guest's result.
Guest = Callable[[str, VariantSession], Awaitable[InstanceResult]]


@dataclass(frozen=True, slots=True)
class VariantSearch:
    """Runs variants in guests of `kernel`; `unpatched` boots guests without the fix.

    `titles` are those of the bug.
    """

    kernel: Guest
    titles: Sequence[str]
    unpatched: Guest | None = None
    engine: str = ENGINE

    async def learn(self, dictionary: Dictionary) -> LearnedVariants:
        """Return the quiet variants of this kernel, which has the bug."""
        begin = time.monotonic()
        look = Part()
        try:
            # The unchanged program crashes this kernel, but its calls up to the crash are known.
            await self.kernel("variants-pace", VariantSession(look))
            pace = look.log.pace
            if pace is None:
                return LearnedVariants(missing="the program makes no call that could be changed")
            learning = [_Learning(self.kernel, pace, *start) for start in enumerate(_QUIET_SEEDS)]
            await asyncio.gather(*(learner.run(begin + _LEARN_SECONDS) for learner in learning))
            first = {seed: ran for learner in learning for seed, ran in learner.ran.items()}
            seeds = [range(seed, seed + 1) for seed in sorted(first)]
            again = Part(seeds, pace=pace, is_exact=True)
            await self.kernel("variants-again", VariantSession(again))
            same = steady_variants(first, again.log.ran)
            quiet = _diverse(same, first)
            losses = await self._losses(quiet, pace)
            none = "" if same else "no variant did the same in two runs without a crash"
            missing = [none, *(learner.missing for learner in learning), again.missing]
        except KgymError as error:
            return LearnedVariants(missing=f"no quiet variants: {error.message}")
        return LearnedVariants(
            engine=self.engine,
            dictionary=dictionary,
            pace=pace,
            quiet=quiet,
            ran=len(first),
            losses=losses,
            missing="; ".join(dict.fromkeys(filter(None, missing))),
            seconds=round(time.monotonic() - begin, 2),
        )

    async def _losses(self, quiet: Sequence[QuietVariant], pace: Pace) -> list[Loss] | None:
        """Return what the unpatched kernel loses over the quiet variants; None if unknown."""
        if not quiet:
            return None
        seeds = [range(variant.seed, variant.seed + 1) for variant in quiet]
        part = Part(seeds, pace=pace, is_exact=True, balance="variants")
        await self.kernel("variants-balance", VariantSession(part))
        return part.losses

    async def search(self, learned: LearnedVariants, count: int) -> VariantRun:
        """Run `count` new variants, and the quiet ones, on the patched kernel."""
        begin = time.monotonic()
        seeds = [range(quiet.seed, quiet.seed + 1) for quiet in learned.quiet]
        compared = Part(seeds, pace=learned.pace, words=WORDS_BEFORE, is_exact=True)
        if learned.losses is not None:
            compared.balance = "variants"
        program = Part(balance="program")
        # The quiet variants run first: a crash would leave their results unknown. They and their
        # balance take longer than the program's, so the second guest gets two thirds of the new.
        third, calls = count // 3, learned.pace.calls if learned.pace else None
        hunts = [
            _Hunt(self, range(third), calls, [compared] if seeds else []),
            _Hunt(self, range(third, count), calls, [program]),
        ]
        running = [asyncio.create_task(hunt.run(f"variants-{n}")) for n, hunt in enumerate(hunts)]
        try:
            # The first crash that counts ends the search: one is enough for a verdict.
            for ended in asyncio.as_completed(running):
                await ended
                if any(hunt.is_decided for hunt in hunts):
                    break
        finally:
            await tasks.end(running)
        crashes = [crash for hunt in hunts for crash in hunt.crashes]
        missing = [learned.missing, *(hunt.missing for hunt in hunts)]
        cut_off = sum(quiet.seed not in compared.log.ran for quiet in learned.quiet)
        if cut_off and not crashes:  # a crash ends the search, in the other guest as well
            missing.append(f"{cut_off} quiet variants did not end")
        run = VariantRun(
            ran=sum(len(part.log.ran) for hunt in hunts for part in hunt.parts),
            losses=compared.losses,
            program_losses=program.losses,
            crashes=crashes,
            missing="; ".join(dict.fromkeys(filter(None, missing))),
        )
        run = run.model_copy(update=await self._compared(learned, compared.log.ran, crashes))
        return run.model_copy(update={"seconds": round(time.monotonic() - begin, 2)})

    async def _compared(
        self, learned: LearnedVariants, ran: dict[int, Ran], crashes: Sequence[VariantCrash]
    ) -> dict[str, object]:
        """Return the fields of a run that compare it with the unpatched kernel, and all crashes."""
        all_crashes = list(crashes)
        known = {quiet.seed: quiet for quiet in learned.quiet if quiet.seed in ran}
        others = [
            seed for seed, quiet in known.items() if not ran[seed].digest.startswith(quiet.digest)
        ]
        examples: list[str] = []
        if others:
            # Repeated: a difference by chance does not show twice.
            shows = [(seed, ALL_CHANGES) for seed in others]
            after, crash = await self._shown(self.kernel, shows, learned.pace)
            if crash is not None:
                all_crashes.append(self.crash(_SHOWN, crash, VariantCrashKind.NEW))
            digests = {seed: shown.digest or "" for seed, shown in after.items()}
            # A variant without a second run is judged by its first.
            others = [
                seed for seed in others if not digests.get(seed, "").startswith(known[seed].digest)
            ]
            shows = [(seed, ALL_CHANGES) for seed in others[:_MOST_EXAMPLES]]
            before, _ = await self._shown(self.unpatched, shows, learned.pace)
            for seed, _ in shows:
                if seed in before and seed in after:
                    examples.append(_difference(seed, before[seed], after[seed]))
        refused = [seed for seed in others if ran[seed].failed > known[seed].failed]
        return {
            "compared": len(known),
            "same": len(known) - len(others),
            "refused": refused,
            "different": [seed for seed in others if seed not in refused],
            "examples": examples,
            "crashes": all_crashes,
        }

    def crash(
        self, name: str, crash: InstanceResult, other: VariantCrashKind = VariantCrashKind.UNKNOWN
    ) -> VariantCrash:
        """Return a patched kernel's crash, of the kind `other` if it is a crash of another bug."""
        title = crash.title or ""
        kind = VariantCrashKind.UNKNOWN if noise(title) else other
        same = likeness(crash, self.titles) is not None
        kind = VariantCrashKind.SAME if same else kind
        return VariantCrash(title=title, kind=kind, instance=name)

    async def _shown(
        self, kernel: Guest | None, shows: Sequence[tuple[int, int]], pace: Pace | None
    ) -> tuple[dict[int, Shown], InstanceResult | None]:
        """Return the variants that ran to their end, and the guest's result if it crashed."""
        if kernel is None or not shows:
            return {}, None
        part = Part(shows=shows, pace=pace, words=WORDS_BEFORE)
        name = _SHOWN if kernel is self.kernel else f"{_SHOWN}-before"
        try:
            result = await kernel(name, VariantSession(part))
        except (KgymError, OSError):  # the machine failed: nothing was shown
            return {}, None
        crash = result if result.outcome is InstanceOutcome.CRASH else None
        return {seed: shown for seed, shown in part.shown if shown.is_over}, crash


@dataclass(slots=True)
class _Learning:
    """Tries variants on the unpatched kernel, in one guest after the other."""

    kernel: Guest
    pace: Pace
    number: int
    seed: int
    ran: dict[int, Ran] = field(default_factory=dict)
    missing: str = ""

    async def run(self, until: float) -> None:
        for life in range(_MOST_CRASHES):
            wanted = _WANTED_QUIET - len(self.ran)
            left = until - time.monotonic()
            if wanted <= 0 or left <= 0:
                return
            seeds = range(self.seed, self.seed + wanted)
            part = Part([seeds], pace=self.pace, batch=_LEARN_BATCH, is_exact=True)
            part.most_seconds = left
            name = f"variants-learn-{self.number}-{life}"
            result = await self.kernel(name, VariantSession(part))
            self.ran |= part.log.ran
            self.missing = self.missing or part.missing
            if result.outcome is InstanceOutcome.SURVIVED:
                return
            # The answer to the last order may be lost with the guest: go on after that order.
            self.seed = part.orders[-1].stop if part.orders else self.seed + _LEARN_BATCH


@dataclass(slots=True)
class _Hunt:
    """Looks for a variant that crashes the patched kernel, in one guest after the other."""

    search: VariantSearch
    seeds: range
    calls: int | None
    before: Sequence[Part] = ()
    parts: list[Part] = field(default_factory=list)
    crashes: list[VariantCrash] = field(default_factory=list)
    missing: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether a crash was seen that blocks the fix."""
        kinds = {VariantCrashKind.SAME, VariantCrashKind.NEW}
        return any(crash.kind in kinds for crash in self.crashes)

    async def run(self, name: str) -> None:
        seeds, left = self.seeds, _SEARCH_SECONDS
        for life in range(1 + _MOST_OTHER_BUGS):
            part = Part([seeds], most_seconds=left, calls=self.calls)
            guest = f"{name}-{life}" if life else name
            self.parts.append(part)
            parts = [*self.before, part] if life == 0 else [part]
            try:
                result = await self.search.kernel(guest, VariantSession(*parts))
            except (KgymError, OSError) as error:
                self.missing = f"not all variants ran: {error}"
                return
            self.missing = next(filter(None, (self.missing, *(part.missing for part in parts))), "")
            if result.outcome is InstanceOutcome.CRASH:
                self.crashes.append(await self._explained(guest, result))
            if result.outcome not in (InstanceOutcome.CRASH, InstanceOutcome.SURVIVED):
                self.missing = f"not all variants ran: {result.outcome}: {result.detail}"
            left -= result.run_seconds or 0
            is_over = self.is_decided or left <= 0
            if result.outcome is not InstanceOutcome.CRASH or is_over:
                return
            # It is another bug's crash: go on with the variants after it.
            seeds = range(part.orders[-1].stop if part.orders else seeds.stop, seeds.stop)

    async def _explained(self, name: str, crashed: InstanceResult) -> VariantCrash:
        """Return a crash, with its variant if that can be identified; no crash is ever lost."""
        begun = [part for part in (*self.before, self.parts[-1]) if part.orders]
        try:
            if begun:
                return await self._singled_out(name, begun[-1], crashed)
        except (KgymError, OSError) as error:
            self.missing = f"a crash could not be looked into: {error}"
        return self.search.crash(name, crashed)

    async def _singled_out(self, name: str, part: Part, crashed: InstanceResult) -> VariantCrash:
        """Return the crash with the seed that causes it alone, and as few changes as suffice."""
        shows = [(seed, ALL_CHANGES) for batch in part.orders[-2:] for seed in batch]
        together, again = await _repeat(self.search.kernel, f"{name}-again", part, shows)
        if again.outcome is not InstanceOutcome.CRASH or not together.shown:
            return self.search.crash(name, crashed)
        seed, shown = together.shown[-1]
        single = [1 << bit for bit in shown.changes] if len(shown.changes) > 1 else []
        # The last variant need not be the cause: leaks and hangs are reported later.
        for number, mask in enumerate((*single, ALL_CHANGES)):
            guest, show = f"{name}-alone-{number}", [(seed, mask)]
            alone, result = await _repeat(self.search.kernel, guest, part, show)
            if result.outcome is InstanceOutcome.CRASH and result.title == again.title:
                # Alone, it may be another change: those of syzkaller programs build on each other.
                changes = (alone.shown[-1][1] if alone.shown else shown).changes
                return VariantCrash(
                    seed=seed,
                    mask=mask,
                    pace=part.pace,
                    title=result.title or "",
                    kind=await self._kind(name, result, part, show),
                    changes=[changes[bit].words for bit in sorted(changes)],
                    instance=guest,
                )
        return self.search.crash(name, again)

    async def _kind(
        self, name: str, crash: InstanceResult, part: Part, shows: Sequence[tuple[int, int]]
    ) -> VariantCrashKind:
        """Return a crash's kind; if it is not the bug's, try it on the unpatched kernel."""
        kind = self.search.crash(name, crash, VariantCrashKind.NEW).kind
        if kind is not VariantCrashKind.NEW:
            return kind
        if self.search.unpatched is None:
            return VariantCrashKind.UNKNOWN
        _, before = await _repeat(self.search.unpatched, f"{name}-before", part, shows)
        if before.outcome is InstanceOutcome.SURVIVED:
            return VariantCrashKind.NEW
        if before.outcome is not InstanceOutcome.CRASH:
            return VariantCrashKind.UNKNOWN
        # If it shows the bug first, the unpatched kernel does not come as far.
        is_other = likeness(before, [crash.title or ""]) is not None
        return VariantCrashKind.OTHER_BUG if is_other else VariantCrashKind.NEW


async def _repeat(
    kernel: Guest, name: str, part: Part, shows: Sequence[tuple[int, int]]
) -> tuple[Part, InstanceResult]:
    """Run variants of a part again, each in turn, in a new guest."""
    repeated = Part(shows=shows, pace=part.pace, words=part.words)
    return repeated, await kernel(name, VariantSession(repeated))


def _difference(seed: int, before: Shown, after: Shown) -> str:
    """Describe the first difference between two runs of a variant."""
    changes = "; ".join(after.changes[bit].words for bit in sorted(after.changes))
    for size in (3, 4):  # data are compared last: they may be times
        for old, new in zip(before.calls, after.calls, strict=False):
            if old[:size] == new[:size]:
                continue
            _, call, result, _ = old
            what = f"{call} gives {_outcome(new[2])} instead of {_outcome(result)}"
            if result == new[2]:
                what = f"{call} writes other data"
            if old[:2] != new[:2]:
                what = f"it makes other calls after {call}"
            return f"variant {seed} ({changes}): {what}"
    return f"variant {seed} ({changes}): it ends in another way"


def _outcome(result: int) -> str:
    return str(result) if result >= 0 else result_name(-result)


def _diverse(same: dict[int, QuietVariant], ran: dict[int, Ran]) -> list[QuietVariant]:
    """Return the variants to keep: each kind of behaviour once, then those with few changes."""
    near = sorted(same, key=lambda seed: (ran[seed].changes, seed))
    kinds: dict[str, int] = {}
    for seed in near:
        kinds.setdefault(same[seed].digest[:RESULTS], seed)
    chosen = list(dict.fromkeys([*kinds.values(), *near]))[:KEPT_QUIET]
    return [same[seed] for seed in chosen]
