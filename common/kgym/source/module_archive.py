"""The archive of a kernel's modules: a tar of `lib/modules`, as a build leaves it.

A patch controls its content. A general tar library would follow links, devices and extensions, so
this reader accepts only folders and regular files below `lib/modules`, and validates the whole
archive before any file is used.
Format: `ustar` of POSIX.1-1988, and GNU tar's form of it with names of at most 100 bytes and octal
sizes.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from kgym.errors import InfrastructureError, UserError

# Bytes of the whole archive.
MOST_BYTES = 2 << 30
# Bytes of one file: readers hold it in memory.
LARGEST = 256 << 20
# Files and folders.
MOST_FILES = 50_000
# The index in `lib/modules/RELEASE`: modprobe in the guest loads only modules that it lists.
INDEX = "modules.dep"

_BLOCK = 512
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"L": "a name that is too long",
    b"K": "a link that is too long",
    b"x": "an extended header",
    b"g": "an extended header",
}
_FILE, _FOLDER = (b"0", b"\0"), b"5"
_NAME = re.compile(r"lib/modules(/(?!\.{1,2}(/|$))[\w+.,@=-]{1,200}){2,20}", re.ASCII)
_FOLDER_NAME = re.compile(r"lib(/modules(/(?!\.{1,2}(/|$))[\w+.,@=-]{1,200}){0,20})?/?", re.ASCII)
_MODULE = re.compile(r"\.ko(\.(gz|xz|zst))?$")
_OCTAL = re.compile(rb" *([0-7]{1,11})[ \0]*")


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A regular file: `size` bytes from offset `begin` of the archive."""

    name: str
    begin: int
    size: int


def files(path: Path) -> list[ModuleFile]:
    """Validate the whole archive and return its files.

    Raises UserError `bad_modules` for an archive that no honest build leaves, and
    InfrastructureError `no_modules_dep` for modules without an index.
    """
    try:
        with path.open("rb") as archive:
            members = list(_members(archive))
    except OSError as error:
        raise _refused(f"it cannot be read: {error.strerror}") from error
    _check_names(members)
    _check_index(members)
    return members


def count(path: Path) -> int:
    """Count the modules in an archive; raise the errors of `files`."""
    return sum(1 for member in files(path) if _MODULE.search(member.name))


def _members(archive: IO[bytes]) -> Iterator[ModuleFile]:
    end = os.fstat(archive.fileno()).st_size
    if end > MOST_BYTES:
        raise _refused(f"it has {end:,} bytes; it may have {MOST_BYTES:,}")
    at = number = 0
    while any(head := archive.read(_BLOCK)):
        number += 1
        if number > MOST_FILES:
            raise _refused(f"it holds more than {MOST_FILES:,} files, which it may hold")
        name, kind, size = _header(head)
        at += _BLOCK
        if kind in _FILE:
            if at + size > end:
                raise _refused(f"it is cut off: `{name}` has {size:,} bytes; {end - at:,} follow")
            yield ModuleFile(name, at, size)
        at += -(-size // _BLOCK) * _BLOCK
        archive.seek(at)
    if len(head) < _BLOCK:
        raise _refused("it is cut off: it has no end")


def _header(head: bytes) -> tuple[str, bytes, int]:
    """Validate a header block; return name, kind and size of its member."""
    if len(head) < _BLOCK:
        raise _refused("it is cut off within a header")
    if head[257:262] != b"ustar":
        raise _refused("it cannot be read: it is no tar archive of the usual form")
    if _octal(head[148:156]) != sum(head) - sum(head[148:156]) + 8 * ord(" "):
        raise _refused("it cannot be read: a header's checksum is wrong")
    name, kind = _name(head), head[156:157]
    # Extended headers and long names would change the meaning of the next header.
    if kind not in (*_FILE, _FOLDER):
        what = _KINDS.get(kind, f"of the unknown kind {kind!r}")
        raise _refused(f"it holds {name[:200]!r}: {what}; only files and folders are allowed")
    form = _FOLDER_NAME if kind == _FOLDER else _NAME
    if not form.fullmatch(name):
        raise _refused(f"it holds {name[:200]!r}, which is no file of a module")
    size = _octal(head[124:136])
    if size is None or (kind == _FOLDER and size):
        raise _refused(f"the size of {name[:200]!r} is none: negative, too large, or no number")
    if size > LARGEST:
        raise _refused(f"`{name}` has {size:,} bytes; a file may have {LARGEST:,}")
    return name, kind, size


def _name(head: bytes) -> str:
    name, _, _ = head[:100].partition(b"\0")
    prefix = b""
    if head[257:263] == b"ustar\0":  # GNU tar stores times in the prefix field
        prefix, _, _ = head[345:500].partition(b"\0")
    return (prefix + b"/" + name if prefix else name).decode("ascii", "backslashreplace")


def _octal(field: bytes) -> int | None:
    match = _OCTAL.fullmatch(field)
    return int(match[1], 8) if match else None


def _check_names(members: list[ModuleFile]) -> None:
    names: set[str] = set()
    for member in members:
        if member.name in names:
            raise _refused(f"it holds `{member.name}` twice")
        names.add(member.name)
    for member in members:
        if within := names.intersection(map(str, PurePosixPath(member.name).parents)):
            raise _refused(f"it holds `{member.name}` within the file `{within.pop()}`")


def _check_index(members: list[ModuleFile]) -> None:
    names = {member.name for member in members}
    for member in members:
        release = "/".join(member.name.split("/")[:3])
        if _MODULE.search(member.name) and f"{release}/{INDEX}" not in names:
            raise without_index(release)


def without_index(where: str) -> InfrastructureError:
    """Return the error for modules below `where` without an INDEX."""
    return InfrastructureError(
        "no_modules_dep",
        f"the build left modules, but no {INDEX} in {where}, without which guests load none of"
        " them: `make modules_install` found no depmod (of the package kmod) on the worker, or a"
        " patch keeps it from running",
    )


def _refused(why: str) -> UserError:
    return UserError("bad_modules", f"the archive of the kernel's modules is of no use: {why}")
