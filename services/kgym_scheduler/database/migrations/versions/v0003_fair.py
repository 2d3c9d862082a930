"""Lanes, turns and workers; the state of a job beside its facets."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables, then fill the columns: steps that are there need nothing special."""
    _tables()
    _facets()
    _steps()


def _tables() -> None:
    op.create_table(
        "lanes",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("needs", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lanes"),
        sa.UniqueConstraint("kind", "needs", name="uq_lanes_kind_needs"),
    )
    op.create_table(
        "turns",
        sa.Column("submitter", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("rank", sa.SmallInteger, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("submitter", "kind", "rank", name="pk_turns"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("kinds", sa.Text, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("capabilities", sa.Text),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )


def _facets() -> None:
    op.add_column("facets", sa.Column("state", sa.String(16)))
    op.execute("UPDATE facets SET state = (SELECT state FROM jobs WHERE jobs.id = facets.job_id)")
    with op.batch_alter_table("facets") as table:
        table.alter_column("state", existing_type=sa.String(16), nullable=False)
    op.create_index(
        "ix_facets_facet_state_created_at_job_id",
        "facets",
        ["facet", "state", "created_at", "job_id"],
    )


def _steps() -> None:
    op.execute("INSERT INTO lanes (kind, needs) SELECT DISTINCT kind, '{}' FROM steps")
    op.drop_index("ix_steps_due", "steps")
    op.add_column("steps", sa.Column("lane", ID))
    op.add_column("steps", sa.Column("rank", sa.SmallInteger))
    op.add_column("steps", sa.Column("turn", sa.BigInteger))
    op.execute(
        "UPDATE steps SET turn = 0,"
        " lane = (SELECT id FROM lanes WHERE lanes.kind = steps.kind),"
        " rank = (SELECT -priority FROM jobs WHERE jobs.id = steps.job_id)"
    )
    with op.batch_alter_table("steps") as table:
        table.alter_column("lane", existing_type=ID, nullable=False)
        table.alter_column("rank", existing_type=sa.SmallInteger, nullable=False)
        table.alter_column("turn", existing_type=sa.BigInteger, nullable=False)
        table.create_foreign_key("fk_steps_lane", "lanes", ["lane"], ["id"])
        table.drop_column("publish_at")
    queued = sa.text("state = 'queued'")
    for name, columns in (
        ("ix_steps_due", ["not_before"]),
        ("ix_steps_queue", ["lane", "rank", "turn", "id"]),
    ):
        op.create_index(name, "steps", columns, sqlite_where=queued, postgresql_where=queued)
    if op.get_bind().dialect.name == "postgresql":
        # Every step passes through the queue: its dead rows must not pile up at the head.
        for name in ("steps", "jobs", "facets", "turns"):
            op.execute(
                f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.02,"
                " autovacuum_vacuum_cost_delay = 1)"
            )
