"""What pages of runs show: their words, the filter of their list, a debug cycle. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from kgym.api.agent.nodes import Node
from kgym.api.agent.runs import Limits, RunFilter, RunState, RunSummary, RunView
from kgym.api.agent.steps import RunStep
from kgym.api.steps import Patch
from kgym.errors import UserError
from kgym_monitor.pages import diff_lines
from kgym_monitor.pages.diff_lines import ShownPatch

PAGE = 50
"""Runs on a page."""
_STATES = {
    RunState.RUNNING: "running",
    RunState.RESOLVED: "succeeded",
    RunState.UNRESOLVED: "failed",
    RunState.LIMITED: "queued",
    RunState.STOPPED: "aborted",
    RunState.FAILED: "failed",
    RunState.INTERRUPTED: "aborted",
}
_OUTCOMES = {
    "open": ("under way", "running"),
    "resolved": ("resolved", "succeeded"),
    "crashed": ("crashed", "failed"),
    "rejected": ("rejected", "aborted"),
    "no_patch": ("no patch", "queued"),
    "inconclusive": ("inconclusive", "pending"),
    "stopped": ("stopped", "pending"),
}
_WORKS = {
    "files": ("look", "looks for files"),
    "source": ("look", "reads source"),
    "hypothesis": ("hypothesis", "a hypothesis"),
    "hypotheses": ("hypothesis", "hypotheses"),
    "reflection": ("reflection", "weighs hypotheses"),
    "patch": ("patch", "a patch"),
    "patches": ("patch", "patches"),
    "diff": ("patch", "a patch as a diff"),
    "repair": ("repair", "mends a patch"),
    "check": ("check", "checks patches"),
    "consistency": ("consistency", "chooses a patch"),
    "try": ("kernel", "runs a kernel"),
    "summary": ("summary", "a summary"),
    "tool": ("tool", "a call of a tool"),
}
ASKED = frozenset(_WORKS) - {"check", "try", "source"}
"""Work that is a question to the model."""
STEP_KINDS = {
    "hypothesis": "hypotheses",
    "reflection": "reflections",
    "patch": "patches",
    "repair": "repairs",
    "check": "checks",
    "consistency": "choices",
    "kernel": "kernels",
    "summary": "summaries",
    "look": "looks at source",
    "tool": "calls of tools",
}
"""Kinds of steps that a reader can hide, in words,"""
CYCLE_KINDS = {"crashed": "crashed", "rejected": "rejected", "no_patch": "without a patch"} | {
    "inconclusive": "inconclusive",
    "stopped": "stopped",
}
"""and kinds of cycles."""


def state_class(state: str) -> str:
    """Return how the state of a run is coloured: as that of a job."""
    return _STATES[RunState(state)]


def outcome_words(outcome: str | None) -> str:
    """Return how a cycle ended; None: not yet."""
    return _OUTCOMES.get(outcome or "open", (str(outcome), ""))[0]


def outcome_class(outcome: str | None) -> str:
    """Return how the outcome of a cycle is coloured."""
    return _OUTCOMES.get(outcome or "open", ("", "pending"))[1]


def step_kind(work: str) -> str:
    """Return the kind of a piece of work, as readers hide it."""
    return _WORKS.get(work, ("other", ""))[0]


def step_words(work: str) -> str:
    """Return what a piece of work does."""
    return _WORKS.get(work, ("", work.replace("_", " ")))[1]


def dollars(run: RunSummary) -> str:
    """Return what a run's questions cost; what is not known is not 0."""
    spent = run.spent
    if spent.dollars is not None:
        return f"${spent.dollars:,.2f}"
    return f"over ${spent.known_dollars:,.2f}" if spent.known_dollars else "not known"


def tokens(run: RunSummary) -> int:
    """Return the tokens of a run, in and out."""
    return run.spent.input_tokens + run.spent.output_tokens


