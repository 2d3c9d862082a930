"""Run by alembic for each command; `kgym_crashfixer.store.database` hands it the connection."""

from alembic import context

from kgym_crashfixer.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="agent_version",
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
