"""Uploads: in parts, over several connections; or in one request, with what is known of them."""

import json
import re
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.google.cloud_storage.buckets import Conditions, Refusal, Stored

# What is kept of a part that is not the last is a multiple of this.
QUANTUM = 256 << 10
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass(slots=True)
class Upload:
    """A resumable upload, as far as it has come."""

    id: str
    bucket: str
    name: str
    own: dict[str, Any]
    conditions: Conditions
    file: Path
    kept: int = 0
    """Bytes that are here to stay."""
    done: Stored | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class Part:
    """What a request brings: bytes from `start` on, of `total` if that is known."""

    start: int | None
    """None: it only asks how far the upload has come."""
    total: int | None

    @classmethod
    def of(cls, header: str | None, length: int) -> "Part":
        """Read Content-Range; without, it is all."""
        if header is None:
            return cls(0, length)
        match = _RANGE.fullmatch(header)
        if match is None:
            raise Refusal(400, "badContentRange", f"Failed to parse Content-Range header: {header}")
        total = None if match[3] == "*" else int(match[3])
        start = None if match[1] is None else int(match[1])
        if start is not None and int(match[2]) - start + 1 != length:
            raise Refusal(400, "badContentRange", f"{length} bytes came with {header}")
        return cls(0 if start is None and total == 0 else start, total)


class Uploads:
    """Those that have begun, by id."""

    def __init__(self) -> None:
        self._uploads: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def begin(
        self, bucket: str, name: str, own: dict[str, Any], conditions: Conditions, file: Path
    ) -> Upload:
        """Begin one."""
        file.touch()
        made = Upload(secrets.token_urlsafe(32), bucket, name, own, conditions, file)
        with self._lock:
            self._uploads[made.id] = made
        return made

    def get(self, upload: str) -> Upload:
        """Return the upload; raise Refusal 404."""
        with self._lock:
            if upload not in self._uploads:
                raise Refusal(404, "notFound", "No such upload session.")
            return self._uploads[upload]

    def forget(self, upload: Upload) -> None:
        """Give it up: what came of it is gone."""
        with self._lock:
            self._uploads.pop(upload.id, None)
        upload.file.unlink(missing_ok=True)


def two_parts(body: bytes, content_type: str) -> tuple[dict[str, Any], bytes]:
    """Return metadata and bytes of a `multipart/related` body (RFC 2387)."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if boundary is None:
        raise Refusal(400, "badRequest", "Missing boundary")
    mark = b"--" + boundary[1].strip("'").encode()
    try:
        head, rest = body.split(mark + b"\r\n", 2)[1:]
        metadata = head.split(b"\r\n\r\n", 1)[1]
        about, data = rest.split(b"\r\n\r\n", 1)
        end = data.rindex(b"\r\n" + mark + b"--")
        own = json.loads(metadata)
    except (ValueError, IndexError) as error:
        raise Refusal(400, "badRequest", "Malformed multipart body.") from error
    if not isinstance(own, dict):
        raise Refusal(400, "badRequest", "The metadata are no object.")
    if kind := re.search(rb"(?im)^content-type: *(.+?)\r?$", about):
        own.setdefault("contentType", kind[1].decode())
    return own, data[:end]
