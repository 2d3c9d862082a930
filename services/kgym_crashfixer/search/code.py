"""The code as a node of the search sees it: the candidate files with edits, and patches on them."""

import functools
import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from kgym.api.agent.nodes import Candidate
from kgym.api.steps import Edit, Patch
from kgym.errors import UserError
from kgym.source import patching, snippets, unified_diff, whole_functions
from kgym.source.comments import without_comments
from kgym.source.edited_functions import places
from kgym.source.whole_functions import MisfitError
from kgym_crashfixer.search import answers, written_patch
from kgym_crashfixer.search.written_patch import Change

# Maximum number of the latest changes that a later one may replace.
_MOST_REPLACED = 10
# Characters of a description of what is wrong with a patch.
LONGEST_PROBLEM = 16_000


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

    def only(self, texts: Mapping[str, str]) -> "Code":
        """Return the code with these candidate files, and with those that have edits."""
        edited = {path: self.files[path] for path in self._texts}
        return replace(self, files={**texts, **edited})

    def edited(self, edits: Sequence[Edit]) -> "Code":
        """Return the code with more edits; raise MisfitError if one does not apply."""
        after = self._with(Patch(name="the patch", edits=list(edits)))
        return replace(after, edits=(*self.edits, *edits))

    def with_diff(self, diff: str) -> "Code":
        """Return the code with a diff of its files; raise MisfitError if it does not apply."""
        return self._with(Patch(name="the patch", diff=diff))

    def _with(self, patch: Patch) -> "Code":
        now = self.texts
        try:
            paths = (path for path in patching.files(patch) if path in now)
            applied = patching.apply(patch, {path: now[path].encode() for path in paths})
        except UserError as error:
            raise MisfitError(error.message) from error
        texts = {change.path: (change.content or b"").decode() for change in applied.changes}
        return Code(self.files, self.edits, {**self._texts, **texts})

    def changed(self, change: Change) -> "Code":
        """Return the code with a model's change; raise MisfitError if it does not fit."""
        path = self.path(change)
        now = self.texts[path]
        if not change.original:
            try:
                function = whole_functions.read(change.patched)
                old = whole_functions.replaced(now, function)
            except MisfitError as error:
                raise MisfitError(f"{path}: {error}") from error
            new = snippets.function(path, now, old, function.text)
            edit = Edit(file=path, original=old, replacement=new)
            return self.edited([edit]) if old != new else self
        errors = []
        for original, patched in ((change.original, change.patched), *change.readings):
            try:
                return self.edited([snippets.edit(path, now, original, patched, change.line)])
            except MisfitError as error:
                errors.append(error)
        raise errors[0]

    def means(self, name: str) -> list[str]:
        """Return the candidate files that a name may mean: it may have extra or missing folders."""
        name = f"/{posixpath.normpath(name)}"
        paths = [path for path in self.files if name.endswith(f"/{path}")]
        paths = paths or [path for path in self.files if f"/{path}".endswith(name)]
        return paths if "/../" not in name else []

    def path(self, change: Change) -> str:
        """Return the candidate file that a change means; raise MisfitError if that is unclear."""
        if change.file:
            paths, what = self.means(change.file), change.file
        elif change.original:
            paths = [path for path, text in self.texts.items() if _stands(change.original, text)]
            what = "its original"
        else:
            name = whole_functions.read(change.patched).name
            texts, what = self.texts.items(), f"{name}()"
            paths = [path for path, text in texts if name in {each.name for each in places(text)}]
        if len(paths) == 1:
            return paths[0]
        where = f"{what!a} is in {' and '.join(paths) or 'no file'}: name its <file>"
        raise MisfitError(f"{where}; only these files can be changed: {', '.join(self.files)}")

    @cached_property
    def diff(self) -> str:
        """All edits as one unified diff against the unpatched tree; empty without edits."""
        texts = sorted(self._texts.items())
        return "".join(unified_diff.between(path, self.files[path], text) for path, text in texts)

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


def read_patch(code: Code, text: str) -> tuple[Candidate, str]:
    """Return the patch in an answer, and why the answer is unreadable, or "".

    The candidate's `problem` tells the model what is wrong.
    """
    answer = text[: answers.LONGEST]
    try:
        after, changes, notes = _with_answer(code, text)
    except answers.UnreadableError as error:
        problem = f"The answer cannot be read: {error}."
        return Candidate(text=answer, problem=problem), str(error)
    except (MisfitError, ValueError) as error:  # ValueError: a limit of the models `Edit`, `Patch`
        problem = f"The patch cannot be applied: {error}"[:LONGEST_PROBLEM]
        return Candidate(text=answer, problem=problem), ""
    if after.unchanged:
        problem = "With these modifications the code is as it was when it first crashed."
        return Candidate(text=answer, problem=problem), ""
    return Candidate(
        text=answer,
        edits=list(after.edits[len(code.edits) :]),
        reasons=[change.reason for change in changes if change.reason],
        notes=notes,
        diff=after.diff,
        digest=after.digest,
    ), ""


def _with_answer(code: Code, text: str) -> tuple[Code, list[Change], list[str]]:
    """Return the code with an answer's changes, the changes, and remarks about them."""
    changes, drafts = written_patch.read(text, code.files)
    made, states, notes = list[Change](), [code], list[str]()
    for number, change in enumerate(changes, 1):
        errors = []
        # A change that fits only without the latest changes was written to replace them.
        for kept in range(len(made), max(-1, len(made) - _MOST_REPLACED), -1):
            try:
                states[kept + 1 :] = [states[kept].changed(change)]
                break
            except MisfitError as error:
                errors.append(error)
        else:
            if any(_stands(change.original, later.original) for later in changes[number:]):
                drafts += 1
                continue
            raise MisfitError(f"modification {number}: {errors[0]}") from errors[0]
        drafts += len(made) - kept
        made[kept:] = [change]
    after = states[-1]
    if drafts:
        notes.append(f"{drafts} modifications of an earlier draft were left out")
    given = {change.original for change in made} | {change.patched for change in made}
    if any({edit.original, edit.replacement} - given for edit in after.edits[len(code.edits) :]):
        notes.append("its white space or its context is the file's, not the answer's")
    return after, made, notes


def _stands(snippet: str, text: str) -> bool:
    """Return whether a text contains a snippet; white space is ignored."""
    return "".join(snippet.split()) in "".join(text.split())


_NOTHING = hashlib.sha256(repr([]).encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> str:
    """Return the non-empty lines without comments, with runs of blanks collapsed."""
    return "\n".join(" ".join(line.split()) for line in without_comments(text).split("\n"))
