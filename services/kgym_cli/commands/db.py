"""`kgym db`."""

import asyncio

import click

from kgym_cli.output import results
from kgym_cli.platforms.scheduler_choice import database_url
from kgym_cli.settings import options_of


@click.group()
def db() -> None:
    """Prepare the database."""


@db.command()
@options_of("db upgrade")
def upgrade() -> None:
    """Create the tables or migrate them to the newest schema. Safe to run concurrently."""
    # Imported late: SQLAlchemy takes longer than a whole command that needs no database.
    from kgym_scheduler.database.connection import upgrade as run  # noqa: PLC0415

    asyncio.run(run(database_url()))
    results.print("the database is up to date")
