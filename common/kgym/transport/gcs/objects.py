"""Objects of a bucket, by blocking and atomic calls of Google's library.

Calls are retried after temporary faults. Large files are transferred in parts of `_PART` bytes,
which are held in memory; a retry repeats one part.
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

# How long a call, or one part of a large file, is retried.
PATIENCE_SECONDS = 120.0
# The first and the longest pause before a retry, in seconds.
_PAUSES = (0.1, 20.0)
_CHUNK = 1 << 20
_PART = 16 << 20
# Maximum bytes of a file that is sent without first checking whether its name is taken.
AT_ONCE = 1 << 20
# Time limits in seconds: to connect, and between bytes of an answer.
TIMEOUT = (10.0, 60.0)
LINK_SECONDS = 3600
_KIND = "application/octet-stream"
_FIELDS = "items(name,size,updated,generation,metageneration),nextPageToken"
_PAGE = 1000
# How many lost races for a name are retried.
_RIVALS = 20
# How often an upload is started from the beginning.
_SENDINGS = 3
# Statuses of an upload session that the store has forgotten.
_FORGOTTEN = {404, 410}
# Errors of Google's library. Exhausted retries are a GoogleAPIError.
ERRORS = (GoogleAPIError, GoogleAuthError, InvalidResponse, requests.RequestException)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The properties of an object at the time of a look-up."""

    name: str
    size: int
    generation: int
    """Changes with each object stored under the name."""
    metageneration: int
    """Changes with each update of the metadata."""
    updated: datetime
    crc32c: str
    metadata: Mapping[str, str]
    """`sha256` of the content; `upload`, the ID of the operation that stored it."""

    @property
    def sha256(self) -> str | None:
        """Return its SHA-256; None if another program stored it."""
        return self.metadata.get("sha256")


