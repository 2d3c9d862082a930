"""How runs of a program end, and whether enough of them completed their work. Pure.

A program ends by itself (`exit`, `signal`), or is killed when its time is over (`killed`). A killed
run counts only if it is the sole run: if a program ends and is started again, its last run is
always cut off.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kgym.api.steps import RunEnd

# How a run ended, and its exit status or signal.
End = tuple[str, int]

# The end of a run that did its work, by convention.
DONE: End = ("exit", 0)
# The end of a program that does not end by itself: normal for fuzzers' programs.
KILLED: End = ("killed", 0)
# On a patched kernel, the share of completed runs has to be half of the unpatched kernel's, give or
# take two runs: timing differs between kernels.
_SHARE = 0.5
_GIVE = 2


@dataclass(frozen=True, slots=True)
class CompletedRuns:
    """The ends of completed runs, and the `share` of them on the unpatched kernel.

    `known` says where this knowledge comes from.
    """

    ends: frozenset[End] = frozenset({DONE, KILLED})
    share: float = 0.0
    known: str = "a run that does its work exits 0, or goes on to the end of its time"

    def lacks(self, ends: Mapping[End, int]) -> str | None:
        """Return why runs with these ends prove nothing; None if enough of them are completed."""
        total = sum(ends.values())
        good = sum(count for end, count in ends.items() if end in self.ends)
        if good and good + _GIVE >= self.share * _SHARE * total:
            return None
        what = f"{good} of {total} runs" if good else f"none of {total} runs"
        return f"{what} did its work: {in_words(ends)}; {self.known}"


# For a program of which nothing is known.
CONVENTION = CompletedRuns()


def completed(named: Sequence[str], before: Iterable[RunEnd]) -> CompletedRuns:
    """Return which ends count as completed.

    `named` are the ends that the bundle lists (`exit 1`). Without them, the ends are learned from
    `before`, the runs on the unpatched kernel: exit status 0 always counts; if no run there exited
    with 0 or was killed, all ends seen there count.
    """
    seen: Counter[End] = Counter()
    for run_end in before:
        seen[run_end.how, run_end.value] += run_end.count
    # The bundle knows best; then what was seen; then the convention.
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
    """Return the ends as stored in a result, the most frequent first."""
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
