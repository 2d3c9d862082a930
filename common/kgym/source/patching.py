"""Strict application of patches to a source tree. Pure: files are read through a function.

A hunk applies at its stated line, or else at the only other place in the file with all of its old
lines. If a hunk differs from the file in line ends alone, it takes the file's, provided that each
uses one kind throughout.

`git apply` and `patch` are not used: neither can show the nearest context of a failed hunk, and
`patch` guesses (fuzz), which can change the wrong function.
"""

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import PurePosixPath

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from kgym.api.steps import Edit, Patch
from kgym.errors import UserError
from kgym.source import diff_text

# Returns the content of a file by its path in the tree; None if there is no such file.
Read = Callable[[str], bytes | None]


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


def apply(patch: Patch, read: Read) -> Applied:
    """Apply a patch; raise UserError `patch_does_not_apply`, `malformed_patch` or `unsafe_patch`.

    Later hunks or edits of a file see the results of earlier ones. A patch that would take too long
    is rejected as `patch_too_large`; one that changes no file, as `empty_patch`.
    """
    tree = _Tree(patch.name, read)
    if patch.diff is not None:
        for file in _parse(patch):
            _apply_file(tree, file)
    for edit in patch.edits:
        _apply_edit(tree, edit)
    if not tree.differs:
        raise UserError(
            "empty_patch", f"{patch.name} changes nothing: every file is the same afterwards"
        )
    return Applied(tree.changes(), tuple(tree.notes))


def files(patch: Patch) -> list[str]:
    """Return the paths that a patch may read or write, all inside the tree (`unsafe_patch`)."""
    paths = [_safe(patch.name, edit.file) for edit in patch.edits]
    for file in _parse(patch) if patch.diff is not None else ():
        paths += [path for pair in _places(patch.name, file) for path in pair]
    return list(dict.fromkeys(paths))


def identity(patch: Patch) -> str:
    """Return a text that identifies a diff in all its forms: its hunks, without prose.

    Raises UserError as `files` does.
    """
    if patch.diff is None:
        return patch.model_dump_json(include={"edits"})
    modes = ("new mode ", "new file mode ", "deleted file mode ")
    return repr(
        [
            (
                *(diff_text.bare(path) for path in (file.source_file, file.target_file)),
                _renames(file),
                [line.strip() for line in file.patch_info or () if line.startswith(modes)],
                [(hunk.source_start, _side(hunk, "- "), _side(hunk, "+ ")) for hunk in file],
            )
            for file in _parse(patch)
        ]
    )


def reverse(patch: Patch) -> Patch:
    """Return the patch that undoes this one."""
    name = f"reverse of {patch.name}"
    if patch.diff is None:
        edits = [
            Edit(file=edit.file, original=edit.replacement, replacement=edit.original)
            for edit in reversed(patch.edits)
        ]
        return Patch(name=name, edits=edits)
    return Patch(name=name, diff="".join(_reverse_file(file) for file in _parse(patch)))


def as_diff(patch: Patch) -> str:
    """Return a patch as a unified diff for readers: hunks of edits have no true line numbers."""
    return "".join(map(_edit_diff, patch.edits)) if patch.diff is None else patch.diff


