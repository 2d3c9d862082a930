"""Idempotency keys of each submitter's own; the highest priority that a token allows."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Widen the unique constraint; add the column: until now, every token allowed 100."""
    with op.batch_alter_table("jobs") as table:
        table.drop_constraint("uq_jobs_idempotency_key", type_="unique")
        table.create_unique_constraint(
            "uq_jobs_submitter_idempotency_key", ["submitter", "idempotency_key"]
        )
    op.add_column(
        "tokens", sa.Column("priority", sa.SmallInteger, nullable=False, server_default="0")
    )
