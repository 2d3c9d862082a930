"""Write a source archive (`kgym.source.source_archive`), with text and indexes in one pass."""

import os
import sqlite3
import stat
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kgym.api.steps import Strict
from kgym.source import source_archive
from kgym.source.patching import Change
from kgym.source.symbols import is_c, symbols

# Files of a tree; the kernel has 80,000.
MOST_FILES = 500_000


class Written(Strict):
    """The size of an archive's content."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    kind: str
    size: int
    text: bytes
    """The content; of a link, its target."""


@dataclass(slots=True)
class _Index:
    """An index of words to files, built file by file."""

    words: dict[bytes, int] = field(default_factory=dict)
    word_numbers: "array[int]" = field(default_factory=lambda: array("I"))
    files: "array[int]" = field(default_factory=lambda: array("I"))
    counts: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, file: int, text: bytes) -> None:
        numbers = [
            self.words.setdefault(word, len(self.words)) for word in source_archive.words_of(text)
        ]
        self.word_numbers.extend(numbers)
        self.files.append(file)
        self.counts.append(len(numbers))

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the words in order, each with the numbers of its files."""
        word_numbers = np.frombuffer(self.word_numbers, dtype=np.uint32)
        counts = np.frombuffer(self.counts, dtype=np.uint32)
        files = np.repeat(np.frombuffer(self.files, dtype=np.uint32), counts)
        files = files[np.argsort(word_numbers, kind="stable")]
        ends = np.cumsum(np.bincount(word_numbers, minlength=len(self.words))).tolist()
        steps = source_archive.steps(files, ends)
        for word, number in sorted(self.words.items()):
            start = ends[number - 1] if number else 0
            yield word, source_archive.packed(steps[4 * start : 4 * ends[number]])


def write(tree: Path, changes: Sequence[Change], about: str, path: Path) -> Written:
    """Write the archive of a tree with these changes to the new file `path`."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(
            "PRAGMA page_size=16384; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        )
        database.executescript(source_archive.SCHEMA)
        database.execute("BEGIN")
        database.execute("INSERT INTO about VALUES (?)", (about,))
        written = _write(database, tree, {change.path: change for change in changes})
        database.execute("COMMIT")
        database.executescript(source_archive.INDEXES)
    return written


def _write(database: sqlite3.Connection, tree: Path, changes: Mapping[str, Change]) -> Written:
    index, folders = _Index(), {""}
    total = number = 0
    for number, file in enumerate(_files(tree, changes), 1):
        if number > MOST_FILES:
            raise ValueError(f"more than {MOST_FILES} files")
        body = source_archive.compressed(file.text) if file.kind == "file" else file.text
        row = (number, file.path, file.kind, file.size, body)
        database.execute("INSERT INTO file VALUES (?, ?, ?, ?, ?)", row)
        folder, _, name = file.path.rpartition("/")
        database.execute("INSERT INTO folder VALUES (?, ?, ?)", (folder, name, number))
        while folder not in folders:
            folders.add(folder)
            folder, _, name = folder.rpartition("/")
            database.execute("INSERT INTO folder VALUES (?, ?, NULL)", (folder, name))
        total += file.size
        if file.kind != "file" or file.size > source_archive.SEARCHED:
            continue
        index.add(number, file.text)
        if is_c(file.path):
            rows = ((s.name, number, s.line, s.last, s.kind) for s in symbols(file.text))
            database.executemany("INSERT INTO symbol VALUES (?, ?, ?, ?, ?)", rows)
    database.executemany("INSERT INTO word VALUES (?, ?)", index.rows())
    database.execute("INSERT INTO words VALUES (?)", (b"\n".join([b"", *index.words, b""]),))
    return Written(files=number, bytes=total)


def _files(tree: Path, changes: Mapping[str, Change]) -> Iterator[_File]:
    """Yield the files of the changed tree by path; links are not followed."""
    paths = {path for path, change in changes.items() if change.content is not None}
    for parent, folders, names in os.walk(tree):
        # A repository's logs and refs could tell of later commits, such as a bug's fix.
        folders[:] = [name for name in folders if name != ".git"]
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*names, *links):
            path = os.path.relpath(os.path.join(parent, name), tree)
            if path not in changes and path.isprintable():  # no request can name other paths
                paths.add(path)
    for path in sorted(paths):
        change = changes.get(path)
        content = change.content if change is not None else None
        if content is not None:
            yield _File(path, "file", len(content), content)
        elif (file := _read(tree / path, path)) is not None:
            yield file


def _read(place: Path, path: str) -> _File | None:
    status = place.lstat()
    if stat.S_ISLNK(status.st_mode):
        return _File(path, "link", 0, os.fsencode(os.readlink(place)))
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > source_archive.KEPT:
        return _File(path, "binary", status.st_size, b"")
    with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        text = file.read(source_archive.KEPT)
    if source_archive.is_binary(text):
        return _File(path, "binary", len(text), b"")
    return _File(path, "file", len(text), text)
