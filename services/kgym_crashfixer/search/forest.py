"""Searches: which debug cycles are carried out, from where (CrashFixer, section 4.3)."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kgym.api.agent.nodes import Node, NodeOutcome
from kgym.api.agent.strategy import BestFirst, Forest
from kgym_crashfixer.search.cycle import Memory, State, cycle
from kgym_crashfixer.search.engine import Plan, together

# Further tries of a cycle on which the platform came to no verdict.
_REPEATED = 2


def forest(strategy: Forest, memory: Memory, state: State, name: str = "") -> Plan[bool]:
    """Grow the trees; return whether one has a fix. `name` goes before theirs."""
    roots = [f"{name}{'.' if name else ''}t{number}" for number in range(strategy.trees)]
    if strategy.grow == "progress":
        return (yield from _pursued(strategy, memory, state, roots, None, (state.crash.title,)))
    trees = {root: _tree(strategy, memory, state, root, None, 0) for root in roots}
    results = yield from together(trees, lambda fixed: fixed and strategy.stop == "forest")
    return any(results.values())


def _pursued(
    strategy: Forest,
    memory: Memory,
    state: State,
    names: Sequence[str],
    parent: Node | None,
    titles: tuple[str, ...],
) -> Plan[bool]:
    """Try so many hypotheses about one crash as there are names; return whether one is a fix.

    `titles` are the crashes that cycles on the way there began with.
    """
    enough = strategy.stop == "forest" or (strategy.stop == "tree" and parent is not None)
    left = list(names)
    fixed = False
    while left:
        taught = with_lessons(state, memory)
        node, is_fixed = yield from _followed(
            strategy, memory, taught, left.pop(0), parent, titles, "hypothesis"
        )
        fixed |= is_fixed
        if (is_fixed and enough) or node.outcome is NodeOutcome.INCONCLUSIVE:
            break
        others = [hypothesis for hypothesis in node.hypotheses if hypothesis != node.hypothesis][
            : strategy.further
        ]
        taught = with_lessons(state, memory)
        plans = {
            name: _followed(
                strategy,
                memory,
                replace(taught, hypothesis=hypothesis),
                name,
                parent,
                titles,
                "patch",
            )
            for name, hypothesis in zip(left, others, strict=False)
        }
        left = left[len(plans) :]
        results = yield from together(plans, lambda result: result[1] and enough)
        fixed |= any(is_fixed for _, is_fixed in results.values())
        if fixed and enough:
            break
    return fixed


def _followed(
    strategy: Forest,
    memory: Memory,
    state: State,
    name: str,
    parent: Node | None,
    titles: tuple[str, ...],
    begins_at: str,
) -> Plan[tuple[Node, bool]]:
    """Carry out a cycle, and go on from there where the kernel crashes in another way."""
    node, after = yield from _conclusive(strategy, memory, state, name, parent, begins_at)
    if node.outcome is NodeOutcome.RESOLVED:
        return node, True
    changed = node.outcome is NodeOutcome.CRASHED and after.crash.title not in titles
    if not changed or node.depth == strategy.depth:
        return node, False
    children = [f"{name}.{number}" for number in range(strategy.branching)]
    titles = (*titles, after.crash.title)
    return node, (yield from _pursued(strategy, memory, after, children, node, titles))


def _tree(
    strategy: Forest, memory: Memory, state: State, name: str, parent: Node | None, child: int
) -> Plan[bool]:
    """Carry out a node's cycle, then its children's; return whether one has a fix."""
    begins_at = strategy.branch_at[child % len(strategy.branch_at)] if parent else "hypothesis"
    node, after = yield from _conclusive(strategy, memory, state, name, parent, begins_at)
    if node.outcome is NodeOutcome.RESOLVED:
        return True
    if node.outcome is NodeOutcome.INCONCLUSIVE or node.depth == strategy.depth:
        return False
    children = {
        f"n{number}": _tree(strategy, memory, after, f"{name}.{number}", node, number)
        for number in range(strategy.branching)
    }
    fixed = yield from together(children, lambda fixed: fixed and strategy.stop != "branch")
    return any(fixed.values())


def _conclusive(
    strategy: Forest | BestFirst,
    memory: Memory,
    state: State,
    name: str,
    parent: Node | None,
    begins_at: str,
) -> Plan[tuple[Node, State]]:
    """Carry out a cycle, again where the platform came to no verdict: that counts as none."""
    for number in range(1 + _REPEATED):
        again = f"{name}~{number}" if number else name
        node = memory.node(again, parent, begins_at)
        after = yield from cycle(strategy.cycle, memory, state, node)
        if node.outcome is not NodeOutcome.INCONCLUSIVE:
            break
    return node, after


@dataclass(frozen=True, slots=True, order=True)
class _Open:
    """A state from which a cycle may begin; the smallest comes first."""

    badness: tuple[int, int]
    number: int
    state: State = field(compare=False)
    parent: Node | None = field(compare=False)


@dataclass(slots=True)
class _Frontier:
    """The states that wait for a cycle, and how many cycles there may still be."""

    first: _Open
    left: int
    begun: int = 0
    open: list[_Open] = field(default_factory=list)

    def best(self) -> _Open:
        """Take the most promising state; the first one can be taken again and again."""
        return heapq.heappop(self.open) if self.open else self.first


def best_first(strategy: BestFirst, memory: Memory, state: State, name: str = "") -> Plan[bool]:
    """Carry out cycles from the most promising states on; return whether one has a fix.

    Several go on side by side, and each that ends makes room for the state that is best then.
    Where none waits, another begins at the first: what the model thinks of differs.
    """
    frontier = _Frontier(_Open((0, 0), 0, state, None), strategy.cycles)
    prefix = f"{name}{'.' if name else ''}c"
    plans = {
        f"w{number}": _expand(strategy, memory, frontier, prefix)
        for number in range(min(strategy.width, strategy.cycles))
    }
    fixed = yield from together(plans, lambda fixed: fixed and strategy.stop != "branch")
    return any(fixed.values())


def _expand(strategy: BestFirst, memory: Memory, frontier: _Frontier, prefix: str) -> Plan[bool]:
    """Carry out one cycle after the other; return whether one has a fix."""
    fixed = False
    while frontier.left:
        frontier.left -= 1
        number, begin = frontier.begun, frontier.best()
        frontier.begun += 1
        node, after = yield from _conclusive(
            strategy, memory, begin.state, f"{prefix}{number}", begin.parent, "hypothesis"
        )
        if node.outcome is NodeOutcome.INCONCLUSIVE:  # it costs no cycle, but the platform fails
            frontier.left += 1
            heapq.heappush(frontier.open, begin)
            return fixed
        if node.outcome is NodeOutcome.RESOLVED:
            fixed = True
            if strategy.stop != "branch":
                break
        elif node.depth < strategy.depth:
            badness = _badness(node, frontier.first.state)
            heapq.heappush(frontier.open, _Open(badness, number, after, node))
    return fixed


def _badness(node: Node, first: State) -> tuple[int, int]:
    """Tell how little promise a failed node has: another crash is some progress."""
    tried = node.tried
    if tried is None or node.outcome is NodeOutcome.NO_PATCH:
        return (3, node.depth)
    if tried.crash is None:
        return (1, node.depth)
    return (1 if tried.crash.title != first.crash.title else 2, node.depth)


def with_lessons(state: State, memory: Memory) -> State:
    """Return the first state with what failed so far: for a search that starts anew."""
    known = {lesson.diff for lesson in state.lessons}
    lessons = [
        replace(lesson, inherited=False)
        for lesson in memory.lessons.values()
        if lesson.diff not in known
    ]
    return replace(state, lessons=(*state.lessons, *lessons))
