"""The patch in a model's answer, in whatever form it is written. Pure; linear time.

The form is detected, not prescribed: tags, SEARCH/REPLACE, JSON, a diff, whole functions. Edits are
applied strictly afterwards (`kgym_crashfixer.search.code`).
"""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from kgym.errors import UserError
from kgym.source import diff_text, unified_diff
from kgym.source.whole_functions import MOST_TEXT, functions
from kgym_crashfixer.search.answers import LONGEST, UnreadableError, code, fences

_MOST_CHANGES = 200
_MOST_FUNCTIONS = 20
# JSON values that are tried in an answer.
_MOST_VALUES = 50
# Characters before a change in which its file may be named.
_HINT = 600
# Names of a change's parts.
_NAMES = {
    "file": "file path file_path filename",
    "original": "original search old old_string old_str old_text before",
    "patched": "patched replacement replace new new_string new_str new_text modified after",
    "function": "function code",
    "diff": "diff patch",
    "reason": "reason",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Names used as tags: tags with the other names may contain mere code, or whole changes.
_NAME = "|".join(name for name in _KINDS if name not in {"code", "diff", "patch"})
_ELEMENT = re.compile(
    r"<(?:file|path)\s{1,9}\w{1,20}=[\"']?(?P<path>[^\"'>\n]{1,300})[\"']?\s{0,9}>"
    rf"|<(?P<name>{_NAME})>(?P<body>(?:(?!</?(?:{_NAME})\b).)*+)</(?P=name)>",
    re.IGNORECASE | re.DOTALL,
)
_BEGUN = re.compile(r"(?im)^[ \t]*<(?:function|original|search|patched|replacement)>")
# The lines of SEARCH/REPLACE blocks, and tags for them.
_MARK = re.compile(r"(?m)^[ \t]*(<{5,9}|={5,9}|>{5,9})(?![<=>])[^\n]*$")
_MARKED = {"<": "<original>", "=": "</original>\n<patched>", ">": "</patched>"}
# Words in prose that announce a patch in place of those above.
_FINAL = re.compile(
    r"(?im)^(?![-+ @\t])[^\n]{0,200}?\b(?:final|corrected|revised) (?:answer|code|diff|edits?|"
    r"modifications?|patch|solution|version)\b|^\W{0,9}(?:final|corrected|revised)\W{0,9}$"
)
_PATH = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*")
_CLEAN = re.compile(r"(?:/|\./|[ab]/|linux(?:-[\w.]+)?/)+")
_WRAPPER = re.compile(r"(?i)</?(?:patch|diff|answer|attempt)\b[^>\n]{0,100}>")
_DIFF_FENCE = re.compile(r"(?ms)^[ \t]*```(?:diff|patch)[^\n]*\n(.*?)^[ \t]*```")
_VALUE = re.compile(r"(?m)^[ \t]*(?=[\[{]\s{0,100}[\"{\[])")
# Stands for the path of a diff that names none.
_UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Change:
    """A snippet of a file and what takes its place; without `original`, a whole function.

    `file` is empty if the answer names none. `line` is a hunk's stated line; `readings` are pairs
    of its old and new text in other possible readings.
    """

    file: str
    original: str
    patched: str
    reason: str = ""
    line: int | None = None
    readings: tuple[tuple[str, str], ...] = ()

    def repeats(self, other: "Change") -> bool:
        """Return whether it changes the same code as another change."""
        same = self.original.split() == other.original.split()
        name, old = (change.patched.partition("(")[0].split() for change in (self, other))
        return same and self.file == other.file and (bool(self.original) or name == old)


_Pieces = list[tuple[int, Change]]


def read(text: str, files: Collection[str] = ()) -> tuple[list[Change], int]:
    """Return the changes in an answer in order; of several complete patches, those of the last.

    Also return the number of changes in the earlier patches. `files` are paths that the words
    before a change may name.
    """
    text = _with_tags(text[:LONGEST].replace("\r\n", "\n"))
    pieces, rest, cut = _in_tags(text, files)
    for begin, end, value in _values(rest):
        with suppress(RecursionError):
            pieces += [(begin, change) for change in _in_json(value, "")]
        rest = rest[:begin] + " " * (end - begin) + rest[end:]
    pieces += _in_diffs(rest, files)
    if not pieces and cut is None:
        bodies = fences(rest)[0] or [rest]
        pieces = [(0, Change("", "", text)) for body in bodies for text in functions(body)]
    made: list[Change] = []
    last = 0
    for begin, change in sorted(pieces, key=lambda piece: piece[0]):
        # A repeated change, or one announced as final, replaces the draft before it.
        if any(map(change.repeats, made)) or _FINAL.search(rest, last, begin):
            made = []
        made.append(change)
        last = begin
        if len(made) > _MOST_CHANGES:
            raise UnreadableError(f"there are more than {_MOST_CHANGES} modifications")
    if cut is not None and not any(cut and old.original.startswith(cut) for old in made):
        raise UnreadableError(f"a modification is not whole; {len(made)} are")
    if not made:
        raise UnreadableError("there is no patch: no <original> with <patched>, diff or <function>")
    whole = [change.patched for change in made if not change.original]
    if len(whole) > _MOST_FUNCTIONS or sum(map(len, whole)) > MOST_TEXT:
        much = f"more than {_MOST_FUNCTIONS} functions, or more than {MOST_TEXT} characters of them"
        raise UnreadableError(f"there are {much}: give those that change")
    return made, len(pieces) - len(made)


def clean(path: str) -> str:
    """Return a path without marks around it, and without prefixes of diffs and trees."""
    path = path.strip().strip("`\"'* ")
    return path[match.end() :] if (match := _CLEAN.match(path)) else path


def _with_tags(text: str) -> str:
    """Return the text with tags for the marks of SEARCH/REPLACE blocks."""
    expected = "<"

    def tag(match: re.Match[str]) -> str:
        nonlocal expected
        if match[1][0] != expected:
            return match[0]
        expected = "<=>"["<=>".index(expected) - 2]
        return _MARKED[match[1][0]]

    return _MARK.sub(tag, text)


def _hint(words: str, files: Collection[str], default: str) -> str:
    """Return the last of the files that the words before a change name."""
    named = [clean(word) for word in _PATH.findall(words[-_HINT:])]
    known = {f"/{path}" for path in files}
    fits = (word for word in named if word and any(path.endswith(f"/{word}") for path in known))
    return ([default, *fits])[-1]


def _in_tags(text: str, files: Collection[str]) -> tuple[_Pieces, str, str | None]:
    """Return the changes in tags, the text without them, and the beginning of one that is cut off.

    A file and a reason apply to all changes up to the next one.
    """
    pieces: _Pieces = []
    file = reason = ""
    original = cut = None
    named, begin, ended = False, 0, 0
    for match in _ELEMENT.finditer(text):
        kind, body = _KINDS[(match["name"] or "file").lower()], code(match["body"] or "")
        if kind == "file":
            file, named = clean(match["path"] or body), True
        elif kind == "reason":
            reason = body.strip()
        elif not named:
            file = _hint(text[ended : match.start()], files, file)
        if kind == "function":
            pieces.append((match.start(), Change(file, "", body, reason)))
        elif kind == "original":
            cut, original, begin = cut if original is None else "", body, match.start()
        elif kind == "patched" and original is None:
            cut = ""
        elif kind == "patched" and original is not None:
            pieces.append((begin, Change(file, original, body, reason)))
            original = None
        ended = match.end()
    left = _ELEMENT.sub(lambda match: " " * len(match[0]), text)
    if begun := _BEGUN.search(left):
        cut = code(left[begun.end() :])
    return pieces, left, cut if original is None else original


def _values(text: str) -> Iterator[tuple[int, int, object]]:
    """Yield the JSON values of a text, with their ranges."""
    end = 0
    for match in islice(_VALUE.finditer(text), _MOST_VALUES):
        if match.end() >= end:
            with suppress(ValueError, RecursionError):
                value, end = json.JSONDecoder(strict=False).raw_decode(text, match.end())
                yield match.end(), end, value


def _in_json(value: object, file: str) -> Iterator[Change]:
    """Yield the changes in a JSON value; those within an object have its file."""
    if isinstance(value, list):
        for part in value:
            yield from _in_json(part, file)
    if not isinstance(value, dict):
        return
    parts: dict[str, str] = {}
    for name, kind in _KINDS.items():
        if isinstance(text := value.get(name), str):
            parts.setdefault(kind, text)
    file = clean(parts.get("file") or file)
    if parts.get("original") and "patched" in parts:
        yield Change(file, parts["original"], parts["patched"], parts.get("reason", ""))
    elif parts.get("function"):
        yield from (Change(file, "", text) for text in functions(parts["function"]))
    elif parts.get("diff"):
        yield from (change for _, change in _in_diffs(parts["diff"], [file]))
    else:
        for part in value.values():
            yield from _in_json(part, file)


def _in_diffs(text: str, files: Collection[str]) -> _Pieces:
    """Return the hunks of all diffs, with their places in the text."""
    # Tags become fences of equal length, so that places stay valid.
    text = _WRAPPER.sub(lambda tag: "\n```".ljust(len(tag[0]) - 1) + "\n", text)
    headers: dict[int, list[str]] = {}
    for fence in _DIFF_FENCE.finditer(text):
        if "\n+++ " not in f"\n{fence[1]}":
            name = _hint(text[: fence.start()], files, _UNNAMED)
            numbers = [] if fence[1].startswith("@@") else ["@@"]
            headers[fence.start(1)] = [f"--- {name}", f"+++ {name}", *numbers]
    lines: list[tuple[int, str]] = []
    at = 0
    for line in text.split("\n"):
        lines += [(at, each) for each in (*headers.get(at, ()), line)]
        at += len(line) + 1
    whole = diff_text.plain("\n".join(line for _, line in lines))
    pieces: _Pieces = []
    try:
        for file in unified_diff.parse(whole, "the diff"):
            paths = diff_text.places(*file.paths)
            if file.added or file.removed or not paths:
                raise UnreadableError(f"it adds, removes or renames {file.paths[1]}; change others")
            path = clean(paths[0]) if paths[0] != _UNNAMED else ""
            for hunk in file.hunks:
                (old, new), *others = (
                    ("".join(hunk.side("- ", way))[:-1], "".join(hunk.side("+ ", way))[:-1])
                    for way in range(len(hunk.readings))
                )
                if not old:
                    raise UnreadableError(f"line {hunk.line}: the hunk has no line of the file")
                change = Change(path, old, new, "", hunk.old, tuple(others))
                pieces.append((lines[hunk.line - 1][0], change))
    except UserError as error:
        raise UnreadableError(error.message) from error
    return pieces
