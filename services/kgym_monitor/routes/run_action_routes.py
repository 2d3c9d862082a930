"""Actions on a run: stop, resume, export."""

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, StreamingResponse
from markupsafe import Markup

from kgym.api.agent.runs import RunView
from kgym.client.agent_client import AgentClient
from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.assets import assets
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import run_page
from kgym_monitor.pages.rendering import Rendering
from kgym_monitor.pages.run_forest import forest, key, outcomes
from kgym_monitor.routes.own_forms import back, own_form
from kgym_monitor.routes.run_routes import RunId

readers = APIRouter(prefix="/runs/{run}", dependencies=[needs(Scope.READ)])
submitters = APIRouter(prefix="/runs/{run}", dependencies=[needs(Scope.SUBMIT), own_form])


@submitters.post("/stop")
async def stop(request: Request, run: RunId) -> RedirectResponse:
    """Stop a run."""
    async with state_of(request).agent.of_reader(session_of(request).token) as agent:
        await agent.stop(run)
    return back(run_page.address(run), f"Run {run} is being stopped.")


@submitters.post("/resume")
async def resume(
    request: Request,
    run: RunId,
    dollars: Annotated[str, Form(max_length=20, pattern=r"^[0-9]*\.?[0-9]*$")] = "",
    tokens: Annotated[str, Form(max_length=13, pattern="^[0-9]*$")] = "",
    builds: Annotated[str, Form(max_length=6, pattern="^[0-9]*$")] = "",
    hours: Annotated[str, Form(max_length=10, pattern=r"^[0-9]*\.?[0-9]*$")] = "",
) -> RedirectResponse:
    """Resume a run with the form's limits; empty fields keep the old ones."""
    async with state_of(request).agent.of_reader(session_of(request).token) as agent:
        limits = (await agent.show(run)).limits
        await agent.resume(run, run_page.limits(limits, dollars, tokens, builds, hours))
    return back(run_page.address(run), f"Run {run} is resumed.")


@readers.get("/export")
async def export(request: Request, run: RunId) -> StreamingResponse:
    """Send the run as one self-contained file."""
    state = state_of(request)
    client = state.agent.client()
    view = await client.show(run)
    headers = {"Content-Disposition": f'attachment; filename="run-{run}.html"'}
    return StreamingResponse(
        _export(client, state.rendering, view),
        headers=headers,
        media_type="text/html; charset=utf-8",
    )


# --- a run as one static page: no scripts, no requests --------------------------------------------


# Most characters of cycles and questions; beyond it, cycles come without their questions.
EXPORTED = 64 << 20
# Most characters of a question: the rest is mostly source that other questions repeat.
PROMPT = 20_000
ANSWER = 200_000


async def _export(client: AgentClient, rendering: Rendering, run: RunView) -> AsyncIterator[str]:
    """Yield the parts of the page; raise KgymError as the client does."""
    style = _style()
    trees = forest(
        run.nodes, lambda cycle: rendering.fragment("run_export_card.html", {"cycle": cycle})
    )
    head = {"run": run, "outcomes": outcomes(run.nodes), "forest": Markup(trees)}  # noqa: S704 - our own cards
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    more = {"style": Markup(style), "style_hash": style_hash}  # noqa: S704 - our own style sheets
    yield rendering.fragment("run_export.html", head | more)
    left = EXPORTED
    for view in run.nodes:
        node, steps = await client.node(run.id, view.name), await client.steps(run.id, view.name)
        shown = {**run_page.cycle(run, node, steps), "key": key(view.name), "exported": True}
        text = rendering.fragment("run_export_cycle.html", shown)
        left -= len(text)
        yield text
        questions = [
            step for step in steps if step.tokens is not None or step.work in run_page.ASKED
        ]
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
