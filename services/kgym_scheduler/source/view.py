"""A source as a caller sees it: an archive with patches applied."""

import difflib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import chain

from kgym.api.source import CHARACTERS, ENTRIES, LINES, FileLook, FileText, FolderList, SourceEntry
from kgym.api.steps import Patch
from kgym.errors import NotFound, UserError
from kgym.source import patching, source_archive
from kgym_scheduler.source.archive import Archive, Reader

# Maximum characters of all patches.
MOST_PATCHES = 1 << 20
_LINKS = 10
_LIKE = 5


class View(Mapping[str, bytes]):
    """An archive with patches applied; `changed` are the changed files, None if removed.

    As a mapping, it holds all regular files. Raises UserError as `kgym.source.patching.apply` does.
    """

    def __init__(self, archive: Archive, reader: Reader, patches: Sequence[Patch] = ()) -> None:
        self.archive = archive
        self.reader = reader
        self.changed: dict[str, bytes | None] = {}
        if sum(map(_length, patches)) > MOST_PATCHES:
            raise UserError("patch_too_large", f"over {MOST_PATCHES >> 20} MiB of patches")
        for patch in patches:
            for change in patching.apply(patch, self).changes:
                self.changed[change.path] = change.content

    def __getitem__(self, path: str) -> bytes:
        """Return a regular file, as the patches so far left it."""
        entry = self.reader.entry(path)
        text = entry.text if entry is not None and entry.kind == "file" else None
        if (text := self.changed.get(path, text)) is None:
            raise KeyError(path)
        return text

    def __iter__(self) -> Iterator[str]:
        """Yield all paths, even of links."""
        return filter(self._is_there, chain(self.archive.paths[1:], self.changed))

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self.archive.paths) - 1 + len(self.changed)

    def read(self, look: FileLook) -> FileText:
        """Return lines of a file."""
        path = _inside(look.path)
        text = self.text(path)
        lines = StringIO(text.decode(errors="replace")).readlines()
        last = len(lines) if look.last is None else min(look.last, len(lines))
        chosen = lines[look.first - 1 : last][:LINES]
        size = 0
        for count, line in enumerate(chosen):
            size += len(line)
            if size > CHARACTERS:
                # A single line that is too long is cut.
                chosen = chosen[:count] or [line[:CHARACTERS]]
                break
        shown = "".join(chosen)
        end = look.first + len(chosen) - 1
        return FileText(
            path=path,
            first=look.first,
            last=end if chosen else min(end, len(lines)),
            lines=len(lines),
            text=shown,
            cut=end < last or (len(chosen) == 1 and size > CHARACTERS),
            lossy="\ufffd" in shown,
        )

    def text(self, path: str) -> bytes:
        """Return a file; raise NotFound, or UserError if it is not readable text."""
        for _ in range(_LINKS):
            if path in self.changed:
                text = self.changed[path]
                if text is None:
                    raise self._missing(path)
                return text
            entry = self.reader.entry(path)
            if entry is None:
                raise self._missing(path)
            if entry.kind == "binary":
                words = f"{path} is not text, or longer than {source_archive.KEPT >> 20} MiB"
                raise UserError("binary_file", f"{words} ({entry.size} bytes)", path=path)
            if entry.kind == "file":
                return entry.text
            target = posixpath.join(posixpath.dirname(path), entry.text.decode(errors="replace"))
            path = _inside(posixpath.normpath(target))
        raise UserError("not_a_file", f"{path} is a link in a cycle of links", path=path)

    def folder(self, path: str) -> FolderList:
        """List a folder."""
        path = _inside(path) if path.rstrip("/") not in ("", ".") else ""
        unpatched = self.reader.folder(path)
        entries = {
            name: SourceEntry.model_validate(
                {"name": name, "kind": kind, "size": size}
                | ({"target": target.decode(errors="replace")} if kind == "link" else {})
            )
            for name, (kind, size, target) in unpatched.items()
        }
        start = f"{path}/" if path else ""
        for changed, text in self.changed.items():
            if not changed.startswith(start):
                continue
            name, slash, _ = changed.removeprefix(start).partition("/")
            if slash:
                entries.setdefault(name, SourceEntry(name=name, kind="folder"))
            elif text is not None:
                entries[name] = SourceEntry(name=name, kind="file", size=len(text))
            else:
                entries.pop(name, None)
        if not entries:
            if path and (path in self.changed or self.reader.entry(path) is not None):
                raise UserError("not_a_folder", f"{path} is no folder", path=path)
            raise self._missing(path)
        names = sorted(entries)
        return FolderList(
            path=path, entries=[entries[name] for name in names[:ENTRIES]], cut=len(names) > ENTRIES
        )

    def _missing(self, path: str) -> UserError:
        if path and self.reader.folder(path):
            return UserError("not_a_file", f"{path} is a folder; list it", path=path)
        like = self._like(path)
        more = f"; there are {', '.join(like)}" if like else ""
        return NotFound("file_not_found", f"there is no {path!r} in this source{more}", path=path)

    def _like(self, path: str) -> list[str]:
        """Return paths with the same name, else with a similar name in the same folder."""
        folder, name = posixpath.split(path)
        same = [other for other in self if f"/{other}".endswith(f"/{name}")]
        if same:
            same.sort(key=lambda other: -len(posixpath.commonprefix([path, other])))
            return same[:_LIKE]
        paths = [posixpath.join(folder, other) for other in self.reader.folder(folder)]
        there = [posixpath.basename(other) for other in filter(self._is_there, paths)]
        names = difflib.get_close_matches(name, there[:ENTRIES], _LIKE)
        return [posixpath.join(folder, other) for other in names]

    def _is_there(self, path: str) -> bool:
        """Return whether the patches leave a file in place."""
        # A patch that brings a bug back removes files that the fix adds: no answer may name them.
        return self.changed.get(path, b"") is not None


def _length(patch: Patch) -> int:
    edits = sum(len(edit.original) + len(edit.replacement) for edit in patch.edits)
    return len(patch.diff or "") + edits


def _inside(path: str) -> str:
    """Return the normalised path; raise UserError if it leads out of the tree."""
    normal = posixpath.normpath(path)
    if path.startswith("/") or normal.split("/")[0] == ".." or not path.isprintable():
        raise UserError(
            "path_outside", f"{path!r} is no path inside the tree, such as kernel/fork.c"
        )
    return normal
