"""The code as a node of the search sees it: the candidate files with edits, and patches on them."""

import bisect
import difflib
import functools
import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from kgym.api.agent.nodes import Candidate
from kgym.api.steps import Edit, Patch
from kgym.errors import UserError
from kgym.source import patching, whole_functions
from kgym.source.edited_functions import Place, places
from kgym.source.whole_functions import MisfitError, Whole
from kgym_crashfixer.search import answers
from kgym_crashfixer.search.answers import NewFunction

# Characters of a description of what is wrong with a patch.
LONGEST_PROBLEM = 16_000
Form = Literal["edits", "diff", "functions"]


class RefusedError(Exception):
    """The code cannot be changed so; the message tells the model why, and what to do."""


@dataclass(frozen=True)
class Code:
    """Candidate files of the unpatched tree, with edits.

    `files` has their texts by path, as builds see them; `edits` apply in order.
    """

    files: Mapping[str, str]
    edits: tuple[Edit, ...] = ()
    _texts: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def texts(self) -> Mapping[str, str]:
        """The files with the edits."""
        return MappingProxyType({**self.files, **self._texts})

    def with_files(self, texts: Mapping[str, str]) -> "Code":
        """Return the code with more candidate files; existing ones keep their text."""
        new = {path: text for path, text in texts.items() if path not in self.files}
        return replace(self, files={**self.files, **new}) if new else self

    def edited(self, edits: Sequence[Edit]) -> "Code":
        """Return the code with more edits; raise RefusedError if one does not apply."""
        edits = [edit.model_copy(update={"file": posixpath.normpath(edit.file)}) for edit in edits]
        for number, edit in enumerate(edits, 1):
            if edit.file not in self.files:
                known = ", ".join(self.files)
                raise RefusedError(
                    f"modification {number} changes {edit.file}; only these files can be: {known}"
                )
        return self._changed(Patch(name="the patch", edits=list(edits)), edits)

    def replacing(self, functions: Sequence[NewFunction]) -> list[Edit]:
        """Return the edits that replace whole functions by name.

        Raises RefusedError if a function is in no candidate file, in several, or has an uncertain
        range.
        """
        # As edits, whole functions have the same diff, digest and repairs as other forms of a
        # patch.
        texts = self.texts
        wanted: dict[str, list[Whole]] = {}
        for number, function in enumerate(functions, 1):
            try:
                whole = whole_functions.read(function.text)
            except MisfitError as error:
                raise RefusedError(f"function {number}: {error}") from error
            wanted.setdefault(self._holder(function, whole), []).append(whole)
        edits = []
        for path, wholes in wanted.items():
            try:
                replaced = whole_functions.replacements(texts[path], wholes)
            except MisfitError as error:
                raise RefusedError(f"{path}: {error}") from error
            edits += [Edit(file=path, original=old, replacement=new) for old, new in replaced]
        return edits

    def _holder(self, function: NewFunction, whole: Whole) -> str:
        """Return the candidate file that contains a function."""
        known = ", ".join(self.files)
        if function.file:
            path = posixpath.normpath(function.file)
            if path not in self.files:
                raise RefusedError(f"{whole.name}() in {path}: only these files can be: {known}")
            return path
        holders = [path for path, text in self.texts.items() if _defines(text, whole.name)]
        if len(holders) == 1:
            return holders[0]
        if holders:
            raise RefusedError(
                f"{whole.name}() is in {' and '.join(holders)}: name its <file>, too"
            )
        raise RefusedError(f"there is no function {whole.name!a} in any file: {known}")

    def patched(self, diff: str) -> "Code":
        """Return the code with a unified diff applied; raise RefusedError if it does not apply."""
        patch = Patch(name="the patch", diff=diff)
        try:
            outside = [path for path in patching.files(patch) if path not in self.files]
        except UserError as error:
            raise RefusedError(error.message) from error
        if outside:
            known = ", ".join(self.files)
            raise RefusedError(f"it changes {outside[0]}; only these files can be: {known}")
        return self._changed(patch, ())

    def _changed(self, patch: Patch, edits: Sequence[Edit]) -> "Code":
        now = self.texts
        try:
            applied = patching.apply(
                patch, lambda path: now[path].encode() if path in now else None
            )
        except UserError as error:
            raise RefusedError(error.message) from error
        texts = dict(self._texts)
        for change in applied.changes:
            if change.content is None:
                raise RefusedError(f"it removes {change.path}; a fix changes files")
            texts[change.path] = change.content.decode()
        made = tuple(edits) or tuple(_whole(self.texts, texts))
        return Code(self.files, (*self.edits, *made), texts)

    @cached_property
    def diff(self) -> str:
        """All edits as one unified diff against the unpatched tree; empty without edits."""
        pieces: list[str] = []
        for path, text in sorted(self._texts.items()):
            pieces += _difference(path, self.files[path], text)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in pieces
        )

    @cached_property
    def digest(self) -> str:
        """Hash of the changed files without comments and blanks: the identity of a patch."""
        # Models reword comments and indentation; each such variant would cost a kernel.
        changed = [
            (path, kept)
            for path, text in sorted(self._texts.items())
            if (kept := _compiled(text)) != _compiled(self.files[path])
        ]
        return hashlib.sha256(repr(changed).encode()).hexdigest()

    @property
    def unchanged(self) -> bool:
        """Whether at most blanks and comments differ from the unpatched tree."""
        return self.digest == _NOTHING

    def patch(self, name: str) -> Patch:
        """Return the whole diff as a patch for the platform."""
        return Patch(name=name, diff=self.diff)


