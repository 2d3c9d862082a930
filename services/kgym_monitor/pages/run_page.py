"""Contents of runs' pages: texts, the filter of the list, a debug cycle, comparisons. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from kgym.api.agent.nodes import Candidate, Node
from kgym.api.agent.runs import Limits, RunFilter, RunState, RunSummary, RunView
from kgym.api.agent.steps import RunStep
from kgym.api.steps import Patch
from kgym.errors import NotFound, UserError
from kgym_monitor.pages import diff_lines, wording
from kgym_monitor.pages.bug_filter import ListQuery
from kgym_monitor.pages.diff_lines import ShownPatch

# Most runs on a page.
PAGE = 50
# Tags and fences of an answer that are looked at; what comes after the last is one part.
_MOST_MARKS = 200
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
    "repair": ("repair", "repairs a patch"),
    "check": ("check", "checks patches"),
    "consistency": ("consistency", "chooses a patch"),
    "try": ("kernel", "runs a kernel"),
    "summary": ("summary", "a summary"),
    "tool": ("tool", "a call of a tool"),
}
# Kinds of work that ask the model.
ASKED = frozenset(_WORKS) - {"check", "try", "source"}
# Kinds of steps that a reader can hide, with their texts,
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
# and kinds of cycles.
CYCLE_KINDS = {"crashed": "crashed", "rejected": "rejected", "no_patch": "without a patch"} | {
    "inconclusive": "inconclusive",
    "stopped": "stopped",
}


def state_class(state: str) -> str:
    """Return the CSS class of a run's state: that of a similar job state."""
    return _STATES[RunState(state)]


def outcome_words(outcome: str | None) -> str:
    """Return the text of a cycle's outcome; None: still running."""
    return _OUTCOMES.get(outcome or "open", (str(outcome), ""))[0]


def outcome_class(outcome: str | None) -> str:
    """Return the CSS class of a cycle's outcome."""
    return _OUTCOMES.get(outcome or "open", ("", "pending"))[1]


def step_kind(work: str) -> str:
    """Return the kind of a piece of work, for hiding it."""
    return _WORKS.get(work, ("other", ""))[0]


def step_words(work: str) -> str:
    """Return the text of a piece of work."""
    return _WORKS.get(work, ("", work.replace("_", " ")))[1]


def dollars(run: RunSummary) -> str:
    """Return the cost of a run's questions; an unknown price does not count as 0."""
    spent = run.spent
    if spent.dollars is not None:
        return f"${spent.dollars:,.2f}"
    return f"over ${spent.known_dollars:,.2f}" if spent.known_dollars else "unknown"


def tokens(run: RunSummary) -> int:
    """Return a run's input and output tokens."""
    return run.spent.input_tokens + run.spent.output_tokens


def verdict_of_run(run: RunSummary) -> str:
    """Describe a run's result so far."""
    if run.fixes:
        return f"{run.fixes} {'fix' if run.fixes == 1 else 'fixes'}"
    return "" if run.state is RunState.RUNNING else "no fix"


def changed(diff: str) -> ShownPatch:
    """Return the lines of a patch."""
    return diff_lines.files(Patch.model_construct(name="", diff=diff, edits=[]))


def hidden(query: str) -> list[str]:
    """Return the hidden kinds of steps and cycles in an address, ignoring unknown ones."""
    known = {**STEP_KINDS, **CYCLE_KINDS}
    return [kind for kind in dict.fromkeys(query.split(",")) if kind in known]


def current(run: RunView) -> str | None:
    """Return the cycle that is under way, the last if there are several."""
    names = [node.name for node in run.nodes if node.outcome is None]
    return names[-1] if names and run.state is RunState.RUNNING else None


# What models write between tags or fences; thoughts of reasoning models may lack the first tag.
_MARK = re.compile(r"<(?P<close>/?)(?P<tag>[a-z_]{2,30})>|```")
_THOUGHTS = {"think", "thinking", "reasoning", "analysis"}


def answer_parts(text: str) -> list[tuple[str, str]]:
    """Return the parts of a model's answer, each with its title: reasoning, patch, code, text."""
    parts = []
    thoughts, end, rest = text.partition("</think>")
    if end and "<think>" not in thoughts:
        parts, text = [("Reasoning", thoughts)], rest
    marks = list(islice(_MARK.finditer(text), _MOST_MARKS))
    closed = {mark["tag"] for mark in marks if mark["close"]}
    at, opened = 0, None
    for mark in marks:
        name = mark["tag"] or "```"
        if opened is None and not mark["close"] and (name in closed or name == "```"):
            parts.append(("Text", text[at : mark.start()]))
            opened, at = name, mark.end()
        elif opened == name and (mark["close"] or name == "```"):
            parts.append((_title(name), text[at : mark.start()]))
            opened, at = None, mark.end()
    parts.append((_title(opened) if opened else "Text", text[at:]))
    return [(title, part.strip("\n")) for title, part in parts if part.strip()]


