"""The tables, and the conditions that their partial indexes are built on.

The statements of this package stand on SQLite and PostgreSQL alike. JSON is
kept as text: pydantic reads and writes it directly, and no query looks inside.
Big columns stand last, so that SQLite reads past them only when asked.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    literal_column,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only `INTEGER PRIMARY KEY`


class Utc(TypeDecorator[datetime]):
    """A time in UTC, aware on the Python side also where the database keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC: SQLite drops the zone."""
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Put the zone back."""
        return value if value is None else value.replace(tzinfo=UTC)


jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    # job_state() of its steps, written with each change of theirs, so that lists can filter by it
    Column("state", String(16), nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("updated_at", Utc, nullable=False),
    Column("idempotency_key", String(200), unique=True),
    Column("body_hash", String(64)),
    Column("tags", Text, nullable=False),
    Index(None, "created_at", "id"),
    Index(None, "state", "created_at", "id"),
)

facets = Table(
    "facets",
    metadata,
    # `kind:…` and `tag:…`; the index that lists filter by, with the order they are shown in
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("facet", String(120), primary_key=True),
    Column("created_at", Utc, nullable=False),
    Index(None, "facet", "created_at", "job_id"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("number", SmallInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    # attempts ever begun, and those of them that count against the limit
    Column("attempt", Integer, nullable=False, default=0),
    Column("tries", Integer, nullable=False, default=0),
    Column("lease", Uuid),
    Column("lease_until", Utc),
    Column("worker", String(200)),
    Column("not_before", Utc),
    # when the sweeper sends the message (again), should the step still be queued
    Column("publish_at", Utc),
    Column("queued_at", Utc),
    Column("started_at", Utc),
    Column("finished_at", Utc),
    Column("progress", Text),
    Column("failure", Text),
    Column("result", Text),
    Column("artifacts", Text, nullable=False, default="[]"),
    Column("spec", Text, nullable=False),
    UniqueConstraint("job_id", "number"),
)

# Literals: SQLite uses a partial index only where it can prove its condition without parameters.
QUEUED = steps.c.state == literal_column("'queued'")
RUNNING = steps.c.state == literal_column("'running'")
Index("ix_steps_due", steps.c.publish_at, sqlite_where=QUEUED, postgresql_where=QUEUED)
Index("ix_steps_leases", steps.c.lease_until, sqlite_where=RUNNING, postgresql_where=RUNNING)

attempts = Table(
    "attempts",
    metadata,
    Column("lease", Uuid, primary_key=True),
    Column("step_id", ForeignKey("steps.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("worker", String(200), nullable=False),
    Column("started_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("outcome", String(16)),  # succeeded, failed, released, expired, aborted
    UniqueConstraint("step_id", "number"),
)

events = Table(
    "events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("step", SmallInteger),
    Column("attempt", Integer),
    Column("kind", String(16), nullable=False),
    Column("at", Utc, nullable=False),
    Column("data", Text, nullable=False),
    Index(None, "job_id", "id"),
    sqlite_autoincrement=True,  # an id is never given twice: progress events are deleted
)

PROGRESS = events.c.kind == literal_column("'progress'")
Index(
    "ix_events_progress",
    events.c.job_id,
    events.c.step,
    sqlite_where=PROGRESS,
    postgresql_where=PROGRESS,
)