def read_patch(form: Form, code: Code, text: str) -> tuple[Candidate, str]:
    """Return the patch in an answer, and why the answer is unreadable, or "".

    The candidate's `problem` tells the model what is wrong.
    """
    answer = text[: answers.LONGEST]
    try:
        after, reasons = _with_answer(form, code, text)
    except answers.UnreadableError as error:
        problem = f"The answer cannot be read: {error}."
        return Candidate(text=answer, problem=problem), str(error)
    except (RefusedError, ValueError) as error:  # ValueError: a limit of the models `Edit`, `Patch`
        what = "functions" if form == "functions" else "modifications"
        problem = f"The {what} cannot be applied: {error}"[:LONGEST_PROBLEM]
        return Candidate(text=answer, problem=problem), ""
    if after.unchanged:
        problem = "With these modifications the code is as it was when it first crashed."
        return Candidate(text=answer, problem=problem), ""
    made = list(after.edits[len(code.edits) :])
    return Candidate(
        text=answer, edits=made, reasons=reasons, diff=after.diff, digest=after.digest
    ), ""


def _with_answer(form: Form, code: Code, text: str) -> tuple[Code, list[str]]:
    """Return the code with an answer's changes, and their reasons."""
    if form == "diff":
        return code.patched(answers.diff(text)), []
    if form == "functions" and (functions := answers.functions(text)):
        edits = code.replacing(functions)
        return (code.edited(edits) if edits else code), [change.reason for change in functions]
    changes = answers.changes(text)
    edits = [
        Edit(file=change.file, original=change.original, replacement=change.patched)
        for change in changes
    ]
    return code.edited(edits), [change.reason for change in changes]


def _defines(text: str, name: str) -> bool:
    return any(place.name == name for place in _places(text))


@functools.lru_cache(maxsize=64)
def _places(text: str) -> tuple[Place, ...]:
    return tuple(places(text))


_NOTHING = hashlib.sha256(repr([]).encode()).hexdigest()
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HUNK = re.compile(r"(?<=[-+])\d+(?=,|\s)")
_CONTEXT = 3
# Literals are matched, too, since they may contain comment marks, as in "/*".
_TOKEN = re.compile(
    r"""(?P<kept>"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?)|//[^\n]*|/\*(?:.*?\*/|.*)""",
    re.DOTALL,
)


@functools.lru_cache(maxsize=64)
def _lines(text: str) -> tuple[str, ...]:
    """Return the lines with their ends."""
    # str.splitlines would also split at the form feeds in kernel sources.
    return tuple(_LINE.findall(text))


def _begin_alike(text: str, other: str) -> int:
    """Return how many whole lines both texts begin with."""
    least = min(len(text), len(other))
    # Bisection over slices, which compare at memory speed: files have 10,000 lines and more.
    alike = bisect.bisect_left(range(least), True, key=lambda at: text[: at + 1] != other[: at + 1])
    return text.count("\n", 0, alike)


def _end_alike(text: str, other: str) -> int:
    """Return how many whole lines both texts end with, except a text's first line."""
    least = min(len(text), len(other))
    alike = bisect.bisect_left(
        range(least), True, key=lambda at: text[-at - 1 :] != other[-at - 1 :]
    )
    return len(_LINE.findall(text, text.find("\n", len(text) - alike) + 1 or len(text)))


def _difference(path: str, was: str, now: str) -> Iterator[str]:
    """Yield the lines of a unified diff."""
    # difflib is quadratic, so it only gets the part that differs.
    before, after = _lines(was), _lines(now)
    same = _begin_alike(was, now)
    first = max(0, same - _CONTEXT)
    tail = min(_end_alike(was, now), len(before) - same, len(after) - same)
    last = max(0, tail - _CONTEXT)
    compared = difflib.unified_diff(
        before[first : len(before) - last],
        after[first : len(after) - last],
        f"a/{path}",
        f"b/{path}",
        n=_CONTEXT,
    )
    for line in compared:
        if first and line.startswith("@@"):
            line = _HUNK.sub(lambda number: str(int(number[0]) + first), line)  # noqa: PLW2901
        yield line


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> str:
    """Return the non-empty lines without comments, with runs of blanks collapsed."""
    bare = _TOKEN.sub(lambda match: match["kept"] or " ", text)
    return "\n".join(" ".join(line.split()) for line in bare.split("\n") if line.strip())


def _whole(before: Mapping[str, str], after: Mapping[str, str]) -> list[Edit]:
    """Return each changed file as one edit."""
    return [
        Edit(file=path, original=before[path], replacement=text)
        for path, text in after.items()
        if text != before[path]
    ]
