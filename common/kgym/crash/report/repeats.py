"""Repeated lines and records of a report, counted instead of shown. Pure."""

import re
from collections.abc import Sequence

# Characters in which records are looked for: more than readers are shown, and a guest may print
# millions of lines.
_MOST = 64_000
# Lines of a record: kmemleak's and lockdep's are shorter.
_LONGEST = 80
# Shortest record whose addresses and numbers may differ. Neighbouring lines of a hex dump or of
# registers are alike, too, and begin with a blank.
_RECORD = 4
_TIME = re.compile(r"^\[ *\d+\.\d+\](?:\[[^\]]{1,20}\])? ?")
_CHANGING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\b(?:pid|age|jiffies|cpu) \d+", re.IGNORECASE)


def counted(text: str) -> str:
    """Return a report in which records that follow each other are shown once, with their number.

    Records may differ in addresses and process numbers.
    """
    text, rest = text[:_MOST], text[_MOST:]
    lines = text.split("\n")
    same = [_TIME.sub("", line) for line in lines]
    alike = [_CHANGING.sub("", line) for line in same]
    kept: list[str] = []
    at = 0
    while at < len(lines):
        size, times = _record(same, alike, at)
        kept += lines[at : at + size]
        if times > 1:
            what = "the line above" if size == 1 else f"the {size} lines above"
            kept.append(f"[{what}: {times - 1} more times]")
        at += size * times
    return "\n".join(kept) + rest


def _record(same: Sequence[str], alike: Sequence[str], at: int) -> tuple[int, int]:
    """Return the size in lines of the record at `at`, and how many times in a row it occurs."""
    for size in range(1, _LONGEST + 1):
        is_record = size >= _RECORD and same[at][:1].strip()
        lines = alike if is_record else same
        times = 1
        if at + size >= len(lines) or lines[at + size] != lines[at]:  # most sizes end here
            continue
        first = lines[at : at + size]
        while first[0] and lines[at + times * size : at + (times + 1) * size] == first:
            times += 1
        # A note on a few lines takes longer to understand than the lines themselves.
        if size * (times - 1) > 4:
            return size, times
    return 1, 1
