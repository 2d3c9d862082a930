"""Finding the lines of a log that announce a crash."""

import heapq
from collections.abc import Iterator
from functools import lru_cache

from kgym.report.families import FAMILIES, Family
from kgym.report.lines import MAX_LINE

_BLOCK = 1 << 20
_MARKERS = tuple(dict.fromkeys(family.marker.encode() for family in FAMILIES))


@lru_cache(maxsize=1024)
def announced(line: str) -> Family | None:
    """Return the family whose crash `line` announces."""
    for family in FAMILIES:
        if family.marker in line and family.announces(line):
            return family
    return None


def find(log: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, Family]]:
    """Yield offset and family of the lines, from a line's start to `end`, that announce a crash."""
    end = len(log) if end is None else min(end, len(log))
    done = start
    for block in range(start, end, _BLOCK):
        # Markers do not span blocks' ends unseen: each search reaches one marker further.
        stop = min(block + _BLOCK, end)
        for position in _positions(log, block, stop, end):
            if position < done:
                continue
            line_start = log.rfind(b"\n", done, position) + 1 or done
            line_end = log.find(b"\n", position, end)
            done = end if line_end < 0 else line_end + 1
            line = (
                log[line_start : min(done, line_start + MAX_LINE)].decode("latin-1").rstrip("\r\n")
            )
            family = announced(line)
            if family:
                yield line_start, family


def _positions(log: bytes, start: int, stop: int, end: int) -> Iterator[int]:
    """Yield where markers begin in a block, in order.

    Searching for one literal at a time is many times faster than one pattern for all.
    """
    return heapq.merge(*(_occurrences(log, marker, start, stop, end) for marker in _MARKERS))


def _occurrences(log: bytes, marker: bytes, start: int, stop: int, end: int) -> Iterator[int]:
    reach = min(stop + len(marker) - 1, end)
    position = log.find(marker, start, reach)
    while position >= 0:
        yield position
        position = log.find(marker, position + 1, reach)
