"""The first tables: jobs, facets, steps, attempts, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the first tables."""
    _jobs()
    _steps()
    _events()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("body_hash", sa.String(64)),
        sa.Column("tags", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    )
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_state_created_at_id", "jobs", ["state", "created_at", "id"])
    op.create_table(
        "facets",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("facet", sa.String(120), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "facet", name="pk_facets"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_facets_job_id"),
    )
    op.create_index(
        "ix_facets_facet_created_at_job_id", "facets", ["facet", "created_at", "job_id"]
    )


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("number", sa.SmallInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("lease", sa.Uuid),
        sa.Column("lease_until", TIME),
        sa.Column("worker", sa.String(200)),
        sa.Column("not_before", TIME),
        sa.Column("publish_at", TIME),
        sa.Column("queued_at", TIME),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("progress", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("artifacts", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_steps"),
        sa.UniqueConstraint("job_id", "number", name="uq_steps_job_id_number"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_steps_job_id"),
    )
    queued, running = sa.text("state = 'queued'"), sa.text("state = 'running'")
    op.create_index(
        "ix_steps_due", "steps", ["publish_at"], sqlite_where=queued, postgresql_where=queued
    )
    op.create_index(
        "ix_steps_leases", "steps", ["lease_until"], sqlite_where=running, postgresql_where=running
    )
    op.create_table(
        "attempts",
        sa.Column("lease", sa.Uuid, nullable=False),
        sa.Column("step_id", ID, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
        sa.Column("outcome", sa.String(16)),
        sa.PrimaryKeyConstraint("lease", name="pk_attempts"),
        sa.UniqueConstraint("step_id", "number", name="uq_attempts_step_id_number"),
        sa.ForeignKeyConstraint(["step_id"], ["steps.id"], name="fk_attempts_step_id"),
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("step", sa.SmallInteger),
        sa.Column("attempt", sa.Integer),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])
    progress = sa.text("kind = 'progress'")
    op.create_index(
        "ix_events_progress",
        "events",
        ["job_id", "step"],
        sqlite_where=progress,
        postgresql_where=progress,
    )
