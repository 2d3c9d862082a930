"""Reading a source archive. Workers store it, so it can be forged: no query takes long or much."""

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kgym.source import source_archive
from kgym.source.source_archive import Numbers, decompressed
from kgym.source.symbols import Placed
from kgym_scheduler.source.literals import Words

# A part that occurs in more words than this is in too many files to narrow a search.
MAX_WORDS = 2000
# So few candidate files are searched at once: looking up another part would take longer.
FEW = 200
# Limit of one reader's time, and of a value's bytes: the list of words has some 20 MB.
READ_SECONDS = 30.0
_VALUE = 256 << 20
# Instructions of SQLite's virtual machine between two looks at the clock.
_OPERATIONS = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, link or other thing at a path of the archive."""

    number: int
    kind: str
    size: int
    text: bytes
    """The text of a file, the target of a link; empty if the archive does not hold it."""


class Archive:
    """An archive, shared by threads; each opens its own `Reader`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self.open() as reader:
            # By number, from 1.
            self.paths = reader.paths()
            (self.words,) = reader.row("SELECT text FROM words")
            if self.words[:1] + self.words[-1:] not in {b"\n", b"\n\n"}:
                raise ValueError("its list of words is damaged")

    def open(self) -> "Reader":
        """Open the archive for one thread."""
        return Reader(self._path)

    @cached_property
    def words_lowered(self) -> bytes:
        """All words in lower case."""
        lowered: bytes = self.words.lower()
        return lowered

    def words_with(self, part: bytes, *, ignore_case: bool) -> list[bytes] | None:
        """Return the words that contain `part`; None if there are more than MAX_WORDS."""
        words = self.words_lowered if ignore_case else self.words
        part = part.lower() if ignore_case else part
        matching: list[bytes] = []
        at = words.find(part)
        while at >= 0:
            end = words.index(b"\n", at)
            matching.append(self.words[words.rindex(b"\n", 0, at) + 1 : end])
            if len(matching) > MAX_WORDS:
                return None
            at = words.find(part, end)
        return matching


class Reader:
    """An open archive, in one thread."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._database = sqlite3.connect(uri, uri=True, isolation_level=None)
        self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE)
        self._database.execute("PRAGMA trusted_schema=OFF")
        self._database.execute("PRAGMA mmap_size=4294967296")
        end = time.monotonic() + READ_SECONDS
        # A table may be a view without end: a query that takes too long is interrupted.
        self._database.set_progress_handler(lambda: time.monotonic() > end, _OPERATIONS)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def row(self, query: str, *values: object) -> tuple[bytes, ...]:
        """Return the only row of a query."""
        row: tuple[bytes, ...] = self._database.execute(query, values).fetchone()
        return row

    def paths(self) -> list[str]:
        """Return all paths, by number."""
        rows = self._database.execute("SELECT path FROM file ORDER BY id")
        return ["", *(path for (path,) in rows)]

    def entry(self, path: str) -> Entry | None:
        """Return the entry at a path; None if there is none."""
        return self._entry("path", path)

    def text(self, number: int) -> bytes:
        """Return the text of a file."""
        entry = self._entry("id", number)
        return entry.text if entry is not None and entry.kind == "file" else b""

    def _entry(self, by: str, value: object) -> Entry | None:
        query = f"SELECT id, kind, size, body FROM file WHERE {by} = ?"  # noqa: S608
        row = self._database.execute(query, (value,)).fetchone()
        if row is None:
            return None
        number, kind, size, body = row
        return Entry(number, kind, size, decompressed(body) if kind == "file" else body)

    def folder(self, path: str) -> dict[str, tuple[str, int, bytes]]:
        """Return the kind, size and link target of everything in a folder, by name."""
        rows = self._database.execute(
            "SELECT name, kind, size, CASE kind WHEN 'link' THEN body END"
            " FROM folder LEFT JOIN file ON file.id = folder.file WHERE folder.path = ?",
            (path,),
        )
        return {
            name: (kind or "folder", size or 0, target or b"") for name, kind, size, target in rows
        }

    def files_with(self, words: Sequence[bytes]) -> Numbers:
        """Return the files that contain one of these words."""
        numbers = []
        for word in words:
            row = self._database.execute("SELECT files FROM word WHERE word = ?", (word,))
            numbers += [source_archive.unpacked(files) for (files,) in row]
        return np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.uint32)

    def candidates(self, archive: Archive, words: Words, *, ignore_case: bool) -> Numbers | None:
        """Return the files in which an expression may match; None if it may match in all.

        A match contains all `words` of one of the alternatives.
        """
        candidates = []
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
            candidates.append(held)
        return np.unique(np.concatenate(candidates))

    def definitions(self, name: bytes) -> list[tuple[int, Placed]]:
        """Return the definitions of a name, each with the number of its file."""
        return self._symbols("SELECT * FROM symbol WHERE name = ? ORDER BY file, line", name)

    def functions(self, file: int) -> list[Placed]:
        """Return the functions that a file defines, by line."""
        query = "SELECT * FROM symbol WHERE file = ? AND kind = 'function' ORDER BY line"
        return [function for _, function in self._symbols(query, file)]

    def _symbols(self, query: str, value: object) -> list[tuple[int, Placed]]:
        rows = self._database.execute(query, (value,))
        return [(file, Placed(name, kind, line, last)) for name, file, line, last, kind in rows]
