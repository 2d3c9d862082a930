"""The archive of a kernel's modules: a tar of `lib/modules`, as a build leaves it.

A patch can make what it likes of it: whoever takes it apart takes regular files below
`lib/modules` alone, and no more than so many bytes.
"""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kgym.errors import UserError

MOST_BYTES = 2 << 30
MOST_FILES = 50_000
_NAME = re.compile(r"lib/modules(/[\w+.,@=-]{1,200}){2,20}", re.ASCII)
_MODULE = re.compile(r"\.ko(\.(gz|xz|zst))?$")


def files(path: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    """Yield the path in the archive, the content and its size of each file.

    Raises UserError `bad_modules` for an archive that no build of an honest kernel leaves.
    """
    size = number = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                number += 1
                if number > MOST_FILES:
                    raise _refused(f"it holds more than {MOST_FILES:,} files")
                if member.isdir():
                    continue
                safe = _NAME.fullmatch(member.name) and not {".", ".."} & set(
                    member.name.split("/")
                )
                if not safe or member.type != tarfile.REGTYPE:
                    raise _refused(f"it holds {member.name[:200]!r}, which is no file of a module")
                size += member.size
                if size > MOST_BYTES:
                    raise _refused(f"it holds more than {MOST_BYTES >> 30} GiB")
                content = archive.extractfile(member)
                assert content is not None
                yield member.name, content, member.size
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise _refused(f"it cannot be read: {error}") from error


def count(path: Path) -> int:
    """Return how many modules are in it."""
    return sum(1 for name, _, _ in files(path) if _MODULE.search(name))


def _refused(why: str) -> UserError:
    return UserError("bad_modules", f"the archive of the kernel's modules is of no use: {why}")
