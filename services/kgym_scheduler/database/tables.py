"""The tables, and the conditions that their partial indexes are built on.

The statements of this package stand on SQLite and PostgreSQL alike. JSON is
kept as text: pydantic reads and writes it directly, and no query looks inside.
Big columns stand last, so that SQLite reads past them only when asked.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
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
)

from kgym.sqlite import Id, Utc

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


# The submitter of a job that came without a token.
LOCAL = "local"


jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    # job_state() of its steps, written with each change of theirs, so that lists can filter by it
    Column("state", String(16), nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("updated_at", Utc, nullable=False),
    Column("idempotency_key", String(200)),
    Column("body_hash", String(64)),
    Column("tags", Text, nullable=False),
    # the name of the token that it came with
    Column("submitter", String(100), nullable=False, server_default=LOCAL),
    # of its submitter's
    Column("group_name", String(100)),
    # what it came to (`queue/job_conclusions.py`), once it has ended
    Column("verdict", String(16)),
    Column("resolved", Boolean),
    Column("title", Text),
    Column("reason", Text),
    # of the crash that shows what its bug is: title, and the source file that its report blames
    Column("crash", Text),
    Column("guilty_file", Text),
    UniqueConstraint("submitter", "idempotency_key"),
    Index(None, "created_at", "id"),
    Index(None, "state", "created_at", "id"),
)

UNFINISHED = jobs.c.state.in_(
    [literal_column("'pending'"), literal_column("'queued'"), literal_column("'running'")]
)
Index(
    "ix_jobs_unfinished",
    jobs.c.submitter,
    sqlite_where=UNFINISHED,
    postgresql_where=UNFINISHED,
)

Index("ix_jobs_submitter", jobs.c.submitter, jobs.c.created_at, jobs.c.id)
JUDGED = jobs.c.verdict.is_not(None)
Index(
    "ix_jobs_verdict",
    jobs.c.verdict,
    jobs.c.created_at,
    jobs.c.id,
    sqlite_where=JUDGED,
    postgresql_where=JUDGED,
)

GROUPED = jobs.c.group_name.is_not(None)
Index(
    "ix_jobs_group",
    jobs.c.submitter,
    jobs.c.group_name,
    jobs.c.id,
    sqlite_where=GROUPED,
    postgresql_where=GROUPED,
)
# All that a group's counts need, so that no row is read for them.
Index(
    "ix_jobs_group_counts",
    jobs.c.submitter,
    jobs.c.group_name,
    jobs.c.state,
    jobs.c.verdict,
    jobs.c.resolved,
    jobs.c.updated_at,
    sqlite_where=GROUPED,
    postgresql_where=GROUPED,
)

groups = Table(
    "groups",
    metadata,
    # those that jobs name; made with the first of them
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
    # What lists filter by, in their order: `kind:…`, `tag:…` and `group:…` of each job, and
    # `entry:…` from when a step has used the entry.
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("facet", String(120), primary_key=True),
    # Copies of the job's columns, so that filtering and counting read one index and no job:
    # to look up 500,000 jobs takes SQLite ten times as long as to count them in an index.
    Column("state", String(16), nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("verdict", String(16)),
    Column("resolved", Boolean),
    # when the state changed last; NULL of a job that is as it was submitted
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
    # The columns in the order of `counts.py`'s GROUP BY, then all others that it reads.
    Index(
        _name,
        *(facets.c[name] for name in ("facet", "state", "verdict", "resolved")),
        *(facets.c[name] for name in ("moved_at", "created_at", "job_id")),
        sqlite_where=_subject,
        postgresql_where=_subject,
    )

lanes = Table(
    "lanes",
    metadata,
    # steps of one kind that need the same of a worker, as JSON
    Column("id", Id, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("needs", String(500), nullable=False),
    UniqueConstraint("kind", "needs"),
)

turns = Table(
    "turns",
    metadata,
    # the last turn that a submitter was given, by kind and rank; of nobody (''), the last claimed
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
    # the entries of SuiteCache that its host keeps, as it has told last
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
    # which of a lane's queued steps is next: lowest rank (less the priority), then turn, then id
    Column("rank", SmallInteger, nullable=False),
    Column("turn", BigInteger, nullable=False, default=0),
    Column("state", String(16), nullable=False),
    # attempts ever begun, and those of them that count against the limit
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

# Literals: SQLite uses a partial index only where it can prove its condition without parameters.
QUEUED = steps.c.state == literal_column("'queued'")
RUNNING = steps.c.state == literal_column("'running'")
Index("ix_steps_due", steps.c.not_before, sqlite_where=QUEUED, postgresql_where=QUEUED)
# The last column is for those who count (`queries.waiting`): no step is read for them.
Index(
    "ix_steps_queue",
    steps.c.lane,
    steps.c.rank,
    steps.c.turn,
    steps.c.id,
    steps.c.queued_at,
    sqlite_where=QUEUED,
    postgresql_where=QUEUED,
)
Index("ix_steps_leases", steps.c.lease_until, sqlite_where=RUNNING, postgresql_where=RUNNING)

attempts = Table(
    "attempts",
    metadata,
    Column("lease", Uuid, primary_key=True),
    Column("step_id", ForeignKey("steps.id"), nullable=False),
    Column("number", Integer, nullable=False),
    # the step's: a look-up of each step would make statistics ten times as slow
    Column("kind", String(16), nullable=False),
    Column("worker", String(200), nullable=False),
    Column("started_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("outcome", String(16)),  # succeeded, failed, released, expired, aborted
    Column("cause", String(20)),  # of a failure
    Column("reason", String(100)),  # of a failure
    Column("cached", Boolean),  # of a build that succeeded: whether the unpatched tree was there
    Column("entry", String(64)),  # of a build or check that succeeded: whose entry it used
    UniqueConstraint("step_id", "number"),
)

ENDED = attempts.c.ended_at.is_not(None)
# All that statistics need, so that no row is read for them.
Index(
    "ix_attempts_ended",
    *(attempts.c[name] for name in ("ended_at", "kind", "outcome", "cause", "reason", "cached")),
    attempts.c.started_at,
    sqlite_where=ENDED,
    postgresql_where=ENDED,
)

holds = Table(
    "holds",
    metadata,
    # what an attempt does that others shall not do at the same time; free when it has ended
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

tokens = Table(
    "tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("scopes", String(100), nullable=False),  # separated by spaces
    Column("hash", String(64), nullable=False),  # SHA-256 of the secret, in hex
    Column("created_at", Utc, nullable=False),
    Column("revoked_at", Utc),
    # the highest that its jobs may ask for
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    sqlite_autoincrement=True,  # an id is never given twice: it is part of the token
)

VALID = tokens.c.revoked_at.is_(None)
Index("uq_tokens_valid", tokens.c.name, unique=True, sqlite_where=VALID, postgresql_where=VALID)
