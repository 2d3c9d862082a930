"""Idempotency keys of runs, each submitter's own."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add them: runs until now have none."""
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("idempotency_key", sa.String(200)))
        table.add_column(sa.Column("body_hash", sa.String(64)))
        table.create_unique_constraint(
            "uq_runs_submitter_idempotency_key", ["submitter", "idempotency_key"]
        )