def _edit_diff(edit: Edit) -> str:
    before, after = edit.original.split("\n"), edit.replacement.split("\n")
    if before[-1] == after[-1] == "":  # both end with a whole line
        before, after = before[:-1], after[:-1]
    lines = difflib.unified_diff(
        before, after, f"a/{edit.file}", f"b/{edit.file}", n=len(before), lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def _parse(patch: Patch) -> list[PatchedFile]:
    text = _unified(patch)
    # A diff parser skips such a line. A dropped line would make a wrong verdict.
    if surplus := _surplus(text):
        raise UserError(
            "malformed_patch",
            f"{patch.name}: line {surplus} belongs to no hunk: the header of the preceding hunk"
            " counts fewer lines",
            line=surplus,
        )
    try:
        files = list(PatchSet(text if text.endswith("\n") else text + "\n"))
    except (UnidiffParseError, ValueError) as error:  # ValueError: line numbers are too long
        raise UserError("malformed_patch", f"{patch.name} is no unified diff: {error}") from error
    if not any(len(file) or _renames(file) for file in files):
        raise UserError("empty_patch", f"{patch.name} changes nothing: it holds no hunk")
    if len(files) > _MOST_FILES:
        raise UserError("patch_too_large", f"{patch.name} changes over {_MOST_FILES} files")
    for file in files:
        if _mode(file) == "120000":
            raise UserError("unsafe_patch", f"{patch.name}: {file.path} would be a symbolic link")
        if _mode(file) == "160000":
            raise UserError("unsafe_patch", f"{patch.name}: {file.path} would be a submodule")
    return files


def _unified(patch: Patch) -> str:
    """Return the normalised text of a unified diff."""
    text = diff_text.plain(patch.diff or "")
    if "\0" in text or "\nGIT binary patch\n" in text or "\nBinary files " in text:
        raise UserError("binary_patch", f"{patch.name}: binary patches are not accepted")
    if text.count("\n") > _MOST_LINES:
        raise UserError("patch_too_large", f"{patch.name} has over {_MOST_LINES} lines")
    if kind := diff_text.not_unified(text):
        raise UserError("malformed_patch", f"{patch.name} {kind}")
    return text


# Bytes of a path: the kernel's longest has 106.
_LONGEST = 1000
# Hunks of a patch that apply at another line than stated.
_MOST_MOVED = 1000
# Characters that are searched for edits and moved hunks: one or two seconds.
_MOST_SEARCHED = 1 << 30
# Lines of a diff: a diff between two stable releases has fewer.
_MOST_LINES = 200_000
_MOST_FILES = 5000
# Lines of a failed hunk that are compared with the nearest lines: difflib takes quadratic time.
_SHOWN = 200
_HUNK = re.compile(r"^@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")


def _surplus(text: str) -> int | None:
    """Return the number of the first line that a parser would skip after a complete hunk."""
    old = new = 0
    after_hunk = False
    for number, line in enumerate(text.split("\n"), 1):
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
        elif match := _HUNK.match(line):
            old, new = (int(count or 1) for count in match.groups())
            after_hunk = True
        elif line.startswith(("--- ", "+++ ", "diff ", "-- ")) or line == "--":
            after_hunk = False
        elif after_hunk and line[:1] in ("+", "-", " ") and line:
            return number
    return None


def _renames(file: PatchedFile) -> bool:
    return any(line.startswith("rename from ") for line in file.patch_info or ())


def _mode(file: PatchedFile) -> str:
    for line in file.patch_info or ():
        for start in ("new file mode ", "new mode ", "deleted file mode "):
            if line.startswith(start):
                return str(line.removeprefix(start).strip())
        if line.startswith("index ") and line.count(" ") == 2:
            return str(line.split()[-1])
    return ""


def _safe(name: str, path: str) -> str:
    parts = PurePosixPath(path).parts
    odd = "\\" in path or not path.isprintable() or len(path.encode()) > _LONGEST
    if not parts or path.startswith("/") or ".." in parts or ".git" in parts or odd:
        raise UserError("unsafe_patch", f"{name}: {path!r} is not a path inside the tree")
    return str(PurePosixPath(*parts))


def _places(name: str, file: PatchedFile) -> list[tuple[str, str]]:
    """Return possible pairs of old and new path of a file in the tree, likeliest first."""
    old, new = diff_text.bare(file.source_file), diff_text.bare(file.target_file)
    if "/dev/null" in (file.source_file, file.target_file):
        old = new = new if file.is_added_file else old
    elif _renames(file):
        return [(_safe(name, old), _safe(name, new))]
    paths = [_safe(name, path) for path in diff_text.places(old, new)]
    if not paths:
        _safe(name, old), _safe(name, new)
        raise UserError(
            "malformed_patch",
            f"{name}: a diff of {old} against {new} changes no single file: give both the file's"
            " path in the tree",
        )
    return [(path, path) for path in paths]


class _Tree:
    """The files with the changes made so far; each is read and decoded once."""

    def __init__(self, name: str, read: Read) -> None:
        self.name = name
        self.notes: list[str] = []
        self._read = read
        self._before: dict[str, str | None] = {}
        self._texts: dict[str, str | None] = {}
        # By path, in order of the first change: the executable bit, or the file to copy it from.
        self._changed: dict[str, bool | str] = {}
        self._searched = 0

    def text(self, path: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        if path not in self._texts:
            content = self._read(path)
            text = None if content is None else content.decode(errors="surrogateescape")
            self._texts[path] = self._before[path] = text
        return self._texts[path]

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
            raise UserError(
                "patch_too_large",
                f"{self.name}: searching files of this size for its edits and hunks takes too long;"
                " make fewer, larger edits",
            )

    def changes(self) -> tuple[Change, ...]:
        """Return all changes."""
        return tuple(self._change(path, self._texts[path]) for path in self._changed)

    def _change(self, path: str, text: str | None) -> Change:
        if text is None:
            return Change(path, None)
        mode = self._changed[path]
        content = text.encode(errors="surrogateescape")
        return Change(path, content, mode is True, mode if isinstance(mode, str) else None)


def _apply_file(tree: _Tree, file: PatchedFile) -> None:
    name = tree.name
    old, new = _in_tree(tree, _places(name, file), added=file.is_added_file)
    executable = _mode(file) == "100755"
    before = tree.text(old)
    if file.is_added_file:
        if before is not None:
            raise _conflict(name, f"{new} already exists", new)
        tree.change(new, _text_of(file), executable=executable)
        return
    if before is None:
        raise _conflict(name, f"{old} is not in the tree", old)
    after = _apply_hunks(tree, old, file, before)
    if file.is_removed_file:
        tree.change(old, None)
        return
    if old != new:
        tree.change(old, None)
    # Without "new mode", the mode in an "index" line is what the file had; the tree knows better.
    sets_mode = any(line.startswith("new mode ") for line in file.patch_info or ())
    tree.change(new, after, executable=executable if sets_mode else old)


def _in_tree(tree: _Tree, pairs: list[tuple[str, str]], *, added: bool) -> tuple[str, str]:
    """Choose the pair of paths that exists in the tree, or the likeliest if none does."""
    there = [] if added else [pair for pair in pairs if tree.text(pair[0]) is not None]
    if len(there) > 1:
        both = " and ".join(old for old, _ in there)
        raise UserError("malformed_patch", f"{tree.name} may mean {both}; give it a/ and b/")
    return (there or pairs)[0]


def _text_of(file: PatchedFile) -> str:
    return "".join("".join(_side(hunk, "+ ")) for hunk in file)


def _side(hunk: Hunk, kinds: str) -> list[str]:
    """Return the lines of one side of a hunk, each with its end."""
    lines: list[str] = []
    previous = " "
    for line in hunk:
        if line.line_type == "\\":
            # "\ No newline at end of file" applies to the side of the line before it.
            if previous in kinds:
                lines[-1] = lines[-1].removesuffix("\n")
            continue
        previous = line.line_type
        if previous in kinds:
            lines.append(line.value if line.value.endswith("\n") else line.value + "\n")
    return lines


def _apply_hunks(tree: _Tree, path: str, file: PatchedFile, text: str) -> str:
    """Return the text with the hunks applied in order, in one pass over the file."""
    lines, ends = _Lines(text), _ends(text)
    done: list[str] = []
    floor = moved = 0
    for number, hunk in enumerate(file, 1):
        old, new = _side(hunk, "- "), _side(hunk, "+ ")
        if old and (other := _with_ends([*old, *new], ends)):
            old, new = other[: len(old)], other[len(old) :]
            tree.notes.append(f"{tree.name}: hunk {number} of {path} took the file's line ends")
        # A hunk without old lines names the line before the insertion.
        stated = hunk.source_start - (1 if old else 0)
        at = _place(tree, lines, old, stated + moved, floor)
        if at is None:
            raise _conflict(
                tree.name,
                f"hunk {number} of {path} (line {hunk.source_start}) does not apply\n"
                + _nearest(lines, old),
                path,
                hunk=number,
                line=hunk.source_start,
            )
        if at != stated + moved:
            distance = at - stated - moved
            note = f"{tree.name}: hunk {number} of {path} applied {distance:+d} lines away"
            tree.notes.append(note)
            if len(tree.notes) > _MOST_MOVED:
                raise _conflict(
                    tree.name, f"over {_MOST_MOVED} hunks are not at their stated lines", path
                )
        done += lines.all[floor:at]
        done += new
        moved = at - stated
        floor = at + len(old)
    return "".join(done + lines.all[floor:])


def _ends(text: str) -> str | None:
    """Return the line end of all lines of a file; None if they are mixed."""
    with_cr = text.count("\r\n")
    if "\r" not in text:
        return "\n"
    return "\r\n" if with_cr == text.count("\n") else None


def _with_ends(lines: list[str], end: str | None) -> list[str] | None:
    """Return a hunk's lines with the file's line end; None if unchanged or unclear."""
    kinds = {line.endswith("\r\n") for line in lines if line.endswith("\n")}
    if end is None or kinds != {end == "\n"}:
        return None
    return [line.rstrip("\r\n") + end if line.endswith("\n") else line for line in lines]


class _Lines:
    """The lines of a file, each with its line end, and their offsets."""

    def __init__(self, text: str) -> None:
        parts = text.split("\n")
        self.all = [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
        self._text = "\n" + text
        self._starts: list[int] = []

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
            offsets = [text.find(wanted, start)]
            offsets.append(text.find(wanted, offsets[0] + 1) if offsets[0] >= 0 else -1)
        places = [bisect_left(self._starts, at) for at in offsets if at >= 0]
        return places, len(text) - start


def _place(tree: _Tree, lines: _Lines, old: list[str], stated: int, floor: int) -> int | None:
    """Return the index of the old lines: the stated one, or else the only other one."""
    there = lines.all[stated : stated + len(old)] if stated >= floor else []
    if floor <= stated <= len(lines.all) and there == old:
        return stated
    places, searched = lines.places(old, floor)
    tree.search(searched)
    return places[0] if len(places) == 1 else None


def _nearest(file: _Lines, old: list[str]) -> str:
    """Explain why the old lines are not found: a diff against the most similar place."""
    if not old:
        return "it adds lines beyond the end of the file"
    if len(file.places(old)[0]) > 1:
        return "its lines occur at several places, none of them at the stated line"
    lines = file.all
    if (line := _other_space(lines, old)) is not None:
        return (
            f"its lines occur from line {line} on, with other white space: a mail program or a"
            " copy from a web page has changed tabs or blanks; take the patch from its source"
        )
    wanted = {line for line in old if line.strip()}
    hits = [line in wanted for line in lines]
    window = sum(hits[: len(old)])
    best, best_at = window, 0
    for at in range(1, len(lines) - len(old) + 1):
        window += hits[at + len(old) - 1] - hits[at - 1]
        if window > best:
            best, best_at = window, at
    if best == 0:
        return "none of its lines is in the file"
    old = old[:_SHOWN]
    nearest = lines[best_at : best_at + len(old)]
    diff = difflib.unified_diff(
        [line.rstrip("\n") for line in old],
        [line.rstrip("\n") for line in nearest],
        "wanted by the hunk",
        f"nearest in the file, from line {best_at + 1}",
        lineterm="",
        n=len(old),
    )
    return "\n".join(line for line in diff if not line.startswith("@@"))


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
        raise _conflict(tree.name, f"{path} is not in the tree", path)
    tree.search(len(text))
    at = text.find(edit.original)
    behind = at + len(edit.original)
    if at >= 0 and text.find(edit.original, behind) < 0:
        tree.change(path, text[:at] + edit.replacement + text[behind:], executable=path)
        return
    count = text.count(edit.original)
    near = "" if count else "\n" + _nearest(_Lines(text), _Lines(edit.original).all)
    what = f"the original of an edit occurs {count} times in {path}, not once{near}"
    raise _conflict(tree.name, what, path)


def _conflict(name: str, what: str, path: str, **details: object) -> UserError:
    return UserError("patch_does_not_apply", f"{name}: {what}", file=path, **details)


def _reverse_file(file: PatchedFile) -> str:
    old, new = diff_text.bare(file.target_file), diff_text.bare(file.source_file)
    text = [f"diff --git a/{old} b/{new}\n", f"rename from {old}\nrename to {new}\n"]
    if not _renames(file):
        text.clear()
    text.append(f"--- {_header('a/', file.target_file)}\n+++ {_header('b/', file.source_file)}\n")
    for hunk in file:
        text.append(
            f"@@ -{hunk.target_start},{hunk.target_length}"
            f" +{hunk.source_start},{hunk.source_length} @@\n"
        )
        text.extend(_reverse_lines(hunk))
    return "".join(text)


def _header(side: str, path: str) -> str:
    return path if path == "/dev/null" else side + diff_text.bare(path)


def _reverse_lines(hunk: Hunk) -> list[str]:
    """Swap + and -, with removals first in every run of changes."""
    signs = {"+": "-", "-": "+", " ": " ", "\\": "\\"}
    lines: list[str] = []
    removed: list[str] = []
    added: list[str] = []
    kept = lines
    for line in hunk:
        sign = signs[line.line_type]
        if sign != "\\":
            kept = {"-": removed, "+": added, " ": lines}[sign]
        if sign == " ":
            lines += removed + added
            removed.clear()
            added.clear()
        end = "" if line.value.endswith("\n") else "\n"
        kept.append(f"{sign}{line.value}{end}")
    return lines + removed + added
