"""Query of a benchmark's pages, as in the address. Pure."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from kgym.bench.attempt_record import Setup
from kgym.bench.attributes import ATTRIBUTES
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import BugFacts
from kgym.errors import UserError
from kgym_monitor.pages import wording
from kgym_monitor.pages.bug_filter import Typed
from kgym_monitor.pages.wording import visible

# Conditions with comma-separated values.
LISTS = ("ids", "subsystems", "types", "classes")
TIMES = ("reported_from", "reported_before", "fixed_from", "fixed_before")
CHOICES = tuple(BugChoice.model_fields)
_YES = {"yes": True, "no": False}


class BoardQuery(Typed):
    """Selection of bugs (as `BugChoice`) and setups, and options of the page."""

    ids: str | None = None
    status: str | None = None
    subsystems: str | None = None
    types: str | None = None
    classes: str | None = None
    text: str | None = None
    compiler: str | None = None
    reproducer: str | None = None
    has_cause: str | None = None
    racy: str | None = None
    reported_from: str | None = None
    reported_before: str | None = None
    fixed_from: str | None = None
    fixed_before: str | None = None
    days_open_from: str | None = None
    days_open_to: str | None = None
    lines_from: str | None = None
    lines_to: str | None = None
    files_to: str | None = None
    touches: str | None = None
    cutoff: str | None = None
    """A model's knowledge cutoff: only bugs fixed on one `side` of it."""
    side: str | None = None
    agent: str | None = None
    model: str | None = None
    feedback: str | None = None
    oracle: str | None = None
    limit: str | None = None
    """Whether attempts were limited in dollars: yes or no."""
    k: str | None = None
    by: str | None = None
    """Attribute by which bugs are grouped."""
    levels: str | None = None
    """Levels of a research query, as `kgym.bench.query.Level` writes them, separated by blanks."""
    metrics: str | None = None
    more: str | None = None
    """Whether the leaderboard has all columns: yes."""
    first: str | None = None
    """Numbers of the two compared setups."""
    second: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether it excludes bugs or setups."""
        kept = {"cursor", "k", "by", "more", "first", "second", "levels", "metrics"}
        return bool(self.model_dump(exclude_none=True, exclude=kept))

    def bugs(self) -> Callable[[BugFacts], bool]:
        """Return a predicate for selected bugs; raise UserError `bad_filter`."""
        given: dict[str, Any] = {}
        for name in CHOICES:
            if (text := getattr(self, name)) is not None:
                given[name] = self._read(name, text)
        try:
            choice = BugChoice.model_validate(given)
        except ValidationError as error:
            raise UserError("bad_filter", wording.fault(error)) from error
        if self.side not in {None, "before", "after"}:
            raise UserError("bad_filter", "side must be before or after")
        if self.cutoff is None:
            return choice.takes
        cutoff, before = _moment("cutoff", self.cutoff, end=True), self.side == "before"
        return lambda bug: (
            bug.fixed is not None and (bug.fixed <= cutoff) is before and choice.takes(bug)
        )

    def setups(self, all_: Iterable[tuple[int, Setup]]) -> list[tuple[int, Setup]]:
        """Return the selected setups with their numbers."""
        wanted = {name: self._yes(name) for name in ("feedback", "oracle", "limit")}
        return [
            (number, setup)
            for number, setup in all_
            if self.agent in {None, visible(setup.agent)}
            and self.model in {None, visible(setup.model)}
            and wanted["feedback"] in {None, setup.feedback}
            and wanted["oracle"] in {None, setup.oracle}
            and wanted["limit"] in {None, setup.dollars is not None}
        ]

    def runs(self, most: int) -> int | None:
        """Return k, None if the address has none; raise UserError `bad_filter`."""
        if self.k is None:
            return None
        if not self.k.isdecimal() or not 1 <= int(self.k[:9]) <= max(1, most):
            raise UserError("bad_filter", f"k must be a number from 1 to {max(1, most)}")
        return int(self.k)

    def attribute(self) -> str:
        """Return the attribute for grouping; raise UserError `bad_filter`."""
        if self.by is not None and self.by not in ATTRIBUTES:
            raise UserError("bad_filter", f"by must be one of {', '.join(ATTRIBUTES)}")
        return self.by or "class"

    def _read(self, name: str, text: str) -> Any:
        if name in LISTS:
            return [part.strip() for part in text.split(",") if part.strip()]
        if name in TIMES:
            return _moment(name, text)
        return self._yes(name) if name in {"has_cause", "racy"} else text

    def _yes(self, name: str) -> bool | None:
        text = getattr(self, name)
        if text not in {None, *_YES}:
            raise UserError("bad_filter", f"{name} must be yes or no")
        return None if text is None else _YES[text]


def _moment(name: str, text: str, *, end: bool = False) -> datetime:
    """Return a time, UTC by default; a day means its beginning, or with `end` its end."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError("bad_filter", f"{name}: {text[:40]!r} is not a date") from error
    # A model whose cutoff is a day knows that day.
    if end and len(text) == len("2025-01-31"):
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
