"""How runs of a program end, and whether enough of them ended with its work done. Pure.

A program ends by itself (`exit`, `signal`), or we end it with its time (`killed`), which says
something only where it was the one run that there was: of a program that ends and is started
again, the last run is always cut off.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kgym.api.steps import RunEnd

# How a run ended, and its exit status or signal.
End = tuple[str, int]

# What a reproducer's run ends with when it did its work.
DONE: End = ("exit", 0)
# A program that does not end by itself: normal for those of fuzzers.
KILLED: End = ("killed", 0)
_SHARE = 0.5
# A patched kernel shows completed runs at half the old rate at least, give or take two runs.
_GIVE = 2


@dataclass(frozen=True, slots=True)
class CompletedRuns:
    """What a completed run is: one that ends so; `share` of the runs did on the unpatched kernel.

    `known` says where that is known from.
    """

    ends: frozenset[End] = frozenset({DONE, KILLED})
    share: float = 0.0
    known: str = "a run that does its work exits 0, or goes on to the end of its time"

    def lacks(self, ends: Mapping[End, int]) -> str | None:
        """Say why runs that ended so prove nothing; None if enough of them are completed."""
        total = sum(ends.values())
        good = sum(count for end, count in ends.items() if end in self.ends)
        if good and good + _GIVE >= self.share * _SHARE * total:
            return None
        what = f"{good} of {total} runs" if good else f"none of {total} runs"
        return f"{what} did its work: {in_words(ends)}; {self.known}"


# Where nothing is known of a program.
CONVENTION = CompletedRuns()


def completed(named: Sequence[str], before: Iterable[RunEnd]) -> CompletedRuns:
    """Return what a completed run is.

    `named` are the ends that the bundle calls so (`exit 1`), if it does; else it is learned
    from `before`, the runs that ended on the unpatched kernel: a run that exits 0 always counts,
    and one that ended as those did if none of them exited 0 or went on to the end of its time.
    """
    seen: Counter[End] = Counter()
    for run_end in before:
        seen[run_end.how, run_end.value] += run_end.count
    if named:
        good, known = {_end(words) for words in named}, f"the bundle says: {', '.join(named)}"
    elif seen:
        good = (seen.keys() & {DONE, KILLED} or set(seen)) | {DONE}
        known = f"on the unpatched kernel: {in_words(seen)}"
    else:
        return CONVENTION
    share = sum(count for end, count in seen.items() if end in good) / max(1, seen.total())
    return CompletedRuns(frozenset(good), share, known)


def in_words(ends: Mapping[End, int]) -> str:
    """Return the ends in words, the most frequent first."""
    ordered = sorted(ends.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count} x {_words(end)}" for end, count in ordered[:4]]
    return ", ".join([*shown, "…"] if len(ordered) > len(shown) else shown) or "no run ended"


def listed(ends: Mapping[End, int]) -> list[RunEnd]:
    """Return the ends as a result keeps them, the most frequent first."""
    ordered = sorted(ends.items(), key=lambda item: (-item[1], item[0]))
    return [RunEnd(how=how, value=value, count=count) for (how, value), count in ordered if count]


def _end(words: str) -> End:
    how, _, value = words.partition(" ")
    return how, int(value or 0)


def _words(end: End) -> str:
    match end:
        case "killed", _:
            return "never ended"
        case "signal", number:
            return f"signal {number}"
        case _, status:
            return f"exit status {status}"
