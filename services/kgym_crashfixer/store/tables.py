"""The tables. What models, kernels and platforms said stands in them as deflated JSON.

SQLite and PostgreSQL hold the same. Nothing looks into what is deflated: columns beside it hold
what queries ask for.
"""

import zlib

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from kgym.sqlite import Id, Utc

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)
NAME = 500
"""Characters of a name of a piece of work, or of a node."""


class Deflated(TypeDecorator[str]):
    """Text, deflated: prompts hold whole source files, most of them many times."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        """Deflate it."""
        return value if value is None else zlib.compress(value.encode(errors="replace"), 1)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        """Inflate it."""
        return value if value is None else zlib.decompress(value).decode()


runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("key", String(64), nullable=False),  # of its jobs: they are told from others' by it
    Column("bug", String(200), nullable=False),
    Column("strategy", String(200), nullable=False),
    Column("model", String(500), nullable=False),
    Column("submitter", String(100), nullable=False),
    Column("state", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("seconds", Float, nullable=False),  # that it has been under way, all times together
    Column("builds", Integer, nullable=False),
    Column("checks", Integer, nullable=False),
    Column("stop", Boolean, nullable=False),  # somebody wants it to
    Column("holder", String(200)),  # the process that carries it out
    Column("held_until", Utc),
    Column("request", Deflated, nullable=False),
    Column("begun", Deflated),
    Column("fixes", Deflated),
    Column("idempotency_key", String(200)),  # a submitter's own
    Column("body_hash", String(64)),  # of the request as it came with that key
    UniqueConstraint("submitter", "idempotency_key"),
    sqlite_autoincrement=True,
)
_OF_RUN = {"nullable": False, "primary_key": True, "autoincrement": False}


def _run() -> Column[int]:
    return Column("run", Id, ForeignKey("runs.id", ondelete="CASCADE"), **_OF_RUN)  # type: ignore[arg-type]


events = Table(
    "events",
    metadata,
    _run(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at", Utc, nullable=False),
    Column("kind", String(30), nullable=False),
    Column("data", Text, nullable=False),
)
"""What happened, for those who watch: append-only."""
results = Table(
    "results",
    metadata,
    _run(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(NAME), nullable=False),
    Column("result", Deflated, nullable=False),
)
"""What the search was told, in this order: a search that is told the same goes on from there."""
calls = Table(
    "calls",
    metadata,
    _run(),
    Column("name", String(NAME), primary_key=True),
    Column("node", String(NAME), nullable=False),
    Column("purpose", String(30), nullable=False),
    Column("asked", Integer, nullable=False),  # how often it was sent
    Column("lost", Integer, nullable=False),  # how often nothing was heard of it
    Column("asked_at", Utc, nullable=False),
    Column("answered_at", Utc),
    Column("error", Text),
    Column("input_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("price", Float),
    Column("seconds", Float),
    Column("prompt", Deflated, nullable=False),
    Column("reply", Deflated),
)
"""Questions to the model. One without an answer and without an error is, or was, on its way."""
nodes = Table(
    "nodes",
    metadata,
    _run(),
    Column("name", String(NAME), primary_key=True),
    Column("number", Integer, nullable=False),  # in the order in which they began
    Column("node", Deflated, nullable=False),
)
jobs = Table(
    "jobs",
    metadata,
    _run(),
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(NAME), nullable=False),
)
