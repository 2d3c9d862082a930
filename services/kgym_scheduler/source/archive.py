"""A source archive that is open for reading."""

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kgym.source import source_archive
from kgym.source.source_archive import Numbers
from kgym_scheduler.source.literals import Words

# Words that may hold a part of one: a part of more is in too many files to choose by.
MOST_WORDS = 2000

# Files that are searched sooner than a further part is looked for.
FEW = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """What an archive holds at a path."""

    number: int
    kind: str
    size: int
    text: bytes
    """Of a link, where it leads; of what is not kept, nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A definition: its file by number, its lines from 1."""

    name: bytes
    file: int
    line: int
    last: int
    kind: str


class Archive:
    """Reads an archive; for any thread, of which each opens it for its own `Reader`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self.open() as reader:
            # By number, from 1; 0 is none.
            self.paths = reader.paths()
            (self.words,) = reader.one("SELECT text FROM words")

    def open(self) -> "Reader":
        """Open it, for one thread."""
        return Reader(self._path)

    @cached_property
    def words_lowered(self) -> bytes:
        """Its words, in small letters."""
        lowered: bytes = self.words.lower()
        return lowered

    def words_with(self, part: bytes, *, ignore_case: bool) -> list[bytes] | None:
        """Return the words that hold `part`; None if there are very many."""
        words = self.words_lowered if ignore_case else self.words
        part = part.lower() if ignore_case else part
        found: list[bytes] = []
        at = words.find(part)
        while at >= 0:
            end = words.index(b"\n", at)
            found.append(self.words[words.rindex(b"\n", 0, at) + 1 : end])
            if len(found) > MOST_WORDS:
                return None
            at = words.find(part, end)
        return found


class Reader:
    """An open archive, in one thread."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._database = sqlite3.connect(uri, uri=True, isolation_level=None)
        self._database.execute("PRAGMA mmap_size=4294967296")

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def one(self, query: str, *values: object) -> tuple[bytes, ...]:
        """Return the one row of the answer."""
        row: tuple[bytes, ...] = self._database.execute(query, values).fetchone()
        return row

    def paths(self) -> list[str]:
        """Return all paths, by number."""
        rows = self._database.execute("SELECT path FROM file ORDER BY id")
        return ["", *(path for (path,) in rows)]

    def entry(self, path: str) -> Entry | None:
        """Return what is at a path: a file, a link, or what cannot be shown."""
        return self._entry("path", path)

    def text(self, number: int) -> bytes:
        """Return the text of a file."""
        found = self._entry("id", number)
        return found.text if found is not None and found.kind == "file" else b""

    def _entry(self, by: str, value: object) -> Entry | None:
        query = f"SELECT id, kind, size, body FROM file WHERE {by} = ?"  # noqa: S608
        row = self._database.execute(query, (value,)).fetchone()
        if row is None:
            return None
        number, kind, size, body = row
        return Entry(number, kind, size, zlib.decompress(body) if kind == "file" else body)

    def folder(self, path: str) -> dict[str, tuple[str, int, bytes]]:
        """Return what is in a folder, by name: kind, size, where a link leads."""
        rows = self._database.execute(
            "SELECT name, kind, size, CASE kind WHEN 'link' THEN body END"
            " FROM folder LEFT JOIN file ON file.id = folder.file WHERE folder.path = ?",
            (path,),
        )
        return {
            name: (kind or "folder", size or 0, target or b"") for name, kind, size, target in rows
        }

    def files_with(self, words: Sequence[bytes]) -> Numbers:
        """Return the files that hold one of these words."""
        found = []
        for word in words:
            row = self._database.execute("SELECT files FROM word WHERE word = ?", (word,))
            found += [source_archive.unpacked(files) for (files,) in row]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint32)

    def candidates(self, archive: Archive, words: Words, *, ignore_case: bool) -> Numbers | None:
        """Return the files in which an expression may match; None if it may in all.

        The expression needs, of one of the alternatives, all `words`.
        """
        found = []
        for branch in words:
            held: Numbers | None = None
            for part in branch:
                with_part = archive.words_with(part, ignore_case=ignore_case)
                if with_part is None:
                    continue
                files = self.files_with(with_part)
                held = files if held is None else np.intersect1d(held, files, assume_unique=True)
                if len(held) <= FEW:
                    break
            if held is None:
                return None
            found.append(held)
        return np.unique(np.concatenate(found))

    def definitions(self, name: bytes) -> list[Row]:
        """Return where a name is defined."""
        return self._rows("SELECT * FROM symbol WHERE name = ? ORDER BY file, line", name)

    def functions(self, file: int) -> list[Row]:
        """Return the functions that a file defines, by line."""
        query = "SELECT * FROM symbol WHERE file = ? AND kind = 'function' ORDER BY line"
        return self._rows(query, file)

    def _rows(self, query: str, value: object) -> list[Row]:
        rows: Iterable[tuple[bytes, int, int, int, str]] = self._database.execute(query, (value,))
        return [Row(*row) for row in rows]
