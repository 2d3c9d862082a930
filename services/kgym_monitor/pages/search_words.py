"""What somebody has typed into the search box."""

import re
from functools import cache

from kgym.bugs import shipped
from kgym.bugs.shipped import ShippedBug

LONGEST = 200
"""Characters of a search that are read."""
_BUGS = 20
_SHORTEST = 3
"""Characters that a part of a bug's title has to have."""
_FRAME = re.compile(r"([A-Za-z_][\w.]{0,150})\+0x[0-9a-f]{1,16}\b")
_CALL = re.compile(r"([A-Za-z_][\w.]{0,150})\(\)")


def plain(typed: str) -> str:
    """Return what was asked for: of a line of a stack, or `name()`, the function."""
    asked = " ".join(typed[:LONGEST].split())
    found = _FRAME.search(asked) or _CALL.fullmatch(asked)
    return found[1] if found else asked


def job_number(asked: str) -> int | None:
    """Return the job's number that was asked for, written `12` or `#12`; None if it is none."""
    number = asked.removeprefix("#")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else None


def bugs(asked: str) -> list[ShippedBug]:
    """Return the shipped bugs whose name or titles have this, in any case.

    A job that proves a fix ends without a crash, and so without a title to find it by.
    """
    if len(asked) < _SHORTEST:
        return []
    wanted = asked.casefold()
    found = [one for one in _shipped() if any(wanted in text.casefold() for text in _texts(one))]
    return found[:_BUGS]


def _texts(bug: ShippedBug) -> list[str]:
    return [bug.name, bug.title, *bug.alt_titles]


@cache
def _shipped() -> list[ShippedBug]:
    return shipped.shipped()
