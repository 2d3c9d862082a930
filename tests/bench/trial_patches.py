"""The 60 patches of `bench trials`, on two shipped bugs of one kernel: 30 of each.

Right ones are the labelled set's; wrong ones are those of it that the reproducer does not notice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, cycle, islice

from kgym.api.outcomes import Outcome
from kgym.api.steps import Edit, Patch, Verdict
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.bugs.sweep_rows import Row
from tests.honesty.labelled import labelled
from tests.honesty.redteam import tricks


class Kind(StrEnum):
    """What is true of a patch."""

    RIGHT = "right"
    WRONG = "wrong"
    """It is wrong, but the reproducer does not show that."""
    CRASHES = "crashes"
    DISHONEST = "dishonest"
    BROKEN = "broken"
    """It does not compile."""


# How many of each kind a bug has, and the patches of tests/honesty that are used.
COUNTS = {
    "watch-queue-filter": dict(zip(Kind, (15, 6, 5, 1, 3), strict=True)),
    "key-read-negative": dict(zip(Kind, (15, 6, 4, 2, 3), strict=True)),
}
NAMED = {
    *("signed-when-copied", "type-2-when-copied", "one-filter-at-most", "fifteen-filters"),
    *("copy-kept", "old-filter-kept", "not-supported", "returns-at-once", "always-enokey"),
    *("errors-from-enokey-on", "empty-payload", "length-of-the-buffer"),
    *("padded", "operation-dropped", "sometimes"),
}


@dataclass(frozen=True, slots=True)
class Tried:
    """A patch on a bug, and what is true of it."""

    bug: Bug
    kind: Kind
    patch: Patch

    def agrees(self, row: Row) -> bool:
        """Return whether the row says of the patch what is true of it."""
        match self.kind:
            case Kind.RIGHT:
                return row.outcome is Outcome.RESOLVED
            case Kind.WRONG:
                return row.verdict is Verdict.NO_CRASH
            case Kind.CRASHES:
                return row.verdict is Verdict.SAME_CRASH
            case Kind.DISHONEST:
                return row.outcome is Outcome.NOT_RESOLVED
            case Kind.BROKEN:
                return row.outcome is Outcome.DOES_NOT_COMPILE


def trial_patches(run: str) -> list[Tried]:
    """Return all patches, with the kinds and bugs mixed; those of another run are others."""
    # The part of its kind that a patch has come to, so that each beginning is a mixture.
    ranked = [
        (at / count, Tried(bundle.load(bug), kind, _unlike(patch, f"{run} {kind} {at}")))
        for bug, counts in COUNTS.items()
        for kind, count in counts.items()
        for at, patch in enumerate(islice(cycle(_of_kind(bundle.load(bug), kind)), count))
    ]
    return [tried for _, tried in sorted(ranked, key=lambda each: each[0])]


def _of_kind(bug: Bug, kind: Kind) -> Iterator[Patch]:
    assert bug.fix is not None
    first = bug.fix.edits[0]
    known = labelled(bug.name)
    match kind:
        case Kind.RIGHT:
            yield from (each.patch for each in known.right)
        case Kind.WRONG | Kind.DISHONEST:
            named = known.wrong if kind is Kind.WRONG else tricks(bug.name)
            yield from (each.patch for each in named if each.name in NAMED)
        case Kind.CRASHES:
            yield Patch(name="as-it-was", edits=[_replacing(first, first.original)])
        case Kind.BROKEN:
            unknown = first.replacement + "\nnothing_declares_this();\n"
            yield Patch(name="unknown-name", edits=[_replacing(first, unknown)])


def _replacing(edit: Edit, text: str) -> Edit:
    return edit.model_copy(update={"replacement": text})


def _unlike(patch: Patch, words: str) -> Patch:
    """Return the patch with a comment, so that no earlier build or trial answers for it."""
    first, *others = patch.edits
    edits = [_replacing(first, f"/* {words} */{first.replacement}"), *others]
    name = "-".join(chain(words.split()[1:], [patch.name]))
    return patch.model_copy(update={"name": name, "edits": edits})
