"""Append-only files of JSON objects, each a gzip member: `zcat` prints one object per line.

Prompts repeat whole source files, so plain text would be twenty times larger.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# The first bytes of such a file (RFC 1952, section 2.3.1).
MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS
# Bytes per read.
_CHUNK = 1 << 18


def pack(entry: Mapping[str, Any]) -> bytes:
    """Return the bytes that store an entry."""
    # JSON's ASCII form can hold any string, including the lone surrogates of a model's answer.
    return gzip.compress(json.dumps(entry).encode() + b"\n", 1)


def append(file: int, data: bytes) -> None:
    """Append whole entries to a file; after an error the file is unchanged."""
    # The bytes are in the kernel's page cache when this returns, so a killed process loses none.
    # They are not synced: a power cut may cost the last seconds of a run, which can be resumed.
    end = os.lseek(file, 0, os.SEEK_END)
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def entries(path: Path, start: int = 0) -> Iterator[tuple[int, int, Any]]:
    """Yield each entry from offset `start` on, with the offsets of its begin and end.

    A partial last entry is ignored: it is being written, or its writer was killed.
    """
    with path.open("rb") as file:
        file.seek(start)
        begin, data = start, b""
        member, text = zlib.decompressobj(_GZIP), b""
        while data or (data := file.read(_CHUNK)):
            try:
                text += member.decompress(data)
                data = member.unused_data
                if not member.eof:
                    continue
                entry = json.loads(text)
            except (zlib.error, ValueError):
                return
            end = file.tell() - len(data)
            yield begin, end, entry
            begin = end
            member, text = zlib.decompressobj(_GZIP), b""


def entry_at(path: Path, start: int) -> Any:
    """Return the entry at an offset."""
    return next(entries(path, start))[2]
