"""What the overview shows."""

import asyncio
from collections import Counter
from typing import Any

from kgym.api.agent.runs import RunFilter, RunState
from kgym.api.storage import StorageView
from kgym.client import AsyncClient, Refused
from kgym.errors import KgymError
from kgym_monitor.agent_link import AgentLink
from kgym_monitor.pages.run_page import PAGE

AGENT_SECONDS = 3.0
"""How long the overview waits for the agent: it has more to show."""


async def read(client: AsyncClient, agent: AgentLink) -> dict[str, Any]:
    """Return what the overview's live part shows; raises KgymError as the client does."""
    queues, workers, storage, agents = await asyncio.gather(
        client.queues(), client.workers(), _storage(client), _running_agents(agent)
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
        **agents,
    }


async def _storage(client: AsyncClient) -> StorageView | None:
    try:
        return await client.storage()
    except Refused:  # a scheduler without upkeep does not know
        return None


async def _running_agents(agent: AgentLink) -> dict[str, Any]:
    """Return the newest running runs and their cost; `agent_fault` says why they are unknown."""
    shown: dict[str, Any] = {"has_agent": agent.url is not None, "runs": [], "agent_fault": None}
    if not shown["has_agent"]:
        return shown
    try:
        async with asyncio.timeout(AGENT_SECONDS):
            page = await agent.client().page(None, PAGE, RunFilter(state=RunState.RUNNING))
    except KgymError as error:
        return shown | {"agent_fault": str(error)}
    except TimeoutError:
        fault = f"the agent did not answer within {AGENT_SECONDS:g} s"
        return shown | {"agent_fault": fault}
    known = [run.spent.dollars or run.spent.known_dollars for run in page.runs]
    is_lower_bound = page.next is not None or any(run.spent.dollars is None for run in page.runs)
    more = "over " if is_lower_bound else ""
    return shown | {"runs": page.runs, "cost": f"{more}${sum(known):,.2f}"}
