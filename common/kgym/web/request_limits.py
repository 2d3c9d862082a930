"""Limits of one caller: requests per second, event streams, bytes, query parameters."""

import contextlib
import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kgym.errors import TooMany, UserError
from kgym.web.problems import BodyTooLarge, answer

# Bytes of a request's body.
BODY_LIMIT = 16 << 20
# Bytes, and number of parameters, of a request's query.
QUERY_LIMIT = 8 << 10
QUERY_NAMES = 50
# Wrong tokens of one address in a minute.
WRONG_TOKENS = 30
TOO_MANY_WRONG = "too_many_wrong_tokens"
# Callers with a bucket; more are forgotten once their buckets are full again.
_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one caller (a token, or an address without one) at each server."""

    requests_per_second: float = 3000
    burst: int = 6000
    """Requests that may come at once after a pause."""
    streams: int = 200
    """Event streams open at the same time."""


def burst(requests_per_second: float) -> int:
    """Return the burst allowed for this rate: the requests of two seconds."""
    return max(1, int(2 * requests_per_second))


class Buckets:
    """A token bucket per caller, stored as the time at which it will be full again."""

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float]) -> None:
        self._interval = 1 / per_second
        self._depth = at_once * self._interval
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, caller: str, cost: int, reason: str, message: str) -> None:
        """Take `cost` from the bucket; raise TooMany if it does not hold enough."""
        now = self._clock()
        if len(self._full_at) >= _CALLERS:
            self._full_at = {who: at for who, at in self._full_at.items() if at > now}
        full_at = max(self._full_at.get(caller, now), now) + cost * self._interval
        wait = math.ceil(full_at - now - self._depth)
        if wait > 0:
            raise TooMany(reason, f"{message}; wait {wait} s, then try again", retry_after=wait)
        self._full_at[caller] = full_at


class Rates:
    """Limits the request rate of each caller."""

    def __init__(self, limits: RequestLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = limits.requests_per_second
        self.buckets = Buckets(self._rate, limits.burst, clock)

    def take(self, caller: str) -> None:
        """Count a request; raise TooMany if the caller has made too many."""
        message = f"more than {self._rate:g} requests a second"
        self.buckets.take(caller, 1, "too_many_requests", message)


class WrongTokens:
    """Limits the wrong tokens of each address; right ones are never refused."""

    # Many users may share an address: only the answers to wrong tokens change.

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = Buckets(WRONG_TOKENS / 60, WRONG_TOKENS, clock)

    def count(self, request: Request) -> None:
        """Count a wrong token; raise TooMany if its address has sent too many in a minute."""
        message = f"more than {WRONG_TOKENS} wrong tokens a minute from this address"
        self._buckets.take(network_of(address_of(request)), 1, TOO_MANY_WRONG, message)


def address_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client else ""


def network_of(address: str) -> str:
    """Return the IPv6 network of an address, as one host has 2^64 addresses; else the address."""
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))


class Streams:
    """Limits the open event streams of each caller."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limit = limits.streams
        self._open = Counter[str]()

    @contextlib.contextmanager
    def opened(self, caller: str) -> Iterator[None]:
        """Count a stream while the context lasts; raise TooMany at the caller's limit."""
        if self._open[caller] >= self._limit:
            raise TooMany(
                "too_many_streams",
                f"{self._open[caller]} event streams are open; close one first",
                retry_after=1,
            )
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # drops callers without a stream


class SizeLimits:
    """Middleware that refuses long queries and bodies, as early as possible."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request with a long query; raise BodyTooLarge while a long body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = scope["query_string"]
        if len(query) > QUERY_LIMIT or query.count(b"&") >= QUERY_NAMES:
            limit = f"{QUERY_LIMIT} bytes and {QUERY_NAMES} parameters"
            error = UserError("query_too_long", f"the query is longer than {limit}")
            await answer(Request(scope), error, 414)(scope, receive, send)
            return
        length = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        announced, seen = int(length), 0

        async def limited() -> Message:
            nonlocal seen
            if announced > BODY_LIMIT:
                raise _too_large()
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > BODY_LIMIT:
                raise _too_large()
            return message

        await self._app(scope, limited, send)


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {BODY_LIMIT >> 20} MiB")
