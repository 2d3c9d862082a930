"""Archives of the `newc` cpio format, which the kernel unpacks at boot.

Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True, slots=True)
class CpioFile:
    """A file of the archive: owned by root, with the time 0.

    `mode` holds type and permissions; `data` is a file's content; `device` is the (major, minor) of
    a device node.
    """

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(path: str, permissions: int = 0o755) -> CpioFile:
    """Return a folder; in the archive it must precede its content."""
    return CpioFile(path, stat.S_IFDIR | permissions)


def file(path: str, data: bytes, permissions: int = 0o644) -> CpioFile:
    """Return a regular file."""
    return CpioFile(path, stat.S_IFREG | permissions, data)


def character_device(path: str, major: int, minor: int) -> CpioFile:
    """Return the node of a character device."""
    return CpioFile(path, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[CpioFile]) -> bytes:
    """Return the archive of the entries in this order, with the trailer."""
    parts = [part for number, entry in enumerate(entries, 1) for part in pack(number, entry)]
    return b"".join([*parts, *pack(0, CpioFile("TRAILER!!!", 0))])


def write(files: Mapping[str, Path], permissions: int, sink: IO[bytes]) -> None:
    """Write the archive of `files`, keyed by path, without loading them into memory."""
    for number, (path, file) in enumerate(files.items(), 1):
        with file.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            sink.write(_header(number, CpioFile(path, stat.S_IFREG | permissions), size))
            shutil.copyfileobj(source, sink)
        sink.write(bytes(-size % 4))
    sink.write(archive([]))


def pack(number: int, entry: CpioFile) -> Iterator[bytes]:
    """Yield the bytes of one entry; `number` is its inode, which matters for hard links only."""
    yield _header(number, entry, len(entry.data))
    yield entry.data + bytes(-len(entry.data) % 4)


def _header(number: int, entry: CpioFile, size: int) -> bytes:
    name = entry.path.encode() + b"\0"
    major, minor = entry.device
    # inode, mode, uid, gid, links, time, size, device of the file system, of the node, name, sum
    fields = (number, entry.mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + name
    return header + bytes(-len(header) % 4)
