"""The posterior of a bisection: the likely commits, and the next one to test. Pure.

One *place* of a history changed the bug: one of its commits, or ELSEWHERE, which means that the
"good" end has the bug as well. Each place implies which kernels have the bug: if a commit
introduced it, those that contain this commit; if a commit fixed it, those that do not. So merges
need no special case: only ancestry counts.

Runs are noisy. A kernel with the bug crashes in a run with probability p. Calibrating runs have
measured p: k of N crashed, and p is assumed to follow Beta(k, N - k + 1), as in
`kgym.bugs.calibration`. The same crash without the bug is assumed in one of 1,000 tests. Let c
tests have crashed and q runs been quiet on kernels that have the bug under a place, and a tests
have crashed on the other kernels. Then the place has the weight

    B(k + c, N - k + 1 + q) / B(k, N - k + 1) * 0.001^a

and the weights are normalised to 1 (Bayes, with a uniform prior). No place is ever ruled out, so
the search recovers from a misleading test: later results contradict it. p is the same for all
kernels, so overestimating quiet runs affects all places alike.

The next commit to test is the one that halves the weight (probabilistic bisection: M. Horstein,
"Sequential transmission using noiseless feedback", IEEE Trans. Inf. Theory 9, 1963). Kernels that
do not build or boot give no information and are not tried again. Their neighbours are avoided,
since they are often broken in the same way.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kgym.bisection.history import History

# Probability that a test of a kernel without the bug shows the same crash.
FALSE_CRASH = 1e-3
# Distance from a skipped commit at which half of the commits are assumed to be broken too.
_NEIGHBOURS = 16
# Weight below which a place is ignored when the next commit is chosen.
_NEGLIGIBLE = 1e-9

# Test results under a place: crashes and quiet runs with the bug, crashes without it.
Tally = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Rate:
    """The measured crash rate: `crashed` of `runs` runs, at least one of them."""

    crashed: int
    runs: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The next commit to test; None ends the search.

    `likely` is the smallest set of places whose total probability, `sure`, reaches the requested
    confidence, the likeliest first. Places of equal probability are included together.
    """

    commit: int | None
    likely: Sequence[int]
    sure: float


class Search:
    """The state of a search in a history, with commits given by number.

    With `fix`, the last commit is the good end, and one commit removed the bug. Otherwise the good
    end is the commit before the history. It has the number `len(history)`, and so has ELSEWHERE.
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
        self._tallies: list[Tally] = [(0, 0, 0)] * (len(history) + 1)

    def with_bug(self, commit: int) -> bytearray:
        """Return, for each place, 1 if it implies that this commit has the bug, else 0."""
        if commit == len(self.history):  # before all of them
            return bytearray([*bytes(commit), 1])
        before = self.history.before(commit)
        return bytearray([*((1 - earlier for earlier in before) if self.fix else before), 1])

    def record_test(self, commit: int, *, crashed: bool, quiet: int) -> None:
        """Record a test of a commit: whether it crashed, and the number of quiet runs."""
        for place, has in enumerate(self.with_bug(commit)):
            crashes, quietly, wrong = self._tallies[place]
            if has:
                self._tallies[place] = (crashes + crashed, quietly + quiet, wrong)
            elif crashed:
                self._tallies[place] = (crashes, quietly, wrong + 1)

    def skip(self, commit: int) -> None:
        """Record that a commit cannot be tried."""
        self.skipped.add(commit)

    def weights(self) -> list[float]:
        """Return the probability of each place."""
        # Most places share a tally, so few logarithms have to be computed.
        counts = Counter(self._tallies)
        logs = {tally: self._log_weight(*tally) for tally in counts}
        top = max(logs.values())
        total = math.fsum(count * math.exp(logs[tally] - top) for tally, count in counts.items())
        weights = {tally: math.exp(log - top) / total for tally, log in logs.items()}
        return [weights[tally] for tally in self._tallies]

    def next(self) -> Choice:
        """Return the commit to test next, unless no test can distinguish the likely places."""
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
            # Prefer commits far from skipped ones, weighed against how well they halve.
            far = broken[commit]
            value = min(mass, 1 - mass) * (far / (far + _NEIGHBOURS) if self.skipped else 1)
            if value > most:
                best, most = commit, value
        return Choice(best if parts else None, likely, sure)

    def _log_weight(self, crashes: int, quiet: int, wrong: int) -> float:
        k, others = self._rate.crashed, self._rate.runs - self._rate.crashed + 1
        # All tests share one unknown crash rate. If they were treated as independent, many quiet
        # runs would count for more than they prove.
        log_weight = _log_beta(k + crashes, others + quiet) - _log_beta(k, others)
        return log_weight + wrong * math.log(FALSE_CRASH)

    def _likely(self, weights: Sequence[float]) -> tuple[list[int], float]:
        """Return the likeliest places that reach the confidence, in groups of equal weight."""
        groups: dict[Tally, list[int]] = {}
        for place, tally in enumerate(self._tallies):
            groups.setdefault(tally, []).append(place)
        likely: list[int] = []
        sure = 0.0
        for places in sorted(groups.values(), key=lambda places: -weights[places[0]]):
            likely += places
            sure += len(places) * weights[places[0]]
            if sure >= self.confidence:
                break
        return likely, min(1.0, sure)

    def _masses(
        self, weights: Sequence[float], wanted: set[int]
    ) -> Iterator[tuple[int, float, int]]:
        """Yield each commit with the weight of the places that imply its having the bug.

        The third value is the number of wanted places among them.
        """
        # A commit's ancestors are the bits of an integer, which is dropped once no child needs it
        # any more: 100,000 commits take 100 MB and 2 to 20 s.
        counting = {place for place, weight in enumerate(weights) if weight > _NEGLIGIBLE}
        counting = (counting | wanted) - {self.elsewhere}
        bit = {place: number for number, place in enumerate(sorted(counting))}
        alike: dict[float, list[int]] = {}
        for place, number in bit.items():
            alike.setdefault(weights[place], []).append(number)
        classes = [(each, _bits(numbers)) for each, numbers in alike.items()]
        marked = _bits(sorted(bit[place] for place in wanted if place != self.elsewhere))
        everywhere = weights[self.elsewhere]
        whole = math.fsum(weights) - everywhere
        extra = int(self.elsewhere in wanted)

        children = Counter(parent for commit in self.history.commits for parent in commit.parents)
        rows: dict[int, int] = {}
        for number, commit in enumerate(self.history.commits):
            row = 1 << bit[number] if number in bit else 0
            for parent in commit.parents:
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
    """Return the number of tests of a search without misleading tests.

    It includes the first one, of the good end.
    """
    return 1 + math.ceil(math.log2(commits + 1))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _bits(numbers: Sequence[int]) -> int:
    """Return the integer with these bits set; `numbers` are sorted."""
    whole = bytearray(numbers[-1] // 8 + 1 if numbers else 0)
    for number in numbers:
        whole[number // 8] |= 1 << number % 8
    return int.from_bytes(whole, "little")


def _distances(marks: Collection[int], count: int) -> list[int]:
    """Return the distance of each number below `count` from the nearest mark."""
    distances = [count] * count
    for numbers in (range(count), range(count - 1, -1, -1)):
        far = count
        for number in numbers:
            far += 1
            distances[number] = min(distances[number], far)
            if number in marks:
                far = distances[number] = 0
    return distances
