"""What a cloud storage holds: buckets of objects, each with generation and metageneration."""

import base64
import bisect
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c

CHUNK = 1 << 20
_WRITABLE = ("metadata", "contentType", "cacheControl", "contentEncoding", "contentDisposition")
# Most names of a page, as at the service.
_PAGE = 1000


class Refusal(Exception):
    """What the server answers instead: a status, a word and a sentence."""

    def __init__(self, status: int, reason: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Stored:
    """An object: its bytes are in a file that nobody changes."""

    bucket: str
    name: str
    file: Path
    size: int
    crc32c: str
    """As the service writes it: 4 bytes, in base64."""
    generation: int
    metageneration: int
    created: float
    updated: float
    own: Mapping[str, Any] = field(default_factory=dict)
    """What its owner has set: `metadata`, `contentType` and so on."""

    @property
    def resource(self) -> dict[str, Any]:
        """Return its description, as the JSON API has it."""
        return {
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(self.size),
            "crc32c": self.crc32c,
            "timeCreated": _moment(self.created),
            "updated": _moment(self.updated),
            "mediaLink": f"/download/storage/v1/b/{self.bucket}/o/{quote(self.name, safe='')}",
            **self.own,
        }


@dataclass(frozen=True, slots=True)
class Conditions:
    """What has to be so of an object, or else nothing is done."""

    generation: int | None = None
    """0: there is none."""
    metageneration: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], kind: str = "") -> "Conditions":
        """Read them: `kind` is "Source" for those of what is copied."""

        def number(name: str) -> int | None:
            text = query.get(f"if{kind}{name}")
            return None if text is None else int(text)

        return cls(number("GenerationMatch"), number("MetagenerationMatch"))

    def check(self, stored: Stored | None) -> None:
        """Raise Refusal 412 unless they hold."""
        generation = stored.generation if stored else 0
        metageneration = stored.metageneration if stored else None
        if self.generation not in {None, generation} or (
            self.metageneration not in {None, metageneration}
        ):
            raise Refusal(412, "conditionNotMet", "A pre-condition did not hold.")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    objects: list[Stored]
    token: str | None
    """What the next page begins after."""


