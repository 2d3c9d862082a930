"""Bases of deltas in a bucket, removed without a lock, as hosts share none.

The remover marks an unused base, lists all keys again, and deletes the base on the condition that
its mark is untouched. A writer stores its delta, then looks at the base again and removes a mark.
So either the remover sees the delta's key, or its condition fails, or the writer sees that the
base is gone, and stores the whole file.
"""

import time
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import BASES, missing
from kgym.transport.gcs.objects import Objects, StoredObject

# Interval of recording a base's use: the store limits updates of an object's metadata.
_FRESH_SECONDS = 3600.0
_MARK = "removing"


class Bases:
    """Bases below a prefix of a bucket, by their SHA-256."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def fetch(self, base: str, path: Path) -> None:
        """Write a base to a file."""
        stored = self._objects.look(self._name(base))
        if stored is None:
            raise missing(f"{BASES}/{base}")
        if stored.sha256 != base:
            raise InfrastructureError("artifact_damaged", f"{stored.name}: SHA-256 mismatch")
        self._objects.get(stored, path)

    def touch(self, base: str) -> bool:
        """Return whether the base exists, and record its use."""
        stored = self._objects.look(self._name(base))
        if stored is None or stored.sha256 != base:
            return False
        old = time.time() - stored.updated.timestamp() > _FRESH_SECONDS
        if old or _MARK in stored.metadata:
            return self._objects.mark(stored, {"asked": "again", _MARK: None}) is not None
        return True

    def keep(self, base: str) -> bool:
        """Return whether the base exists, and remove a mark, after storing a delta of it."""
        stored = self._objects.look(self._name(base))
        if stored is None or stored.sha256 != base:
            return False
        return _MARK not in stored.metadata or bool(self._objects.mark(stored, {_MARK: None}))

    def unused(self, age: float) -> dict[str, StoredObject]:
        """Return the bases that no key names and that were not used within `age` seconds."""
        old = {}
        for stored in self._objects.each(f"{self._prefix}{BASES}/"):
            base = stored.name.removeprefix(self._prefix).split("/")
            if stored.updated.timestamp() < time.time() - age and base[2:] == ["file"]:
                old[base[1]] = stored
        return self._without_keys(old)

    def remove_unused(self, age: float) -> dict[str, StoredObject]:
        """Remove and return the unused bases, except those used meanwhile."""
        marked = {}
        for base, stored in self.unused(age).items():
            mark = {_MARK: "by the scheduler"}
            if marking := self._objects.mark(stored, mark, untouched=True):
                marked[base] = marking
        unused = self._without_keys(marked)
        return {
            base: stored
            for base, stored in unused.items()
            if self._objects.delete(stored, untouched=True)
        }

    def _without_keys(self, bases: dict[str, StoredObject]) -> dict[str, StoredObject]:
        """Return the bases that no key names."""
        left = dict(bases)
        if left:
            for stored in self._objects.each(self._prefix):
                left.pop(stored.name.rpartition("~")[2], None)
        return left

    def _name(self, base: str) -> str:
        return f"{self._prefix}{BASES}/{base}/file"
