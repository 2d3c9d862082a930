"""What is sent and what comes: parts of files, their checksums, and how far an upload has come."""

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import requests
from google.api_core.exceptions import from_http_response
from urllib3.exceptions import ProtocolError

from kgym.errors import InfrastructureError
from kgym.transport.gcs.call import Call

CHUNK = 1 << 20


class Body:
    """A file from a byte on, as a body that ends with an error once the call is given up."""

    def __init__(self, call: Call, path: Path, at: int, size: int) -> None:
        self._call = call
        self._path = path
        self._at = at
        self._size = size

    def __len__(self) -> int:
        return self._size - self._at

    def __iter__(self) -> Iterator[bytes]:
        left = len(self)
        with self._path.open("rb") as file:
            file.seek(self._at)
            while left:
                self._call.check()
                data = file.read(min(CHUNK >> 2, left))
                if not data:
                    raise InfrastructureError(
                        "storage_failed", f"{self._path.name} was cut short while it was stored"
                    )
                left -= len(data)
                yield data


class Sums:
    """Both checksums of what goes by, and its size."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._crc32c = google_crc32c.Checksum()

    def add(self, data: bytes) -> None:
        """Count these bytes, too."""
        self.size += len(data)
        self._sha256.update(data)
        self._crc32c.update(data)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of all so far."""
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        """Return the CRC32C of all so far, as the store writes it."""
        return base64.b64encode(self._crc32c.digest()).decode()


def kept(answer: requests.Response, size: int) -> int:
    """Return how many bytes of an upload the store has; raise what else it says."""
    if answer.status_code in {200, 201}:
        return size
    if answer.status_code != 308:
        raise from_http_response(answer)
    said = answer.headers.get("Range")
    found = re.fullmatch(r"bytes=0-(\d+)", said or "bytes=0--1")
    if said is not None and found is None:
        raise ProtocolError(f"the store says that it has {said!r}")
    return int(found[1]) + 1 if found else 0


def check_part(answer: requests.Response, start: int) -> None:
    """Raise unless the answer begins at this byte."""
    if answer.status_code not in {200, 206}:
        answer.content  # noqa: B018 - reads what is wrong
        raise from_http_response(answer)
    said = answer.headers.get("Content-Range", "bytes 0-")
    if not said.startswith(f"bytes {start}-"):
        raise ProtocolError(f"the store sent {said!r}, and was asked for {start}")
