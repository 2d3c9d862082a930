"""The index of waiting steps tells how long they wait."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make the index again: queues are counted without reading the steps."""
    op.drop_index("ix_steps_queue", "steps")
    queued = sa.text("state = 'queued'")
    op.create_index(
        "ix_steps_queue",
        "steps",
        ["lane", "rank", "turn", "id", "queued_at"],
        sqlite_where=queued,
        postgresql_where=queued,
    )
