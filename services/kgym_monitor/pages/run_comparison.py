"""Two runs, two debug cycles or two patches, side by side. Pure.

Each side is named as `RUN`, `RUN:CYCLE` or `RUN:CYCLE:PATCH`, where patches count from 1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.api.agent.nodes import Candidate, Node
from kgym.api.agent.runs import RunView
from kgym.api.agent.steps import RunStep
from kgym.errors import NotFound, UserError
from kgym_monitor.pages import run_page
from kgym_monitor.pages.diff_lines import ShownPatch

_NAMED = re.compile(r"#?([0-9]{1,18})(?::([^:\s]{1,500})(?::([0-9]{1,4}))?)?")


@dataclass(frozen=True, slots=True)
class Side:
    """What stands on one side."""

    run: int
    node: str | None = None
    patch: int | None = None

    @classmethod
    def read(cls, text: str) -> "Side":
        """Read its name; raise UserError `bad_comparison`."""
        found = _NAMED.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise UserError(
                "bad_comparison",
                f"{text[:100]!r} is none of RUN, RUN:CYCLE, RUN:CYCLE:PATCH, e.g. 12:t0.1:2",
            )
        return cls(int(found[1]), found[2], int(found[3]) if found[3] else None)

    @property
    def name(self) -> str:
        """Its name, as `read` takes it."""
        parts = [str(self.run), self.node or "", "" if self.patch is None else str(self.patch)]
        return ":".join(parts).rstrip(":")


@dataclass(slots=True)
class Shown:
    """A side, with what there is to see of it."""

    side: Side
    run: RunView
    node: Node | None = None
    steps: Sequence[RunStep] = ()
    candidate: Candidate | None = None
    diff: ShownPatch | None = None
    lines: frozenset[tuple[str, str, str]] = frozenset()
    """The lines that its patch adds or removes: file, sign, text."""


def shown(side: Side, run: RunView, node: Node | None, steps: Sequence[RunStep]) -> Shown:
    """Return what there is to see of a side; raise NotFound if the cycle has no such patch."""
    one = Shown(side, run, node, steps)
    diff = ""
    if node is None:
        diff = run.ranked[0].diff if run.ranked else ""
    else:
        number = side.patch - 1 if side.patch is not None else node.chosen
        if side.patch is not None and not 0 <= side.patch - 1 < len(node.candidates):
            message = f"cycle {node.name} of run {run.id} has {len(node.candidates)} patches"
            raise NotFound("patch_not_found", message)
        if number is not None:
            one.candidate = node.candidates[number]
            diff = one.candidate.diff
    if diff:
        one.diff = run_page.changed(diff)
        one.lines = frozenset(
            (file.path, line.kind, line.text)
            for file in one.diff.files
            for line in file.lines
            if line.kind in {"added", "removed"}
        )
    return one
