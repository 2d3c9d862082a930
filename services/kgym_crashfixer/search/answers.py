"""Parsers for models' answers: lenient about form, since edits are applied strictly afterwards.

An answer is hostile and may have megabytes, so every parser takes linear time.
"""

import re
from dataclasses import dataclass

# Characters of an answer that are read: the largest window of a model holds fewer.
LONGEST = 1 << 20
# Characters of an explanation that later questions repeat, and pay for.
LONGEST_WORDS = 16_000
_MOST_EDITS = 200
_MOST_FUNCTIONS = 20
# Characters of an answer's functions in total: parsing them blocks the search.
_LONGEST_FUNCTIONS = 200_000
_MOST_HYPOTHESES = 32


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of an answer."""

    file: str
    original: str
    patched: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NewFunction:
    """A function of an answer; `file` is empty if the answer names none."""

    file: str
    text: str
    reason: str = ""


class UnreadableError(Exception):
    """The answer lacks what was asked for."""


def solution(text: str) -> str:
    """Return the hypothesis: the last `<solution>`, or else all prose."""
    solutions = _tagged(text[:LONGEST], "solution")
    words = solutions[-1] if solutions else _prose(text[:LONGEST])
    if not words.strip():
        raise UnreadableError("there is no <solution>, nor any other text")
    return words.strip()[:LONGEST_WORDS]


def ranked(text: str) -> list[str]:
    """Return the hypotheses by `<ranking>`, or else in order; duplicates are removed.

    Hypotheses that the ranking omits come last.
    """
    solutions = _tagged(text[:LONGEST], "solution")[:_MOST_HYPOTHESES]
    hypotheses = [solution.strip()[:LONGEST_WORDS] for solution in solutions]
    if not any(hypotheses):
        raise UnreadableError("there is no <solution>")
    ranking = (_tagged(text[:LONGEST], "ranking") or [""])[-1]
    order = [int(number) - 1 for number in re.findall(r"(?<!\d)\d{1,4}(?!\d)", ranking)]
    first = [hypotheses[at] for at in order if 0 <= at < len(hypotheses)]
    return [hypothesis for hypothesis in dict.fromkeys([*first, *hypotheses]) if hypothesis]


def attempts(text: str) -> list[str]:
    """Return the text of each `<attempt>`, for `changes`; without the tag, the whole answer."""
    text = text[:LONGEST]
    return _tagged(text, "attempt") or [text]


def chosen(text: str, count: int) -> int:
    """Return the index of the chosen item out of `count`, from 0.

    It is the first number in the last `<choice>`, or in the last line that names the best one, or
    else the last number of all.
    """
    text = text[:LONGEST]
    # Models often discuss all items before they choose, so the last mention counts.
    places = _tagged(text, "choice") or _CHOICE.findall(text)
    for place in reversed(places or [text]):
        numbers = [int(number) for number in re.findall(r"(?<![\w.])\d{1,4}(?![\w.]*\w)", place)]
        fitting = [number for number in numbers if 1 <= number <= count]
        if fitting:
            return fitting[0 if places else -1] - 1
    raise UnreadableError(f"there is no <choice> between 1 and {count}")


def changes(text: str) -> list[Change]:
    """Return the edits: each `<original>` with the `<patched>` after it.

    A `<file>` or `<reason>` applies to all edits up to the next one. Code fences, and one line end
    at each tag, are removed.
    """
    # Half an edit makes the whole answer unreadable: a patch without a part is another patch.
    text = text[:LONGEST]
    edits, file, reason, original = [], "", "", None
    for match in _PIECE.finditer(text):
        tag, body = match["tag"].lower(), match["body"]
        match tag:
            case "reason":
                reason = body.strip()
            case "file":
                file = body.strip().strip("`\"'")
            case "original" if original is None:
                original = _code(body)
            case "patched" if original is not None:
                edits.append(Change(file, original, _code(body), reason))
                original = None
            case _:
                raise UnreadableError(f"<{tag}> stands alone, after {len(edits)} modifications")
        if len(edits) > _MOST_EDITS:
            raise UnreadableError(f"there are more than {_MOST_EDITS} modifications")
    if not edits:
        raise UnreadableError("there is no <original> with a <patched> after it")
    if len(_BEGUN.findall(text)) > len(edits):
        raise UnreadableError(f"a modification is not whole; {len(edits)} are")
    if any(not edit.file for edit in edits):
        raise UnreadableError("a modification names no <file>")
    return edits


def functions(text: str) -> list[NewFunction]:
    """Return the whole functions: each `<function>` with the `<file>` and `<reason>` before it.

    The list is empty if the answer has modifications instead (`changes`). A mixture of both, or an
    unterminated function, makes the answer unreadable.
    """
    text = text[:LONGEST]
    written, file, reason = [], "", ""
    for match in _FUNCTION_PIECE.finditer(text):
        tag, body = match["tag"].lower(), match["body"]
        match tag:
            case "reason":
                reason = body.strip()
            case "file":
                file = body.strip().strip("`\"'")
            case _:
                written.append(NewFunction(file, _code(body), reason))
    begun = len(_FUNCTION_BEGUN.findall(text))
    if begun > len(written):
        raise UnreadableError(f"a <function> is not whole; {len(written)} are")
    edited = "<original>" in text.lower()
    if written and edited:
        raise UnreadableError("it holds whole functions and modifications: give either")
    if not written and not edited:
        raise UnreadableError("there is no <function>")
    if len(written) > _MOST_FUNCTIONS:
        raise UnreadableError(f"there are more than {_MOST_FUNCTIONS} functions")
    if sum(len(function.text) for function in written) > _LONGEST_FUNCTIONS:
        raise UnreadableError(
            f"the functions have more than {_LONGEST_FUNCTIONS} characters: give those that change"
        )
    return written


def diff(text: str) -> str:
    """Return the unified diff: from `<patch>`, `<diff>`, a fence, or the first header."""
    text = text[:LONGEST]
    # A diff may contain a fence, so tags go before fences, and the whole answer comes last.
    places = [*_tagged(text, "patch"), *_tagged(text, "diff"), *_fences(text)[0], text]
    for place in places:
        start = _HEADER.search(place)
        if start is not None:
            return str(place[start.start() :]).rstrip("`\n ") + "\n"
    raise UnreadableError("there is no diff: a line that begins with `--- ` and one with `+++ `")


_TAGS = "reason|file|original|patched"
_PIECE = re.compile(
    rf"<(?P<tag>{_TAGS})>(?P<body>(?:(?!<(?:{_TAGS})>).)*?)</(?P=tag)>", re.DOTALL | re.IGNORECASE
)
_BEGUN = re.compile(r"^[ \t]*<original>", re.MULTILINE | re.IGNORECASE)
_FUNCTION_TAGS = "reason|file|function"
_FUNCTION_PIECE = re.compile(
    rf"<(?P<tag>{_FUNCTION_TAGS})>(?P<body>(?:(?!<(?:{_FUNCTION_TAGS})>).)*?)</(?P=tag)>",
    re.DOTALL | re.IGNORECASE,
)
_FUNCTION_BEGUN = re.compile(r"^[ \t]*<function>", re.MULTILINE | re.IGNORECASE)
_CHOICE = re.compile(r"(?im)^[^\w\n]{0,20}(?:choice|selected|best)\b.*$")
_HEADER = re.compile(
    r"^(?:diff --git .*\n(?:(?!diff )[a-z].*\n){0,10})?--- .+\n\+\+\+ .+$", re.MULTILINE
)


def _tagged(text: str, tag: str) -> list[str]:
    """Return the texts between the tags; the last one may lack its end."""
    pieces = re.split(rf"(?i)<{tag}>", text)[1:]
    return [re.split(rf"(?i)</{tag}>", piece)[0] for piece in pieces]


def _prose(text: str) -> str:
    return _fences(text)[1]


def _fences(text: str) -> tuple[list[str], str]:
    """Split a text into code fences and the rest; an unterminated fence belongs to the rest."""
    fenced: list[str] = []
    outside: list[str] = []
    inside: list[str] | None = None
    for line in text.splitlines(keepends=True):
        if inside is None and line.startswith("```"):
            inside = [line]
        elif inside is None:
            outside.append(line)
        elif line.rstrip() == "```":
            fenced.append("".join(inside[1:]))
            inside = None
        else:
            inside.append(line)
    return fenced, "".join([*outside, *(inside or [])])


def _code(body: str) -> str:
    """Return the code of a tag without its fence, and without line ends at its borders."""
    body = re.sub(r"\A[ \t]*\r?\n", "", body)
    body = re.sub(r"\r?\n[ \t]*\Z", "", body)
    fenced = re.fullmatch(r"```[^\n]*\n(.*?)\n?```", body.strip(), re.DOTALL)
    return fenced[1] if fenced else body
