"""Ends of asyncio's tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait until all have ended; their errors are ignored."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
