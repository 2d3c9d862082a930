"""A polite HTTP fetcher with a cache on disk.

It makes one request at a time, with a pause between two to the same host. A recently fetched page
is not requested again; an older one is requested with its ETag and date, so that an unchanged page
costs the site next to nothing. `Retry-After` is obeyed.
"""

import gzip
import hashlib
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
from pydantic import AwareDatetime, ValidationError

from kgym.api.steps import Sha256, Strict
from kgym.atomic_files import replace_file
from kgym.errors import InfrastructureError, NotFound

# Seconds between two requests to one host.
PAUSE = 1.0
# Seconds for which a cached page is not requested again.
LATELY = 20 * 3600.0
# Maximum bytes of a page.
PAGE = 32 << 20
ATTEMPTS = 5
# Seconds: after a longer `Retry-After`, the visit ends.
LONGEST_WAIT = 3600.0
_REQUEST_SECONDS = 300.0
_SILENT_SECONDS = 60.0
_REDIRECTS = 3
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_GONE = {404, 410}


class _Kept(Strict):
    """The metadata of a cached page."""

    url: str
    sha256: Sha256
    fetched: AwareDatetime
    etag: str | None = None
    modified: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and when it was last known to be current."""

    url: str
    body: bytes
    fetched: datetime


@dataclass(slots=True)
class Traffic:
    """Counters of requests and cache hits."""

    requests: int = 0
    unchanged: int = 0
    kept: int = 0
    waited: float = 0.0


class Fetcher:
    """Fetcher of pages from the hosts of `sites` only: links in pages are untrusted."""

    def __init__(
        self,
        cache: Path,
        sites: tuple[str, ...],
        *,
        pause: float = PAUSE,
        lately: float = LATELY,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.traffic = Traffic()
        self._cache = cache
        self._hosts = {_host(site) for site in sites}
        self._pause = pause
        self._lately = lately
        self._sleep = sleep
        self._asked: dict[str, float] = {}
        # Pages that this fetcher has requested: it does so once per page.
        self._current: set[str] = set()
        self._client = httpx.Client(
            headers={"User-Agent": "kgymsuite (kgym bench watch)", "Accept-Encoding": "gzip"},
            timeout=_SILENT_SECONDS,
            trust_env=True,
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def get(self, url: str, most: int = PAGE) -> Page:
        """Return a page of at most `most` bytes.

        Raises NotFound `page_missing`; InfrastructureError `site_unreachable`, `page_too_large`, or
        `foreign_page` for an unknown host.
        """
        if _host(url) not in self._hosts:
            raise InfrastructureError("foreign_page", f"{url} is not on one of the known sites")
        about, body = self._kept(url, most)
        if about and body is not None:
            age = (datetime.now(UTC) - about.fetched).total_seconds()
            if age < self._lately or url in self._current:
                self.traffic.kept += 1
                return Page(url, body, about.fetched)
        return self._fetched(url, most, about if body is not None else None, body)

    def _fetched(self, url: str, most: int, about: _Kept | None, body: bytes | None) -> Page:
        wait, why = 0.0, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                # Exponential backoff, unless the site asks for more.
                self._wait(max(wait, self._pause * 2**attempt))
            try:
                answer = self._ask(url, most, about)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                wait, why = 0.0, f"{type(error).__name__}: {error}"
                continue
            if answer.status == 304 and about is not None and body is not None:
                self.traffic.unchanged += 1
                self._keep(about.model_copy(update={"fetched": datetime.now(UTC)}), None)
                return Page(url, body, datetime.now(UTC))
            if answer.status == 200:
                return self._new(url, answer)
            if answer.status in _GONE:
                raise NotFound("page_missing", f"{url} does not exist (status {answer.status})")
            why = f"status {answer.status}"
            if answer.status not in _AGAIN:
                break
            wait = answer.wait
            if wait > LONGEST_WAIT:
                why += f", with Retry-After {wait:.0f} s"
                break
        raise InfrastructureError(
            "site_unreachable", f"{url}: {why}; the same command continues from here"
        )

    def _ask(self, url: str, most: int, about: _Kept | None) -> "_Answer":
        headers = {}
        if about is not None and about.etag:
            headers["If-None-Match"] = about.etag
        if about is not None and about.modified:
            headers["If-Modified-Since"] = about.modified
        # Redirects are followed by hand: each target must be a known site, and waits its turn.
        for _ in range(_REDIRECTS + 1):
            self._take_turn(url)
            self.traffic.requests += 1
            with self._client.stream("GET", url, headers=headers) as response:
                to = response.headers.get("Location")
                if response.is_redirect and to:
                    url = urljoin(url, to)
                    if _host(url) not in self._hosts:
                        raise InfrastructureError(
                            "foreign_page", f"redirects to {url}, which is not a known site"
                        )
                    continue
                body = _body(response, most) if response.status_code == 200 else b""
                return _Answer(response.status_code, body, response.headers)
        raise httpx.TooManyRedirects(f"more than {_REDIRECTS} redirects")

    def _take_turn(self, url: str) -> None:
        host = _host(url)
        last = self._asked.get(host)
        if last is not None and (left := last + self._pause - time.monotonic()) > 0:
            self._wait(left)
        self._asked[host] = time.monotonic()

    def _wait(self, seconds: float) -> None:
        self.traffic.waited += seconds
        self._sleep(seconds)

    def _new(self, url: str, answer: "_Answer") -> Page:
        now = datetime.now(UTC)
        about = _Kept(
            url=url,
            sha256=hashlib.sha256(answer.body).hexdigest(),
            fetched=now,
            etag=answer.headers.get("ETag"),
            modified=answer.headers.get("Last-Modified"),
        )
        self._keep(about, answer.body)
        return Page(url, answer.body, now)

    # --- the cache --------------------------------------------------------------------------

    def _place(self, url: str) -> Path:
        name = hashlib.sha256(url.encode()).hexdigest()
        return self._cache / name[:2] / name

    def _kept(self, url: str, most: int) -> tuple[_Kept | None, bytes | None]:
        """Return a cached page, if it is intact."""
        place = self._place(url)
        try:
            about = _Kept.model_validate_json(place.with_suffix(".json").read_bytes())
            with gzip.open(place.with_suffix(".gz")) as file:
                body = file.read(most + 1)
        except (OSError, EOFError, zlib.error, ValidationError):
            return None, None
        # A file torn by a crash is fetched again.
        if about.url != url or len(body) > most:
            return None, None
        whole = hashlib.sha256(body).hexdigest() == about.sha256
        return (about, body) if whole else (None, None)

    def _keep(self, about: _Kept, body: bytes | None) -> None:
        self._current.add(about.url)
        place = self._place(about.url)
        place.parent.mkdir(parents=True, exist_ok=True)
        if body is not None:
            replace_file(place.with_suffix(".gz"), gzip.compress(body, 6))
        # Not durable: a file torn by a crash is noticed, and fetched again.
        replace_file(place.with_suffix(".json"), about.model_dump_json())


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: httpx.Headers

    @property
    def wait(self) -> float:
        """The seconds to wait by `Retry-After`, which is a number or a date."""
        text = self.headers.get("Retry-After", "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            until = parsedate_to_datetime(text)
        except (TypeError, ValueError):
            return 0.0
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _body(response: httpx.Response, most: int) -> bytes:
    begun, body = time.monotonic(), bytearray()
    for part in response.iter_bytes(1 << 16):
        body += part
        if len(body) > most:
            raise InfrastructureError(
                "page_too_large", f"{response.url} has more than {most >> 10} KiB"
            )
        # httpx's timeout is per read: a site that trickles bytes would never reach it.
        if time.monotonic() - begun > _REQUEST_SECONDS:
            raise httpx.ReadTimeout(f"took longer than {_REQUEST_SECONDS:.0f} s")
    return bytes(body)


def _host(url: str) -> str:
    """Return scheme, host and port of an address; empty if it is invalid."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}:{parts.port}" if parts.hostname else ""
    except ValueError:
        return ""