class Objects:
    """Objects of the bucket, by their names."""

    def __init__(self, connection: Connection, bucket: str, patience: float) -> None:
        self._connection = connection
        self.bucket = bucket
        self._bucket = connection.client.bucket(bucket)
        first, longest = _PAUSES
        # Every write names the generation that it replaces, so all are safe to retry.
        self._retry = DEFAULT_RETRY.with_delay(first, longest).with_timeout(patience)
        self._how: dict[str, Any] = {"retry": self._retry, "timeout": TIMEOUT}

    def look(self, name: str) -> StoredObject | None:
        """Return an object's properties; None if it does not exist."""
        blob = self._bucket.get_blob(name, **self._how)
        return None if blob is None else _stored_object(blob)

    def each(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects whose names begin with `prefix`, in order of names."""
        pages = self._connection.client.list_blobs(
            self._bucket, prefix=prefix, fields=_FIELDS, page_size=_PAGE, **self._how
        ).pages
        try:
            for page in pages:
                yield from map(_stored_object, page)
        except NotFound as error:
            raise self._no_bucket(error) from error

    def put(self, name: str, path: Path) -> tuple[str, int]:
        """Store a file, replacing any other; return its SHA-256 and size."""
        sums = Sums()
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                sums.write(data)

        def store(generation: int, own: dict[str, str]) -> None:
            blob = self._new(name, {"sha256": sums.sha256, **own})
            # The store rejects an upload with another CRC32C: the file may change meanwhile.
            blob.crc32c = sums.crc32c
            self._send(blob, path, generation)

        # A precondition fails only at the end of an upload, which costs much for a large file.
        before = self.look(name) if sums.size > AT_ONCE else None
        try:
            self._stored(name, store, before)
        except NotFound as error:
            raise self._no_bucket(error) from error
        return sums.sha256, sums.size

    def copy(self, source: str, name: str) -> None:
        """Copy an object within the store."""
        original = self.look(source)
        if original is None:
            raise missing(source)
        blob_there = self._bucket.blob(source, generation=original.generation)

        def store(generation: int, own: dict[str, str]) -> None:
            # If any metadata are given, the store copies none from the source.
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

    def get(self, stored: StoredObject, path: Path) -> None:
        """Write an object to a file, atomically, and verify its checksums."""
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            for _ in range(2):  # the first download may have been damaged on its way
                if self._fetched(stored, part):
                    part.replace(path)
                    return
            raise InfrastructureError(
                "artifact_damaged", f"{stored.name}: checksum mismatch after two downloads"
            )
        finally:
            part.unlink(missing_ok=True)

    def _fetched(self, stored: StoredObject, path: Path) -> bool:
        """Download an object; return whether its size and checksums are right."""
        with path.open("wb") as file:
            sums = Sums(file)
            for at in range(0, stored.size, _PART):
                sums.write(self.part(stored, at, min(at + _PART, stored.size)))
        # Other programs that store objects under our names record no SHA-256.
        return (sums.size, sums.crc32c) == (stored.size, stored.crc32c) and (
            stored.sha256 in {None, sums.sha256}
        )

    def part(self, stored: StoredObject, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object; `stop` must be within it."""
        blob = self._bucket.blob(stored.name, generation=stored.generation)
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
            raise missing(stored.name) from error
        return data

    def mark(
        self, stored: StoredObject, metadata: Mapping[str, str | None], *, untouched: bool = False
    ) -> StoredObject | None:
        """Update an object's metadata; return None if it is gone.

        With `untouched`, also if its metadata changed since the look-up.
        """
        blob = self._bucket.blob(stored.name)
        blob.metadata = dict(metadata)
        condition = {"if_metageneration_match": stored.metageneration} if untouched else {}
        try:
            blob.patch(if_generation_match=stored.generation, **condition, **self._how)
        except (NotFound, PreconditionFailed):
            return None
        return _stored_object(blob)

    def delete(self, stored: StoredObject, *, untouched: bool = False) -> bool:
        """Remove an object unless it was replaced since the look-up; return whether it did."""
        condition = {"if_metageneration_match": stored.metageneration} if untouched else {}
        try:
            self._bucket.delete_blob(
                stored.name, if_generation_match=stored.generation, **condition, **self._how
            )
        except (NotFound, PreconditionFailed):
            return False
        return True

    def link(self, stored: StoredObject) -> str:
        """Return a signed URL of this generation of the object."""
        return str(
            self._bucket.blob(stored.name).generate_signed_url(
                timedelta(seconds=LINK_SECONDS), version="v4", generation=stored.generation
            )
        )

    def _new(self, name: str, metadata: Mapping[str, str]) -> Blob:
        blob = self._bucket.blob(name, chunk_size=_PART)
        blob.metadata = dict(metadata)
        return blob

    def _stored(
        self, name: str, store: Callable[[int, dict[str, str]], None], before: StoredObject | None
    ) -> None:
        """Replace the object `before`, or a newer one that replaced it."""
        # After a lost answer, the retry fails its precondition. The operation's ID in the metadata
        # then shows that the first attempt has succeeded.
        own = {"upload": uuid.uuid4().hex}
        for _ in range(_RIVALS):
            try:
                store(before.generation if before else 0, own)
                return
            except PreconditionFailed:
                before = self.look(name)
                if before is not None and before.metadata.get("upload") == own["upload"]:
                    return
        raise InfrastructureError("storage_busy", f"other hosts replace {name} again and again")

    def _send(self, blob: Blob, path: Path, generation: int) -> None:
        for left in reversed(range(_SENDINGS)):
            try:
                blob.upload_from_filename(
                    str(path), _KIND, if_generation_match=generation, checksum=None, **self._how
                )
                return
            # The library cannot resume if the store has kept only some of a part, or has forgotten
            # the session: then the whole file is sent again.
            except GoogleAuthError:  # some of them are ValueErrors
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
            f"no bucket {self._bucket.name}, or these credentials may not see it: {error}",
        )


class Sums:
    """A writer that computes size and both checksums, and passes the data on to `sink`."""

    def __init__(self, sink: IO[bytes] | None = None) -> None:
        self.size = 0
        self._sink = sink
        self._sha256 = hashlib.sha256()
        self._crc32c = google_crc32c.Checksum()

    def write(self, data: bytes) -> int:
        """Add these bytes."""
        self.size += len(data)
        self._sha256.update(data)
        self._crc32c.update(data)
        return len(data) if self._sink is None else self._sink.write(data)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the data so far."""
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        """Return the CRC32C of the data so far, in the store's notation."""
        return base64.b64encode(self._crc32c.digest()).decode()


def translated(error: Exception) -> InfrastructureError:
    """Return the InfrastructureError for an error of Google's library."""
    refused = isinstance(error, Forbidden | GoogleAuthError | Unauthorized)
    if refused and not isinstance(error, TransportError):
        return InfrastructureError(
            "storage_refused", f"the bucket refuses these credentials: {error}"
        )
    return InfrastructureError("storage_failed", f"a request to the bucket failed: {error}")


def _stored_object(blob: Any) -> StoredObject:
    return StoredObject(
        name=str(blob.name),
        size=int(blob.size),
        generation=int(blob.generation),
        metageneration=int(blob.metageneration),
        updated=blob.updated,
        crc32c=str(blob.crc32c or ""),
        metadata=dict(blob.metadata or {}),
    )
