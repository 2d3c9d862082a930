"""Step results over time, for the overview's charts and tables. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kgym.api.statistics import AttemptCount, Piece, Statistics, StatisticsFilter
from kgym.api.steps import StepKind
from kgym.errors import UserError

# Most reasons with a colour of their own; others are summed up.
REASONS = 6


@dataclass(frozen=True, slots=True)
class Span:
    """A time range up to now, in pieces of equal length."""

    name: str
    """Name in addresses."""
    words: str
    length: timedelta
    piece: timedelta
    asked: Piece
    """Resolution of the scheduler's counts."""

    def wanted(self, now: datetime) -> StatisticsFilter:
        """Return the query for the scheduler."""
        return StatisticsFilter(step=self.asked, since=begin(now - self.length, self.piece))


SPANS = {
    span.name: span
    for span in (
        Span("hour", "hour", timedelta(hours=1), timedelta(minutes=1), "minute"),
        Span("day", "24 hours", timedelta(days=1), timedelta(hours=1), "hour"),
        Span("week", "7 days", timedelta(days=7), timedelta(hours=3), "hour"),
        Span("month", "30 days", timedelta(days=30), timedelta(days=1), "day"),
    )
}


def span_of(name: str) -> Span:
    """Return the span of this name; raise UserError `unknown_range`."""
    if name not in SPANS:
        raise UserError("unknown_range", f"unknown range {name!r}; known: {', '.join(SPANS)}")
    return SPANS[name]


@dataclass(frozen=True, slots=True)
class Column:
    """Numbers over time, one per piece; None without data."""

    label: str
    values: Sequence[float | None]
    colour: str | None = None
    """CSS class in the chart; None: only in the table."""
    is_reason: bool = False

    @property
    def total(self) -> int:
        """Sum of the numbers."""
        return sum(int(value) for value in self.values if value is not None)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, and the columns of its table."""

    name: str
    title: str
    summary: str
    """Short total; empty without data."""
    columns: Sequence[Column]
    share: bool = False
    """Whether it is a line of percentages instead of stacked columns."""

    @property
    def drawn(self) -> list[Column]:
        """Drawn columns, lowest first."""
        return [column for column in self.columns if column.colour is not None]


@dataclass(frozen=True, slots=True)
class KindCount:
    """Results of the steps of one kind."""

    kind: StepKind
    succeeded: int
    failed: int
    infrastructure: int
    mean_seconds: float | None
    """Mean duration of successful steps."""


@dataclass(frozen=True, slots=True)
class StepHistory:
    """Charts and tables of one span."""

    span: Span
    starts: Sequence[datetime]
    """Start of each piece."""
    until: datetime
    """Steps that ended later are not counted yet."""
    charts: Sequence[Chart]
    kinds: Sequence[KindCount]
    attempts: int
    cut: bool
    """Whether the earliest steps are left out, because there were too many."""

    def rows(self, chart: Chart) -> list[tuple[datetime, list[float | None]]]:
        """Return the non-empty rows of a chart's table, newest first."""
        rows = [
            (at, [column.values[number] for column in chart.columns])
            for number, at in enumerate(self.starts)
        ]
        return [(at, values) for at, values in reversed(rows) if any(values)]


def begin(at: datetime, piece: timedelta) -> datetime:
    """Return the start of the piece that contains a time, in UTC."""
    # Pieces are aligned to the epoch: a chart's columns do not move between polls.
    epoch = datetime.fromtimestamp(0, UTC)
    return epoch + (at - epoch) // piece * piece


def history(span: Span, statistics: Statistics) -> StepHistory:
    """Return the charts and tables of a span's statistics."""
    starts = _starts(span, statistics)
    known = [
        count for count in statistics.counts if starts[0] <= count.at < starts[-1] + span.piece
    ]
    place = {at: number for number, at in enumerate(starts)}

    def values(counts: Iterable[AttemptCount]) -> list[int]:
        numbers = [0] * len(starts)
        for count in counts:
            numbers[place[begin(count.at, span.piece)]] += count.attempts
        return numbers

    charts = (
        _throughput(known, values),
        _failures("failed", "Failures by cause", _is_failure, known, values),
        _failures("infrastructure", "Platform failures", _is_infrastructure, known, values),
        _cache(known, values),
    )
    attempts = sum(count.attempts for count in known)
    return StepHistory(
        span, starts, statistics.until, charts, _kinds(known), attempts, statistics.cut
    )


def _starts(span: Span, statistics: Statistics) -> list[datetime]:
    """Return the starts of all pieces, including the current one."""
    last = begin(statistics.until, span.piece)
    first = max(
        begin(statistics.since, span.piece), begin(statistics.until - span.length, span.piece)
    )
    return [first + number * span.piece for number in range((last - first) // span.piece + 1)] or [
        last
    ]


_Values = Callable[[Iterable[AttemptCount]], list[int]]


def _is_success(count: AttemptCount) -> bool:
    return count.outcome == "succeeded"


def _is_failure(count: AttemptCount) -> bool:
    return count.outcome == "failed" and count.cause != "infrastructure"


def _is_infrastructure(count: AttemptCount) -> bool:
    return count.outcome == "expired" or count.cause == "infrastructure"


def _throughput(counts: Sequence[AttemptCount], values: _Values) -> Chart:
    ended_early = {"aborted", "released"}
    parts = (
        ("Succeeded", "good", _is_success),
        ("Failed", "bad", _is_failure),
        ("Infrastructure", "wait", _is_infrastructure),
        ("Aborted or returned", "ended", lambda count: count.outcome in ended_early),
    )
    columns = [
        Column(label, values(count for count in counts if fits(count)), colour)
        for label, colour, fits in parts
    ]
    total = sum(column.total for column in columns)
    return Chart("throughput", "Finished steps", f"{total:,} attempts" if total else "", columns)


def _failures(
    name: str,
    title: str,
    fits: Callable[[AttemptCount], bool],
    counts: Sequence[AttemptCount],
    values: _Values,
) -> Chart:
    """Return a chart of failures by reason, most frequent first."""
    failed = [count for count in counts if fits(count)]
    by_reason: Counter[str] = Counter()
    for count in failed:
        by_reason[_reason(count)] += count.attempts
    ordered = sorted(by_reason, key=lambda reason: (-by_reason[reason], reason))
    shown = ordered if len(ordered) <= REASONS + 1 else ordered[:REASONS]
    columns = [
        Column(
            reason,
            values(count for count in failed if _reason(count) == reason),
            f"part-{number}",
            True,
        )
        for number, reason in enumerate(shown, 1)
    ]
    if rest := set(ordered[len(shown) :]):
        others = values(count for count in failed if _reason(count) in rest)
        columns.append(Column(f"{len(rest):,} other reasons", others, f"part-{REASONS + 1}"))
    total = by_reason.total()
    return Chart(name, title, f"{total:,} attempts" if total else "", columns)


def _reason(count: AttemptCount) -> str:
    return count.reason or count.outcome


def _cache(counts: Sequence[AttemptCount], values: _Values) -> Chart:
    builds = values(count for count in counts if count.cached is not None)
    cached = values(count for count in counts if count.cached)
    share = [100 * hits / all_ if all_ else None for hits, all_ in zip(cached, builds, strict=True)]
    total, hits = sum(builds), sum(cached)
    summary = f"{100 * hits / total:.0f} % of {total:,} builds" if total else ""
    columns = [
        Column("Found a compiled tree, in %", share, "part-1"),
        Column("Builds that found one", cached),
        Column("Builds", builds),
    ]
    return Chart("cache", "Cache hits", summary, columns, share=True)


def _kinds(counts: Sequence[AttemptCount]) -> list[KindCount]:
    def of(kind: StepKind) -> KindCount:
        own = [count for count in counts if count.kind is kind]
        good = [count for count in own if _is_success(count)]
        succeeded = sum(count.attempts for count in good)
        return KindCount(
            kind,
            succeeded,
            sum(count.attempts for count in own if _is_failure(count)),
            sum(count.attempts for count in own if _is_infrastructure(count)),
            sum(count.seconds for count in good) / succeeded if succeeded else None,
        )

    return [of(kind) for kind in StepKind if any(count.kind is kind for count in counts)]
