"""Requests for runs, and views of them: the bodies of the agent's REST interface."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, JsonValue, model_validator

from kgym.api.agent.conversation import Reply, Turn
from kgym.api.agent.nodes import Node
from kgym.api.agent.strategy import Strategy
from kgym.api.steps import Strict, TreePath

Text = Annotated[str, Field(max_length=16 << 20)]


class RunState(StrEnum):
    """The state of a run. All but `running`, `resolved` and `unresolved` can be resumed."""

    RUNNING = "running"
    RESOLVED = "resolved"
    """The search is over or at a limit, with at least one fix."""
    UNRESOLVED = "unresolved"
    """The search is over, without a fix."""
    LIMITED = "limited"
    """A limit was reached without a fix."""
    STOPPED = "stopped"
    """A user stopped it."""
    FAILED = "failed"
    """It cannot continue: the model or the platform refuses, or the crash does not reproduce."""
    INTERRUPTED = "interrupted"
    """The process that executed it has ended."""


class Limits(Strict):
    """Limits of a run with all its resumptions. At a limit it ends with the fixes so far."""

    dollars: float | None = Field(
        None, gt=0, le=1e6, description="by the model's prices; not for models of unknown price"
    )
    # On by default, so that no run costs without bound; some models have no known price.
    tokens: int = Field(20_000_000, ge=1, le=1 << 40, description="input and output")
    seconds: float = Field(86_400, gt=0, le=1e7)
    builds: int = Field(200, ge=1, le=100_000, description="patched kernels that are built and run")
    concurrency: int = Field(8, ge=1, le=100, description="questions to the model at a time")
    jobs: int = Field(8, ge=1, le=100, description="jobs on the platform at a time")


class RunRequest(Strict):
    """The bug to fix, and how to search."""

    bug: str = Field(min_length=1, max_length=200, description="name of a shipped bug")
    bundle: dict[TreePath, Text] | None = Field(
        None, max_length=100, description="files of your own bundle, named `bug`"
    )
    folder: str | None = Field(
        None, max_length=4096, description="of a bundle on the agent's machine"
    )
    strategy: str | Strategy = Field("forest", description="name of a shipped one, or a table")
    model: str = Field(min_length=1, max_length=500, description="PROVIDER:MODEL")
    trace: bool = Field(True, description="show the model the calls before the crash")
    files: list[TreePath] = Field(
        [], max_length=100, description="candidate files, instead of the strategy's localisation"
    )
    window: int | None = Field(
        None,
        ge=2_000,
        le=100_000_000,
        description="tokens of a question and its answer; null: the model's window, 200000 at most",
    )
    discussion: bool = Field(False, description="whether the model may read the bundle's mails")
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _one_bug(self) -> "RunRequest":
        if self.bundle is not None and self.folder is not None:
            raise ValueError("give `bundle` or `folder`")
        return self


class Resumption(Strict):
    """How to resume a run."""

    limits: Limits | None = Field(None, description="new limits")


class Spent(Strict):
    """What a run has used so far."""

    dollars: float | None = Field(
        None, description="null if the price of a call is unknown, or its answer was lost"
    )
    known_dollars: float = Field(0.0, description="of calls with a known price")
    unpriced_calls: int = Field(0, description="calls without a known price")
    calls: int = Field(0, description="questions that were answered")
    failed_calls: int = 0
    lost_calls: int = Field(
        0, description="without an answer, as the agent was killed; they may have been paid for"
    )
    input_tokens: int = 0
    cached_tokens: int = Field(0, description="of the input tokens")
    output_tokens: int = 0
    checks: int = 0
    builds: int = 0
    seconds: float = 0.0
    seconds_of_model: float = 0.0

    @model_validator(mode="before")
    @classmethod
    def _unknown_is_not_zero(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        unknown = given.get("unpriced_calls") or given.get("lost_calls")
        return {**given, "dollars": None if unknown else given.get("known_dollars", 0.0)}

    @property
    def cost(self) -> str:
        """The cost as text; an unknown price is not 0."""
        if self.dollars is not None:
            return f"${self.dollars:.2f}"
        if self.unpriced_calls == self.calls:
            return "cost unknown"
        more = f"{self.unpriced_calls + self.lost_calls} calls of unknown price"
        return f"${self.known_dollars:.2f} and {more}"


class FixView(Strict):
    """A patch that resolves the bug, ranked by confidence."""

    number: int = Field(description="its rank, from 1")
    node: str
    diff: str
    confidence: float | None
    notes: int = Field(description="number of findings that do not block the fix")
    lines: int = Field(description="number of added and removed lines")
    agreement: int = Field(description="number of trees with the same change")


class RunFilter(Strict):
    """Conditions on the runs of a list; null means any."""

    state: RunState | None = None
    bug: str | None = Field(None, max_length=200)
    strategy: str | None = Field(None, max_length=200)
    model: str | None = Field(None, max_length=500)
    submitter: str | None = Field(None, max_length=100)


class RunSummary(Strict):
    """A run in a list."""

    id: int
    bug: str
    strategy: str
    model: str
    submitter: str
    state: RunState
    reason: str = Field("", description="for the state")
    created_at: AwareDatetime
    ended_at: AwareDatetime | None
    fixes: int
    spent: Spent


class RunPage(Strict):
    """Runs, newest first."""

    runs: list[RunSummary]
    next: int | None = Field(None, description="`cursor` of the next page")


class NodeView(Strict):
    """A short view of a debug cycle."""

    name: str
    parent: str | None
    depth: int
    outcome: str | None = Field(description="null while it runs")
    hypothesis: str | None
    candidates: int
    problems: list[str] = Field([], description="of the candidates, including their earlier forms")
    answers: list[str] = Field(
        [],
        description="how answers were read, why some could not be, and why patches got no verdict",
    )
    crash: str | None = Field(description="title of the patched kernel's crash")
    doing: list[str] = Field([], description="work that it waits for")
    dollars: float | None = Field(
        None, description="of its questions so far; null if a price is unknown"
    )

    @classmethod
    def of(cls, node: Node, doing: list[str] | None = None) -> "NodeView":
        """Return the short view of a node."""
        tried = node.tried
        notes = [note for candidate in node.candidates for note in candidate.notes]
        notes += [
            f"a patch does what {candidate.repeats} tried"
            for candidate in node.candidates
            if candidate.repeats
        ]
        # Without a verdict, the platform or the reproducer failed; the reason tells what to do.
        notes += [f"no verdict: {run.reason}" for run in node.runs if run.undecided]
        return cls(
            name=node.name,
            parent=node.parent,
            depth=node.depth,
            outcome=str(node.outcome) if node.outcome else None,
            # Cut: a run may have a thousand nodes, and views are sent again and again.
            hypothesis=node.hypothesis[:500] if node.hypothesis else None,
            candidates=len(node.candidates),
            problems=[
                problem[:300] for candidate in node.candidates for problem in candidate.problems
            ][:20],
            answers=[text[:300] for text in [*node.unreadable, *notes]][:20],
            crash=tried.crash.title if tried and tried.crash else None,
            doing=doing or [],
        )


class RunView(RunSummary):
    """The current state of a run."""

    title: str | None = Field(None, description="of the crash; null before it was shown")
    files: list[str] = Field([], description="candidate files")
    notes: list[str] = []
    limits: Limits
    nodes: list[NodeView]
    ranked: list[FixView] = Field(description="all patches that resolve the bug, the best first")
    jobs: dict[str, list[int]] = Field(description="of the scheduler, by name of the work")
    position: int = Field(
        0, description="number of the last event in this view, from which to follow the run"
    )


class CallView(Strict):
    """A question to the model and its answer."""

    name: str
    node: str
    purpose: str
    asked: int = Field(description="how often it was sent: twice if the agent was killed")
    asked_at: AwareDatetime
    answered_at: AwareDatetime | None
    error: str | None
    system: str
    prompt: str
    turns: int = Field(description="number of earlier turns of the conversation")
    last_turn: Turn | None
    reply: Reply | None


class Event(Strict):
    """An event of a run."""

    number: int
    at: datetime
    kind: str
    data: dict[str, JsonValue]
