"""A kernel's source in one file, as it is read over REST: its text, and indexes of it. Pure.

An SQLite database, made once by a builder (`kgym_builder.source`) and read by schedulers
(`kgym_scheduler.source`). Paths are numbered in their order.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint32]
# Bytes of numbers that are not worth compression.
_SHORT = 256
# Version of what an archive holds; part of its name.
LAYOUT = 2
FILE = "source.db"
# Bytes of the largest file that is indexed: longer ones of the kernel are lists of registers.
SEARCHED = 1 << 20
# Bytes of the largest file that can be read.
KEPT = 32 << 20

SCHEMA = """
CREATE TABLE about (changes TEXT NOT NULL);
-- kind: file, binary, link; body: compressed text, or where a link leads
CREATE TABLE file (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL, body BLOB
);
CREATE TABLE folder (path TEXT NOT NULL, name TEXT NOT NULL, file INTEGER,
    PRIMARY KEY (path, name)) WITHOUT ROWID;
CREATE TABLE word (word BLOB PRIMARY KEY, files BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE words (text BLOB NOT NULL);
CREATE TABLE symbol (
    name BLOB NOT NULL, file INTEGER NOT NULL, line INTEGER NOT NULL, last INTEGER NOT NULL,
    kind TEXT NOT NULL
);
"""
INDEXES = """
CREATE UNIQUE INDEX file_path ON file (path);
CREATE INDEX symbol_name ON symbol (name);
CREATE INDEX function_place ON symbol (file, line) WHERE kind = 'function';
"""

_WORD = re.compile(rb"\w{3,}")  # of bytes: ASCII


def words_of(text: bytes) -> set[bytes]:
    """Return the words of a text that are indexed."""
    return set(_WORD.findall(text))


def compressed(text: bytes) -> bytes:
    """Return a text as archives hold it: level 1 takes half the time, and a fifth more room."""
    return zlib.compress(text, 1)


def is_binary(text: bytes) -> bool:
    """Tell whether a file is no text, as Git does."""
    return b"\0" in text[:8192]


def name_of(source_identity: str, backports: Iterable[str]) -> str:
    """Return the name of the source with these backports."""
    parts = [LAYOUT, source_identity, sorted(backports)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def key_of(name: str) -> str:
    """Return where the archive of this name is stored."""
    return f"source/{name}/{FILE}"


def steps(files: Numbers, ends: Sequence[int]) -> bytes:
    """Return lists of numbers, which ascend up to each of the `ends`, as steps of four bytes."""
    found = np.diff(files, prepend=np.uint32(0))
    starts = np.array([0, *ends[:-1]], dtype=np.int64)
    starts = starts[starts < len(files)]
    found[starts] = files[starts]
    return found.astype("<u4").tobytes()


def packed(raw: bytes) -> bytes:
    """Return the steps of one list as archives hold them."""
    return b"1" + zlib.compress(raw, 1) if len(raw) > _SHORT else b"0" + raw


def unpacked(text: bytes) -> Numbers:
    """Return the numbers of files that `packed` made this of."""
    raw = zlib.decompress(text[1:]) if text[:1] == b"1" else text[1:]
    return np.cumsum(np.frombuffer(raw, dtype="<u4"), dtype=np.uint32)
