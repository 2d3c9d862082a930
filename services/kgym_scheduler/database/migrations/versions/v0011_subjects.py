"""Bugs and entries of SuiteCache, counted as their jobs change; which attempt used which entry."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
BATCH = 1000
HEAD = 20_000
"""Characters of a result in which its entry stands: what comes before is a few lines."""
_TREE = re.compile(r'"tree":"([0-9A-Za-z][0-9A-Za-z_.+-]{0,63})"')


def upgrade() -> None:
    """Create the tables: the scheduler fills them, from the first event on (`subjects.py`)."""
    op.add_column("jobs", sa.Column("crash", sa.Text))
    op.add_column("jobs", sa.Column("guilty_file", sa.Text))
    op.add_column("workers", sa.Column("entries", sa.Text))
    op.add_column("attempts", sa.Column("entry", sa.String(64)))
    _subjects()
    op.create_table(
        "subject_jobs",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("subject_id", ID, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("resolved", sa.Boolean),
        sa.PrimaryKeyConstraint("job_id", "subject_id", name="pk_subject_jobs"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_subject_jobs_job_id"),
        sa.ForeignKeyConstraint(["subject_id"], ["subjects.id"], name="fk_subject_jobs_subject_id"),
    )
    readers = op.create_table(
        "readers",
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_readers"),
    )
    op.bulk_insert(readers, [{"name": "subjects", "position": 0}])
    _name_entries(op.get_bind())


def _subjects() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "subjects",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("active_at", moment, nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("judged_at", moment),
        sa.Column("judged_job", sa.BigInteger),
        sa.Column("resolved", sa.Integer, nullable=False),
        sa.Column("unresolved", sa.Integer, nullable=False),
        sa.Column("resolved_job", sa.BigInteger),
        sa.Column("crash_class", sa.String(60)),
        sa.Column("subsystem", sa.String(60)),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("title", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_subjects"),
        sa.UniqueConstraint("kind", "name", name="uq_subjects_kind_name"),
    )
    op.create_index("ix_subjects_kind_active_at_id", "subjects", ["kind", "active_at", "id"])


def _name_entries(connection: sa.Connection) -> None:
    """Note with the last attempts of builds and checks which entry they used, as they said."""
    read = sa.text(
        f"SELECT id, attempt, substr(result, 1, {HEAD}) AS said FROM steps"  # noqa: S608
        " WHERE id > :after AND id <= :until AND result IS NOT NULL"
        " AND kind IN ('build', 'check') AND state = 'succeeded'"
    )
    write = sa.text("UPDATE attempts SET entry = :entry WHERE step_id = :step AND number = :number")
    last = connection.scalar(sa.text("SELECT max(id) FROM steps")) or 0
    for after in range(0, last, BATCH):
        rows = connection.execute(read, {"after": after, "until": after + BATCH})
        found = [
            {"step": row.id, "number": row.attempt, "entry": named[1]}
            for row in rows
            if (named := _TREE.search(row.said))
        ]
        if found:
            connection.execute(write, found)
