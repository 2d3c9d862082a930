"""Which commit changed it, how sure that is, and which one to try next. Pure.

One *place* of a history changed the bug: a commit of it, or ELSEWHERE, which is that the end that
is said to be good has the bug all the same. Under each place it is known which kernels have the
bug: if a commit brought it, those that have this commit; if one fixed it, those that have it not.
So merges need no thought: what counts is which commits lie before which.

Runs are noisy. A kernel with the bug crashes in a run with a chance p, which calibrating runs have
measured: k of N crashed, and p is taken to follow Beta(k, N - k + 1) as in `kgym.bugs.calibration`.
The same crash without the bug is taken to come in one of 1,000 tests. With c tests that crashed and
q quiet runs on kernels that have the bug under a place, and a tests that crashed on others, the
place has the weight

    B(k + c, N - k + 1 + q) / B(k, N - k + 1) * 0.001^a

and all weights together are scaled to 1 (Bayes, all places alike before). Nothing is ever ruled
out, so a test that misled is recovered from: what follows contradicts it. p is one for all kernels,
so quiet runs that were believed too much are so for all places at once.

The next commit to try is the one that halves the weight (probabilistic bisection: M. Horstein,
"Sequential transmission using noiseless feedback", IEEE Trans. Inf. Theory 9, 1963). Kernels that
do not build or boot tell nothing, and are not tried again; those beside them are avoided, as they
are often broken in the same way.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kgym.bisection.history import History

FALSE_CRASH = 1e-3
"""The chance that a test of a kernel without the bug shows the same crash."""
_NEIGHBOURS = 16
"""Commits beside one that could not be tried, of which half are taken for broken, too."""
_NEGLIGIBLE = 1e-9
"""Weight of places that no longer count when the next commit is chosen."""

Told = tuple[int, int, int]
"""What tests say of a place: crashes and quiet runs with the bug, crashes without it."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often the bug showed: in `crashed` of `runs` runs, one at least."""

    crashed: int
    runs: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do next: try `commit`; or end, if it is None.

    `likely` are the places that hold the bug together with the chance `sure`, the likeliest first:
    as few as come to the confidence that is asked for, but all of those that are alike.
    """

    commit: int | None
    likely: Sequence[int]
    sure: float


class Search:
    """A search on its way, in a history whose commits are named by their numbers.

    With `fix`, the last commit is the good end, and a commit took the bug away. Else the good end
    is the commit before the history, which has the number `len(history)`; so has ELSEWHERE.
    """

    def __init__(
        self, history: History, rate: Rate, *, fix: bool = False, confidence: float = 0.95
    ) -> None:
        self.history = history
        self.fix = fix
        self.confidence = confidence
        self.elsewhere = len(history)
        self.good_end = len(history) - 1 if fix else len(history)
        self.skipped: set[int] = set()
        self._rate = rate
        self._told: list[Told] = [(0, 0, 0)] * (len(history) + 1)

    def with_bug(self, commit: int) -> bytearray:
        """Return, by place, whether this commit has the bug if that is the place: 1, or else 0."""
        if commit == len(self.history):  # before all of them
            return bytearray([*bytes(commit), 1])
        before = self.history.before(commit)
        return bytearray([*((1 - one for one in before) if self.fix else before), 1])

    def tell(self, commit: int, *, crashed: bool, quiet: int) -> None:
        """Hear of a test of a commit: whether it crashed, and how many of its runs were quiet."""
        for place, has in enumerate(self.with_bug(commit)):
            crashes, quietly, wrong = self._told[place]
            if has:
                self._told[place] = (crashes + crashed, quietly + quiet, wrong)
            elif crashed:
                self._told[place] = (crashes, quietly, wrong + 1)

    def skip(self, commit: int) -> None:
        """Hear that a commit cannot be tried."""
        self.skipped.add(commit)

    def weights(self) -> list[float]:
        """Return the chance of each place."""
        known = Counter(self._told)
        logs = {told: self._log(*told) for told in known}
        top = max(logs.values())
        whole = math.fsum(count * math.exp(logs[told] - top) for told, count in known.items())
        each = {told: math.exp(log - top) / whole for told, log in logs.items()}
        return [each[told] for told in self._told]

    def next(self) -> Choice:
        """Return what to try next, or that nothing more can be told, and what is likely."""
        weights = self.weights()
        likely, sure = self._likely(weights)
        if len(likely) == 1:
            return Choice(None, likely, sure)
        best, most, parts = None, 0.0, False
        broken = _distances(self.skipped, len(self.history) + 1)
        wanted = set(likely)
        for commit, mass, inside in self._masses(weights, wanted):
            if commit in self.skipped:
                continue
            parts = parts or 0 < inside < len(wanted)
            far = broken[commit]
            value = min(mass, 1 - mass) * (far / (far + _NEIGHBOURS) if self.skipped else 1)
            if value > most:
                best, most = commit, value
        return Choice(best if parts else None, likely, sure)

    def _log(self, crashes: int, quiet: int, wrong: int) -> float:
        k, others = self._rate.crashed, self._rate.runs - self._rate.crashed + 1
        shown = _log_beta(k + crashes, others + quiet) - _log_beta(k, others)
        return shown + wrong * math.log(FALSE_CRASH)

    def _likely(self, weights: Sequence[float]) -> tuple[list[int], float]:
        """Return the heaviest places that come to the confidence, whole groups of equal ones."""
        groups: dict[Told, list[int]] = {}
        for place, told in enumerate(self._told):
            groups.setdefault(told, []).append(place)
        found: list[int] = []
        sure = 0.0
        for ones in sorted(groups.values(), key=lambda ones: -weights[ones[0]]):
            found += ones
            sure += len(ones) * weights[ones[0]]
            if sure >= self.confidence:
                break
        return found, min(1.0, sure)

    def _masses(
        self, weights: Sequence[float], wanted: set[int]
    ) -> Iterator[tuple[int, float, int]]:
        """Yield each commit that can be tried, with the weight of the places under which it has the
        bug, and how many of the wanted ones these are.

        The places before a commit are the bits of an integer, of which only those are kept that
        another commit still needs.
        """
        counting = {one for one, weight in enumerate(weights) if weight > _NEGLIGIBLE}
        counting = (counting | wanted) - {self.elsewhere}
        bit = {place: number for number, place in enumerate(sorted(counting))}
        alike: dict[float, list[int]] = {}
        for place, number in bit.items():
            alike.setdefault(weights[place], []).append(number)
        classes = [(each, _bits(numbers)) for each, numbers in alike.items()]
        marked = _bits(sorted(bit[one] for one in wanted if one != self.elsewhere))
        everywhere = weights[self.elsewhere]
        whole = math.fsum(weights) - everywhere
        extra = int(self.elsewhere in wanted)

        children = Counter(parent for one in self.history.commits for parent in one.parents)
        rows: dict[int, int] = {}
        for number, one in enumerate(self.history.commits):
            row = 1 << bit[number] if number in bit else 0
            for parent in one.parents:
                row |= rows[parent]
                children[parent] -= 1
                if not children[parent]:
                    del rows[parent]
            rows[number] = row
            mass = math.fsum(each * (row & mask).bit_count() for each, mask in classes)
            inside = (row & marked).bit_count()
            if self.fix:
                mass, inside = whole - mass, marked.bit_count() - inside
            yield number, mass + everywhere, inside + extra
        if not self.fix:
            yield self.good_end, everywhere, extra


def expected_steps(commits: int) -> int:
    """Return how many tests a search among so many commits takes, if none misleads.

    The first is that of the good end.
    """
    return 1 + math.ceil(math.log2(commits + 1))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _bits(numbers: Sequence[int]) -> int:
    """Return the integer whose bits these are, given in order."""
    whole = bytearray(numbers[-1] // 8 + 1 if numbers else 0)
    for one in numbers:
        whole[one // 8] |= 1 << one % 8
    return int.from_bytes(whole, "little")


def _distances(marks: Collection[int], count: int) -> list[int]:
    """Return how far each number is from the nearest mark."""
    found = [count] * count
    for numbers in (range(count), range(count - 1, -1, -1)):
        far = count
        for number in numbers:
            far += 1
            found[number] = min(found[number], far)
            if number in marks:
                far = found[number] = 0
    return found
