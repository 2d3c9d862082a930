"""Tarballs: copied or downloaded, and hashed on the way. The hashed copy itself is unpacked."""

import asyncio
import hashlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

import httpcore
import httpx

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.source_limits import SourceLimits

# Called with a stage, bytes done, and bytes in all (None where unknown).
TellProgress = Callable[[str, float, float | None], None]

_REDIRECTS = 10
_CHUNK = 1 << 20
_SILENCE_SECONDS = 60.0
# Bytes a second below which, from the second minute on, a server is too slow.
_SLOW = 10_000
_REDIRECTED = {301, 302, 303, 307, 308}


def report_bytes(run: StepContext) -> TellProgress:
    """Return a function that reports a download as progress of the step."""

    def report(stage: str, done: float, total: float | None) -> None:
        run.progress(stage, done, total, "bytes" if done else "")

    return report


async def fetch(
    url: str,
    target: Path,
    sha256: str,
    origins: Origins,
    bounds: SourceLimits,
    report: TellProgress,
) -> None:
    """Download a URL, or copy an absolute path; raises what `download` raises."""
    path = origins.check(url)
    if path is None:
        await download(url, target, sha256, origins, bounds, report)
        return
    with await asyncio.to_thread(origins.open, path) as file:
        size = await asyncio.to_thread(file.seek, 0, 2)
        await asyncio.to_thread(file.seek, 0)
        with _Sink(str(path), target, bounds) as sink:
            sink.expect(size)
            try:
                # In pieces, so that cancelling the step ends the copy.
                while data := await asyncio.to_thread(file.read, _CHUNK):
                    await asyncio.to_thread(sink.write, data)
                    report("copy", sink.size, size)
            except OSError as error:
                raise UserError("source_not_found", f"cannot read {path}") from error
            if sink.sha256 != sha256:
                # Without the actual hash: it would tell a submitter about files that only the
                # worker can read.
                raise UserError("source_checksum", f"{path}: SHA-256 mismatch: expected {sha256}")


async def download(
    url: str,
    target: Path,
    sha256: str | None,
    origins: Origins,
    bounds: SourceLimits,
    report: TellProgress,
    allow: Callable[[str], object] = lambda _: None,
) -> None:
    """Download a URL as the server sends it, without decompressing anything.

    `allow` raises UserError for URLs, and targets of redirects, that must not be asked. Without
    `sha256`, any content will do. Raises UserError `source_not_found`, `source_checksum`,
    `source_too_large`, `source_not_allowed`, and InfrastructureError `download_failed`.
    """
    try:
        async with (
            asyncio.timeout(bounds.seconds),
            _Client(origins, allow) as client,
            client.get(url) as (length, chunks),
        ):
            with _Sink(url, target, bounds) as sink:
                sink.expect(length or 0)
                async for data in chunks:
                    sink.write(data)
                    report("download", sink.size, length)
    except TimeoutError as error:
        message = f"{url}: not complete within {bounds.seconds:g} s"
        raise InfrastructureError("download_failed", message) from error
    except _HTTP_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise InfrastructureError("download_failed", f"{url}: {reason[:200]!r}") from error
    if sha256 is not None and sink.sha256 != sha256:
        message = f"{url}: SHA-256 mismatch: expected {sha256}, got {sink.sha256}"
        raise UserError("source_checksum", message)


_HTTP_ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    ssl.SSLError,
)


class _Sink:
    """Writes and hashes a copy of the file called `name`, within its bounds."""

    def __init__(self, name: str, path: Path, bounds: SourceLimits) -> None:
        self._name = name
        self._file: IO[bytes] = path.open("xb")
        self._hash = hashlib.sha256()
        self._most = bounds.archive
        self._begin = time.monotonic()
        self.size = 0

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def expect(self, size: int) -> None:
        """Raise UserError if so many bytes are too many."""
        if size > self._most:
            raise UserError(
                "source_too_large",
                f"{self._name} has at least {size} bytes, but at most {self._most} are allowed",
            )

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self.expect(self.size)
        seconds = time.monotonic() - self._begin
        if seconds > _SILENCE_SECONDS and self.size < seconds * _SLOW:
            message = f"{self._name}: only {self.size} bytes in {seconds:.0f} s"
            raise InfrastructureError("download_failed", message)
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            message = f"cannot write the copy of {self._name}: {error.strerror}"
            raise InfrastructureError("disk_full", message) from error


class _Client:
    """An HTTP client for allowed addresses; it uses no proxies, cookies or credentials."""

    def __init__(self, origins: Origins, allow: Callable[[str], object]) -> None:
        self._origins = origins
        self._allow = allow
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            network_backend=_Connector(origins),
            max_connections=1,
        )

    async def __aenter__(self) -> "_Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    @asynccontextmanager
    async def get(self, url: str) -> AsyncIterator[tuple[int | None, AsyncIterator[bytes]]]:
        """Yield the length, if the server sends it, and the bytes of the body as sent."""
        headers = [("Accept", "*/*"), ("Accept-Encoding", "identity"), ("User-Agent", "kgym")]
        limits = dict.fromkeys(("connect", "read", "write", "pool"), _SILENCE_SECONDS)
        for _ in range(_REDIRECTS):
            if self._origins.check(url) is not None:
                raise UserError("source_not_allowed", f"a redirect to the local path {url}")
            self._allow(url)
            async with self._pool.stream(
                "GET", url, headers=headers, extensions={"timeout": limits}
            ) as response:
                answer = {name.lower(): value for name, value in response.headers}
                if response.status in _REDIRECTED and b"location" in answer:
                    url = urljoin(url, answer[b"location"].decode("latin-1"))
                    continue
                if response.status != 200:
                    raise _refusal(url, response.status)
                length = answer.get(b"content-length", b"")[:19]
                yield int(length) if length.isdigit() else None, response.aiter_stream()
                return
        raise UserError("source_not_found", f"{url}: more than {_REDIRECTS} redirects")


def _refusal(url: str, status: int) -> KgymError:
    message = f"{url}: the server answers with status {status}"
    if status in {408, 429} or status >= 500:
        return InfrastructureError("download_failed", message)
    return UserError("source_not_found", message)


class _Connector(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that were checked."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address of the host that answers."""
        failed: Exception = httpcore.ConnectError(f"no address of {host} answers")
        for address in await self._origins.addresses(host, port):
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def sleep(self, seconds: float) -> None:
        """Wait, between two attempts."""
        await self._backend.sleep(seconds)
