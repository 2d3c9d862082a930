"""Who is logged in: a browser holds a random word, the monitor the token that belongs to it.

Sessions live in memory: after a restart of the monitor, people log in again.
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from kgym.client import AsyncClient
from kgym.web.scopes import Caller

# How long a session lasts that is used; one that is not ends after IDLE_SECONDS.
SESSION_SECONDS = 7 * 86400
IDLE_SECONDS = 86400
# At most; the one that was not used for longest gives way.
SESSIONS = 1000


@dataclass(slots=True, eq=False)
class Session:
    """A browser that is logged in, or one of this machine that needs no login."""

    client: AsyncClient
    caller: Caller
    token: str
    """Empty without a login."""
    anonymous: bool = False
    """Whether it is there without a login, as nobody needs a token here."""
    form_key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """What each form of its pages has to send back: other sites cannot read it."""
    begun: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """Whether its time is over."""
        now = time.monotonic()
        return now - self.begun > SESSION_SECONDS or now - self.used > IDLE_SECONDS


class Sessions:
    """The sessions of one monitor, by the hashes of the words that browsers hold."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        # Of all who need no login.
        self.anybody: Session | None = None

    def begin(self, session: Session) -> str:
        """Keep it; return the word for the browser."""
        word = secrets.token_urlsafe(32)
        while len(self._sessions) >= SESSIONS:
            self._close(self._sessions.popitem(last=False)[1])
        self._sessions[_hash(word)] = session
        return word

    def find(self, word: str) -> Session | None:
        """Return the session of this word, if it lasts."""
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
        """Forget the session of this word."""
        if (session := self._sessions.pop(_hash(word), None)) is not None:
            self._close(session)

    async def close(self) -> None:
        """Forget all."""
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
