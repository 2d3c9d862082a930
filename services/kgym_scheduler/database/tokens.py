"""Bearer tokens in the database.

A token is `kgym_ID_SECRET`. The secret is 256 random bits; the database holds its SHA-256.
"""

# No slow hash (scrypt, Argon2): these are for passwords that people choose. Nobody guesses 256
# random bits, however fast the hash is, and it is computed for every request.

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, delete, exists, insert, select, update

from kgym.errors import Conflict, NotFound, UserError
from kgym.web.scopes import Caller, Scope, Token
from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import LOCAL, VALID, tokens

# How long a token is cached, and so works after it was revoked.
CACHE_SECONDS = 5.0
_NAME = re.compile(r"[\w][\w.@+-]{0,99}", re.ASCII)
_TOKEN = re.compile(r"kgym_([1-9][0-9]{0,17})_([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Submitter(Caller):
    """A caller of the scheduler, whose jobs have a priority."""

    priority: int = 0
    """The highest priority that its jobs may have."""


# The caller from this machine as long as there are no tokens.
ANYBODY_HERE = Submitter(LOCAL, frozenset(Scope))


class Tokens:
    """The token store, plus the `owner` token, which only the operator can read."""

    def __init__(self, database: Database, *, owner: str | None = None) -> None:
        self._database = database
        self._owner = owner and _hash(owner)
        self._cache: dict[int, tuple[float, Row[*tuple[Any, ...]]]] = {}
        self._needed = False
        self._looked = -CACHE_SECONDS

    async def create(self, name: str, scopes: Collection[str], priority: int = 0) -> str:
        """Create a token and return it; it cannot be read again.

        `priority` is the highest that its jobs may have, up to 100; `admin` has no limit.

        Raises UserError for a bad name or scope, and Conflict if the name is in use.
        """
        if not _NAME.fullmatch(name) or name == LOCAL:
            raise UserError(
                "bad_token_name",
                f"{name!r} cannot be the name of a token: it takes 1 to 100 letters, digits and "
                f"any of . @ + _ - and must not be {LOCAL!r}, which is who submits without one",
            )
        if not scopes or set(scopes) - set(Scope):
            raise UserError("bad_scope", f"the scopes of a token are some of {', '.join(Scope)}")
        secret = secrets.token_urlsafe(32)
        async with self._database.write() as connection:
            taken = select(tokens.c.id).where(tokens.c.name == name, VALID)
            if await connection.scalar(taken) is not None:
                raise Conflict("token_exists", f"there is a token {name!r}; revoke it first")
            token_id = await connection.scalar(
                insert(tokens)
                .values(
                    name=name,
                    scopes=" ".join(sorted(set(scopes))),
                    hash=_hash(secret),
                    priority=priority,
                    created_at=datetime.now(UTC),
                )
                .returning(tokens.c.id)
            )
        return f"kgym_{token_id}_{secret}"

    async def list(self) -> list[Token]:
        """Return all tokens, also revoked ones, oldest first."""
        columns = (tokens.c[name] for name in Token.model_fields)
        async with self._database.read() as connection:
            rows = (await connection.execute(select(*columns).order_by(tokens.c.id))).all()
        return [Token(**{**row._mapping, "scopes": _scopes(row.scopes)}) for row in rows]

    async def revoke(self, name: str) -> None:
        """Revoke a token; raise NotFound if no valid one has this name."""
        async with self._database.write() as connection:
            revoked = await connection.execute(
                update(tokens)
                .where(tokens.c.name == name, VALID)
                .values(revoked_at=datetime.now(UTC))
            )
        if not revoked.rowcount:
            raise NotFound("token_not_found", f"there is no valid token {name!r}")

    async def forget(self) -> int:
        """Delete all tokens, also revoked ones; return their number."""
        async with self._database.write() as connection:
            return (await connection.execute(delete(tokens))).rowcount

    async def needed(self) -> bool:
        """Return whether callers need a token: since the first one was created."""
        # Revoked ones count: revoking the last token must not open the scheduler to everybody.
        now = time.monotonic()
        if now >= self._looked + CACHE_SECONDS:
            async with self._database.read() as connection:
                self._needed = bool(await connection.scalar(select(exists(select(tokens.c.id)))))
            self._looked = now
        return self._needed

    async def anybody(self) -> Submitter | None:
        """Return the caller from this machine without a token; None if tokens are needed."""
        return None if await self.needed() else ANYBODY_HERE

    async def caller(self, token: str) -> Submitter | None:
        """Return the owner of this token; None if it is not valid."""
        if self._owner is not None and hmac.compare_digest(self._owner, _hash(token)):
            return ANYBODY_HERE
        match = _TOKEN.fullmatch(token)
        row = await self._row(int(match[1])) if match else None
        if match is None or row is None:
            return None
        # In constant time, so that the duration reveals nothing about the secret.
        genuine = hmac.compare_digest(row.hash, _hash(match[2]))
        if not genuine or row.revoked_at is not None:
            return None
        return Submitter(row.name, frozenset(_scopes(row.scopes)), row.priority)

    async def _row(self, token_id: int) -> Row[*tuple[Any, ...]] | None:
        at, row = self._cache.get(token_id, (-CACHE_SECONDS, None))
        now = time.monotonic()
        if row is not None and now < at + CACHE_SECONDS:
            return row
        t = tokens.c
        async with self._database.read() as connection:
            rows = await connection.execute(
                select(t.name, t.scopes, t.hash, t.priority, t.revoked_at).where(t.id == token_id)
            )
        row = rows.first()
        if row is not None:
            self._cache[token_id] = now, row
        return row


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _scopes(text: str) -> list[Scope]:
    return [Scope(scope) for scope in text.split()]
