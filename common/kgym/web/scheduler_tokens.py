"""The scheduler's tokens, for other services.

These store no tokens of their own: a second list would be revoked in one place and forgotten in
the other.
"""

import hashlib
import time
from typing import Self

import httpx

from kgym.api.jobs import CallerView
from kgym.errors import InfrastructureError
from kgym.web.request_limits import TOO_MANY_WRONG
from kgym.web.scopes import Caller, Scope

# Time for which an answer is cached: a revoked token works here for this much longer.
CACHE_SECONDS = 5.0
_CACHED = 10_000


class SchedulerTokens:
    """`Tokens` that asks a scheduler for a token's owner (`GET /v1/caller`)."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=10)
        self._known: dict[str, tuple[float, Caller | None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def caller(self, token: str) -> Caller | None:
        """Return the token's owner; None if it is not valid.

        Raises InfrastructureError `scheduler_away` if the scheduler does not answer.
        """
        # A header takes no control characters.
        sendable = token.isascii() and token.isprintable()
        return await self._cached(token) if token and sendable else None

    async def anybody(self) -> Caller | None:
        """Return the caller for requests of this machine without a token; None to refuse them.

        Raises InfrastructureError `scheduler_away` if the scheduler does not answer.
        """
        return await self._cached("")

    async def _cached(self, token: str) -> Caller | None:

        key = hashlib.sha256(token.encode()).hexdigest()
        now = time.monotonic()
        at, known = self._known.get(key, (-CACHE_SECONDS, None))
        if now < at + CACHE_SECONDS:
            return known
        if len(self._known) >= _CACHED:
            self._known.clear()
        self._known[key] = now, (caller := await self._asked(token))
        return caller

    async def _asked(self, token: str) -> Caller | None:
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = await self._http.get("/v1/caller", headers=headers)
        except httpx.HTTPError as error:
            message = f"the scheduler, which knows the tokens, does not answer: {error!r}"
            raise InfrastructureError("scheduler_away", message) from error
        # The scheduler counts this service's wrong tokens together, and refuses no right one.
        is_wrong = answer.status_code == 429 and TOO_MANY_WRONG in answer.text
        if is_wrong or answer.status_code in {401, 403}:
            return None
        if answer.status_code != 200:
            message = f"the scheduler, which knows the tokens, answers {answer.status_code}"
            raise InfrastructureError("scheduler_away", message)
        view = CallerView.model_validate_json(answer.content)
        return Caller(view.name, frozenset({scope for scope in Scope if scope in view.scopes}))
