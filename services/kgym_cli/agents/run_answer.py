"""What commands print about a run, and its exit status."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from kgym import tasks
from kgym.api.agent.report import Report
from kgym.api.agent.runs import Event, NodeView, RunState, RunView
from kgym.api.steps import Strict
from kgym.bugs import patch_kit
from kgym.client.agent_client import AgentClient
from kgym.errors import UserError, file_errors
from kgym_cli.agents.agent_models import REPLAY
from kgym_cli.output import Exit, live_view, people

if TYPE_CHECKING:
    from kgym.client.agent_calls import AgentCalls

# A run that was stopped or reached a limit has found no fix: a negative answer, not a failure.
_STATUSES = {
    RunState.RUNNING: Exit.OK,
    RunState.RESOLVED: Exit.OK,
    RunState.UNRESOLVED: Exit.NEGATIVE,
    RunState.LIMITED: Exit.NEGATIVE,
    RunState.STOPPED: Exit.NEGATIVE,
    RunState.FAILED: Exit.INFRASTRUCTURE,
    RunState.INTERRUPTED: Exit.INFRASTRUCTURE,
}
# Reasons for which a failed run is an answer, or the user's fault: retrying cannot help.
_NEGATIVE = {"does_not_reproduce"}
_USER = {"bad_bundle", "model_key_refused", "model_quota_exceeded", "no_such_model", "not_on_tape"}


class Cycles(Strict):
    """Counts of a run's debug cycles."""

    cycles: int
    depth: int = Field(description="of the deepest tree")
    candidates: int = Field(description="patches that were written")
    outcomes: dict[str, int] = Field(description="how cycles ended: `resolved`, `crashed` …")

    @classmethod
    def of(cls, run: RunView) -> "Cycles":
        """Count those of a run."""
        return cls(
            cycles=len(run.nodes),
            depth=max((node.depth for node in run.nodes), default=0),
            candidates=sum(cycle.candidates for cycle in run.nodes),
            outcomes=Counter(cycle.outcome or "under_way" for cycle in run.nodes),
        )


class FixAnswer(Strict):
    """Output of `kgym fix` and `kgym run resume`."""

    resolved: bool
    replayed: bool = Field(description="a tape answered instead of a model")
    run: RunView
    cycles: Cycles
    patch: str | None = Field(None, description="for `git am`; null without a fix")
    report: Report | None = None
    written: list[str] = Field([], description="files that were written")

    @classmethod
    def of(
        cls, run: RunView, patch: str | None = None, report: Report | None = None
    ) -> "FixAnswer":
        """Return the answer for a run as it is."""
        return cls(
            resolved=run.state is RunState.RESOLVED,
            replayed=run.model.startswith(REPLAY),
            run=run,
            cycles=Cycles.of(run),
            patch=patch,
            report=report,
        )

    def show(self, console: Console) -> None:
        """Print it for people."""
        run = self.run
        style = "green" if run.state is RunState.RESOLVED else "red"
        reason = f": {escape(run.reason)}" if run.reason else ""
        console.print(f"run {run.id} [bold {style}]{run.state}[/]{reason}", markup=True)
        spent = run.spent
        tokens = spent.input_tokens + spent.output_tokens
        took = f"{spent.cost}, {tokens} tokens, {spent.builds} kernels, {spent.seconds:.0f} s"
        counted = ", ".join(f"{number} {word}" for word, number in self.cycles.outcomes.items())
        console.print(f"took {took}")
        console.print(f"{len(run.nodes)} debug cycles: {counted or 'none'}")
        if self.replayed:
            console.print("replayed from a tape: tokens and dollars are those of the recording")
        for fix in run.ranked:
            sure = f"{fix.confidence:.0%} sure" if fix.confidence is not None else "not measured"
            message = f"fix {fix.number}: {fix.node}, {sure}, {fix.lines} lines, {fix.notes} notes"
            console.print(message)
        for path in self.written:
            console.print(f"written: {path}")
        if run.state not in {RunState.RESOLVED, RunState.UNRESOLVED, RunState.RUNNING}:
            console.print(f"resume with `kgym run resume {run.id}`")


async def follow(agent: "AgentCalls", run: int, author: str | None, after: int = 0) -> FixAnswer:
    """Show a run until it ends; return its result."""
    try:
        await watch(run, agent.follow(run, after))
    except asyncio.CancelledError:
        if isinstance(agent, AgentClient):
            message = f"run {run} goes on: `kgym run show {run}`; `kgym run stop {run}` ends it"
        else:
            message = f"run {run} and its jobs stop; resume with `kgym run resume {run}`"
        people.print(message)
        raise
    view = await agent.show(run)
    if not view.ranked:
        return FixAnswer.of(view)
    # Rank 1 is the best fix; others are available through `kgym run patch --number`.
    patch, report = await agent.patch(run, 1, author), await agent.report(run)
    return FixAnswer.of(view, patch, report)


def written(answer: FixAnswer, out: Path | None) -> FixAnswer:
    """Write the patch kit, if there is a fix: the patch, and its report as the cover note."""
    if answer.patch is None or answer.report is None:
        return answer
    out = out or Path(f"{answer.run.bug}-run{answer.run.id}")
    names = write_kit(out, answer.patch, answer.report.markdown)
    return answer.model_copy(update={"written": names})


def write_kit(folder: Path, mail: str, note: str) -> list[str]:
    """Write a patch kit; return its files. Raises UserError `cannot_write`."""
    files = patch_kit.files(mail, note)
    with file_errors(folder, "cannot_write"):
        _write_kit(folder, files)
    return [str(folder / name) for name in files]


def _write_kit(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # `git am FOLDER/*.patch` would apply it, too.
    if others := [path for path in folder.glob("*.patch") if path.name not in files]:
        raise UserError("cannot_write", f"{others[0]} is there: name another folder with --out")
    for name, text in files.items():
        # As the mail's header says, whatever this machine's encoding is.
        (folder / name).write_text(text, "utf-8", newline="")


def exit_of(run: RunView) -> Exit:
    """Return the exit status: 0 fixed, 1 not fixed, 2 bad input, 3 platform or provider error."""
    reason = run.reason.partition(":")[0]
    if run.state is RunState.FAILED and reason in _NEGATIVE:
        return Exit.NEGATIVE
    if run.state is RunState.FAILED and reason in _USER:
        return Exit.USER
    return _STATUSES[run.state]


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
            await tasks.end([showing])


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
