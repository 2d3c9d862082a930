"""A bucket as a place of a storage."""

import itertools
from pathlib import Path

from kgym.transport.gcs.connection import connect
from kgym.transport.gcs.storage import GcsStorage
from tests.google.cloud_storage.server import CloudStorage

_numbers = itertools.count()


class Bucket:
    """A bucket of a cloud storage, with a prefix; each storage has a cache of its own."""

    def __init__(self, cloud: CloudStorage, folder: Path, prefix: str = "kgym/artifacts") -> None:
        self.cloud = cloud
        self.name = f"bucket-{next(_numbers)}"
        self.prefix = prefix
        self._folder = folder
        self._open: list[GcsStorage] = []
        cloud.buckets.create(self.name)
        self.storage = self.elsewhere()

    def elsewhere(self) -> GcsStorage:
        cache = self._folder / f"cache-{len(self._open)}"
        opened = GcsStorage(self.name, self.prefix, cache, connect(32))
        self._open.append(opened)
        return opened

    def close(self) -> None:
        for storage in self._open:
            storage.close()

    def sizes(self) -> dict[str, int]:
        objects = self.cloud.buckets.page(self.name).objects
        return {stored.name.removeprefix(f"{self.prefix}/"): stored.size for stored in objects}

    def content(self, key: str) -> bytes:
        return self.cloud.buckets.get(self.name, f"{self.prefix}/{key}").file.read_bytes()

    def overwrite(self, key: str, data: bytes) -> None:
        self.cloud.replace(self.name, f"{self.prefix}/{key}", data)

    def damage(self, key: str, data: bytes) -> None:
        """Let other bytes be there, which nobody has stored."""
        self.cloud.damage(self.name, f"{self.prefix}/{key}", data)

    def age(self, key: str, seconds: float) -> None:
        self.cloud.buckets.age(self.name, f"{self.prefix}/{key}", seconds)

    def age_base(self, base: str, seconds: float) -> None:
        self.age(f"bases/{base}/file", seconds)
