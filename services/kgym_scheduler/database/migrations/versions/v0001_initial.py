"""Version 0.2.0, from which migrations count."""

revision = "0.2.0"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database of this revision has its tables, a new one begins with today's."""
