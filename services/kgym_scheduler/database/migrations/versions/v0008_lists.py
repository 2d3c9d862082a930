"""Indexes of the lists by submitter and by verdict."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the indexes."""
    op.create_index("ix_jobs_submitter", "jobs", ["submitter", "created_at", "id"])
    judged = sa.text("verdict IS NOT NULL")
    op.create_index(
        "ix_jobs_verdict",
        "jobs",
        ["verdict", "created_at", "id"],
        sqlite_where=judged,
        postgresql_where=judged,
    )
