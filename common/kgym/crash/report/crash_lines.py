"""The lines of a log that announce a crash."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from kgym.crash.report.console_lines import MAX_LINE
from kgym.crash.report.families import FAMILIES, LEAKED_OBJECT, REBOOT, Family
from kgym.crash.report.frames import is_inlined
from kgym.crash.report.line_prefixes import NO_PREFIXES, Prefixes

_BLOCK = 1 << 20
_RUN = 1 << 14
_MARKERS = tuple(dict.fromkeys(family.marker.encode() for family in FAMILIES))


_LEAK = b"BUG: memory leak\n"
# Output of the kernel, of syzkaller's programs (the third as Go stamps its log), of a login.
_RUNNING = re.compile(
    rb"\] |executing program|^20[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9:]{8} |login: ", re.MULTILINE
)


@lru_cache(maxsize=1024)
def announced(line: str) -> Family | None:
    """Return the family of the crash that `line` announces; None if it announces none.

    Lines added by symbolisation for inlined functions announce nothing.
    """
    families = (each for each in FAMILIES if each.marker in line and each.announces(line))
    return None if is_inlined(line) else next(families, None)


def continues(line: str) -> bool:
    """Return whether an announcement may belong to the report of an earlier one."""
    return any(
        family.marker in line and family.announces(line)
        for family in FAMILIES
        if family.follows or family.dying
    )


def find(
    log: bytes,
    start: int = 0,
    end: int | None = None,
    *,
    running: bool = False,
    prefixes: Prefixes = NO_PREFIXES,
) -> Iterator[tuple[int, Family]]:
    """Yield offset and family of the lines up to `end` that announce a crash.

    A boot is a crash only if a kernel was running before it: the log shows that, or `running` says
    so. The object below the heading of a leak is not a crash of its own.
    """
    end = len(log) if end is None else min(end, len(log))
    done = start
    searched = 0
    harmless: bytes | None = None
    for block in range(start, end, _BLOCK):
        # Each search extends beyond its block by one marker's length, so that none is missed.
        stop = min(block + _BLOCK, end)
        if done >= stop:
            continue
        for position in _positions(log, block, stop, end):
            if position < done:
                continue
            line_start = log.rfind(b"\n", done, position) + 1 or done
            line_end = log.find(b"\n", position, end)
            done = end if line_end < 0 else line_end + 1
            raw = log[line_start : min(done, line_start + MAX_LINE)]
            if raw == harmless and done - line_start == len(raw):
                done = _end_of_run(log, raw, done, end)
                continue
            family = announced(prefixes.without(raw.decode("latin-1").rstrip("\r\n")))
            harmless = raw if family is None else None
            if family is REBOOT:
                running = running or _RUNNING.search(log, searched, line_start) is not None
                searched = line_start
            if family is LEAKED_OBJECT and log.endswith(_LEAK, 0, line_start):
                continue
            if family and (running or family is not REBOOT):
                yield line_start, family


def _end_of_run(log: bytes, line: bytes, start: int, end: int) -> int:
    """Return where the repetitions of a line end that begin at `start`."""
    # A driver may print the same line millions of times: compare many at once.
    for run in (line * (_RUN // len(line)), line):
        while log.startswith(run, start, end):
            start += len(run)
    return start


def _positions(log: bytes, start: int, stop: int, end: int) -> list[int]:
    """Return the sorted positions of markers in a block."""
    # Searching for one literal at a time is many times faster than one pattern for all.
    occurrences = (_occurrences(log, marker, start, stop, end) for marker in _MARKERS)
    return sorted(chain.from_iterable(occurrences))


def _occurrences(log: bytes, marker: bytes, start: int, stop: int, end: int) -> Iterator[int]:
    reach = min(stop + len(marker) - 1, end)
    position = log.find(marker, start, reach)
    while position >= 0:
        yield position
        position = log.find(marker, position + 1, reach)
