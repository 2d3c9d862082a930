"""Objects of a bucket, by blocking calls: each does one thing, whole or not at all.

Google's library does what is small. Bodies are sent and read here: theirs hold a part in memory,
do not go on where the store has kept only some of what was sent, and cannot be given up midway.
"""

import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from google.api_core.exceptions import (
    GoogleAPICallError,
    NotFound,
    PreconditionFailed,
)
from google.cloud.storage import Blob
from urllib3.exceptions import ProtocolError

from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import missing
from kgym.transport.gcs.bodies import CHUNK, Body, Sums, check_part, kept
from kgym.transport.gcs.call import Call
from kgym.transport.gcs.connection import Connection

_PIECE = 1 << 18
"""Bytes of a file that comes: so many are still near the processor when they are hashed."""
AT_ONCE = 1 << 20
"""Bytes of a file that is sent in one request, together with what is known of it."""
TIMEOUT = (10.0, 60.0)
"""Seconds without a sign of the store: while connecting or sending, while it answers."""
LINK_SECONDS = 3600
_KIND = "application/octet-stream"
_FIELDS = "items(name,size,updated,generation,metageneration),nextPageToken"
_PAGE = 1000
_RIVALS = 20
"""How often in a row somebody else may store under the same name first."""
_LOST_SESSION = {404, 410}
_SESSIONS = 3
"""How often one upload is begun anew."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object, as it was when it was looked at."""

    name: str
    size: int
    generation: int
    """Another one for each time that something was stored under the name."""
    metageneration: int
    """Another one for each time that what is known of it was changed."""
    updated: datetime
    crc32c: str
    known: Mapping[str, str]
    """What was stored with it: `sha256`; `upload`, the name of the operation that stored it."""

    @property
    def sha256(self) -> str | None:
        """Return its SHA-256, unless somebody else stored it."""
        return self.known.get("sha256")


