"""What the overview shows."""

import asyncio
from collections import Counter
from typing import Any

from kgym.api.storage import StorageView
from kgym.client import AsyncClient, Refused


async def read(client: AsyncClient) -> dict[str, Any]:
    """Return what the overview's live part shows; raises KgymError as the client does."""
    queues, workers, storage = await asyncio.gather(
        client.queues(), client.workers(), _storage(client)
    )
    live = [worker for worker in workers if worker.state != "lost"]
    running = sorted(
        (step for worker in live for step in worker.running), key=lambda step: step.started_at
    )
    counts = Counter(worker.state for worker in workers)
    return {
        "queues": queues,
        "running": running,
        "counts": {state: counts[state] for state in ("live", "draining", "lost")},
        "slots": sum(worker.slots for worker in live),
        "storage": storage,
    }


async def _storage(client: AsyncClient) -> StorageView | None:
    try:
        return await client.storage()
    except Refused:  # a scheduler without upkeep does not know
        return None
