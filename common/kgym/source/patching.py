"""Strict application of patches to a source tree. Pure: the tree is a mapping of paths to contents.

A hunk applies at its stated line, or else at the only other place in the file with all of its old
lines. If a hunk differs from the file in line ends alone, it takes the file's, provided that each
uses one kind throughout.

`git apply` and `patch` are not used: neither can show the nearest context of a failed hunk, and
`patch` guesses (fuzz), which can change the wrong function.
"""

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from itertools import accumulate, groupby
from pathlib import PurePosixPath

from kgym.api.steps import Edit, Patch
from kgym.errors import UserError
from kgym.source import diff_text, patch_mails, unified_diff
from kgym.source.unified_diff import FileDiff, Hunk


@dataclass(frozen=True, slots=True)
class Change:
    """A file after a patch; `content` is None for a file that is removed."""

    path: str
    content: bytes | None
    executable: bool = False
    mode_of: str | None = None
    """The file whose mode is kept if the patch sets none."""

    def after(self, earlier: Mapping[str, "Change"]) -> "Change":
        """Return the change with the mode that earlier changes set."""
        before = earlier.get(self.mode_of or "")
        if before is None or before.content is None:
            return self
        return replace(self, executable=before.executable, mode_of=before.mode_of)


@dataclass(frozen=True, slots=True)
class Applied:
    """The changes of a patch, in the order of their files, and remarks for the log."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def apply(patch: Patch, files: Mapping[str, bytes]) -> Applied:
    """Apply a patch; raise UserError `patch_does_not_apply`, `malformed_patch` or `unsafe_patch`.

    Later hunks or edits of a file see the results of earlier ones. A path that does not exist
    stands for the only file of that name that has the hunks' lines. A patch that would take too
    long is rejected as `patch_too_large`; one that changes no file, as `empty_patch`.
    """
    tree = _Tree(patch.name, files)
    parts, tree.notes = _parts(patch)
    for number, (name, own) in enumerate(parts, 1):
        tree.begin(name)
        try:
            for file, old, new in _resolved(tree, own):
                _apply_file(tree, file, old, new)
        except UserError as error:
            error.details |= {"patch": number, "patches": len(parts)} if len(parts) > 1 else {}
            raise
    for edit in patch.edits:
        _apply_edit(tree, edit)
    if not tree.differs:
        what = "changes nothing: is it in the kernel already?"
        raise UserError("empty_patch", f"{patch.name} {what}")
    return Applied(tuple(tree.changes()), tuple(tree.notes))


def files(patch: Patch) -> list[str]:
    """Return the paths that a patch may read or write, all inside the tree (`unsafe_patch`)."""
    paths = [_safe(patch.name, edit.file) for edit in patch.edits]
    for name, own in _parts(patch)[0]:
        paths += [path for file in own for pair in _places(name, file) for path in pair]
    return list(dict.fromkeys(paths))


def misplaced(patches: Iterable[Patch], paths: Iterable[str]) -> set[str]:
    """Return the names of files that patches change, but that are at none of these paths.

    If there are any, the names of added, copied and renamed files are included, since these are
    placed like the others. Raises UserError as `files` does.
    """
    there, names = {*paths}, set[str]()
    for name, own in (part for patch in patches for part in _parts(patch)[0]):
        places = [(_places(name, file), file.added) for file in own]
        lost = [pairs for pairs, added in places if not added and not {*dict(pairs)} & there]
        made = [pairs for pairs, added in places if added or any(old != new for old, new in pairs)]
        there |= {new for pairs in made for _, new in pairs}
        looked_for = [*lost, *made] if lost else []
        names |= {PurePosixPath(at).name for pairs in looked_for for pair in pairs for at in pair}
    return names


def diffs(patch: Patch) -> list[FileDiff]:
    """Return the diffs of a patch's files; raise UserError as `files` does."""
    return [file for _, own in _parts(patch)[0] for file in own]


def identity(patch: Patch) -> str:
    """Return a text that identifies a diff in all its forms: its hunks, without prose.

    Raises UserError as `files` does.
    """
    return patch.model_dump_json(include={"edits"}) if patch.edits else as_diff(patch)


def reverse(patch: Patch) -> Patch:
    """Return the patch that undoes this one; raise UserError as `files` does."""
    edits = [
        Edit(file=edit.file, original=edit.replacement, replacement=edit.original)
        for edit in reversed(patch.edits)
    ]
    done = [_reversed(patch.name, file).text() for file in reversed(diffs(patch))]
    return Patch(name=f"reverse of {patch.name}", edits=edits, diff="".join(done) or None)


