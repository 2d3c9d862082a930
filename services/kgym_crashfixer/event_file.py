"""Append-only files of JSON objects, each a gzip member of its own: `zcat` shows one a line.

Prompts hold whole source files, most of them many times: plain text would be twenty times larger.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# How such a file begins.
MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS
# Bytes that are read at once.
_CHUNK = 1 << 18


def pack(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as it is stored."""
    # JSON's ASCII form holds any string, also the lone surrogates of a model's answer.
    return gzip.compress(json.dumps(entry).encode() + b"\n", 1)


def append(file: int, data: bytes) -> None:
    """Write whole entries to the end of a file; after an error the file is as it was.

    The bytes are the kernel's when this returns, so that a kill of the process loses none of
    them. They are not synced: a power cut may cost the last seconds of a run, which goes on.
    """
    end = os.lseek(file, 0, os.SEEK_END)
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def entries(path: Path, start: int = 0) -> Iterator[tuple[int, int, Any]]:
    """Yield each entry after the byte `start`, with the bytes at which it begins and ends.

    What follows the last whole entry is ignored: it is being written, or its writer was killed.
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
    """Return the entry that begins at this byte."""
    return next(entries(path, start))[2]
