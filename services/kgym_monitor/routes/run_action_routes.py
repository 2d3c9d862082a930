"""What is done with a run: stopped, resumed, exported."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, StreamingResponse

from kgym.web.access import needs
from kgym.web.scopes import Scope
from kgym_monitor.monitor_state import session_of, state_of
from kgym_monitor.pages import run_page
from kgym_monitor.routes import run_export
from kgym_monitor.routes.own_forms import back, own_form
from kgym_monitor.routes.run_routes import RunId

readers = APIRouter(prefix="/runs/{run}", dependencies=[needs(Scope.READ)])
submitters = APIRouter(prefix="/runs/{run}", dependencies=[needs(Scope.SUBMIT), own_form])


@submitters.post("/stop")
async def stop(request: Request, run: RunId) -> RedirectResponse:
    """End a run as it is."""
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
    """Go on with a run, with the limits that the form says; what it leaves open stays."""
    async with state_of(request).agent.of_reader(session_of(request).token) as agent:
        limits = (await agent.show(run)).limits
        await agent.resume(run, run_page.limits(limits, dollars, tokens, builds, hours))
    return back(run_page.address(run), f"Run {run} goes on.")


@readers.get("/export")
async def export(request: Request, run: RunId) -> StreamingResponse:
    """Send the run as one file that needs no other, to be kept or sent to somebody."""
    state = state_of(request)
    client = state.agent.client()
    view = await client.show(run)
    headers = {"Content-Disposition": f'attachment; filename="run-{run}.html"'}
    return StreamingResponse(
        run_export.pages(client, state.rendering, view),
        headers=headers,
        media_type="text/html; charset=utf-8",
    )
