"""The Complete Intersection Score (CrashFixer, 5.1.4): does a trace contain what the fix edits?

For one bug, a stage scores 1 if it contains every function edited by the true fix, else 0. The
score of a set of bugs is the sum.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from kgym.api.steps import MinimalTrace, TraceCall, TracePart
from kgym.trace.records import canonical


class Stage(StrEnum):
    """The part of a trace that counts; each stage includes the previous one."""

    STACK = "stack"
    """The frames of the stack that occur in the thread."""
    ANCHOR = "anchor"
    """From the outermost to the innermost of them."""
    BACKWARD = "backward"
    FORWARD = "forward"
    THREAD = "thread"
    """The whole thread."""


_PARTS = {
    Stage.ANCHOR: {TracePart.MATCH},
    Stage.BACKWARD: {TracePart.MATCH, TracePart.BACKWARD},
    Stage.FORWARD: {TracePart.MATCH, TracePart.BACKWARD, TracePart.FORWARD},
}


def score(minimal: MinimalTrace, edited: Collection[str]) -> dict[Stage, int]:
    """Return 1 for each stage that contains all edited functions, else 0.

    Functions are compared by their source names. Without any edited function, all stages score 0.
    """
    wanted = {canonical(name) for name in edited}
    return {
        stage: int(bool(wanted) and wanted <= names) for stage, names in _stages(minimal).items()
    }


def total(scores: Iterable[Mapping[Stage, int]]) -> dict[Stage, int]:
    """Return the sum of each stage's scores over many bugs."""
    result = dict.fromkeys(Stage, 0)
    for score in scores:
        for stage, value in score.items():
            result[stage] += value
    return result


def _stages(minimal: MinimalTrace) -> dict[Stage, set[str]]:
    stages = {Stage.STACK: _names(call for call in minimal.calls if call.frame is not None)}
    for stage, parts in _PARTS.items():
        stages[stage] = _names(call for call in minimal.calls if call.part in parts)
    stages[Stage.THREAD] = {canonical(function.name) for function in minimal.functions}
    return stages


def _names(calls: Iterable[TraceCall]) -> set[str]:
    return {canonical(function.name) for call in calls for function in call.pattern}