def _title(mark: str) -> str:
    if mark == "```":
        return "Code"
    return "Reasoning" if mark in _THOUGHTS else mark.replace("_", " ").capitalize()


def cycle(run: RunView, node: Node, steps: Sequence[RunStep]) -> dict[str, Any]:
    """Return the contents of a debug cycle's part of the page."""
    # Only questions have tokens; builds and checks have no price.
    priced = [step.price for step in steps if step.tokens is not None]
    known = [price for price in priced if price is not None]
    jobs = [job for step in steps for job in step.jobs]
    return {
        "run": run,
        "node": node,
        "steps": steps,
        "tokens": sum(step.tokens or 0 for step in steps),
        "cost": f"${sum(known):,.2f}" if len(known) == len(priced) else "unknown",
        "questions": len(priced),
        "jobs": list(dict.fromkeys([*jobs, *(trial.job for trial in node.runs if trial.job)])),
        "others": [hypothesis for hypothesis in node.hypotheses if hypothesis != node.hypothesis],
        "fix": next((fix for fix in run.ranked if fix.node == node.name), None),
    }


# Functions for templates.
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


class RunQuery(ListQuery[RunFilter]):
    """Query of the list of runs, as in the address."""

    home = "/runs"

    state: str | None = None
    bug: str | None = None
    strategy: str | None = None
    model: str | None = None
    submitter: str | None = None

    @property
    def before(self) -> int | None:
        """Number of the run before which the page starts."""
        return int(self.cursor) if self.cursor else None

    def checked(self) -> RunFilter:
        """Return the agent's filter."""
        if self.cursor is not None and not (self.cursor.isdecimal() and len(self.cursor) < 19):
            raise ValueError("cursor is not a place in the list")
        return RunFilter.model_validate(self.model_dump(exclude={"cursor"}))


def limits(before: Limits, dollars: str, tokens: str, builds: str, hours: str) -> Limits:
    """Return the limits of a resumed run from a form; empty fields keep the old limits.

    Raises UserError `bad_limits`.
    """
    values: dict[str, Any] = before.model_dump()
    if dollars:
        values["dollars"] = dollars
    if tokens:
        values["tokens"] = tokens
    if builds:
        values["builds"] = builds
    try:
        if hours:
            values["seconds"] = float(hours) * 3600
        return Limits.model_validate(values)
    except ValueError as error:
        raise UserError("bad_limits", wording.fault(error)) from error


def query(path: str, **values: object) -> str:
    """Return an address with a query, without None and empty values."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def address(run: int, node: str | None = None) -> str:
    """Return the address of a run's page, optionally with an opened cycle."""
    return query(f"/runs/{run}", node=node)


# --- two runs, cycles or patches side by side, named `RUN`, `RUN:CYCLE` or `RUN:CYCLE:PATCH` ------


_NAMED = re.compile(r"#?([0-9]{1,18})(?::([^:\s]{1,500})(?::([0-9]{1,4}))?)?")


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    run: int
    node: str | None = None
    patch: int | None = None

    @classmethod
    def read(cls, text: str) -> "Side":
        """Parse a name; raise UserError `bad_comparison`."""
        match = _NAMED.fullmatch(text.strip())
        if match is None or not int(match[1]):
            raise UserError(
                "bad_comparison",
                f"{text[:100]!r} is none of RUN, RUN:CYCLE, RUN:CYCLE:PATCH, e.g. 12:t0.1:2",
            )
        return cls(int(match[1]), match[2], int(match[3]) if match[3] else None)

    @property
    def name(self) -> str:
        """Name for `read`."""
        parts = [str(self.run), self.node or "", "" if self.patch is None else str(self.patch)]
        return ":".join(parts).rstrip(":")


@dataclass(slots=True)
class Compared:
    """A side with its data."""

    side: Side
    run: RunView
    node: Node | None = None
    steps: Sequence[RunStep] = ()
    candidate: Candidate | None = None
    diff: ShownPatch | None = None
    lines: frozenset[tuple[str, str, str]] = frozenset()
    """Lines that its patch adds or removes: file, kind, text."""


def compared(side: Side, run: RunView, node: Node | None, steps: Sequence[RunStep]) -> Compared:
    """Return a side with its data; raise NotFound `patch_not_found`."""
    shown_side = Compared(side, run, node, steps)
    diff = ""
    if node is None:
        diff = run.ranked[0].diff if run.ranked else ""
    else:
        number = side.patch - 1 if side.patch is not None else node.chosen
        if side.patch is not None and not 0 <= side.patch - 1 < len(node.candidates):
            message = f"cycle {node.name} of run {run.id} has {len(node.candidates)} patches"
            raise NotFound("patch_not_found", message)
        if number is not None:
            shown_side.candidate = node.candidates[number]
            diff = shown_side.candidate.diff
    if diff:
        shown_side.diff = changed(diff)
        shown_side.lines = frozenset(
            (file.path, line.kind, line.text)
            for file in shown_side.diff.files
            for line in file.lines
            if line.kind in {"added", "removed"}
        )
    return shown_side
