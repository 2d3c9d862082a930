"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)
NAME = sa.String(500)


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("bug", sa.String(200), nullable=False),
        sa.Column("strategy", sa.String(200), nullable=False),
        sa.Column("model", sa.String(500), nullable=False),
        sa.Column("submitter", sa.String(100), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("builds", sa.Integer, nullable=False),
        sa.Column("checks", sa.Integer, nullable=False),
        sa.Column("stop", sa.Boolean, nullable=False),
        sa.Column("holder", sa.String(200)),
        sa.Column("held_until", TIME),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("begun", sa.LargeBinary),
        sa.Column("fixes", sa.LargeBinary),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sqlite_autoincrement=True,
    )
    _of_run(
        "events",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        key="number",
    )
    _of_run(
        "results",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("result", sa.LargeBinary, nullable=False),
        key="number",
    )
    _of_run(
        "calls",
        sa.Column("name", NAME, nullable=False),
        sa.Column("node", NAME, nullable=False),
        sa.Column("purpose", sa.String(30), nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("lost", sa.Integer, nullable=False),
        sa.Column("asked_at", TIME, nullable=False),
        sa.Column("answered_at", TIME),
        sa.Column("error", sa.Text),
        sa.Column("input_tokens", sa.BigInteger),
        sa.Column("cached_tokens", sa.BigInteger),
        sa.Column("output_tokens", sa.BigInteger),
        sa.Column("price", sa.Float),
        sa.Column("seconds", sa.Float),
        sa.Column("prompt", sa.LargeBinary, nullable=False),
        sa.Column("reply", sa.LargeBinary),
        key="name",
    )
    _of_run(
        "nodes",
        sa.Column("name", NAME, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("node", sa.LargeBinary, nullable=False),
        key="name",
    )
    _of_run(
        "jobs",
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("name", NAME, nullable=False),
        key="job",
    )


def _of_run(name: str, *columns: "sa.Column[object]", key: str) -> None:
    op.create_table(
        name,
        sa.Column("run", ID, nullable=False),
        *columns,
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=f"fk_{name}_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", key, name=f"pk_{name}"),
    )
