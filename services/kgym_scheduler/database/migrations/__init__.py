"""The tables' history, for alembic."""
