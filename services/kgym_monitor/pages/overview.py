"""What the overview shows."""

from collections import Counter
from typing import Any

from kgym.client import AsyncClient, Refused


async def read(client: AsyncClient) -> dict[str, Any]:
    """Return what the overview's live part shows; raises KgymError as the client does."""
    queues, workers = await client.queues(), await client.workers()
    try:
        storage = await client.storage()
    except Refused:  # a scheduler without upkeep does not know
        storage = None
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
