"""Files that readers see as a whole, the old content or the new one, and folders of one owner."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kgym.errors import UserError, file_errors


def replace_file(
    path: Path, content: str | bytes | Iterable[bytes], *, durable: bool = False
) -> None:
    """Write the file; `durable`: it survives a crash of the machine when this returns."""
    if isinstance(content, str):
        content = content.encode()
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    part.replace(path)


@contextmanager
def locked(folder: Path, taken: UserError) -> Iterator[None]:
    """Context manager: lock the folder, created if needed; raise `taken` if another process has it.

    Raises UserError `cannot_write`.
    """
    with file_errors(folder, "cannot_write"):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        yield
