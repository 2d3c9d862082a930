"""Objects of a bucket, by blocking calls of Google's library: each does one thing, or nothing.

Each call is tried again while a fault may pass. It begins from its last part, not from the last
byte: large files are sent and fetched in parts of `_PART` bytes, which are held in memory.
"""

import base64
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import google_crc32c
import requests
from google.api_core.exceptions import (
    Forbidden,
    GoogleAPICallError,
    GoogleAPIError,
    NotFound,
    PreconditionFailed,
    Unauthorized,
)
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud.storage import Blob
from google.cloud.storage.exceptions import InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import missing
from kgym.transport.gcs.connection import Connection

# How long a call, or one part of a large file, is tried again.
PATIENCE_SECONDS = 120.0
# Seconds: bounds of the first pause before a retry, and of the longest.
_PAUSES = (0.1, 20.0)
_CHUNK = 1 << 20
_PART = 16 << 20
# Bytes of a file that is sent before anybody has looked whether its name is taken.
AT_ONCE = 1 << 20
# Seconds without a sign of the store: while connecting, while it answers.
TIMEOUT = (10.0, 60.0)
LINK_SECONDS = 3600
_KIND = "application/octet-stream"
_FIELDS = "items(name,size,updated,generation,metageneration),nextPageToken"
_PAGE = 1000
# How often in a row somebody else may store under the same name first.
_RIVALS = 20
# How often one upload is begun.
_SENDINGS = 3
_FORGOTTEN = {404, 410}
# What Google's library raises. Retries that came to no end are a GoogleAPIError.
ERRORS = (GoogleAPIError, GoogleAuthError, InvalidResponse, requests.RequestException)


@dataclass(frozen=True, slots=True)
class Found:
    """An object, as it was when it was looked at."""

    name: str
    size: int
    generation: int
    """Changes whenever something is stored under the name."""
    metageneration: int
    """Changes whenever its metadata change."""
    updated: datetime
    crc32c: str
    metadata: Mapping[str, str]
    """What was stored with it: `sha256`; `upload`, the name of the operation that stored it."""

    @property
    def sha256(self) -> str | None:
        """Return its SHA-256, unless somebody else stored it."""
        return self.metadata.get("sha256")


