"""What is counted in the database, for limits and metrics."""

from sqlalchemy import func, select

from kgym_scheduler.database.connection import Database
from kgym_scheduler.database.tables import UNFINISHED, jobs


async def unfinished(database: Database, submitter: str) -> int:
    """Return how many jobs of the submitter have not finished."""
    async with database.read() as connection:
        count = await connection.scalar(
            select(func.count()).where(jobs.c.submitter == submitter, UNFINISHED)
        )
    return count or 0
