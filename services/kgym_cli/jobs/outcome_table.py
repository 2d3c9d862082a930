"""The columns that all tables of jobs and patches share, and the colours of outcomes."""

from collections.abc import Mapping

from rich.markup import escape

from kgym.api.outcomes import Outcome
from kgym.bugs.conclusion import ANSWERS, Answer

HEADS = ("job", "outcome", "bug", "patch", "s", "reason")
_COLOURS = {Answer.YES: "green", Answer.NO: "red"}


def colour(outcome: Outcome) -> str:
    """Return the colour of an outcome."""
    answer = ANSWERS.get(outcome)
    return _COLOURS.get(answer, "magenta") if answer else "cyan"


def cells(
    job: int | None,
    outcome: Outcome,
    names: tuple[str | None, str | None],
    seconds: float,
    reason: str | None,
) -> tuple[str, ...]:
    """Return a row as markup; `names` are those of the bug and of the patch."""
    bug, patch = (escape(name or "") for name in names)
    shown = f"[{colour(outcome)}]{outcome}[/]"
    return str(job or ""), shown, bug, patch, f"{seconds:.1f}", escape(reason or "")


def counted(outcomes: Mapping[Outcome, int]) -> str:
    """Return counts of jobs in one line, such as `3 resolved, 1 waiting`."""
    return ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
