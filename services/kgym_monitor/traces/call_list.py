"""A tree of calls as a page shows it: a bounded number of rows, the rest by address. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from kgym_monitor.traces.call_tree import Node
from kgym_monitor.traces.idle_axis import Axis

# Calls of one list that are shown at once.
LIST = 100
# Rows of one answer.
ROWS = 500


@dataclass(frozen=True, slots=True)
class More:
    """Rows that are not shown: how many, if that is known, and where they are."""

    count: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Part:
    """Children of a node, by its number: from one place to before another; `back`: before others.

    Without places, those around the anchor or the first call that is marked.
    """

    node: int = 0
    first: int | None = None
    end: int | None = None
    back: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A node, what of its children is shown, and its bar: x and width, thousandths of the axis."""

    node: Node
    hit: bool
    open: bool
    bar: tuple[float, float] | None
    """None if it lies outside of the axis."""
    within: "CallList | None" = None
    """What lies below it, if that is shown at once;"""
    part: str | None = None
    """else where that is."""


@dataclass(frozen=True, slots=True)
class CallList:
    """Rows that follow one another, and what is left out before and behind them."""

    rows: list[Row]
    earlier: More | None = None
    later: More | None = None


class Lister:
    """Makes the lists of one tree, of what lies in the axis's window."""

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
        """Take a tree.

        Args:
            root: Of the tree.
            axis: On which bars are drawn.
            words: Calls are marked whose names have them.
            address: Where a part of a list is.
            gap: Where the records are that a gap stands for, if they are known.
            within: Whether what lies outside of the axis's window is left out.
        """
        self.axis = axis
        self._root = root
        self._words = words.casefold()
        self._address = address
        self._gap = gap
        self._within = within
        self._left = ROWS
        nodes = [root, *root.walk()]
        self._nodes = {node.number: node for node in nodes}
        self._hits = {node.number for node in nodes if self._is_hit(node)}
        # Nodes in which something is that the reader wants to see.
        self._unfolded = set[int]()
        for node in nodes:
            if node.anchor or node.number in self._hits:
                self._unfolded |= {above.number for above in node.path}

    @property
    def hits(self) -> int:
        """Calls that are marked."""
        return len(self._hits)

    def list(self, part: Part) -> CallList:
        """Return a part of a list. Raises KeyError if there is no such node."""
        children = self._nodes[part.node].children
        if self._within:
            children = [child for child in children if self._lies_within(child)]
        first = part.first
        if first is None:
            wanted = (n for n, child in enumerate(children) if self._wanted(child))
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

    def _is_hit(self, node: Node) -> bool:
        return bool(self._words) and self._words in node.name.casefold()

    def _wanted(self, node: Node) -> bool:
        return node.anchor or node.number in self._hits or node.number in self._unfolded

    def _end(self, node: Node) -> int:
        """Return until when a node lasts, as far as that is known."""
        if node.until is not None:
            return node.until
        return self.axis.last if node.children and node.kind == "call" else node.time

    def _lies_within(self, node: Node) -> bool:
        return node.time <= self.axis.last and self._end(node) >= self.axis.first
