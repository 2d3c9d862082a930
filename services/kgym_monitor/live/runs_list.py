"""The list of runs, read from the agent."""

from typing import Any

from kgym.errors import KgymError
from kgym_monitor.live.agent_link import AgentLink
from kgym_monitor.pages.run_page import PAGE, RunQuery


async def read(agent: AgentLink, query: RunQuery) -> dict[str, Any]:
    """Return what the live part of the list shows; `fault` says why it shows nothing."""
    shown: dict[str, Any] = {"query": query, "runs": [], "next_page": None, "fault": query.fault}
    wanted = query.filter
    if wanted is None:
        return shown
    try:
        page = await agent.client().page(query.before, PAGE, wanted)
    except KgymError as error:
        return shown | {"fault": str(error)}
    following = query.address(cursor=str(page.next)) if page.next else None
    return shown | {"runs": page.runs, "next_page": following}
