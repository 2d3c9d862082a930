"""The tables of version 0.2.0, from which migrations count."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0.2.0"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables, in dependency order."""
    _groups()
    _holds()
    _jobs()
    _lanes()
    _tokens()
    _turns()
    _workers()
    _events()
    _facets()
    _steps()
    _attempts()
    if op.get_bind().dialect.name == "postgresql":
        # Every step passes through the queue: its dead rows must not pile up at the head.
        for name in ("steps", "jobs", "facets", "turns"):
            op.execute(
                f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.02,"
                " autovacuum_vacuum_cost_delay = 1)"
            )


def _where(condition: str) -> dict[str, Any]:
    """Return the arguments that make an index partial on both databases."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", ID, nullable=False),
        sa.Column("submitter", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_groups"),
        sa.UniqueConstraint("submitter", "name", name="uq_groups_submitter_name"),
    )
    op.create_index("ix_groups_created_at_id", "groups", ["created_at", "id"])
    op.create_index(
        "ix_groups_submitter_created_at_id", "groups", ["submitter", "created_at", "id"]
    )


def _holds() -> None:
    op.create_table(
        "holds",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("lease", sa.Uuid, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_holds"),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("body_hash", sa.String(64)),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("submitter", sa.String(100), server_default="local", nullable=False),
        sa.Column("group_name", sa.String(100)),
        sa.Column("verdict", sa.String(16)),
        sa.Column("resolved", sa.Boolean),
        sa.Column("title", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("crash", sa.Text),
        sa.Column("guilty_file", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint(
            "submitter", "idempotency_key", name="uq_jobs_submitter_idempotency_key"
        ),
    )
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_index(
        "ix_jobs_group",
        "jobs",
        ["submitter", "group_name", "id"],
        **_where("group_name IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_group_counts",
        "jobs",
        ["submitter", "group_name", "state", "verdict", "resolved", "updated_at"],
        **_where("group_name IS NOT NULL"),
    )
    op.create_index("ix_jobs_state_created_at_id", "jobs", ["state", "created_at", "id"])
    op.create_index("ix_jobs_submitter", "jobs", ["submitter", "created_at", "id"])
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["submitter"],
        **_where("state IN ('pending', 'queued', 'running')"),
    )
    op.create_index(
        "ix_jobs_verdict", "jobs", ["verdict", "created_at", "id"], **_where("verdict IS NOT NULL")
    )


def _lanes() -> None:
    op.create_table(
        "lanes",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("needs", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lanes"),
        sa.UniqueConstraint("kind", "needs", name="uq_lanes_kind_needs"),
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("revoked_at", MOMENT),
        sa.Column("priority", sa.SmallInteger, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_tokens_valid", "tokens", ["name"], unique=True, **_where("revoked_at IS NULL")
    )


def _turns() -> None:
    op.create_table(
        "turns",
        sa.Column("submitter", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("rank", sa.SmallInteger, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("submitter", "kind", "rank", name="pk_turns"),
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("kinds", sa.Text, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("capabilities", sa.Text),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.Column("entries", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("step", sa.SmallInteger),
        sa.Column("attempt", sa.Integer),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])
    op.create_index(
        "ix_events_progress", "events", ["job_id", "step"], **_where("kind = 'progress'")
    )


def _facets() -> None:
    op.create_table(
        "facets",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("facet", sa.String(120), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("resolved", sa.Boolean),
        sa.Column("moved_at", MOMENT),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_facets_job_id"),
        sa.PrimaryKeyConstraint("job_id", "facet", name="pk_facets"),
    )
    op.create_index(
        "ix_facets_bugs",
        "facets",
        ["facet", "state", "verdict", "resolved", "moved_at", "created_at", "job_id"],
        **_where("substr(facet, 1, 8) = 'tag:bug='"),
    )
    op.create_index(
        "ix_facets_entries",
        "facets",
        ["facet", "state", "verdict", "resolved", "moved_at", "created_at", "job_id"],
        **_where("substr(facet, 1, 6) = 'entry:'"),
    )
    op.create_index(
        "ix_facets_facet_created_at_job_id", "facets", ["facet", "created_at", "job_id"]
    )
    op.create_index(
        "ix_facets_facet_state_created_at_job_id",
        "facets",
        ["facet", "state", "created_at", "job_id"],
    )


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("number", sa.SmallInteger, nullable=False),
        sa.Column("name", sa.String(60)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("lane", ID, nullable=False),
        sa.Column("rank", sa.SmallInteger, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("lease", sa.Uuid),
        sa.Column("lease_until", MOMENT),
        sa.Column("worker", sa.String(200)),
        sa.Column("not_before", MOMENT),
        sa.Column("queued_at", MOMENT),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("progress", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("artifacts", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("artifacts_gone_at", MOMENT),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_steps_job_id"),
        sa.ForeignKeyConstraint(["lane"], ["lanes.id"], name="fk_steps_lane"),
        sa.PrimaryKeyConstraint("id", name="pk_steps"),
        sa.UniqueConstraint("job_id", "number", name="uq_steps_job_id_number"),
    )
    op.create_index("ix_steps_due", "steps", ["not_before"], **_where("state = 'queued'"))
    op.create_index("ix_steps_leases", "steps", ["lease_until"], **_where("state = 'running'"))
    op.create_index(
        "ix_steps_queue",
        "steps",
        ["lane", "rank", "turn", "id", "queued_at"],
        **_where("state = 'queued'"),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("lease", sa.Uuid, nullable=False),
        sa.Column("step_id", ID, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("outcome", sa.String(16)),
        sa.Column("cause", sa.String(20)),
        sa.Column("reason", sa.String(100)),
        sa.Column("cached", sa.Boolean),
        sa.Column("entry", sa.String(64)),
        sa.ForeignKeyConstraint(["step_id"], ["steps.id"], name="fk_attempts_step_id"),
        sa.PrimaryKeyConstraint("lease", name="pk_attempts"),
        sa.UniqueConstraint("step_id", "number", name="uq_attempts_step_id_number"),
    )
    op.create_index(
        "ix_attempts_ended",
        "attempts",
        ["ended_at", "kind", "outcome", "cause", "reason", "cached", "started_at"],
        **_where("ended_at IS NOT NULL"),
    )
    # ### end Alembic commands ###