def as_diff(patch: Patch) -> str:
    """Return a patch as a unified diff for readers: hunks of edits have no true line numbers.

    Raises UserError as `files` does.
    """
    return "".join([*map(_edit_diff, patch.edits), *(file.text() for file in diffs(patch))])


def _edit_diff(edit: Edit) -> str:
    before, after = edit.original, edit.replacement
    if not before.endswith("\n") or not after.endswith("\n"):  # the edit ends within a line
        before, after = f"{before}\n", f"{after}\n"
    return unified_diff.between(edit.file, before, after, context=before.count("\n"))


def _parts(patch: Patch) -> tuple[list[tuple[str, list[FileDiff]]], list[str]]:
    """Split a diff, or a series of mails, into named patches in order; return them and remarks.

    A patch that consists of edits has none.
    """
    if patch.url is not None:
        what = "is a URL, which only a check fetches; give a diff"
        raise UserError("malformed_patch", f"{patch.name} {what}")
    if patch.diff is None:
        return [], []
    name, text = patch.name, diff_text.plain(patch.diff)
    if "\0" in text:
        raise UserError("binary_patch", f"{name} is not text: it contains NUL bytes; give a diff")
    if text.count("\n") > _MOST_LINES:
        raise UserError("patch_too_large", f"{name} has over {_MOST_LINES} lines; make it smaller")
    mails = patch_mails.read(text, name)
    chosen, notes = patch_mails.series(mails)
    parts = []
    for number, mail in enumerate(chosen or mails, 1):
        own = f"{name}: patch {number} of {len(chosen)} ({mail.title})" if chosen[1:] else name
        files = unified_diff.parse(diff_text.plain(mail.text), own)
        notes += [f"{own}: {file.paths[1]} is binary: left out" for file in files if file.binary]
        kept = [file for file in files if not (file.binary and patch.drop_binaries)]
        for file in kept:
            _check_file(own, file)
            file.charset = mail.charset
        parts.append((own, kept))
    count = sum(len(kept) for _, kept in parts)
    if not count:
        binary = any("is binary" in note for note in notes)
        what = "changes only binary files" if binary else diff_text.instead(text)
        reason = "malformed_patch" if what else "empty_patch"
        raise UserError(reason, f"{name} {what or 'holds no diff; give what `git diff` prints'}")
    if count > _MOST_FILES:
        raise UserError("patch_too_large", f"{name} changes over {_MOST_FILES} files; split it")
    return parts, notes


def _check_file(name: str, file: FileDiff) -> None:
    """Refuse a file that no patch may change."""
    path, reason = file.paths[1], "malformed_patch"
    if file.binary:
        reason, what = "binary_patch", "is binary: remove it, or set `drop_binaries`"
    elif file.mode == "120000":
        reason, what = "unsafe_patch", "would be a symbolic link; change regular files only"
    elif file.mode == "160000":
        reason, what = "unsafe_patch", "would be a submodule; change regular files only"
    elif file.hunks or file.extended.keys() - {"index"}:
        return
    else:
        what = f"no hunk follows line {file.line}; the diff is cut off: make it anew"
    raise UserError(reason, f"{name}: {path} {what}", file=path, line=file.line)


# Bytes of a path: the kernel's longest has 106.
_LONGEST = 1000
# Hunks of a patch that apply at another line than stated.
_MOST_MOVED = 1000
# Characters that are searched for edits and moved hunks: one or two seconds.
_MOST_SEARCHED = 1 << 30
# Lines of a diff: a diff between two stable releases has fewer.
_MOST_LINES = 200_000
_MOST_FILES = 5000
_ANEW = "make the patch anew, against this kernel's source"
# Lines of a failed hunk that are compared with the nearest lines: difflib takes quadratic time.
_SHOWN = 200
# Weight of a search for a file's name in the tree, in characters.
_FIND = 1 << 22
# Places of a text in a message.
_PLACES = 10


def _safe(name: str, path: str) -> str:
    parts = PurePosixPath(path).parts
    odd = "\\" in path or not path.isprintable() or len(path.encode()) > _LONGEST
    if not parts or path.startswith("/") or ".." in parts or ".git" in parts or odd:
        raise UserError("unsafe_patch", f"{name}: {path!r} is not a path inside the tree")
    return str(PurePosixPath(*parts))


