"""A search by a strategy, from the first crash to the fixes."""

from collections.abc import Sequence
from dataclasses import replace

from kgym.api.agent.nodes import Node, NodeOutcome
from kgym.api.agent.runs import FixView
from kgym.api.agent.strategy import BestFirst, Escalate, Forest, Strategy, Tool
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import Memory, State
from kgym_crashfixer.search.engine import Asked, Engine, Plan
from kgym_crashfixer.search.forest import best_first, forest, with_lessons
from kgym_crashfixer.search.review import REVIEW, review
from kgym_crashfixer.search.tool import tool
from kgym_crashfixer.search.work import Question, Result, Seen, Trace

# Name of the work that traces the first crash, and of its job.
TRACE = "begin trace"


class Search:
    """A search, which asks for work and receives results.

    It performs no I/O: the agent, a replay, the simulated study and the tests drive the same code.
    The same results in the same order produce the same requests under the same names. A run is
    resumed by replaying its results, and no state of a search is stored.
    """

    def __init__(self, strategy: Strategy, state: State, trace: Sequence[str] = ()) -> None:
        """Begin; the crash is traced beside the search, through the functions of `trace`'s files.

        Questions show the trace once it is there. Strategies whose first question is a hypothesis,
        as in the paper, wait for it.
        """
        first = state.crash
        self._memory = Memory(validate_with=strategy.validate_with, first=first, trace=first.trace)
        # All debug cycles so far by name, in the order in which they began.
        self.nodes = self._memory.nodes
        self._tracing = [Asked(TRACE, Trace(files=list(trace)))] if trace else []
        cycle = getattr(strategy, "cycle", None)  # escalations and plain agents have none
        self._waits = bool(trace) and cycle is not None and not cycle.looks
        self._engine = Engine(self._reviewed(strategy, state))

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self._engine.done

    def ask(self) -> list[Asked]:
        """Return the work that can begin now, each piece once."""
        tracing, self._tracing = self._tracing, []
        return tracing + ([] if self._waits else [_named(asked) for asked in self._engine.ask()])

    def tell(self, name: str, result: Result) -> None:
        """Pass the result of a piece of work; results of dropped work are ignored."""
        if name == TRACE:
            self._tracing, self._waits = [], False
            self._memory.trace = result.text if isinstance(result, Seen) else None
        else:
            self._engine.tell(name, result)

    def dropped(self) -> list[str]:
        """Return the names of work that became unnecessary since the last call."""
        return self._engine.dropped()

    def stop(self) -> None:
        """End the search early: at a limit, or at a user's request."""
        self._engine.stop()
        for node in self.nodes.values():
            node.outcome = node.outcome or NodeOutcome.STOPPED

    def _reviewed(self, strategy: Strategy, state: State) -> Plan[bool]:
        """Search; then review the best fix, if the strategy wants that."""
        fixed = yield from _plan(strategy, self._memory, state)
        if strategy.review and (fixes := self.fixes()):
            yield from review(strategy.review, self._memory, state, self.nodes[fixes[0].node])
        return fixed

    def fixes(self) -> list[FixView]:
        """Return all patches that resolve the bug: the reviewed one, then by confidence."""
        fixes = []
        ended = self.nodes.get(REVIEW)
        for node in self.nodes.values():
            if ended is not None and ended.outcome and node.name == ended.parent:
                continue  # the reviewed diff takes its place
            if node.outcome is NodeOutcome.RESOLVED and node.chosen is not None and node.tried:
                patch = node.candidates[node.chosen]
                fixes.append(
                    FixView(
                        number=0,
                        node=node.name,
                        diff=patch.diff,
                        confidence=node.tried.confidence,
                        notes=len(node.tried.findings),
                        lines=_lines(patch.diff),
                        agreement=self._agreement(patch.digest),
                    )
                )
        # Confidence is the evidence. Then few findings and a small diff make a review easy; trees
        # that agree are only a hint.
        fixes.sort(key=lambda fix: (-(fix.confidence or 0), fix.notes, fix.lines, -fix.agreement))
        fixes.sort(key=lambda fix: fix.node != REVIEW)
        return [fix.model_copy(update={"number": rank}) for rank, fix in enumerate(fixes, 1)]

    def _agreement(self, digest: str) -> int:
        return len(
            {
                self._root(node)
                for node in self.nodes.values()
                if any(candidate.digest == digest for candidate in node.candidates)
            }
        )

    def _root(self, node: Node) -> str:
        """Return the name of a node's tree."""
        while node.parent is not None:
            node = self.nodes[node.parent]
        # A repeated cycle of a root is named `t0~1` and belongs to the tree `t0`.
        return node.name.partition("~")[0]


def _named(asked: Asked) -> Asked:
    """Add its name to a question, since several trees may ask the same."""
    if isinstance(asked.work, Question):
        named = asked.work.model_copy(update={"occurrence": asked.name})
        return Asked(asked.name, named)
    return asked


def _lines(diff: str) -> int:
    return sum(
        line[:1] in {"+", "-"} and line[:3] not in {"+++", "---"} for line in diff.splitlines()
    )


def _plan(strategy: Strategy, memory: Memory, state: State, name: str = "") -> Plan[bool]:
    # With one file, `in_turn` and `together` are the same; this also ends the recursion of
    # `_in_turn`.
    if strategy.files == "in_turn" and len(state.code.files) > 1:
        return _in_turn(strategy, memory, state, name)
    match strategy:
        case Forest():
            return forest(strategy, memory, state, name)
        case BestFirst():
            return best_first(strategy, memory, state, name)
        case Tool():
            return tool(strategy, memory, state, name or "tool")
        case Escalate():
            return _escalate(strategy, memory, state, name)


def _in_turn(strategy: Strategy, memory: Memory, state: State, name: str) -> Plan[bool]:
    """Search in one file after the other until there is a fix (CrashFixer, section 6.1)."""
    alone = strategy.model_copy(update={"files": "together"})
    for number, (path, text) in enumerate(state.code.files.items()):
        taught = with_lessons(replace(state, code=Code({path: text})), memory)
        if (yield from _plan(alone, memory, taught, f"{name}{'.' if name else ''}f{number}")):
            return True
    return False


def _escalate(strategy: Escalate, memory: Memory, state: State, name: str) -> Plan[bool]:
    """Run the phases until one has a fix; each receives the failures of earlier phases."""
    # A restart is a phase, so that RGym's agents are strategy files, whose parts fit any other.
    for number, phase in enumerate(strategy.phases):
        for time in range(phase.times):
            taught = with_lessons(state, memory)
            begun = f"phase{number}{f'-{time}' if phase.times > 1 else ''}"
            begun = f"{name}{'.' if name else ''}{begun}"
            if (yield from _plan(phase.strategy, memory, taught, begun)):
                return True
    return False
