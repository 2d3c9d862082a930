"""Replacement of whole functions by name. Pure.

RGym's form of a patch (section 2, function-wise patching): a model need not count lines or quote.
The syntax tree gives a function's range. A C parser does not know the kernel's macros, so an
uncertain range is rejected and never guessed.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.source.edited_functions import Place, is_quick, places

# Characters of a function: the kernel's longest has fewer.
LONGEST = 100_000
# Characters of several functions: parsing them blocks the caller.
MOST_TEXT = 200_000
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_INCLUDE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*include\b.*$", re.MULTILINE)
_ALONE = "write only the function, from its return type to its closing brace"
# Characters of code in a message.
_SHOWN = 60


class MisfitError(Exception):
    """A function cannot replace another; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A function's text, without the surrounding code."""

    name: str
    text: str
    behind: str = ""
    """Code written after it, without comments: `EXPORT_SYMBOL(name);`."""


def functions(text: str) -> list[str]:
    """Return the functions of a text that holds nothing else but comments; else none."""
    if len(text) > MOST_TEXT or not is_quick(text):
        return []
    raw, there = text.encode(), places(text)
    ends, begins = (
        [0, *(each.behind for each in there)],
        [*(each.first for each in there), len(raw)],
    )
    rest = b"".join(raw[end:begin] for end, begin in zip(ends, begins, strict=True)).decode()
    if _COMMENTS.sub("", rest).strip():
        return []
    return [raw[each.first : each.behind].decode() for each in there]


def read(text: str) -> Whole:
    """Parse a text as exactly one function; raise MisfitError otherwise."""
    text = text.replace("\r\n", "\n")
    if len(text) > LONGEST:
        raise MisfitError(f"it has {len(text)} characters; the limit is {LONGEST}: change less")
    if not is_quick(text):
        raise MisfitError("it takes too long to parse: write it in the style of kernel code")
    there = places(text)
    if len(there) != 1:
        raise MisfitError(_not_one(text, there))
    (place,) = there
    raw = text.encode()
    body = raw[place.first : place.behind].decode()
    around = raw[: place.first], raw[place.behind :]
    before, behind = (_COMMENTS.sub("", rest.decode()).strip() for rest in around)
    if before:
        raise MisfitError(f"before {place.name}() comes {_short(before)}: {_ALONE}")
    if not place.whole or not body.endswith("}"):
        raise MisfitError(f"{place.name}() does not parse: a brace or a parenthesis is missing")
    return Whole(place.name, body, behind)


def replaced(text: str, function: Whole) -> str:
    """Return the text, which occurs once in the file, of the function that it replaces.

    Raises MisfitError if that is missing, defined more than once, or has an uncertain range, or if
    the file would not have the same other functions afterwards.
    """
    existing, raw = places(text), text.encode()
    place = _place(function, existing)
    old = raw[place.first : place.behind].decode()
    _check(function, place, old, text, raw)
    after = raw[: place.first] + function.text.encode() + raw[place.behind :]
    if _others(existing, raw, place) != _others(places(after.decode()), after, place):
        raise MisfitError(
            f"with {function.name}() as written, the rest of the file parses differently: a brace,"
            " a quote, a comment or an #if is not closed"
        )
    return old


def _place(function: Whole, existing: Sequence[Place]) -> Place:
    """Return the place of the function with the same name."""
    there = [place for place in existing if place.name == function.name]
    if len(there) == 1:
        return there[0]
    if there:
        lines = ", ".join(str(place.begin + 1) for place in there)
        times = f"{len(there)} times here, in lines {lines}"
        raise MisfitError(f"{function.name}() is defined {times}: which is meant is unclear")
    if not function.name.isascii():
        raise MisfitError(f"there is no function {function.name!a} here: {_foreign(function.name)}")
    alike = difflib.get_close_matches(function.name, {place.name for place in existing}, 1)
    meant = f", but {alike[0]}()" if alike else ""
    what = f"there is no function {function.name}() here that parses{meant}"
    raise MisfitError(f"{what}; only existing ones can be replaced")


def _check(function: Whole, place: Place, old: str, text: str, raw: bytes) -> None:
    """Reject text beside the function, and functions with an uncertain range."""
    if not place.whole or not old.endswith("}") or text.count(old) != 1:
        why = "in the file is uncertain: macros or #if are in the way"
        raise MisfitError(f"the range of {function.name}() {why}")
    # Homoglyphs (a Cyrillic letter that looks Latin) pass a review and break the build.
    strange = sorted({char for char in function.text if not char.isascii()} - set(old))
    if strange:
        raise MisfitError(f"{function.name}(): {_foreign(''.join(strange))}")
    known = {" ".join(line.split()) for line in _INCLUDE.findall(old)}
    for line in _INCLUDE.findall(function.text):
        if " ".join(line.split()) not in known:
            what = f"{function.name}() contains {_short(line.strip())}"
            raise MisfitError(f"{what}: include headers at the top of the file, not in a function")
    following = _COMMENTS.sub("", raw[place.behind :].decode()).lstrip()
    if function.behind and not following.startswith(function.behind):
        raise MisfitError(f"after {function.name}() comes {_short(function.behind)}: {_ALONE}")


def _others(there: Sequence[Place], raw: bytes, place: Place) -> list[tuple[str, bytes]]:
    """Return the names of a file's functions, with the texts of all but one."""
    return [
        (each.name, raw[each.first : each.behind] if each.name != place.name else b"")
        for each in there
    ]


def _not_one(text: str, there: Sequence[Place]) -> str:
    if there:
        names = ", ".join(f"{function.name}()" for function in there[:10])
        return f"one <function> contains {len(there)} functions ({names}): write each by itself"
    return (
        f"{_short(text.strip())} does not parse as a C function: write it whole, from its return"
        " type to its closing brace"
    )


def _foreign(text: str) -> str:
    """Return an error text for non-ASCII characters, which may look like ASCII ones."""
    codes = ", ".join(f"U+{ord(char):04X}" for char in text if not char.isascii())
    return f"it has non-ASCII characters ({codes}) that the code did not have"


def _short(text: str) -> str:
    line = text.partition("\n")[0]
    return f"`{line[:_SHOWN]}`{' …' if len(line) > _SHOWN or chr(10) in text else ''}"
