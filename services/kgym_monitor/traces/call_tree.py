"""Calls of a thread as a tree. Pure; linear time.

Records have the time at which a function was entered, not when it returned. Only what is known to
have been open is nested: system calls, and frames of the crash's stack until the thread enters the
kernel again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kgym.api.steps import TraceCall
from kgym.trace.records import canonical

# Most levels; deeper calls are siblings of the deepest.
DEPTH = 40


@dataclass(slots=True, eq=False)
class Node:
    """A call, a pattern that repeats (its calls are children), or a gap.

    `number` is its index in order of all nodes. `until` is when the thread next entered a function
    outside of the call, which must have returned by then; None: unknown.
    """

    number: int
    kind: str
    """`call`, `repeat`, `gap`."""
    name: str
    file: str | None
    time: int
    cpu: int
    until: int | None = None
    count: int = 1
    """Repetitions of the pattern; for a gap, the omitted records."""
    frame: int | None = None
    anchor: bool = False
    syscall: bool = False
    timed: bool = True
    """False for calls in a pattern: only the pattern's start time is kept."""
    parent: "Node | None" = None
    children: list["Node"] = field(default_factory=list)

    def walk(self) -> Iterator["Node"]:
        """Yield all descendants in order."""
        waiting = list(reversed(self.children))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    @property
    def path(self) -> list["Node"]:
        """Ancestors, outermost first, without the root."""
        path, node = list[Node](), self.parent
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


def tree(calls: Iterable[TraceCall]) -> Node:
    """Return a root whose children are the outermost calls."""
    builder = _Builder()
    for call in calls:
        builder.add(call)
    return builder.root


def is_syscall(name: str) -> bool:
    """Return whether a function is an entry of a system call."""
    return name.startswith("__") and canonical(name).startswith(("sys_", "compat_sys_"))


class _Builder:
    def __init__(self) -> None:
        self.root = Node(0, "root", "", None, 0, 0)
        self._count = 0
        self._open = [self.root]
        # Nodes with unknown end, and their depth.
        self._unended: list[tuple[int, Node]] = []
        self._last = self.root

    def add(self, call: TraceCall) -> None:
        """Add the next call."""
        first = call.pattern[0] if call.pattern else None
        name = first.name if first else ""
        syscall = is_syscall(name)
        if syscall and not self._goes_on(name):
            self._open = [self.root]
        if call.omitted:
            gap = self._new("gap", "", None, call)
            gap.time, gap.until, gap.count = self._last.time, call.time, call.omitted
            self._attach(gap, None)
        repeats = call.count > 1 or len(call.pattern) != 1
        title = f"{len(call.pattern)} calls" if len(call.pattern) > 1 else name
        node = self._new(
            "repeat" if repeats else "call", title, first.file if first else None, call
        )
        node.count, node.frame, node.anchor = call.count, call.frame, call.anchor
        node.syscall = syscall
        self._attach(node, call.time)
        self._last = node
        if repeats:
            self._add_pattern(node, call)
        elif (syscall or call.frame is not None) and len(self._open) < DEPTH:
            self._open.append(node)

    def _goes_on(self, name: str) -> bool:
        """Return whether a function is the next layer of the system call that was just entered."""
        return self._last.syscall and canonical(self._last.name) == canonical(name)

    def _add_pattern(self, node: Node, call: TraceCall) -> None:
        for function in call.pattern if len(call.pattern) > 1 else ():
            child = self._new("call", function.name, function.file, call)
            child.syscall, child.timed, child.parent = is_syscall(function.name), False, node
            node.children.append(child)

    def _new(self, kind: str, name: str, file: str | None, call: TraceCall) -> Node:
        self._count += 1
        return Node(self._count, kind, name, file, call.time, call.cpu)

    def _attach(self, node: Node, ended: int | None) -> None:
        """Append a node to the open one; siblings and deeper nodes have ended by `ended`."""
        depth = len(self._open)
        while self._unended and self._unended[-1][0] >= depth:
            self._unended.pop()[1].until = ended
        if node.kind != "gap":
            self._unended.append((depth, node))
        node.parent = self._open[-1]
        node.parent.children.append(node)
