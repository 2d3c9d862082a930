"""Progress of a sweep for people: a live table on a terminal, else lines."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kgym.api.outcomes import Outcome
from kgym.bugs.sweep import Moved, Stage
from kgym.bugs.sweep_rows import Row
from kgym.client import AsyncClient
from kgym.errors import KgymError
from kgym_cli.jobs import waiting
from kgym_cli.jobs.outcome_table import colour
from kgym_cli.output import live_view, people

_BROKEN = (Outcome.DOES_NOT_APPLY, Outcome.DOES_NOT_COMPILE, Outcome.NOT_BUILT)
_REFRESH_SECONDS = 0.25
# Between two queries of queue positions and estimates.
_LOOK_SECONDS = 5.0
# Most shown bugs, newest rows, and patches under way.
_MOST = 8
_TRIAL = (Stage.BUILD, Stage.REPRODUCE)
# Finished trials that are needed for an estimate of the others.
_KNOWN_FROM = 3


class View:
    """State of a sweep so far."""

    def __init__(self, pairs: Mapping[str, int]) -> None:
        # Number of patches, by bug.
        self.pairs = pairs
        self.rows: dict[tuple[str, str], Row] = {}
        # Stage of each pair without a row.
        self.stages: dict[tuple[str, str], Moved] = {}
        self._newest = deque[Row](maxlen=_MOST)
        # Reasons for which queued jobs do not start.
        self._waits: dict[int, str] = {}
        # Start of the first trial,
        self._first: float | None = None
        # and trials that have ended since. Checks are much quicker, so they do not count.
        self._tried = 0

    def hear(self, news: Moved | Row) -> None:
        """Process an event of the sweep."""
        if isinstance(news, Moved):
            self.stages |= {(news.bug, patch): news for patch in news.patches}
            if self._first is None and news.stage in _TRIAL:
                self._first = time.monotonic()
            return
        key = (news.bug, news.patch)
        moved = self.stages.pop(key, None)
        self._tried += moved is not None and moved.stage in _TRIAL
        self.rows[key] = news
        self._newest.appendleft(news)
        if not live_view.lives():
            people.print(f"{news.bug} {news.patch}: {words(news)}")

    async def look(self, client: AsyncClient) -> None:
        """Query why jobs do not start until cancelled; without a terminal, print one reason."""
        message = ""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            jobs = list(dict.fromkeys(pair.job for pair in self.stages.values() if pair.job))
            reasons = {}
            for job in jobs[: _MOST if live_view.lives() else 1]:
                try:
                    steps = (await client.job(job)).steps
                except KgymError:  # reported by the task that follows the job
                    continue
                if reason := "; ".join(filter(None, map(waiting.words, steps))):
                    reasons[job] = reason
            self._waits = reasons
            for job, reason in reasons.items():
                if not live_view.lives() and reason != message:
                    people.print(f"job {job} waits: {reason}")
                    message = reason

    async def refresh(self, show: Callable[[], None]) -> None:
        """Redraw until cancelled."""
        while True:
            show()
            await asyncio.sleep(_REFRESH_SECONDS)

    def table(self, height: int) -> RenderableType:
        """Return what fits: counts per bug, pairs under way, newest rows."""
        fits = max(1, min(_MOST, (height - 8) // 3))
        parts: list[RenderableType] = [
            counts(self.pairs, self.rows.values(), fits, self.stages.values())
        ]
        if self.stages:
            under_way = [item for item in self.stages.items() if item[1].job is not None]
            parts.append(_grid(self._under_way(key, pair) for key, pair in under_way[:fits]))
        newest = list(self._newest)[:fits]
        parts.append(_grid((row.bug, row.patch, _styled(row)) for row in newest))
        parts.append(Text(self._progress(), style="dim"))
        return Group(*parts)

    def _under_way(self, key: tuple[str, str], pair: Moved) -> Sequence[str]:
        reason = self._waits.get(pair.job or 0, "")
        return (*map(escape, key), f"[cyan]{pair.stage}[/]", f"job {pair.job}", escape(reason))

    def _progress(self) -> str:
        line = f"{len(self.rows)} of {sum(self.pairs.values())}"
        left = sum(pair.stage is not Stage.CHECK for pair in self.stages.values())
        if left and self._first is not None and self._tried >= _KNOWN_FROM:
            # Trials run in parallel, so the pace is measured over all of them.
            seconds = left * (time.monotonic() - self._first) / self._tried
            line += f"; {left} to try, about {waiting.duration(seconds)}"
        return line


def words(row: Row) -> str:
    """Return a patch's result in one line."""
    same = f", as {row.same_as}" if row.same_as else ""
    return f"{row.outcome.sentence(row.reason)}{same}"


def counts(
    pairs: Mapping[str, int], rows: Iterable[Row], most: int, stages: Iterable[Moved] = ()
) -> Table:
    """Return a table of outcomes per bug."""
    outcomes = Counter((row.bug, row.outcome) for row in rows)
    stage = Counter((pair.bug, pair.stage) for pair in stages)
    table = Table(box=None)
    heads = ("bug", "patches", "check", "wait", "build", "run")
    for head in (*heads, "resolved", "not resolved", "broken", "refused", "no answer"):
        table.add_column(head, justify="left" if head == "bug" else "right", no_wrap=True)
    for bug, total in list(pairs.items())[:most]:
        numbers = [total, *(stage[bug, state] for state in Stage)]
        numbers += [outcomes[bug, Outcome.RESOLVED], outcomes[bug, Outcome.NOT_RESOLVED]]
        numbers += [sum(outcomes[bug, outcome] for outcome in _BROKEN)]
        numbers += [outcomes[bug, Outcome.REFUSED], outcomes[bug, Outcome.INCONCLUSIVE]]
        table.add_row(escape(bug), *(str(number or "-") for number in numbers))
    if len(pairs) > most:
        table.add_row(f"… {len(pairs) - most} more bugs")
    return table


def _styled(row: Row) -> str:
    return f"[{colour(row.outcome)}]{row.outcome}[/]  {escape(row.reason)}"


def _grid(rows: Iterable[Sequence[str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        cells = [Text.from_markup(cell) for cell in row]
        table.add_row(*cells)
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return table
