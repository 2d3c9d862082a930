"""Progress of a run for people: a live tree on a terminal, else one line per event."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from kgym.api.agent.runs import Event, NodeView
from kgym_cli.output import live_view, people

Data = dict[str, Any]
_STYLES = {
    "resolved": "bold green",
    "crashed": "red",
    "rejected": "magenta",
    "no_patch": "yellow",
    "inconclusive": "dim",
    "stopped": "dim",
}
_REFRESH_SECONDS = 0.25
# Characters of the tree's first line.
_MOST = 200


class RunProgress:
    """State of a run, updated by its events."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.nodes: dict[str, NodeView] = {}
        # The node and the kind of each piece of work under way, by its name.
        self.doing: dict[str, tuple[str, str]] = {}
        self.headline = "showing the bug on the unpatched kernel"
        self._dollars, self._tokens, self._unpriced = 0.0, 0, 0
        self._kernels = 0
        self._begun = time.monotonic()

    def hear(self, event: Event) -> None:
        """Process an event; without a terminal, print those that matter."""
        data: dict[str, Any] = dict(event.data)
        match event.kind:
            case "asked" | "asked_again":
                self.doing[data["name"]] = data["node"], data["work"]
            case "result":
                self.doing.pop(data["name"], None)
                self._count(data)
            case "dropped":
                self.doing.pop(data["name"], None)
            case "node":
                self.nodes[data["name"]] = NodeView.model_validate(data)
            case "begin" | "resumed":
                self.headline = f"the crash: {data['title']}"
        if (line := words(event)) and not live_view.lives():
            people.print(" ".join(line.split()))

    def _count(self, data: dict[str, Any]) -> None:
        if "tokens" in data:
            self._tokens += data["tokens"]
            self._dollars += data["price"] or 0.0
            # An unknown price must not count as $0: the total is shown as unknown.
            self._unpriced += data["price"] is None
        self._kernels += data["work"] == "try"

    def tree(self, height: int) -> RenderableType:
        """Return as many nodes as fit, as a tree, and the cost so far."""
        message = " ".join(f"run {self.run}: {self.headline}".split())
        root = Tree(escape(message[:_MOST]))
        branches: dict[str | None, Tree] = {None: root}
        # Four lines are left for the headline, the number of hidden nodes, the cost and the cursor.
        for node in list(self.nodes.values())[: max(1, height - 4)]:
            branch = branches.get(node.parent, root)
            branches[node.name] = branch.add(self._node(node))
        if len(self.nodes) > height - 4:
            root.add(f"… {len(self.nodes) - max(1, height - 4)} more")
        return Group(root, Text(self._took(), style="dim"))

    def _node(self, node: NodeView) -> Text:
        text = Text(f"{node.name} ", no_wrap=True, overflow="ellipsis")
        if node.outcome is not None:
            text.append(node.outcome, _STYLES.get(node.outcome, ""))
            wrong = node.problems[0] if node.outcome == "no_patch" and node.problems else ""
            text.append(f" {' '.join((node.crash or wrong).split())}")
        else:
            works = [work for at, work in self.doing.values() if at == node.name]
            text.append(", ".join(sorted(works)) or "waits", "cyan")
        if node.hypothesis:
            text.append(f"  {' '.join(node.hypothesis.split())}", "dim")
        return text

    def _took(self) -> str:
        known = self._tokens and not self._unpriced
        cost = f"${self._dollars:.2f}, " if known else "price not known, " * bool(self._tokens)
        took = f"{self._tokens} tokens, {self._kernels} kernels, {len(self.nodes)} cycles"
        return f"{cost}{took}, {time.monotonic() - self._begun:.0f} s"


async def watch(run: int, events: AsyncIterator[Event]) -> None:
    """Show a run until it ends."""
    progress = RunProgress(run)

    async def refresh(show: Callable[[], None]) -> None:
        while True:
            show()
            await asyncio.sleep(_REFRESH_SECONDS)

    # Redrawn by time, not by event: a forest of hundreds of nodes gets many events a second.
    with live_view.shown(progress.tree) as show:
        showing = asyncio.create_task(refresh(show))
        try:
            async for event in events:
                progress.hear(event)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)


def words(event: Event) -> str:
    """Return an event in one line; empty for the events of single questions."""
    say = _WORDS.get(event.kind)
    return say(dict(event.data)) if say is not None else ""


def _begun(data: Data) -> str:
    notes = "".join(f"; {note}" for note in data["notes"])
    return f"the crash: {data['title']} (job {data['job']}){notes}"


def _answered(data: Data) -> str:
    if "verdict" not in data:
        return ""
    crash = f": {data['crash']}" if data["crash"] else ""
    return f"{data['node']}: {data['verdict']}{crash} (job {data['job']})"


def _failed(data: Data) -> str:
    return f"{data['name']}: {data['reason']}: {data['message']}"


# Text of each kind of event that is printed. Keys are the events' names in the run's file.
_WORDS: Mapping[str, Callable[[Data], str]] = {
    "asked_again": lambda data: (
        f"{data['name']}: asked again: the agent was killed before an answer came"
    ),
    "begin": _begun,
    "ended": lambda data: f"{data['state']}{': ' if data['reason'] else ''}{data['reason']}",
    "fix": lambda data: f"fixes: {', '.join(data['nodes'])}",
    "lost": lambda data: f"{data['name']}: lost twice, not asked again",
    "node": lambda data: f"{data['name']}: {data['outcome']}" if data["outcome"] else "",
    "refused_setting": lambda data: f"the model refuses: {', '.join(data['settings'])}",
    "resumed": lambda data: f"resumed: {data['title']}",
    "result": _answered,
    "unanswered": _failed,
    "waiting": _failed,
}