class Buckets:
    """All objects; what is asked of it is done at once, whoever asks at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._objects: dict[str, dict[str, Stored]] = {}
        self._names: dict[str, list[str]] = {}
        self._last = 0
        self._files = 0

    def create(self, bucket: str) -> dict[str, Any]:
        """Make a bucket; raise Refusal 409 if it is there."""
        with self._lock:
            if bucket in self._objects:
                raise Refusal(409, "conflict", "Your previous request to create it succeeded.")
            self._objects[bucket], self._names[bucket] = {}, []
            return self.described(bucket)

    @property
    def names(self) -> list[str]:
        """The buckets that there are."""
        with self._lock:
            return sorted(self._objects)

    def described(self, bucket: str) -> dict[str, Any]:
        """Return a bucket's description; raise Refusal 404."""
        self._of(bucket)
        return {"kind": "storage#bucket", "id": bucket, "name": bucket, "location": "US"}

    def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""
        with self._lock:
            if self._of(bucket):
                raise Refusal(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._objects[bucket], self._names[bucket]

    def new_file(self) -> Path:
        """Return a name for what is not an object yet."""
        with self._lock:
            self._files += 1
            return self._folder / f"{self._files}"

    def insert(
        self, bucket: str, name: str, file: Path, own: Mapping[str, Any], conditions: Conditions
    ) -> Stored:
        """Make the file an object, if its bytes are those that were announced."""
        size, crc32c = file.stat().st_size, checksum(file)
        if own.get("crc32c", crc32c) != crc32c:
            raise Refusal(400, "invalid", f"Provided CRC32C doesn't match calculated {crc32c}.")
        kept = {"contentType": "application/octet-stream", **writable(own)}
        with self._lock:
            before = self._of(bucket).get(name)
            conditions.check(before)
            now = time.time()
            stored = Stored(bucket, name, file, size, crc32c, self._next(), 1, now, now, kept)
            self._put(stored)
        if before is not None:
            before.file.unlink(missing_ok=True)
        return stored

    def get(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = Conditions(),
    ) -> Stored:
        """Return an object; raise Refusal 404 or 412."""
        with self._lock:
            stored = self._of(bucket).get(name)
            if stored is None or generation not in {None, stored.generation}:
                raise Refusal(404, "notFound", f"No such object: {bucket}/{name}")
            conditions.check(stored)
            return stored

    def patch(
        self,
        bucket: str,
        name: str,
        changes: Mapping[str, Any],
        generation: int | None,
        conditions: Conditions,
    ) -> Stored:
        """Change what is known of an object."""
        with self._lock:
            stored = self.get(bucket, name, generation, conditions)
            own = {**stored.own, **writable(changes)}
            if isinstance(changes.get("metadata"), dict):
                merged = {**stored.own.get("metadata", {}), **changes["metadata"]}
                own["metadata"] = {key: value for key, value in merged.items() if value is not None}
            changed = replace(
                stored, own=own, metageneration=stored.metageneration + 1, updated=time.time()
            )
            self._objects[bucket][name] = changed
            return changed

    def delete(
        self, bucket: str, name: str, generation: int | None, conditions: Conditions
    ) -> None:
        """Remove an object."""
        with self._lock:
            stored = self.get(bucket, name, generation, conditions)
            del self._objects[bucket][name]
            names = self._names[bucket]
            del names[bisect.bisect_left(names, name)]
        stored.file.unlink(missing_ok=True)

    def copy(
        self, source: Stored, bucket: str, name: str, own: Mapping[str, Any], conditions: Conditions
    ) -> Stored:
        """Make an object of the same bytes. What is said of it replaces all that its source had."""
        given = writable(own)
        file = self.new_file()
        try:
            file.hardlink_to(source.file)
        except FileNotFoundError as error:
            message = f"No such object: {source.bucket}/{source.name}"
            raise Refusal(404, "notFound", message) from error
        try:
            return self.insert(bucket, name, file, given or source.own, conditions)
        except Refusal:
            file.unlink()
            raise

    def page(self, bucket: str, prefix: str = "", token: str = "", most: int = _PAGE) -> Page:
        """Return objects in order of names, after the token."""
        most = min(most, _PAGE)
        with self._lock:
            held, names = self._of(bucket), self._names[bucket]
            first = max(bisect.bisect_left(names, prefix), bisect.bisect_right(names, token))
            end = bisect.bisect_left(names, prefix + chr(0x10FFFF))
            chosen = names[first : max(first, end)]
            objects = [held[name] for name in chosen[:most]]
        return Page(objects, objects[-1].name if len(chosen) > most else None)

    def age(self, bucket: str, name: str, seconds: float) -> None:
        """Let an object be so old: what a test has no time for."""
        with self._lock:
            then = time.time() - seconds
            stored = replace(self.get(bucket, name), created=then, updated=then)
            self._objects[bucket][name] = stored

    def _of(self, bucket: str) -> dict[str, Stored]:
        with self._lock:
            if bucket not in self._objects:
                raise Refusal(404, "notFound", "The specified bucket does not exist.")
            return self._objects[bucket]

    def _put(self, stored: Stored) -> None:
        held, names = self._objects[stored.bucket], self._names[stored.bucket]
        if stored.name not in held:
            bisect.insort(names, stored.name)
        held[stored.name] = stored

    def _next(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return self._last


def writable(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an owner may set."""
    return {key: own[key] for key in _WRITABLE if key in own}


def checksum(file: Path) -> str:
    """Return a file's CRC32C, as the service writes it."""
    sum_ = google_crc32c.Checksum()
    with file.open("rb") as source:
        while chunk := source.read(CHUNK):
            sum_.update(chunk)
    return base64.b64encode(sum_.digest()).decode()


def _moment(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
