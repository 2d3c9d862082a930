"""The tables, and the conditions that their partial indexes are built on.

All statements run on SQLite and PostgreSQL alike; `seconds_between` is the only expression that
they write differently.
"""

# JSON is stored as text: pydantic reads and writes it directly, and no query looks inside. Big
# columns stand last: SQLite reads a row from its start, and skips what no query asks for.

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    literal_column,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from kgym.sqlite import Id, Utc

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def create(connection: Connection) -> None:
    """Create the tables in an empty database."""
    metadata.create_all(connection, checkfirst=False)
    if connection.dialect.name == "postgresql":
        # Every step passes through the queue: its dead rows must not pile up at the head.
        for name in ("steps", "jobs", "facets", "turns"):
            connection.execute(
                text(
                    f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.02,"
                    " autovacuum_vacuum_cost_delay = 1)"
                )
            )


# The submitter of jobs that come without a token.
LOCAL = "local"


class seconds_between(FunctionElement[float]):  # noqa: N801 - used like a function
    """The seconds between two times, the earlier first; NULL if either is."""

    inherit_cache = True


@compiles(seconds_between, "sqlite")
def _seconds_on_sqlite(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"((julianday({end}) - julianday({begin})) * 86400)"


@compiles(seconds_between, "postgresql")
def _seconds_on_postgresql(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"extract(epoch FROM {end} - {begin})"


def _index(
    name: str, where: ColumnElement[bool], *columns: Column[Any], unique: bool = False
) -> None:
    """Add an index of the rows that meet a condition."""
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    # job_state() of its steps, written in the same transaction: lists filter by it
    Column("state", String(16), nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("updated_at", Utc, nullable=False),
    Column("idempotency_key", String(200)),
    Column("body_hash", String(64)),
    Column("tags", Text, nullable=False),
    # the name of the token with which it was submitted
    Column("submitter", String(100), nullable=False, server_default=LOCAL),
    # among the groups of its submitter
    Column("group_name", String(100)),
    # its conclusion (`queue/job_conclusions.py`), once it has ended
    Column("outcome", String(20)),
    Column("verdict", String(16)),
    Column("title", Text),
    Column("reason", Text),
    # of the crash that identifies its bug: the title, and the source file that the report blames
    Column("crash", Text),
    Column("guilty_file", Text),
    # what it says about each of its patches, as JSON (`PatchSummary`); null if it has none
    Column("patches", Text),
    # searched besides its title and tags: functions on the stack, names of patches
    Column("words", Text),
    UniqueConstraint("submitter", "idempotency_key"),
    Index(None, "created_at", "id"),
    Index(None, "state", "created_at", "id"),
)

UNFINISHED = jobs.c.state.in_(
    [literal_column("'pending'"), literal_column("'queued'"), literal_column("'running'")]
)
_index("ix_jobs_unfinished", UNFINISHED, jobs.c.submitter)

Index("ix_jobs_submitter", jobs.c.submitter, jobs.c.created_at, jobs.c.id)
CONCLUDED = jobs.c.outcome.is_not(None)
_index("ix_jobs_outcome", CONCLUDED, jobs.c.outcome, jobs.c.created_at, jobs.c.id)

GROUPED = jobs.c.group_name.is_not(None)
_index("ix_jobs_group", GROUPED, jobs.c.submitter, jobs.c.group_name, jobs.c.id)
# Covers the queries that count a group's jobs: they read no row.
_index(
    "ix_jobs_group_counts",
    GROUPED,
    *(jobs.c[name] for name in ("submitter", "group_name", "state", "outcome", "updated_at")),
)

groups = Table(
    "groups",
    metadata,
    # created with the first job that names the group
    Column("id", Id, primary_key=True),
    Column("submitter", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("created_at", Utc, nullable=False),
    UniqueConstraint("submitter", "name"),
    Index(None, "created_at", "id"),
    Index(None, "submitter", "created_at", "id"),
)

facets = Table(
    "facets",
    metadata,
    # What lists filter by: `kind:…`, `tag:…` and `group:…` of each job, and `entry:…` once a step
    # has used the entry.
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("facet", String(120), primary_key=True),
    # Copies of the job's columns, so that lists and counts read one index and no job: SQLite
    # takes ten times as long to look up 500,000 jobs as to count them in an index.
    Column("state", String(16), nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("outcome", String(20)),
    # when the state changed last; NULL until the first change
    Column("moved_at", Utc),
    Index(None, "facet", "created_at", "job_id"),
    Index(None, "facet", "state", "created_at", "job_id"),
)


def _begins(prefix: str) -> ColumnElement[bool]:
    # SQLite's LIKE ignores case, and comparisons depend on the collation of PostgreSQL.
    length: ColumnElement[int] = literal_column(str(len(prefix)))
    return func.substr(facets.c.facet, literal_column("1"), length) == literal_column(f"'{prefix}'")


BUG, ENTRY = _begins("tag:bug="), _begins("entry:")
for _name, _subject in (("ix_facets_bugs", BUG), ("ix_facets_entries", ENTRY)):
    # The columns of the GROUP BY in `counts.py`, in its order, then all others that it reads.
    _index(
        _name,
        _subject,
        *(facets.c[name] for name in ("facet", "state", "outcome")),
        *(facets.c[name] for name in ("moved_at", "created_at", "job_id")),
    )

lanes = Table(
    "lanes",
    metadata,
    # one row for all steps of one kind that need the same capabilities (JSON)
    Column("id", Id, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("needs", String(500), nullable=False),
    UniqueConstraint("kind", "needs"),
)

turns = Table(
    "turns",
    metadata,
    # by kind and rank: the last turn of each submitter; in the row of '', the last claimed turn
    Column("submitter", String(200), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("rank", SmallInteger, primary_key=True),
    Column("turn", BigInteger, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("kinds", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("capabilities", Text),
    Column("draining", Boolean, nullable=False),
    Column("seen_at", Utc, nullable=False),
    # the SuiteCache entries that its host keeps, as last reported
    Column("entries", Text),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("number", SmallInteger, nullable=False),
    Column("name", String(60)),
    Column("kind", String(16), nullable=False),
    Column("lane", ForeignKey("lanes.id"), nullable=False),
    # the order of a lane's queued steps: lowest rank (minus the priority), then turn, then id
    Column("rank", SmallInteger, nullable=False),
    Column("turn", BigInteger, nullable=False, default=0),
    Column("state", String(16), nullable=False),
    # Attempt numbers only grow, so that a log belongs to one attempt. `tries` counts against the
    # limit: a release and a restart lower it, so giving a step back is free.
    Column("attempt", Integer, nullable=False, default=0),
    Column("tries", Integer, nullable=False, default=0),
    Column("lease", Uuid),
    Column("lease_until", Utc),
    Column("worker", String(200)),
    Column("not_before", Utc),
    Column("queued_at", Utc),
    Column("started_at", Utc),
    Column("finished_at", Utc),
    Column("progress", Text),
    Column("failure", Text),
    Column("result", Text),
    Column("artifacts", Text, nullable=False, default="[]"),
    Column("spec", Text, nullable=False),
    # when retention removed the artifacts' files
    Column("artifacts_gone_at", Utc),
    UniqueConstraint("job_id", "number"),
)

# Literals: SQLite uses a partial index only if it can prove the condition without parameters.
QUEUED = steps.c.state == literal_column("'queued'")
RUNNING = steps.c.state == literal_column("'running'")
_index("ix_steps_due", QUEUED, steps.c.not_before)
# `queued_at` is for `queries.waiting`, which every overview runs: reading the steps instead takes
# 15 times as long.
_index(
    "ix_steps_queue",
    QUEUED,
    *(steps.c[name] for name in ("lane", "rank", "turn", "id", "queued_at")),
)
_index("ix_steps_leases", RUNNING, steps.c.lease_until)

attempts = Table(
    "attempts",
    metadata,
    Column("lease", Uuid, primary_key=True),
    Column("step_id", ForeignKey("steps.id"), nullable=False),
    Column("number", Integer, nullable=False),
    # a copy of the step's: joining the steps would make statistics ten times as slow
    Column("kind", String(16), nullable=False),
    Column("worker", String(200), nullable=False),
    Column("started_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("outcome", String(16)),  # succeeded, failed, released, expired, aborted
    Column("cause", String(20)),  # of a failure
    Column("reason", String(100)),  # of a failure
    Column("cached", Boolean),  # of a successful build: whether the unpatched tree was cached
    Column("entry", String(64)),  # of a successful build or check: its SuiteCache entry
    UniqueConstraint("step_id", "number"),
)

ENDED = attempts.c.ended_at.is_not(None)
# Covers the query for statistics: it reads no row.
_index(
    "ix_attempts_ended",
    ENDED,
    *(attempts.c[name] for name in ("ended_at", "kind", "outcome", "cause", "reason", "cached")),
    attempts.c.started_at,
)

holds = Table(
    "holds",
    metadata,
    # names that attempts have locked; a lock is free once its attempt has ended
    Column("name", String(200), primary_key=True),
    Column("lease", Uuid, nullable=False),
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
    sqlite_autoincrement=True,  # no id is used twice, though progress events are deleted
)

PROGRESS = events.c.kind == literal_column("'progress'")
_index("ix_events_progress", PROGRESS, events.c.job_id, events.c.step)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("scopes", String(100), nullable=False),  # separated by spaces
    Column("hash", String(64), nullable=False),  # SHA-256 of the secret, in hex
    Column("created_at", Utc, nullable=False),
    Column("revoked_at", Utc),
    # the highest priority of its jobs
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    sqlite_autoincrement=True,  # no id is used twice: it is part of the token
)

VALID = tokens.c.revoked_at.is_(None)
_index("uq_tokens_valid", VALID, tokens.c.name, unique=True)
