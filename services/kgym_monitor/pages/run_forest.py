"""The debug forest of a run: its cycles as trees, of which what changed is drawn anew. Pure."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kgym.api.agent.runs import NodeView

DEEPEST = 200
"""Cycles on the way from a root that are drawn as a tree; deeper ones begin at the edge again."""


def key(name: str) -> str:
    """Return what stands for a cycle in the ids of elements: letters and digits alone."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Cycle:
    """A debug cycle as it is drawn."""

    view: NodeView
    first: int
    """The number of the event that first told of it,"""
    changed: int
    """and of the last one."""
    depth: int = 0
    children: list[str] = field(default_factory=list)
    drawn: str | None = None
    """Its card; None: it has changed since it was drawn."""

    @property
    def key(self) -> str:
        """Its part of the ids of elements."""
        return key(self.view.name)


DrawCard = Callable[[Cycle], str]
"""Returns the card of a cycle as HTML, an element with the id `c-KEY`."""


class Forest:
    """All cycles of a run, in the order in which they began."""

    def __init__(self, draw: DrawCard) -> None:
        self._draw = draw
        self._cycles: OrderedDict[str, Cycle] = OrderedDict()
        """The one that has changed last is the last."""
        self._roots: list[str] = []

    def __len__(self) -> int:
        """Return how many cycles have begun."""
        return len(self._cycles)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a cycle of this name."""
        return name in self._cycles

    def put(self, view: NodeView, at: int) -> None:
        """Take in what event number `at` says of a cycle; a new one grows on its parent."""
        if (known := self._cycles.get(view.name)) is not None:
            known.view = view
        else:
            cycle = self._cycles[view.name] = Cycle(view, at, at)
            self._plant(cycle, at)
        self._touch(view.name, at)

    def do(self, name: str, doing: list[str], at: int) -> None:
        """Note what a cycle waits for."""
        if (cycle := self._cycles.get(name)) is not None and cycle.view.doing != doing:
            cycle.view = cycle.view.model_copy(update={"doing": doing})
            self._touch(name, at)

    def changed_since(self, at: int) -> tuple[list[Cycle], list[Cycle]]:
        """Return the cycles that are new since event `at` and whose parents are not, which bring
        their children with them; and the older ones that have changed."""
        new, old = [], []
        for cycle in self._newest():
            if cycle.changed <= at:
                break
            if cycle.first <= at:
                old.append(cycle)
            elif (above := self.above(cycle)) is None or above.first <= at:
                new.append(cycle)
        return sorted(new, key=lambda one: one.first), old

    def above(self, cycle: Cycle) -> Cycle | None:
        """Return the cycle that it is drawn upon; None for one at the edge."""
        return self._cycles[cycle.view.parent or ""] if cycle.depth else None

    def card(self, cycle: Cycle) -> str:
        """Return the card of a cycle."""
        if cycle.drawn is None:
            cycle.drawn = self._draw(cycle)
        return cycle.drawn

    def branch(self, cycle: Cycle) -> str:
        """Return the item of a cycle, with all that grows on it."""
        below = "".join(self.branch(self._cycles[name]) for name in cycle.children)
        one = cycle.key
        return (
            f'<li role="none" id="n-{one}">{self.card(cycle)}'
            f'<ul role="group" id="k-{one}">{below}</ul></li>'
        )

    def html(self) -> str:
        """Return the items of all roots."""
        return "".join(self.branch(self._cycles[name]) for name in self._roots)

    def outcomes(self) -> dict[str, int]:
        """Return how many cycles ended in which way; `open`: not yet."""
        counted: dict[str, int] = {}
        for cycle in self._cycles.values():
            word = cycle.view.outcome or "open"
            counted[word] = counted.get(word, 0) + 1
        return counted

    def _plant(self, cycle: Cycle, at: int) -> None:
        parent = self._cycles.get(cycle.view.parent or "")
        if parent is None or parent is cycle or parent.depth + 1 >= DEEPEST:
            self._roots.append(cycle.view.name)
            return
        cycle.depth = parent.depth + 1
        parent.children.append(cycle.view.name)
        self._touch(parent.view.name, at)

    def _touch(self, name: str, at: int) -> None:
        cycle = self._cycles[name]
        cycle.changed, cycle.drawn = max(at, cycle.changed), None
        self._cycles.move_to_end(name)

    def _newest(self) -> Iterator[Cycle]:
        return reversed(self._cycles.values())
