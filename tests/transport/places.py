"""Where a storage keeps its files, as somebody sees and changes it who goes past the storage."""

import os
import time
from pathlib import Path
from typing import Protocol

from kgym.transport.artifact_storage import LocalStorage, Storage


class Place(Protocol):
    """A place with one storage; `elsewhere` is the same, as another host sees it."""

    storage: Storage

    def elsewhere(self) -> Storage: ...

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all that is kept, by key."""
        ...

    def content(self, key: str) -> bytes: ...

    def overwrite(self, key: str, data: bytes) -> None: ...

    def age(self, key: str, seconds: float) -> None: ...

    def age_base(self, base: str, seconds: float) -> None: ...


class Folder:
    """A local folder."""

    def __init__(self, root: Path) -> None:
        self.storage = LocalStorage(root)

    def elsewhere(self) -> LocalStorage:
        return LocalStorage(self.storage.root)

    def sizes(self) -> dict[str, int]:
        root = self.storage.root
        files = (path for path in root.rglob("*") if path.is_file() and path.parent != root)
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}

    def content(self, key: str) -> bytes:
        return (self.storage.root / key).read_bytes()

    def overwrite(self, key: str, data: bytes) -> None:
        (self.storage.root / key).write_bytes(data)

    def age(self, key: str, seconds: float) -> None:
        at = time.time() - seconds
        os.utime(self.storage.root / key, (at, at))

    def age_base(self, base: str, seconds: float) -> None:
        self.age(f"bases/{base}", seconds)
