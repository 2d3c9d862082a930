"""The tables of version 0.2.0, from which migrations count."""

from alembic import op

from kgym_scheduler.database.tables import metadata

revision = "0.2.0"
down_revision = None


def upgrade() -> None:
    """Create the tables, in dependency order."""
    # As long as no later version changes them, these are the tables of today. The first migration
    # that follows has to write out here what 0.2.0 had (`test_connection.py` asks for it).
    metadata.create_all(op.get_bind(), checkfirst=False)
    if op.get_bind().dialect.name == "postgresql":
        # Every step passes through the queue: its dead rows must not pile up at the head.
        for name in ("steps", "jobs", "facets", "turns"):
            op.execute(
                f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.02,"
                " autovacuum_vacuum_cost_delay = 1)"
            )
