"""Calls of one thread as a tree. Pure; takes linear time.

Records say when a function was entered, never when it was left. What is known to have been open is
nested: the frames of the crash's stack, until the thread enters the kernel anew, and system calls.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kgym.api.steps import TraceCall
from kgym.trace.records import canonical

# Levels; what lies deeper stands beside the deepest.
DEPTH = 40


@dataclass(slots=True, eq=False)
class Node:
    """A call, a pattern that repeats (its calls are children), or a gap.

    `number` is its place in the order of all nodes. `until` is when the thread next entered
    anything outside, which is at the latest when the call had returned; None: it is not known.
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
    """How often the pattern stands there; of a gap, the records that are left out."""
    frame: int | None = None
    anchor: bool = False
    syscall: bool = False
    timed: bool = True
    """False for the calls of a pattern: the trace is cut down to when it began."""
    parent: "Node | None" = None
    children: list["Node"] = field(default_factory=list)

    def walk(self) -> Iterator["Node"]:
        """Yield what lies below it, in order."""
        waiting = list(reversed(self.children))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    @property
    def path(self) -> list["Node"]:
        """What it lies in, the outermost first, without the root."""
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
    """Return whether a thread enters the kernel by this function."""
    return name.startswith("__") and canonical(name).startswith(("sys_", "compat_sys_"))


class _Builder:
    def __init__(self) -> None:
        self.root = Node(0, "root", "", None, 0, 0)
        self._count = 0
        self._open = [self.root]
        # Nodes of which it is not known when they ended, and how deep they lie.
        self._unended: list[tuple[int, Node]] = []
        self._last = self.root

    def add(self, call: TraceCall) -> None:
        """Add what comes next."""
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
        """Return whether it is the next part of the system call that was entered just before."""
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
        """Put it into what is open; what lies as deep or deeper ended by then, if that is known."""
        depth = len(self._open)
        while self._unended and self._unended[-1][0] >= depth:
            self._unended.pop()[1].until = ended
        if node.kind != "gap":
            self._unended.append((depth, node))
        node.parent = self._open[-1]
        node.parent.children.append(node)
