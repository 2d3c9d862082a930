"""Sessions: a browser holds a random key, the monitor the token that belongs to it.

Sessions are in memory: after a restart of the monitor, users log in again.
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from kgym.client import AsyncClient
from kgym.web.scopes import Caller

# Lifetime of a used session; an unused one ends after IDLE_SECONDS.
SESSION_SECONDS = 7 * 86400
IDLE_SECONDS = 86400
# Most sessions; the least recently used one is dropped.
SESSIONS = 1000


@dataclass(slots=True, eq=False)
class Session:
    """A logged-in browser, or one on this machine that needs no login."""

    client: AsyncClient
    caller: Caller
    token: str
    """Empty without a login."""
    anonymous: bool = False
    """Whether it has no login, because no token is needed."""
    form_key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """CSRF key that each form must send back; other sites cannot read it."""
    begun: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """Whether it has expired."""
        now = time.monotonic()
        return now - self.begun > SESSION_SECONDS or now - self.used > IDLE_SECONDS


class Sessions:
    """Sessions of a monitor, by hash of the browser's key."""

    # Hashed, so that a copy of the monitor's memory gives no sessions away, and so that the time of
    # the look-up says nothing about a key.

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        # Session of everybody who needs no login.
        self.anybody: Session | None = None

    def begin(self, session: Session) -> str:
        """Store a session; return the browser's key."""
        word = secrets.token_urlsafe(32)
        while len(self._sessions) >= SESSIONS:
            self._close(self._sessions.popitem(last=False)[1])
        self._sessions[_hash(word)] = session
        return word

    def find(self, word: str) -> Session | None:
        """Return the session of a key, None if it has expired."""
        key = _hash(word)
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.over:
            self.end(word)
            return None
        session.used = time.monotonic()
        self._sessions.move_to_end(key)
        return session

    def end(self, word: str) -> None:
        """End the session of a key."""
        if (session := self._sessions.pop(_hash(word), None)) is not None:
            self._close(session)

    async def close(self) -> None:
        """End all sessions."""
        while self._sessions:
            self._close(self._sessions.popitem()[1])
        if self.anybody is not None:
            self._close(self.anybody)
        await asyncio.gather(*self._closing)

    def _close(self, session: Session) -> None:
        task = asyncio.get_running_loop().create_task(session.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _hash(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
