"""Forest and best-first search: the order of debug cycles (CrashFixer, section 4.3)."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kgym.api.agent.nodes import Node, NodeOutcome
from kgym.api.agent.strategy import BestFirst, Forest
from kgym_crashfixer.search.cycle import Memory, State, cycle, first_hypotheses
from kgym_crashfixer.search.engine import Plan, together

# Further tries of a cycle that was inconclusive.
_REPEATED = 2
# Rating of a hypothesis of the first answer: after progress, before more of the same crash.
_UNTRIED = (2, 0)


def forest(strategy: Forest, memory: Memory, state: State, name: str = "") -> Plan[bool]:
    """Grow the trees; return whether one has a fix. `name` is the prefix of their names."""
    roots = [f"{name}{'.' if name else ''}t{number}" for number in range(strategy.trees)]
    growth = _Growth(strategy, memory)
    if strategy.grow == "progress":
        return (yield from growth.pursued(state, roots, None, (state.crash.title,)))
    trees = {root: growth.tree(state, root, None, 0) for root in roots}
    results = yield from together(trees, lambda fixed: fixed and strategy.stop == "forest")
    return any(results.values())


@dataclass(frozen=True, slots=True)
class _Growth:
    """How trees grow."""

    strategy: Forest
    memory: Memory

    def pursued(
        self, state: State, names: Sequence[str], parent: Node | None, titles: tuple[str, ...]
    ) -> Plan[bool]:
        """Try one hypothesis about a crash for each name; return whether one is a fix.

        `titles` are the crashes with which the ancestors began.
        """
        # Kernels cost more than questions, so every answer lists all hypotheses with their rank,
        # and no summary is asked for: a hypothesis and its result stand side by side in later
        # prompts.
        strategy = self.strategy
        enough = strategy.stop == "forest" or (strategy.stop == "tree" and parent is not None)
        left = list(names)
        fixed = False
        while left:
            taught = with_lessons(state, self.memory)
            node, is_fixed = yield from self._followed(
                taught, left.pop(0), parent, titles, "hypothesis"
            )
            fixed |= is_fixed
            if (is_fixed and enough) or node.outcome is NodeOutcome.INCONCLUSIVE:
                break
            others = [text for text in node.hypotheses if text != node.hypothesis]
            taught = with_lessons(state, self.memory)
            plans = {
                name: self._followed(
                    replace(taught, hypothesis=text), name, parent, titles, "patch"
                )
                for name, text in zip(left, others[: strategy.further], strict=False)
            }
            left = left[len(plans) :]
            results = yield from together(plans, lambda result: result[1] and enough)
            fixed |= any(is_fixed for _, is_fixed in results.values())
            if fixed and enough:
                break
        return fixed

    def _followed(
        self, state: State, name: str, parent: Node | None, titles: tuple[str, ...], begins_at: str
    ) -> Plan[tuple[Node, bool]]:
        """Run a cycle; continue from its result if the kernel crashes in a new way."""
        strategy, memory = self.strategy, self.memory
        node, after = yield from _conclusive(strategy, memory, state, name, parent, begins_at)
        if node.outcome is NodeOutcome.RESOLVED:
            return node, True
        # A patch that left the crash as it was is nothing to build upon.
        changed = node.outcome is NodeOutcome.CRASHED and after.crash.title not in titles
        if not changed or node.depth == strategy.depth:
            return node, False
        children = [f"{name}.{number}" for number in range(strategy.branching)]
        titles = (*titles, after.crash.title)
        return node, (yield from self.pursued(after, children, node, titles))

    def tree(self, state: State, name: str, parent: Node | None, child: int) -> Plan[bool]:
        """Run a node's cycle, then its children; return whether one has a fix."""
        strategy = self.strategy
        begins_at = strategy.branch_at[child % len(strategy.branch_at)] if parent else "hypothesis"
        node, after = yield from _conclusive(strategy, self.memory, state, name, parent, begins_at)
        if node.outcome is NodeOutcome.RESOLVED:
            return True
        if node.outcome is NodeOutcome.INCONCLUSIVE or node.depth == strategy.depth:
            return False
        children = {
            f"n{number}": self.tree(after, f"{name}.{number}", node, number)
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
    """Run a cycle; repeat it if it was inconclusive, which counts as no cycle."""
    for number in range(1 + _REPEATED):
        again = f"{name}~{number}" if number else name
        # The first cycle of a best-first search has its node already, with its hypotheses.
        node = memory.nodes.get(again) or memory.node(again, parent, begins_at)
        after = yield from cycle(strategy.cycle, memory, state, node)
        if node.outcome is not NodeOutcome.INCONCLUSIVE:
            break
    return node, after


@dataclass(frozen=True, slots=True, order=True)
class _Open:
    """A state from which a cycle may begin; the smallest is the most promising."""

    # Class of the outcome, then depth: among equals the shallower node has drifted less.
    badness: tuple[int, int]
    number: int
    state: State = field(compare=False)
    parent: Node | None = field(compare=False)
    begins_at: str = field(default="hypothesis", compare=False)


@dataclass(slots=True)
class _Frontier:
    """The states that wait for a cycle, and the number of cycles left."""

    first: _Open
    left: int
    begun: int = 0
    open: list[_Open] = field(default_factory=list)

    def best(self, memory: Memory) -> _Open:
        """Take the most promising state, or the first one, which never runs out."""
        if self.open:
            return heapq.heappop(self.open)
        # With all failures so far, or the model would be asked the same again.
        return replace(self.first, state=with_lessons(self.first.state, memory))


def best_first(strategy: BestFirst, memory: Memory, state: State, name: str = "") -> Plan[bool]:
    """Run cycles from the most promising states; return whether one has a fix.

    If no state waits, a worker begins at the first state again: the model's ideas differ.
    """
    # Workers share one heap. With rounds, all would wait for the slowest cycle of each round.
    frontier = _Frontier(_Open((0, 0), 0, state, None), strategy.cycles)
    prefix = f"{name}{'.' if name else ''}c"
    if strategy.cycle.hypotheses > 1:
        # The first cycles share one answer: side by side, each would ask the same.
        node = memory.node(f"{prefix}0", None, "hypothesis")
        state = yield from first_hypotheses(strategy.cycle, memory, state, node)
        likely = dict.fromkeys([node.hypothesis, *node.hypotheses] if node.hypothesis else [])
        frontier.open = [
            _Open(_UNTRIED, rank, replace(state, hypothesis=text), None, "patch")
            for rank, text in enumerate(likely)
        ]
    plans = {
        f"w{number}": _expand(strategy, memory, frontier, prefix)
        for number in range(min(strategy.width, strategy.cycles))
    }
    fixed = yield from together(plans, lambda fixed: fixed and strategy.stop != "branch")
    return any(fixed.values())


def _expand(strategy: BestFirst, memory: Memory, frontier: _Frontier, prefix: str) -> Plan[bool]:
    """Run one cycle after another; return whether one has a fix."""
    fixed = False
    while frontier.left:
        frontier.left -= 1
        number, begin = frontier.begun, frontier.best(memory)
        frontier.begun += 1
        node, after = yield from _conclusive(
            strategy, memory, begin.state, f"{prefix}{number}", begin.parent, begin.begins_at
        )
        if node.outcome is NodeOutcome.INCONCLUSIVE:  # the platform fails: give the cycle back
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
    """Rate a failed node, lower is better: a different crash is some progress."""
    tried = node.tried
    if tried is None or node.outcome is NodeOutcome.NO_PATCH:
        return (3, node.depth)
    if tried.crash is None:
        return (1, node.depth)
    return (1 if tried.crash.title != first.crash.title else 2, node.depth)


def with_lessons(state: State, memory: Memory) -> State:
    """Add all failures so far to a state from which a search starts again."""
    known = {lesson.diff for lesson in state.lessons}
    new = (lesson for lesson in memory.lessons.values() if lesson.diff not in known)
    lessons = [replace(lesson, inherited=False) for lesson in new]
    return replace(state, lessons=(*state.lessons, *lessons))
