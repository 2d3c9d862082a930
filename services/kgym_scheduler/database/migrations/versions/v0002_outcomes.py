"""Jobs have an outcome in place of `resolved`, and summaries of patches; facets have the outcome.

Summaries of jobs that have ended stay empty: their results would have to be read.
"""

import re

from alembic import op
from sqlalchemy import Column, String, Text, text

revision = "0.2.0.1"
down_revision = "0.2.0"

_ENDED = "state IN ('succeeded', 'failed', 'aborted')"
# What was stored is less than what a conclusion rests on; patches of checks are below.
_OUTCOMES = """
    UPDATE jobs SET outcome = CASE
        WHEN state = 'aborted' THEN 'aborted'
        WHEN state = 'failed' THEN coalesce((
            SELECT CASE
                WHEN failure LIKE '{"cause":"user","reason":"does_not_compile"%'
                    AND coalesce(name, '') <> 'build_before' THEN 'does_not_compile'
                WHEN failure LIKE '{"cause":"user","reason":"patch_does_not_apply"%'
                    THEN 'does_not_apply'
                WHEN failure LIKE '{"cause":"user"%' THEN 'refused'
                ELSE 'inconclusive' END
            FROM steps WHERE steps.job_id = jobs.id AND steps.state = 'failed'), 'inconclusive')
        WHEN verdict = 'inconclusive' THEN 'inconclusive'
        WHEN resolved THEN 'resolved'
        WHEN NOT resolved THEN 'not_resolved'
        WHEN verdict = 'same_crash' THEN 'reproduced'
        WHEN verdict IS NOT NULL THEN 'not_reproduced'
        WHEN reason LIKE 'no verdict%' THEN 'inconclusive'
        ELSE 'built' END
    WHERE """
_COUNTED = re.compile(r"([0-9]+) of ([0-9]+) patches compile")
_INDEXES = (
    ("ix_jobs_outcome", "jobs", ["outcome", "created_at", "id"], "outcome IS NOT NULL"),
    (
        "ix_jobs_group_counts",
        "jobs",
        ["submitter", "group_name", "state", "outcome", "updated_at"],
        "group_name IS NOT NULL",
    ),
    *(
        (
            f"ix_facets_{name}",
            "facets",
            ["facet", "state", "outcome", "moved_at", "created_at", "job_id"],
            f"substr(facet, 1, {len(prefix)}) = '{prefix}'",
        )
        for name, prefix in (("bugs", "tag:bug="), ("entries", "entry:"))
    ),
)


def upgrade() -> None:
    """Replace the columns and their indexes; derive the outcomes of ended jobs."""
    for table, name in (
        *(("jobs", "ix_jobs_verdict"), ("jobs", "ix_jobs_group_counts")),
        *(("facets", "ix_facets_bugs"), ("facets", "ix_facets_entries")),
    ):
        op.drop_index(name, table)
    op.add_column("jobs", Column("outcome", String(20)))
    op.add_column("jobs", Column("patches", Text))
    op.add_column("jobs", Column("words", Text))
    op.add_column("facets", Column("outcome", String(20)))
    op.execute(text(_OUTCOMES + _ENDED))
    _checks()
    op.execute(
        "UPDATE facets SET outcome = (SELECT outcome FROM jobs WHERE jobs.id = facets.job_id)"
    )
    op.drop_column("jobs", "resolved")
    op.drop_column("facets", "resolved")
    op.drop_column("facets", "verdict")
    for name, table, columns, condition in _INDEXES:
        where = text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _checks() -> None:
    """Set the outcomes of checks, whose reasons count the patches that compile."""
    connection = op.get_bind()
    query = "SELECT DISTINCT reason FROM jobs WHERE outcome = 'built' AND reason IS NOT NULL"
    for (reason,) in connection.execute(text(query)).all():
        if (counted := _COUNTED.fullmatch(reason)) is not None:
            outcome = "compiles" if counted[1] == counted[2] else "does_not_compile"
            change = (
                "UPDATE jobs SET outcome = :outcome WHERE outcome = 'built' AND reason = :reason"
            )
            connection.execute(text(change), {"outcome": outcome, "reason": reason})
