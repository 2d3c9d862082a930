"""Lists of a call tree for a page: a bounded number of rows, and links to the rest. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from kgym_monitor.traces.call_tree import Node
from kgym_monitor.traces.idle_axis import Axis

# Most calls of one list.
LIST = 100
# Most rows of one answer.
ROWS = 500


@dataclass(frozen=True, slots=True)
class More:
    """Rows that are not shown: their number, if known, and their address."""

    count: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Part:
    """Children of a node from `first` to before `end`; `back`: they precede shown ones.

    Without these, the children around the anchor or the first marked call.
    """

    node: int = 0
    first: int | None = None
    end: int | None = None
    back: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A node, its shown children, and its bar: x and width in thousandths of the axis."""

    node: Node
    hit: bool
    open: bool
    bar: tuple[float, float] | None
    """None if it is outside of the axis."""
    within: "CallList | None" = None
    """Its children, if they are shown;"""
    part: str | None = None
    """otherwise their address."""


@dataclass(frozen=True, slots=True)
class CallList:
    """Consecutive rows, and what is left out before and after them."""

    rows: list[Row]
    earlier: More | None = None
    later: More | None = None


class Lister:
    """Builder of lists of one tree, limited to the axis's window."""

    def __init__(
        self,
        root: Node,
        axis: Axis,
        words: str,
        address: Callable[["Part"], str],
        *,
        gap: Callable[[Node], str | None],
        within: bool = True,
    ) -> None:
        """Prepare a tree.

        Args:
            root: Root of the tree.
            axis: Axis of the bars.
            words: Calls whose names contain this are marked.
            address: Returns the address of a part of a list.
            gap: Returns the address of the records in a gap, if they exist.
            within: Whether to leave out nodes outside of the axis's window.
        """
        self.axis = axis
        self._root = root
        words = words.casefold()
        self._address = address
        self._gap = gap
        self._within = within
        self._left = ROWS
        nodes = [root, *root.walk()]
        self._nodes = {node.number: node for node in nodes}
        self._hits = {node.number for node in nodes if words and words in node.name.casefold()}
        # Nodes that contain an anchor or a marked call.
        self._unfolded = set[int]()
        for node in nodes:
            if node.anchor or node.number in self._hits:
                self._unfolded |= {above.number for above in node.path}

    @property
    def hits(self) -> int:
        """Number of marked calls."""
        return len(self._hits)

    def list(self, part: Part) -> CallList:
        """Return a part of a list; raise KeyError if there is no such node."""
        children = self._nodes[part.node].children
        if self._within:
            children = [child for child in children if self._lies_within(child)]
        first = part.first
        if first is None:
            shown = self._hits | self._unfolded
            wanted = (
                n for n, child in enumerate(children) if child.anchor or child.number in shown
            )
            first = max(0, next(wanted, 0) - LIST // 2)
        end = first + LIST if part.end is None else min(part.end, first + LIST)
        rows = []
        for node in children[first:end]:
            if self._left <= 0:
                break
            rows.append(self._row(node))
        end = first + len(rows)
        earlier = later = None
        if first and (part.back or part.first is None):
            more = Part(part.node, max(0, first - LIST), first, back=True)
            earlier = More(first, self._address(more))
        if end < len(children) and not part.back:
            later = More(len(children) - end, self._address(Part(part.node, end)))
        return CallList(rows, earlier, later)

    def _row(self, node: Node) -> Row:
        self._left -= 1
        open_ = node.number in self._unfolded or node.frame is not None
        within = part = None
        if node.kind == "gap":
            part = self._gap(node)
        elif node.children and (open_ or len(node.children) <= min(LIST, self._left)):
            within = self.list(Part(node.number))
        elif node.children:
            part = self._address(Part(node.number))
        return Row(
            node=node,
            hit=node.number in self._hits,
            open=open_ and within is not None,
            bar=self._bar(node),
            within=within,
            part=part,
        )

    def _bar(self, node: Node) -> tuple[float, float] | None:
        if not node.timed or not self._lies_within(node):
            return None
        x = 1000 * self.axis.place(node.time)
        width = max(4.0, 1000 * self.axis.place(self._end(node)) - x)
        return round(min(x, 996.0), 1), round(width, 1)

    def _end(self, node: Node) -> int:
        """Return the end of a node; if unknown, the end of the axis or its start."""
        if node.until is not None:
            return node.until
        return self.axis.last if node.children and node.kind == "call" else node.time

    def _lies_within(self, node: Node) -> bool:
        return node.time <= self.axis.last and self._end(node) >= self.axis.first
