"""A run as one static page: no script, no request to anything, all of it text."""

import base64
import hashlib
from collections.abc import AsyncIterator

from markupsafe import Markup

from kgym.api.agent.runs import RunView
from kgym.client.agent_client import AgentClient
from kgym_monitor.assets import assets
from kgym_monitor.pages import run_page
from kgym_monitor.pages.rendering import Rendering
from kgym_monitor.pages.run_forest import forest, key, outcomes

MOST = 64 << 20
"""Characters of cycles and questions; then, cycles come without their questions."""
PROMPT = 20_000
"""Characters of a question; most of it is source that its run has in other questions as well."""
ANSWER = 200_000


async def pages(client: AgentClient, rendering: Rendering, run: RunView) -> AsyncIterator[str]:
    """Yield the parts of the page, one after the other. Raises KgymError as the client does."""
    style = _style()
    trees = forest(
        run.nodes, lambda cycle: rendering.fragment("run_export_card.html", {"cycle": cycle})
    )
    head = {"run": run, "outcomes": outcomes(run.nodes), "forest": Markup(trees)}  # noqa: S704 - our own cards
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    more = {"style": Markup(style), "style_hash": style_hash}  # noqa: S704 - our own style sheets
    yield rendering.fragment("run_export.html", head | more)
    left = MOST
    for view in run.nodes:
        node, steps = await client.node(run.id, view.name), await client.steps(run.id, view.name)
        shown = {**run_page.cycle(run, node, steps), "key": key(view.name), "exported": True}
        text = rendering.fragment("run_export_cycle.html", shown)
        left -= len(text)
        yield text
        questions = [one for one in steps if one.tokens is not None or one.work in run_page.ASKED]
        for step in questions if left > 0 else []:
            call = await client.call(run.id, step.name)
            lengths = {"prompt_shown": PROMPT, "answer_shown": ANSWER}
            text = rendering.fragment("run_export_call.html", {"call": call, **lengths})
            left -= len(text)
            yield text
            if left <= 0:
                break
        yield rendering.fragment("run_export_end.html", {"cut": left <= 0})


def _style() -> str:
    files = assets().files
    return "\n".join(files[name].content.decode() for name in ("monitor.css", "runs.css"))
