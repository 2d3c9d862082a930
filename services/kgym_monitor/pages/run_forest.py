"""The debug forest of a run as HTML trees of its cycles. Pure."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kgym.api.agent.runs import NodeView

# Depth of a drawn tree: Chromium nests at most 512 elements, and a level takes two. Deeper cycles
# start a new tree.
DEEPEST = 200


def key(name: str) -> str:
    """Return a cycle's key for element ids: letters and digits only."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Cycle:
    """A debug cycle and its children."""

    view: NodeView
    depth: int = 0
    children: list["Cycle"] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Key for element ids."""
        return key(self.view.name)


# Returns the card of a cycle as HTML, an element with the id `c-KEY`.
DrawCard = Callable[[Cycle], str]


def forest(nodes: Iterable[NodeView], draw: DrawCard) -> str:
    """Return all trees as HTML; `nodes` must have parents before children."""
    cycles: dict[str, Cycle] = {}
    roots: list[Cycle] = []
    for view in nodes:
        cycle, parent = Cycle(view), cycles.get(view.parent or "")
        cycles[view.name] = cycle
        if parent is None or parent.depth + 1 >= DEEPEST:
            roots.append(cycle)
        else:
            cycle.depth = parent.depth + 1
            parent.children.append(cycle)
    return "".join(_branch(cycle, draw) for cycle in roots)


def _branch(cycle: Cycle, draw: DrawCard) -> str:
    below = "".join(_branch(child, draw) for child in cycle.children)
    return (
        f'<li role="none" id="n-{cycle.key}">{draw(cycle)}'
        f'<ul role="group" id="k-{cycle.key}">{below}</ul></li>'
    )


def outcomes(nodes: Iterable[NodeView]) -> dict[str, int]:
    """Count cycles by outcome; `open`: still running."""
    counts: dict[str, int] = {}
    for view in nodes:
        outcome = view.outcome or "open"
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts
