"""Query of a trace's page, as in the address. Pure."""

from dataclasses import asdict, dataclass, replace
from urllib.parse import urlencode

from kgym_monitor.traces.idle_axis import Axis

# Least window in nanoseconds.
LEAST = 16


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """Window (nanoseconds of the trace clock; None: the trace's end) and highlights."""

    start: int | None = None
    end: int | None = None
    thread: int | None = None
    """PID of an unfolded thread, besides the crashed one."""
    function: str = ""
    """Part of the names of marked functions."""
    whole: bool = False
    """Whether to show all records instead of the minimal trace."""

    def address(self, path: str, **more: object) -> str:
        """Return the address of this view, with `more` added to its query."""
        values = {
            "from": self.start,
            "to": self.end,
            "thread": self.thread,
            "function": self.function,
            "all": "yes" if self.whole else None,
            **more,
        }
        query = urlencode(
            {name: value for name, value in values.items() if value not in (None, "")}
        )
        return f"{path}?{query}" if query else path

    def window(self, first: int, last: int) -> tuple[int, int]:
        """Return the window, clipped to a trace from `first` to `last`."""
        start = first if self.start is None else min(max(self.start, first), last)
        end = last if self.end is None else min(max(self.end, start), last)
        return start, end

    def at(self, start: int, end: int, whole: tuple[int, int]) -> "TraceQuery":
        """Return this query with another window, moved into `whole`."""
        first, last = whole
        length = min(max(end - start, LEAST), last - first)
        start = min(max(start, first), last - length)
        return replace(
            self,
            start=None if start == first else start,
            end=None if start + length == last else start + length,
        )

    def zooms(self, axis: Axis, whole: tuple[int, int]) -> dict[str, "TraceQuery | None"]:
        """Return the queries of the zoom and move buttons; None for a button without effect."""
        # Zooming in uses places on the axis, where pauses are short: by time, it could show only
        # a pause.
        start, end = axis.first, axis.last
        length = end - start
        wanted = {
            "in": self.at(axis.time(0.25), axis.time(0.75), whole),
            "out": self.at(start - length // 2, end + length // 2, whole),
            "left": self.at(start - length // 2, end - length // 2, whole),
            "right": self.at(start + length // 2, end + length // 2, whole),
            "all": replace(self, start=None, end=None),
        }
        now = self.at(start, end, whole)
        return {
            name: None if asdict(query) == asdict(now) else query for name, query in wanted.items()
        }
