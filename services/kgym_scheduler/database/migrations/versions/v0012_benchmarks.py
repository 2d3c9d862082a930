"""Benchmarks: their bugs, and what agents made of these."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "benchmarks",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("submitter", sa.String(100), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("bugs", sa.Integer, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("source", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_benchmarks"),
        sa.UniqueConstraint("name", name="uq_benchmarks_name"),
    )
    op.create_table(
        "benchmark_bugs",
        sa.Column("benchmark_id", ID, nullable=False),
        sa.Column("bug", sa.String(200), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("diff", sa.Text),
        sa.PrimaryKeyConstraint("benchmark_id", "bug", name="pk_benchmark_bugs"),
        _owned("benchmark_bugs"),
    )
    op.create_table(
        "benchmark_setups",
        sa.Column("benchmark_id", ID, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("setup", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("benchmark_id", "number", name="pk_benchmark_setups"),
        sa.UniqueConstraint("benchmark_id", "hash", name="uq_benchmark_setups_benchmark_id_hash"),
        _owned("benchmark_setups"),
    )
    op.create_table(
        "benchmark_attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("benchmark_id", ID, nullable=False),
        sa.Column("setup", sa.Integer, nullable=False),
        sa.Column("bug", sa.String(200), nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Text, nullable=False),
        sa.Column("diff", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_benchmark_attempts"),
        sa.UniqueConstraint(
            "benchmark_id",
            "setup",
            "bug",
            "run",
            name="uq_benchmark_attempts_benchmark_id_setup_bug_run",
        ),
        _owned("benchmark_attempts"),
    )
    op.create_index(
        "ix_benchmark_attempts_benchmark_id_version_id",
        "benchmark_attempts",
        ["benchmark_id", "version", "id"],
    )


def _owned(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_benchmark_id"
    return sa.ForeignKeyConstraint(["benchmark_id"], ["benchmarks.id"], name=name)
