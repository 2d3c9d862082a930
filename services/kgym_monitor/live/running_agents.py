"""What the overview shows of the agent: the runs that go on, and what they have cost."""

import asyncio
from typing import Any

from kgym.api.agent.runs import RunFilter, RunState
from kgym.errors import KgymError
from kgym_monitor.live.agent_link import AgentLink
from kgym_monitor.pages.run_page import PAGE

SECONDS = 3.0
"""How long the overview waits for the agent: it has more to show."""


async def read(agent: AgentLink) -> dict[str, Any]:
    """Return the newest runs that go on; `agent_fault` says why they are not known."""
    shown: dict[str, Any] = {"has_agent": agent.url is not None, "runs": [], "agent_fault": None}
    if not shown["has_agent"]:
        return shown
    try:
        async with asyncio.timeout(SECONDS):
            page = await agent.client().page(None, PAGE, RunFilter(state=RunState.RUNNING))
    except KgymError as error:
        return shown | {"agent_fault": str(error)}
    except TimeoutError:
        return shown | {"agent_fault": f"the agent did not answer within {SECONDS:g} s"}
    known = [run.spent.dollars or run.spent.known_dollars for run in page.runs]
    unsure = page.next is not None or any(run.spent.dollars is None for run in page.runs)
    more = "over " if unsure else ""
    return shown | {"runs": page.runs, "cost": f"{more}${sum(known):,.2f}"}
