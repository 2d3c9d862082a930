"""Files that readers see as a whole: the old content or the new one."""

import os
from collections.abc import Iterable
from pathlib import Path


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
