"""Run by alembic for each command; `kgym_scheduler.database.connection` hands it the connection."""

from alembic import context

from kgym_scheduler.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