class Objects:
    """Objects of the bucket, by their names."""

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self.bucket = bucket
        self._bucket = connection.client.bucket(bucket)

    def look(self, call: Call, name: str) -> Found | None:
        """Return what is known of an object, None if there is none."""
        blob = self._bucket.get_blob(name, retry=call, timeout=TIMEOUT)
        return None if blob is None else _found(blob)

    def each(self, call: Call, prefix: str) -> Iterator[Found]:
        """Yield all objects whose names begin so, in their order."""
        pages = self._connection.client.list_blobs(
            self._bucket,
            prefix=prefix,
            fields=_FIELDS,
            page_size=_PAGE,
            retry=call,
            timeout=TIMEOUT,
        ).pages
        try:
            for page in pages:
                yield from map(_found, page)
        except NotFound as error:
            raise self._no_bucket(error) from error

    def put(self, call: Call, name: str, path: Path) -> tuple[str, int]:
        """Store a file, in place of what is there; return its SHA-256 and size."""
        sums = Sums()
        with path.open("rb") as file:
            while data := file.read(CHUNK):
                call.check()
                sums.add(data)

        def store(generation: int, known: dict[str, str]) -> None:
            blob = self._new(name, {"sha256": sums.sha256, **known})
            blob.crc32c = sums.crc32c
            if sums.size > AT_ONCE:
                self._send(call, blob, path, sums.size, generation)
                return
            data = path.read_bytes()
            call.check()
            blob.upload_from_string(
                data,
                _KIND,
                if_generation_match=generation,
                checksum=None,
                retry=call,
                timeout=TIMEOUT,
            )

        # What is large is not sent first to learn that the name is taken.
        before = self.look(call, name) if sums.size > AT_ONCE else None
        try:
            self._stored(call, name, store, before)
        except NotFound as error:
            raise self._no_bucket(error) from error
        return sums.sha256, sums.size

    def copy(self, call: Call, source: str, name: str) -> None:
        """Store what is stored as `source`, as the store itself copies it."""
        found = self.look(call, source)
        if found is None:
            raise missing(source)
        there = self._bucket.blob(source, generation=found.generation)

        def store(generation: int, known: dict[str, str]) -> None:
            # All is said anew: with anything said, the store takes nothing over from the source.
            blob = self._new(name, {**found.known, **known})
            blob.content_type = _KIND
            token: str | None = None
            while True:
                token, _, _ = blob.rewrite(
                    there,
                    token=token,
                    if_generation_match=generation,
                    retry=call,
                    timeout=TIMEOUT,
                )
                if token is None:
                    return

        try:
            self._stored(call, name, store, None)
        except NotFound as error:
            raise missing(source) from error

    def get(self, call: Call, found: Found, path: Path) -> None:
        """Write an object to a file, which is whole and right, or not there."""
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            for _ in range(2):  # what was damaged on its way is fetched once more
                if _fits(self._written(call, found, part), found):
                    part.replace(path)
                    return
            raise InfrastructureError(
                "artifact_damaged",
                f"{found.name} came with another checksum than it was stored with",
            )
        finally:
            part.unlink(missing_ok=True)

    def _written(self, call: Call, found: Found, path: Path) -> Sums:
        """Write what comes; return its sums, which a thread counts while more comes."""
        sums, counted = Sums(), None
        with path.open("wb") as sink, ThreadPoolExecutor(1) as beside:
            for data in self.pieces(call, found, 0, found.size, _PIECE):
                if counted is not None:
                    counted.result()
                counted = beside.submit(sums.add, data)
                sink.write(data)
            if counted is not None:
                counted.result()
        return sums

    def pieces(
        self, call: Call, found: Found, start: int, stop: int, most: int = CHUNK
    ) -> Generator[bytes]:
        """Yield the bytes [start, stop), so many at once; go on where a connection broke off."""
        bucket, name = quote(self._bucket.name, safe=""), quote(found.name, safe="")
        url = f"{self._connection.url}/download/storage/v1/b/{bucket}/o/{name}"
        asked = {"alt": "media", "generation": str(found.generation)}
        while start < stop:
            call.check()
            headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
            try:
                with self._connection.session.get(
                    url, params=asked, headers=headers, stream=True, timeout=TIMEOUT
                ) as answer:
                    check_part(answer, start)
                    while start < stop:
                        data = answer.raw.read(min(most, stop - start))
                        if not data:
                            raise ProtocolError(f"{found.name} broke off")
                        call.check()
                        call.went_on()
                        start += len(data)
                        yield data
            except NotFound as error:
                raise missing(found.name) from error
            except GeneratorExit:
                raise
            except Exception as error:  # noqa: BLE001 - raised again unless it passes
                call.wait(error)

    def mark(
        self, call: Call, found: Found, known: Mapping[str, str | None], *, untouched: bool = False
    ) -> Found | None:
        """Change what is known of an object; None if it is gone.

        `untouched`: or if anybody has changed that since it was looked at.
        """
        blob = self._bucket.blob(found.name)
        blob.metadata = dict(known)
        condition = {"if_metageneration_match": found.metageneration} if untouched else {}
        try:
            blob.patch(
                if_generation_match=found.generation, retry=call, timeout=TIMEOUT, **condition
            )
        except (NotFound, PreconditionFailed):
            return None
        return _found(blob)

    def delete(self, call: Call, found: Found, *, untouched: bool = False) -> bool:
        """Remove an object unless something was stored there since; False if it did not."""
        condition = {"if_metageneration_match": found.metageneration} if untouched else {}
        try:
            self._bucket.delete_blob(
                found.name,
                if_generation_match=found.generation,
                retry=call,
                timeout=TIMEOUT,
                **condition,
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

    def _new(self, name: str, known: Mapping[str, str]) -> Blob:
        blob = self._bucket.blob(name)
        blob.metadata = dict(known)
        return blob

    def _stored(
        self,
        call: Call,
        name: str,
        store: Callable[[int, dict[str, str]], None],
        before: Found | None,
    ) -> None:
        """Store in place of what is there, at the moment that it is just that.

        An answer that was lost makes a second try fail: then what is there tells that it is ours.
        """
        own = {"upload": uuid.uuid4().hex}
        for _ in range(_RIVALS):
            try:
                store(before.generation if before else 0, own)
                return
            except PreconditionFailed:
                before = self.look(call, name)
                if before is not None and before.known.get("upload") == own["upload"]:
                    return
        raise InfrastructureError("storage_busy", f"others store {name} all the time")

    def _send(self, call: Call, blob: Blob, path: Path, size: int, generation: int) -> None:
        """Send a large file, and go on from what the store has when something breaks off."""
        url, sessions = self._session(call, blob, size, generation), 1
        at: int | None = 0
        most = 0
        while True:
            call.check()
            try:
                answer = self._part(call, url, path, at, size)
                if answer.status_code in _LOST_SESSION and sessions < _SESSIONS:
                    url, sessions = self._session(call, blob, size, generation), sessions + 1
                    at = most = 0
                    continue
                asked, at = at is None, kept(answer, size)
                if at == size:
                    return
                if at > most:
                    most = at
                    call.went_on()
                elif not asked:
                    raise ProtocolError("the store keeps nothing of what is sent")
            except (GoogleAPICallError, requests.RequestException, ProtocolError) as error:
                call.wait(error)
                at = None

    def _session(self, call: Call, blob: Blob, size: int, generation: int) -> str:
        return str(
            blob.create_resumable_upload_session(
                _KIND,
                size=size,
                checksum=None,
                if_generation_match=generation,
                retry=call,
                timeout=TIMEOUT,
            )
        )

    def _part(
        self, call: Call, url: str, path: Path, at: int | None, size: int
    ) -> requests.Response:
        """Send all from a byte on; None: ask how much the store has."""
        body = b"" if at is None else Body(call, path, at, size)
        span = "*" if at is None else f"{at}-{size - 1}"
        headers = {"Content-Range": f"bytes {span}/{size}", "Content-Type": _KIND}
        answer: requests.Response = self._connection.session.put(
            url, data=body, headers=headers, timeout=TIMEOUT, allow_redirects=False
        )
        return answer

    def _no_bucket(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            "storage_failed",
            f"there is no bucket {self._bucket.name}, or these credentials do not show it: {error}",
        )


def _fits(sums: Sums, found: Found) -> bool:
    """Return whether what came is the object; only we note the SHA-256 of one."""
    if (sums.size, sums.crc32c) != (found.size, found.crc32c):
        return False
    return found.sha256 in {None, sums.sha256}


def _found(blob: Any) -> Found:
    return Found(
        name=str(blob.name),
        size=int(blob.size),
        generation=int(blob.generation),
        metageneration=int(blob.metageneration),
        updated=blob.updated,
        crc32c=str(blob.crc32c or ""),
        known=dict(blob.metadata or {}),
    )