def _places(name: str, file: FileDiff) -> list[tuple[str, str]]:
    """Return possible pairs of old and new path of a file in the tree, likeliest first."""
    old, new = file.paths
    if {"copy from", "rename from"} & file.extended.keys():
        return [(_safe(name, old.strip('"')), _safe(name, new.strip('"')))]
    paths = [_safe(name, path) for path in diff_text.places(old, new)]
    if not paths:
        _safe(name, old), _safe(name, new)
        what = f"{name}: a diff of {old} against {new} changes no single file: give both its path"
        raise UserError("malformed_patch", what)
    return [(path, path) for path in paths]


class _Tree:
    """The files with the changes made so far; each is read and decoded once."""

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        self.name = name
        self.notes: list[str] = []
        self._files = files
        self._before: dict[str, str | None] = {}
        self._texts: dict[str, str | None] = {}
        # By path, in order of the first change: the executable bit, or the file to copy it from.
        self._changed: dict[str, bool | str] = {}
        self._searched = 0
        self.moved = 0
        # The texts when the patch of a series began.
        self._begun: dict[str, str | None] = {}

    def begin(self, name: str) -> None:
        """Begin the next patch of a series."""
        self.name, self._begun = name, dict(self._texts)

    def unpatched(self, path: str) -> str | None:
        """Return the text that a file had when this patch began."""
        return self._begun.get(path, self._before.get(path, self.text(path)))

    def text(self, path: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        if path not in self._texts:
            content = self._files.get(path)
            text = None if content is None else content.decode(errors="surrogateescape")
            self._texts[path] = self._before[path] = text
        return self._texts[path]

    @cached_property
    def named(self) -> dict[str, list[str]]:
        """The paths of the unpatched files, by name."""
        named: dict[str, list[str]] = {}
        for path in self._files:
            named.setdefault(path.rpartition("/")[2], []).append(path)
        return named

    @property
    def differs(self) -> bool:
        """Whether any file has changed, or the patch sets a mode."""
        return any(
            isinstance(mode, bool) or self._texts[path] != self._before.get(path)
            for path, mode in self._changed.items()
        )

    def change(self, path: str, text: str | None, *, executable: bool | str = False) -> None:
        """Write a file; None removes it. `executable` may be the path of a file with that mode."""
        self._texts[path] = text
        if executable != path:
            self._changed[path] = executable
        self._changed.setdefault(path, executable)

    def search(self, characters: int) -> None:
        """Count searched characters; raise UserError beyond the limit."""
        self._searched += characters
        if self._searched > _MOST_SEARCHED:
            what = f"{self.name}: searching its files takes too long: make fewer, larger edits"
            raise UserError("patch_too_large", what)

    def changes(self) -> Iterator[Change]:
        """Yield all changes."""
        for path, mode in self._changed.items():
            text = self._texts[path]
            content = None if text is None else text.encode(errors="surrogateescape")
            yield Change(path, content, mode is True, mode if isinstance(mode, str) else None)


def _resolved(tree: _Tree, files: Sequence[FileDiff]) -> list[tuple[FileDiff, str, str]]:
    """Return a patch's files with their old and new paths in the tree."""
    shift = "", ""
    placed: dict[int, tuple[str, str]] = {}
    # New files last: they lie where the others do.
    for file in sorted(files, key=lambda file: file.added):
        stated = old, new = _in_tree(tree, file)
        if file.added or tree.text(old) is None:
            old, new = _shifted(old, shift), _shifted(new, shift)
        if not file.added and tree.text(old) is None:
            shift = _shift(tree, file, stated[0])
            old, new = _shifted(stated[0], shift), _shifted(stated[1], shift)
        if (old, new) != stated:
            tree.notes.append(f"{tree.name}: {stated[1]} means {new}")
        placed[file.line] = old, new
    return [(file, *placed[file.line]) for file in files]


def _shifted(path: str, shift: tuple[str, str]) -> str:
    return shift[1] + path.removeprefix(shift[0])


def _shift(tree: _Tree, file: FileDiff, old: str) -> tuple[str, str]:
    """Return a wrong prefix of a file's path, and the tree's prefix that replaces it."""
    tree.search(_FIND)
    named = tree.named.get(PurePosixPath(old).name, [])
    there = [path for path in named if tree.text(path) is not None]
    shifts, why, notes, moved = {}, "", len(tree.notes), tree.moved
    for path in there:
        shift = (old.removesuffix(path), "") if old.endswith(path) else ("", path.removesuffix(old))
        if _shifted(old, shift) != path:  # neither path ends with the other
            continue
        try:
            _apply_hunks(tree, path, file, tree.text(path) or "")
            shifts[path] = shift
        except UserError as error:
            why = f"\n{error.message}"
    del tree.notes[notes:]
    tree.moved = moved
    if len(shifts) == 1:
        return shifts.popitem()[1]
    meant = ", ".join(sorted(shifts or there)[:5])
    what = f"{meant} may be meant" if there else "there is no such name"
    message = f"{old} is not in the tree; {what}: give the path from the top of the tree"
    raise _conflict(tree.name, message + why * (len(there) == 1), old)


def _in_tree(tree: _Tree, file: FileDiff) -> tuple[str, str]:
    """Return the pair of paths that exists in the tree, or the likeliest if none does."""
    pairs = _places(tree.name, file)
    there = [] if file.added else [pair for pair in pairs if tree.text(pair[0]) is not None]
    if len(there) > 1:
        both = " and ".join(old for old, _ in there)
        raise UserError("malformed_patch", f"{tree.name} may mean {both}; give it a/ and b/")
    return (there or pairs)[0]


def _apply_file(tree: _Tree, file: FileDiff, old: str, new: str) -> None:
    name, executable = tree.name, file.mode == "100755"
    copied = "copy from" in file.extended
    before = tree.unpatched(old) if copied else tree.text(old)
    if (file.added or old != new) and tree.text(new) is not None:
        raise _conflict(name, f"{new} already exists: change it, or choose another name", new)
    if file.added:
        text = "".join("".join(hunk.side("+ ")) for hunk in file.hunks)
        tree.change(new, text, executable=executable)
        return
    after = _apply_hunks(tree, old, file, before or "")
    if file.removed and after:
        raise _conflict(name, f"{old} is to be removed, but has other lines, too: {_ANEW}", old)
    if file.removed or (old != new and not copied):
        tree.change(old, None)
    if not file.removed:
        # Without "new mode", the mode in an "index" line is what the file had; the tree knows
        # better.
        tree.change(new, after, executable=executable if "new mode" in file.extended else old)


def _apply_hunks(tree: _Tree, path: str, file: FileDiff, text: str) -> str:
    """Return the text with the hunks applied in order, in one pass over the file."""
    lines, ends = _Lines(text), _ends(text)
    done: list[str] = []
    floor = moved = 0
    for number, hunk in enumerate(file.hunks, 1):
        named = f"{tree.name}: hunk {number} of {path}"
        at = stated = None
        for reading in range(len(hunk.readings)):
            old, new = hunk.side("- ", reading), hunk.side("+ ", reading)
            other = _with_ends([*old, *new], ends) if old else None
            if other is not None:
                old, new = other[: len(old)], other[len(old) :]
            old, new = lines.encoded(old, file.charset), lines.encoded(new, file.charset)
            # A hunk without old lines names the line before the insertion.
            stated = None if hunk.old is None else hunk.old - (1 if old else 0) + moved
            at = _place(tree, lines, old, stated, floor)
            if at is not None:
                break
        if at is None:
            line = hunk.line if hunk.old is None else hunk.old
            what = f"hunk {number} of {path} (line {line}) does not apply\n"
            what += _nearest(lines, lines.encoded(hunk.side("- "), file.charset))
            raise _conflict(tree.name, what, path, hunk=number, line=line)
        if other is not None:
            tree.notes.append(f"{named} took the file's line ends")
        if hunk.recounted:
            tree.notes.append(f"{named}: its header miscounts its lines; they were counted")
        if at != stated:
            by = "to the only place" if stated is None else f"{at - stated:+d} lines away"
            tree.notes.append(f"{named} applied {by}")
            tree.moved += 1
        if tree.moved > _MOST_MOVED:
            what = f"over {_MOST_MOVED} hunks are not at their stated lines: {_ANEW}"
            raise _conflict(tree.name, what, path)
        done += lines.all[floor:at]
        done += new
        moved += 0 if stated is None else at - stated
        floor = at + len(old)
    return "".join(done + lines.all[floor:])


def _ends(text: str) -> str | None:
    """Return the line end of all lines of a file; None if they are mixed."""
    if "\r" not in text:
        return "\n"
    return "\r\n" if text.count("\r\n") == text.count("\n") else None


def _with_ends(lines: list[str], end: str | None) -> list[str] | None:
    """Return a hunk's lines with the file's line end; None if unchanged or unclear."""
    kinds = {line.endswith("\r\n") for line in lines if line.endswith("\n")}
    if end is None or kinds != {end == "\n"}:
        return None
    return [line.rstrip("\r\n") + end if line.endswith("\n") else line for line in lines]


class _Lines:
    """The lines of a file, each with its line end, and their offsets."""

    def __init__(self, text: str) -> None:
        self.all = StringIO(text).readlines()
        self._text = "\n" + text
        self._starts: list[int] = []
        # For a file that is not UTF-8, its lines by how readers see them; "" if they are ambiguous.
        self._raw: dict[str, str] = {}
        if _NOT_UTF8.search(text):
            self._raw = {line: line for line in self.all}
            for line in self.all:
                same = self._raw.get(_shown(line), line) == line
                self._raw[_shown(line)] = line if same else ""

    def encoded(self, lines: list[str], charset: str) -> list[str]:
        """Return a diff's lines as the file has them; those that it lacks, encoded in `charset`."""
        # Only for files that are not UTF-8: in others, encoding a line anew would change it.
        if not self._raw:
            return lines
        return [
            line if line.isascii() else self._raw.get(line) or _encoded(line, charset)
            for line in lines
        ]

    def places(self, old: list[str], floor: int = 0) -> tuple[list[int], int]:
        """Return the first two indices, from `floor` on, at which the old lines stand.

        The second value is an upper bound of the characters searched.
        """
        # Searched as text: comparing lists of lines would be quadratic on repeated lines.
        if not old or not all(line.endswith("\n") for line in old[:-1]):
            return [], 0
        self._starts = self._starts or [0, *accumulate(map(len, self.all))]
        text, wanted, start = self._text, "\n" + "".join(old), self._starts[floor]
        if not wanted.endswith("\n"):  # only the last line of a file has no end
            at = len(text) - len(wanted)
            offsets = [at] if at >= start and text.endswith(wanted) else []
        else:
            offsets = occurrences(text, wanted, start, most=2)
        return [bisect_left(self._starts, at) for at in offsets], len(text) - start


# Surrogates stand for bytes that are not UTF-8.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def _shown(text: str) -> str:
    return _NOT_UTF8.sub("\ufffd", text)


def _encoded(line: str, charset: str) -> str:
    with suppress(UnicodeEncodeError):
        return line.encode(charset).decode(errors="surrogateescape")
    return line


def _place(
    tree: _Tree, lines: _Lines, old: list[str], stated: int | None, floor: int
) -> int | None:
    """Return the index of the old lines: the stated one, or else the only other one."""
    inside = stated is not None and floor <= stated <= len(lines.all)
    if stated is not None and inside and lines.all[stated : stated + len(old)] == old:
        return stated
    places, searched = lines.places(old, floor)
    tree.search(searched)
    return places[0] if len(places) == 1 else None


def _nearest(file: _Lines, old: list[str]) -> str:
    """Explain why the old lines are not found: a diff against the most similar place."""
    if not old:
        return "its place is not in the file: give it lines of the file before and after its own"
    if len(file.places(old)[0]) > 1:
        return (
            "its lines occur at several places, none of them at the stated line: give it more lines"
            " before and after them"
        )
    lines = file.all
    if (line := _other_space(lines, old)) is not None:
        own = "".join(lines[line - 1 :][: len(old[:_SHOWN])])
        return (
            f"its lines occur from line {line} on, with other white space: a mail program or a"
            " copy from a web page has changed tabs or blanks; take the patch from its source, or"
            f" write the lines as the file has them:\n{own}"
        )
    wanted = {line for line in old if line.strip()}
    hits = [0, *accumulate(line in wanted for line in lines)]
    size = min(len(old), len(lines))
    # The first of the places with the most lines.
    begin = max(range(len(lines) - size + 1), key=lambda at: hits[at + size] - hits[at])
    if hits[begin + size] == hits[begin]:
        return f"none of its lines is in the file: {_ANEW}"
    old = old[:_SHOWN]
    nearest = lines[begin : begin + len(old)]
    diff = difflib.unified_diff(
        [line.rstrip("\n") for line in old],
        [line.rstrip("\n") for line in nearest],
        "wanted by the hunk",
        f"nearest in the file, from line {begin + 1}",
        lineterm="",
        n=len(old),
    )
    return "\n".join([*(line for line in diff if not line.startswith("@@")), _ANEW])


def _other_space(lines: list[str], old: list[str]) -> int | None:
    """Return the line number at which the old lines stand if white space is ignored."""
    text, wanted = (
        "\n" + "".join(" ".join(line.split()) + "\n" for line in side) for side in (lines, old)
    )
    at = text.find(wanted)
    return text.count("\n", 0, at) + 1 if at >= 0 else None


def _apply_edit(tree: _Tree, edit: Edit) -> None:
    path = _safe(tree.name, edit.file)
    text = tree.text(path)
    if text is None:
        raise _conflict(tree.name, f"{path} is not in the tree: give its path from the top", path)
    tree.search(len(text))
    original, replacement = _spelled(text, edit)
    if text.count(original) != 1:
        why = not_once(text, original, path)
        raise _conflict(tree.name, f"the original of an edit {why}", path)
    tree.change(path, text.replace(original, replacement), executable=path)


def _spelled(text: str, edit: Edit) -> tuple[str, str]:
    """Return an edit's original and replacement with the bytes of a file that is not UTF-8.

    Readers show such a byte as U+FFFD, or as a character of Latin-1.
    """
    original, replacement = edit.original, edit.replacement
    if original.isascii() or original in text or not _NOT_UTF8.search(text):
        return original, replacement
    shown = _shown(text)
    if shown.count(original) == 1:
        own = text[(at := shown.index(original)) : at + len(original)]
        lost = _NOT_UTF8.findall(own)
        if replacement.count("\ufffd") in (0, len(lost)):
            return own, re.sub("\ufffd", lambda _: lost.pop(0), replacement)
    return _encoded(original, "latin-1"), _encoded(replacement, "latin-1")


def not_once(text: str, original: str, path: str) -> str:
    """Return why an edit is ambiguous or matches nothing, with the lines that come nearest."""
    if places := [text.count("\n", 0, at) for at in occurrences(text, original)]:
        return several(text, path, places)
    near = _nearest(_Lines(text), _Lines(original).all)
    return f"occurs 0 times in {path}, not once\n{near}"


def occurrences(text: str, wanted: str, start: int = 0, most: int = _PLACES + 1) -> list[int]:
    """Return the first places of a text in another: by default, as many as `several` needs."""
    places, at = list[int](), start - 1
    while len(places) < most and (at := text.find(wanted, at + 1)) >= 0:
        places.append(at)
    return places


def several(text: str, path: str, places: Sequence[int]) -> str:
    """Explain that a text occurs at several lines of a file, which `places` counts from 0."""
    lines = text.split("\n")
    shown = [f"{at + 1}: {lines[at][:_SHOWN]}" for at in places[:_PLACES]]
    more = len(places) > len(shown)
    times = f"over {_PLACES}" if more else len(places)
    what = f"occurs {times} times in {path}, not once: add lines before or after it. It is in"
    return "\n".join([what, *shown, *["…"] * more])


def _conflict(name: str, what: str, path: str, **details: object) -> UserError:
    # Lines of files that are not UTF-8 have surrogates, which no answer can hold.
    message = f"{name}: {what}".encode(errors="replace").decode()
    return UserError("patch_does_not_apply", message, file=path, **details)


def _reversed(name: str, file: FileDiff) -> FileDiff:
    """Return the changes that undo those to a file."""
    if "copy from" in file.extended:
        what = f"{name}: the copy {file.paths[1]} has no reverse; use `git diff --no-renames`"
        raise UserError("malformed_patch", what)
    hunks = [
        Hunk(hunk.line, hunk.new, hunk.old, (tuple(_reversed_lines(hunk)),)) for hunk in file.hunks
    ]
    kept = file.extended
    undone = {b: kept[a] for pair in _OPPOSITE for a, b in (pair, pair[::-1]) if a in kept}
    return FileDiff(file.line, file.new, file.old, undone, hunks)


_OPPOSITE = (
    *(("rename from", "rename to"), ("old mode", "new mode")),
    ("new file mode", "deleted file mode"),
)


def _reversed_lines(hunk: Hunk) -> Iterator[str]:
    """Swap + and -, with removals first in every run of changes."""
    for kept, lines in groupby(hunk.readings[0], lambda line: line[0] == " "):
        run = list(lines)
        yield from run if kept else (f"-{line[1:]}" for line in run if line[0] == "+")
        yield from () if kept else (f"+{line[1:]}" for line in run if line[0] == "-")
