"""Bases of deltas in a bucket: found by keys alone, and removed without a lock.

There is no lock that all hosts share. So who removes a base marks it first, looks which keys
there are after that, and removes it if its mark was not touched. Who stores a delta looks at its
base after that, and takes a mark away. So either the remover sees the delta, or it finds its mark
gone, or the base was gone in time for the other to see that.
"""

import time
from pathlib import Path

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import BASES, missing
from kgym.transport.gcs.objects import Found, Objects

# A base that was asked for so lately need not be marked as such: marks are throttled.
_FRESH_SECONDS = 3600.0
_MARK = "removing"


class Bases:
    """Bases below a prefix of a bucket, by their SHA-256."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def fetch(self, base: str, path: Path) -> None:
        """Write a base to a file."""
        found = self._objects.look(self._name(base))
        if found is None:
            raise missing(f"{BASES}/{base}")
        if found.sha256 != base:
            raise InfrastructureError("artifact_damaged", f"{found.name} is another file")
        self._objects.get(found, path)

    def touch(self, base: str) -> bool:
        """Return whether there is this base, and leave a sign that it was asked for."""
        found = self._objects.look(self._name(base))
        if found is None or found.sha256 != base:
            return False
        old = time.time() - found.updated.timestamp() > _FRESH_SECONDS
        if old or _MARK in found.metadata:
            return self._objects.mark(found, {"asked": "again", _MARK: None}) is not None
        return True

    def keep(self, base: str) -> bool:
        """Return whether the base is there to stay, now that a key names it."""
        found = self._objects.look(self._name(base))
        if found is None or found.sha256 != base:
            return False
        return _MARK not in found.metadata or bool(self._objects.mark(found, {_MARK: None}))

    def unused(self, age: float) -> dict[str, Found]:
        """Return the bases that no key names, and that nobody asked for within `age` seconds."""
        old = {}
        for found in self._objects.each(f"{self._prefix}{BASES}/"):
            base = found.name.removeprefix(self._prefix).split("/")
            if found.updated.timestamp() < time.time() - age and base[2:] == ["file"]:
                old[base[1]] = found
        return self._without_keys(old)

    def remove_unused(self, age: float) -> dict[str, Found]:
        """Remove and return them, but for those that somebody has come to need meanwhile."""
        marked = {}
        for base, found in self.unused(age).items():
            mark = {_MARK: "by the scheduler"}
            if marking := self._objects.mark(found, mark, untouched=True):
                marked[base] = marking
        unused = self._without_keys(marked)
        return {
            base: found
            for base, found in unused.items()
            if self._objects.delete(found, untouched=True)
        }

    def _without_keys(self, bases: dict[str, Found]) -> dict[str, Found]:
        """Return those that no key names."""
        left = dict(bases)
        if left:
            for found in self._objects.each(self._prefix):
                left.pop(found.name.rpartition("~")[2], None)
        return left

    def _name(self, base: str) -> str:
        return f"{self._prefix}{BASES}/{base}/file"
