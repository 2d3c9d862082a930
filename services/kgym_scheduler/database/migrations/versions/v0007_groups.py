"""Groups of jobs, and what a job came to."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add the columns and the table: jobs that are there have no group, and ended untold."""
    op.add_column("jobs", sa.Column("group_name", sa.String(100)))
    op.add_column("jobs", sa.Column("verdict", sa.String(16)))
    op.add_column("jobs", sa.Column("resolved", sa.Boolean))
    op.add_column("jobs", sa.Column("title", sa.Text))
    op.add_column("jobs", sa.Column("reason", sa.Text))
    op.create_table(
        "groups",
        sa.Column("id", ID, nullable=False),
        sa.Column("submitter", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_groups"),
        sa.UniqueConstraint("submitter", "name", name="uq_groups_submitter_name"),
    )
    op.create_index("ix_groups_created_at_id", "groups", ["created_at", "id"])
    op.create_index(
        "ix_groups_submitter_created_at_id", "groups", ["submitter", "created_at", "id"]
    )
    grouped = sa.text("group_name IS NOT NULL")
    counted = ["submitter", "group_name", "state", "verdict", "resolved", "updated_at"]
    for name, columns in (
        ("ix_jobs_group", ["submitter", "group_name", "id"]),
        ("ix_jobs_group_counts", counted),
    ):
        op.create_index(name, "jobs", columns, sqlite_where=grouped, postgresql_where=grouped)
