"""A kernel's source in one file, for reading over REST: its text, with indexes. Pure.

An SQLite database that a builder makes once (`kgym_builder.source`) and schedulers read
(`kgym_scheduler.source`). File numbers follow the order of paths.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# One file, so that schedulers read it without a worker, a mount or a compiled tree: a worker may be
# gone, or busy for an hour. The index of words narrows a regular expression to a few files, which
# RE2 then searches in linear time. SQLite's own trigram index took many times as long to make, and
# half as much room as the text itself.
Numbers = NDArray[np.uint32]
# Bytes below which a list of numbers is stored uncompressed.
_SHORT = 256
# Version of the layout; part of an archive's name.
LAYOUT = 2
FILE = "source.db"
# Bytes of the largest indexed file: longer files of the kernel are register lists.
SEARCHED = 1 << 20
# Bytes of the largest file that can be read.
KEPT = 32 << 20

SCHEMA = Path(__file__).with_name("source_archive_tables.sql").read_text()
INDEXES = Path(__file__).with_name("source_archive_indexes.sql").read_text()

_WORD = re.compile(rb"\w{3,}")  # of bytes: ASCII


def words_of(text: bytes) -> set[bytes]:
    """Return the indexed words of a text."""
    return set(_WORD.findall(text))


def compressed(text: bytes) -> bytes:
    """Compress a text for an archive."""
    # Level 1 takes half the time of the default level, and a fifth more room.
    return zlib.compress(text, 1)


def decompressed(data: bytes) -> bytes:
    """Return a text of at most KEPT bytes; raises zlib.error."""
    inflate = zlib.decompressobj()
    text = inflate.decompress(data, KEPT)
    if not inflate.eof:
        raise zlib.error("it is cut short, or too long")
    return text


def is_binary(text: bytes) -> bool:
    """Return whether a file is binary, by Git's rule: a NUL in the first 8 KB."""
    return b"\0" in text[:8192]


def name_of(source_identity: str, backports: Iterable[str]) -> str:
    """Return the archive name for a source with these backports."""
    parts = [LAYOUT, source_identity, sorted(backports)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def key_of(name: str) -> str:
    """Return the storage key of an archive."""
    return f"source/{name}/{FILE}"


def steps(files: Numbers, ends: Sequence[int]) -> bytes:
    """Encode ascending lists as four-byte differences; `ends` are the lists' ends in `files`."""
    differences = np.diff(files, prepend=np.uint32(0))
    starts = np.array([0, *ends[:-1]], dtype=np.int64)
    starts = starts[starts < len(files)]
    differences[starts] = files[starts]
    return differences.astype("<u4").tobytes()


def packed(raw: bytes) -> bytes:
    """Return one list's differences as archives store them: a flag byte, then the data."""
    return b"1" + zlib.compress(raw, 1) if len(raw) > _SHORT else b"0" + raw


def unpacked(text: bytes) -> Numbers:
    """Return the file numbers of a `packed` list."""
    raw = decompressed(text[1:]) if text[:1] == b"1" else text[1:]
    return np.cumsum(np.frombuffer(raw, dtype="<u4"), dtype=np.uint32)
