"""Tokens, who submitted a job, and which artifacts retention has removed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table of tokens; add a column to jobs and to steps."""
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sqlite_autoincrement=True,
    )
    valid = sa.text("revoked_at IS NULL")
    op.create_index(
        "uq_tokens_valid",
        "tokens",
        ["name"],
        unique=True,
        sqlite_where=valid,
        postgresql_where=valid,
    )
    op.add_column(
        "jobs", sa.Column("submitter", sa.String(100), nullable=False, server_default="local")
    )
    unfinished = sa.text("state IN ('pending', 'queued', 'running')")
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["submitter"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.add_column("steps", sa.Column("artifacts_gone_at", TIME))
