"""Why attempts failed, and how many ended in each minute and hour."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the columns and the table: of attempts that are there, causes are not known."""
    op.add_column("attempts", sa.Column("cause", sa.String(20)))
    op.add_column("attempts", sa.Column("reason", sa.String(100)))
    op.add_column("attempts", sa.Column("cached", sa.Boolean))
    ended = sa.text("ended_at IS NOT NULL")
    op.create_index(
        "ix_attempts_ended", "attempts", ["ended_at"], sqlite_where=ended, postgresql_where=ended
    )
    op.create_table(
        "tallies",
        sa.Column("seconds", sa.SmallInteger, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("cause", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(100), nullable=False),
        sa.Column("cached", sa.String(5), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("took", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint(
            *("seconds", "at", "kind", "outcome", "cause", "reason", "cached"), name="pk_tallies"
        ),
    )
