"""Whole functions: one that somebody wrote takes the place of the one of its name. Pure.

This is how RGym has patches written (section 2, function-wise patching): nobody has to count lines
or to quote. Where a function begins and ends is read from the syntax. Kernel code has macros that
no parser of C knows; what cannot be told for sure is refused, never guessed.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.source.edited_functions import Place, is_quick, places

# Characters of a function; the longest of the kernel has fewer.
LONGEST = 100_000
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_INCLUDE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*include\b.*$", re.MULTILINE)
# Characters of code in a message.
_SHOWN = 60


class MisfitError(Exception):
    """A function that cannot take the place of another; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A function by itself, without what stands before and behind it."""

    name: str
    text: str
    behind: str = ""
    """What was written behind it, without comments: `EXPORT_SYMBOL(name);`."""


def read(text: str) -> Whole:
    """Return the one function that a text is; raise MisfitError if it is none, or more."""
    text = text.replace("\r\n", "\n")
    if len(text) > LONGEST:
        raise MisfitError(
            f"a function has {len(text)} characters; at most {LONGEST} are read. Change what needs"
            " to be changed, and nothing else"
        )
    if not is_quick(text):
        raise MisfitError("it takes too long to parse: write the function as the kernel's code is")
    found = places(text)
    if len(found) != 1:
        raise MisfitError(_not_one(text, found))
    (place,) = found
    raw = text.encode()
    before, behind = raw[: place.first].decode(), raw[place.behind :].decode()
    body = raw[place.first : place.behind].decode()
    before, behind = (_COMMENTS.sub("", one).strip() for one in (before, behind))
    if before:
        raise MisfitError(
            f"before {place.name}() stands {_short(before)}: write the function alone, from its"
            " return type to its closing brace"
        )
    if not place.whole or not body.endswith("}"):
        raise MisfitError(f"{place.name}() does not parse: a brace or a parenthesis is missing")
    return Whole(place.name, body, behind)


def replacements(text: str, functions: Sequence[Whole]) -> list[tuple[str, str]]:
    """Return what stands in a file's text, once each, and what stands there instead.

    Raises MisfitError where a function is not there, is there more often, or cannot be told from
    the code around it; and where the file would not have the same functions afterwards.
    """
    found = places(text)
    raw = text.encode()
    made: dict[Place, tuple[str, str]] = {}
    for one in functions:
        place = _place(one, found)
        if place in made:
            raise MisfitError(f"{one.name}() is given twice: write it once, as it shall be")
        old = raw[place.first : place.behind].decode()
        _check(one, place, old, text, raw)
        made[place] = old, one.text
    after = raw
    for place in sorted(made, key=lambda one: one.first, reverse=True):
        after = after[: place.first] + made[place][1].encode() + after[place.behind :]
    _check_rest(found, raw, made, after)
    return [(old, new) for old, new in made.values() if old != new]


def _place(one: Whole, found: Sequence[Place]) -> Place:
    """Return where the function of the same name is."""
    there = [place for place in found if place.name == one.name]
    if len(there) == 1:
        return there[0]
    if there:
        lines = ", ".join(str(place.begin + 1) for place in there)
        raise MisfitError(
            f"{one.name}() is defined {len(there)} times here, at the lines {lines}: which one is"
            " meant cannot be told"
        )
    if not one.name.isascii():
        raise MisfitError(f"there is no function {one.name!a} here: {_foreign(one.name)}")
    alike = difflib.get_close_matches(one.name, {place.name for place in found}, 1)
    meant = f", but {alike[0]}()" if alike else ""
    raise MisfitError(
        f"there is no function {one.name}() here whose syntax can be read{meant}; only functions"
        " that are there can be replaced"
    )


def _check(one: Whole, place: Place, old: str, text: str, raw: bytes) -> None:
    """Refuse what is not the function alone, and one whose borders are not sure."""
    if not place.whole or not old.endswith("}") or text.count(old) != 1:
        raise MisfitError(
            f"where {one.name}() begins and ends cannot be told for sure: macros or #if stand in"
            " the way"
        )
    strange = sorted({char for char in one.text if not char.isascii()} - set(old))
    if strange:
        raise MisfitError(f"{one.name}(): {_foreign(''.join(strange))}")
    known = {" ".join(line.split()) for line in _INCLUDE.findall(old)}
    for line in _INCLUDE.findall(one.text):
        if " ".join(line.split()) not in known:
            raise MisfitError(
                f"{one.name}() holds {_short(line.strip())}: headers are included at the top of a"
                " file, not in a function"
            )
    following = _COMMENTS.sub("", raw[place.behind :].decode()).lstrip()
    if one.behind and not following.startswith(one.behind):
        raise MisfitError(
            f"behind {one.name}() stands {_short(one.behind)}: write the function alone, up to its"
            " closing brace"
        )


def _check_rest(
    found: Sequence[Place], raw: bytes, made: dict[Place, tuple[str, str]], after: bytes
) -> None:
    """Refuse functions with which the rest of the file would be read in another way."""
    kept = [(one.name, None if one in made else raw[one.first : one.behind]) for one in found]
    names = {one.name for one in made}
    now = [
        (one.name, None if one.name in names else after[one.first : one.behind])
        for one in places(after.decode())
    ]
    if kept != now:
        given = ", ".join(f"{name}()" for name in sorted(names))
        raise MisfitError(
            f"with {given} as written, the rest of the file reads in another way: a brace, a quote,"
            " a comment or an #if is not closed"
        )


def _not_one(text: str, found: Sequence[Place]) -> str:
    if found:
        names = ", ".join(f"{one.name}()" for one in found[:10])
        return f"{len(found)} functions stand in one place ({names}): write each by itself"
    return (
        f"{_short(text.strip())} does not parse as a function of C: it has to be whole, from its"
        " return type to its closing brace"
    )


def _foreign(text: str) -> str:
    """Return what is wrong with characters that look like others."""
    codes = ", ".join(f"U+{ord(char):04X}" for char in text if not char.isascii())
    return f"it has characters that are no ASCII ({codes}), which the code did not have"


def _short(text: str) -> str:
    line = text.partition("\n")[0]
    return f"`{line[:_SHOWN]}`{' …' if len(line) > _SHOWN or chr(10) in text else ''}"