class Objects:
    """Objects of the bucket, by their names."""

    def __init__(self, connection: Connection, bucket: str, patience: float) -> None:
        self._connection = connection
        self.bucket = bucket
        self._bucket = connection.client.bucket(bucket)
        first, longest = _PAUSES
        # Every write names the generation that it replaces, so each may be repeated.
        self._retry = DEFAULT_RETRY.with_delay(first, longest).with_timeout(patience)
        self._how: dict[str, Any] = {"retry": self._retry, "timeout": TIMEOUT}

    def look(self, name: str) -> Found | None:
        """Return an object's properties, None if there is no such object."""
        blob = self._bucket.get_blob(name, **self._how)
        return None if blob is None else _found(blob)

    def each(self, prefix: str) -> Iterator[Found]:
        """Yield all objects whose names begin with `prefix`, in their order."""
        pages = self._connection.client.list_blobs(
            self._bucket, prefix=prefix, fields=_FIELDS, page_size=_PAGE, **self._how
        ).pages
        try:
            for page in pages:
                yield from map(_found, page)
        except NotFound as error:
            raise self._no_bucket(error) from error

    def put(self, name: str, path: Path) -> tuple[str, int]:
        """Store a file, in place of what is there; return its SHA-256 and size."""
        sums = Sums()
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                sums.write(data)

        def store(generation: int, own: dict[str, str]) -> None:
            blob = self._new(name, {"sha256": sums.sha256, **own})
            # The store refuses an upload with another CRC32C: the file has changed meanwhile.
            blob.crc32c = sums.crc32c
            self._send(blob, path, generation)

        # A precondition fails at the end of an upload: a large file is not sent only to learn
        # that its name is taken.
        before = self.look(name) if sums.size > AT_ONCE else None
        try:
            self._stored(name, store, before)
        except NotFound as error:
            raise self._no_bucket(error) from error
        return sums.sha256, sums.size

    def copy(self, source: str, name: str) -> None:
        """Store what is stored as `source`, as the store itself copies it."""
        original = self.look(source)
        if original is None:
            raise missing(source)
        blob_there = self._bucket.blob(source, generation=original.generation)

        def store(generation: int, own: dict[str, str]) -> None:
            # Given any metadata, the store takes none over from the source.
            blob = self._new(name, {**original.metadata, **own})
            blob.content_type = _KIND
            token: str | None = None
            while True:
                token, _, _ = blob.rewrite(
                    blob_there, token=token, if_generation_match=generation, **self._how
                )
                if token is None:
                    return

        try:
            self._stored(name, store, None)
        except NotFound as error:
            raise missing(source) from error

    def get(self, found: Found, path: Path) -> None:
        """Write an object to a file, which is whole and right, or not there."""
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            for _ in range(2):  # what was damaged on its way is fetched once more
                if self._fetched(found, part):
                    part.replace(path)
                    return
            raise InfrastructureError(
                "artifact_damaged",
                f"{found.name} came with another checksum than it was stored with",
            )
        finally:
            part.unlink(missing_ok=True)

    def _fetched(self, found: Found, path: Path) -> bool:
        """Download an object; return whether its size and checksums are right."""
        with path.open("wb") as file:
            sums = Sums(file)
            for at in range(0, found.size, _PART):
                sums.write(self.part(found, at, min(at + _PART, found.size)))
        # Others who store under our names note no SHA-256.
        return (sums.size, sums.crc32c) == (found.size, found.crc32c) and (
            found.sha256 in {None, sums.sha256}
        )

    def part(self, found: Found, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object; none may be asked for beyond its end."""
        blob = self._bucket.blob(found.name, generation=found.generation)
        try:
            data: bytes = blob.download_as_bytes(
                start=start,
                end=stop - 1,
                raw_download=True,
                checksum=None,
                single_shot_download=True,  # else it reads 8 KiB at a time, four times as slowly
                **self._how,
            )
        except NotFound as error:
            raise missing(found.name) from error
        return data

    def mark(
        self, found: Found, metadata: Mapping[str, str | None], *, untouched: bool = False
    ) -> Found | None:
        """Change an object's metadata; return None if it is gone.

        `untouched`: also if they have changed since it was looked at.
        """
        blob = self._bucket.blob(found.name)
        blob.metadata = dict(metadata)
        condition = {"if_metageneration_match": found.metageneration} if untouched else {}
        try:
            blob.patch(if_generation_match=found.generation, **condition, **self._how)
        except (NotFound, PreconditionFailed):
            return None
        return _found(blob)

    def delete(self, found: Found, *, untouched: bool = False) -> bool:
        """Remove an object unless something was stored there since; return whether it did."""
        condition = {"if_metageneration_match": found.metageneration} if untouched else {}
        try:
            self._bucket.delete_blob(
                found.name, if_generation_match=found.generation, **condition, **self._how
            )
        except (NotFound, PreconditionFailed):
            return False
        return True

    def link(self, found: Found) -> str:
        """Return a URL with which anybody can read this very object for a while."""
        return str(
            self._bucket.blob(found.name).generate_signed_url(
                timedelta(seconds=LINK_SECONDS), version="v4", generation=found.generation
            )
        )

    def _new(self, name: str, metadata: Mapping[str, str]) -> Blob:
        blob = self._bucket.blob(name, chunk_size=_PART)
        blob.metadata = dict(metadata)
        return blob

    def _stored(
        self, name: str, store: Callable[[int, dict[str, str]], None], before: Found | None
    ) -> None:
        """Store in place of the object `before`, or of whichever has replaced it by then."""
        # The second try after a lost answer fails its precondition: the operation's own name in
        # the metadata tells that the first one has succeeded.
        own = {"upload": uuid.uuid4().hex}
        for _ in range(_RIVALS):
            try:
                store(before.generation if before else 0, own)
                return
            except PreconditionFailed:
                before = self.look(name)
                if before is not None and before.metadata.get("upload") == own["upload"]:
                    return
        raise InfrastructureError("storage_busy", f"others store {name} all the time")

    def _send(self, blob: Blob, path: Path, generation: int) -> None:
        for left in reversed(range(_SENDINGS)):
            try:
                blob.upload_from_filename(
                    str(path), _KIND, if_generation_match=generation, checksum=None, **self._how
                )
                return
            # The library cannot go on where the store has kept only some of a part, or has
            # forgotten the upload: then the whole file is sent again.
            except GoogleAuthError:  # some of which are ValueErrors
                raise
            except ValueError as error:
                if not left:
                    raise InfrastructureError("storage_failed", f"{blob.name}: {error}") from error
            except GoogleAPICallError as error:
                if not left or error.code not in _FORGOTTEN:
                    raise

    def _no_bucket(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            "storage_failed",
            f"there is no bucket {self._bucket.name}, or these credentials do not show it: {error}",
        )


class Sums:
    """Both checksums of what is written, and its size; it is passed on to `sink`."""

    def __init__(self, sink: IO[bytes] | None = None) -> None:
        self.size = 0
        self._sink = sink
        self._sha256 = hashlib.sha256()
        self._crc32c = google_crc32c.Checksum()

    def write(self, data: bytes) -> int:
        """Count these bytes, too."""
        self.size += len(data)
        self._sha256.update(data)
        self._crc32c.update(data)
        return len(data) if self._sink is None else self._sink.write(data)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of all so far."""
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        """Return the CRC32C of all so far, as the store writes it."""
        return base64.b64encode(self._crc32c.digest()).decode()


def translated(error: Exception) -> InfrastructureError:
    """Return what the library's error means to whoever uses the storage."""
    refused = isinstance(error, Forbidden | GoogleAuthError | Unauthorized)
    if refused and not isinstance(error, TransportError):
        return InfrastructureError(
            "storage_refused",
            f"the bucket's owner does not allow this to these credentials: {error}",
        )
    return InfrastructureError("storage_failed", f"the bucket does not do this: {error}")


def _found(blob: Any) -> Found:
    return Found(
        name=str(blob.name),
        size=int(blob.size),
        generation=int(blob.generation),
        metageneration=int(blob.metageneration),
        updated=blob.updated,
        crc32c=str(blob.crc32c or ""),
        metadata=dict(blob.metadata or {}),
    )