def verdict_of_run(run: RunSummary) -> str:
    """Return what a run has come to so far, in words."""
    if run.fixes:
        return f"{run.fixes} {'fix' if run.fixes == 1 else 'fixes'}"
    return "" if run.state is RunState.RUNNING else "no fix"


def changed(diff: str) -> ShownPatch:
    """Return a patch by its lines."""
    return diff_lines.files(Patch.model_construct(name="", diff=diff, edits=[]))


def hidden(query: str) -> list[str]:
    """Return the kinds of steps and cycles that an address hides; others are left out."""
    known = {**STEP_KINDS, **CYCLE_KINDS}
    return [one for one in dict.fromkeys(query.split(",")) if one in known]


def cycle(run: RunView, node: Node, steps: Sequence[RunStep]) -> dict[str, Any]:
    """Return what the part of a page shows that is about one debug cycle."""
    priced = [one.price for one in steps if one.tokens is not None]
    known = [price for price in priced if price is not None]
    jobs = [job for one in steps for job in one.jobs]
    return {
        "run": run,
        "node": node,
        "steps": steps,
        "tokens": sum(one.tokens or 0 for one in steps),
        "cost": f"${sum(known):,.2f}" if len(known) == len(priced) else "not known",
        "questions": len(priced),
        "jobs": list(dict.fromkeys([*jobs, *(one.job for one in node.runs if one.job)])),
        "others": [one for one in node.hypotheses if one != node.hypothesis],
        "fix": next((one for one in run.ranked if one.node == node.name), None),
    }


FILTERS: tuple[Callable[..., Any], ...] = (
    state_class,
    outcome_words,
    outcome_class,
    step_kind,
    step_words,
    dollars,
    tokens,
    verdict_of_run,
    changed,
)
"""What templates use of these."""


class RunQuery(BaseModel):
    """Which runs the reader has asked for, as it stands in the address."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: str | None = None
    bug: str | None = None
    strategy: str | None = None
    model: str | None = None
    submitter: str | None = None
    cursor: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "RunQuery":
        """Return what the address says; empty fields of a form say nothing."""
        return cls(**{name: value.strip() for name, value in query.items() if value.strip()})

    @property
    def before(self) -> int | None:
        """The number of the run that the page comes after."""
        return int(self.cursor) if self.cursor else None

    @property
    def fault(self) -> str | None:
        """What is wrong with it, for the reader."""
        if self.cursor is not None and not (self.cursor.isdecimal() and len(self.cursor) < 19):
            return "cursor: this is no place in the list"
        try:
            self._read()
        except ValidationError as error:
            return _fault(error)
        return None

    @property
    def filter(self) -> RunFilter | None:
        """The same for the agent; None if something is wrong with it."""
        return None if self.fault else self._read()

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves runs out."""
        return bool(self.model_dump(exclude_none=True, exclude={"cursor"}))

    def address(self, path: str = "/runs", **new: str | None) -> str:
        """Return the address of the list with this query, some of it changed."""
        said = self.model_dump(exclude_none=True) | new
        return query(path, **said)

    def _read(self) -> RunFilter:
        return RunFilter.model_validate(self.model_dump(exclude={"cursor"}))


def limits(before: Limits, dollars: str, tokens: str, builds: str, hours: str) -> Limits:
    """Return the limits of a run that goes on, as a form says; empty fields leave them as they are.

    Raises UserError `bad_limits`.
    """
    said: dict[str, Any] = before.model_dump()
    if dollars:
        said["dollars"] = dollars
    if tokens:
        said["tokens"] = tokens
    if builds:
        said["builds"] = builds
    try:
        if hours:
            said["seconds"] = float(hours) * 3600
        return Limits.model_validate(said)
    except ValueError as error:
        raise UserError("bad_limits", _fault(error)) from error


def _fault(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def query(path: str, **said: object) -> str:
    """Return an address with a query; what is None or empty is left out."""
    given = {name: value for name, value in said.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def address(run: int, node: str | None = None) -> str:
    """Return the address of a run's page, perhaps with a cycle opened."""
    return query(f"/runs/{run}", node=node)
