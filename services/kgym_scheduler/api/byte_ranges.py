"""Byte ranges (RFC 9110, section 14); pure."""

import re
from dataclasses import dataclass

_SINGLE = re.compile(r"bytes=[ \t]*(?:(\d+)-(\d*)|-(\d+))[ \t]*", re.IGNORECASE | re.ASCII)


class Unsatisfiable(ValueError):
    """The range begins behind the end of the content."""


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes [start, stop) of a content of `size` bytes."""

    start: int
    stop: int
    size: int

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


def parse(header: str | None, size: int) -> Part | None:
    """Return the part that a Range header asks for; None where all has to be sent.

    That is also the answer to what a server may ignore: several ranges at
    once, other units, a range that is not well formed. Raises Unsatisfiable.
    """
    match = _SINGLE.fullmatch(header) if header else None
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, stop = max(0, size - _number(suffix)), size
    else:
        start, stop = _number(first), min(size, _number(last) + 1) if last else size
        if last and _number(last) < _number(first):
            return None
    if start >= size or stop <= start:
        raise Unsatisfiable
    return Part(start, stop, size)


def _number(digits: str) -> int:
    """Return the number, or one that is behind every end: `int` refuses 4,300 digits and more."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) < 19 else 10**18
