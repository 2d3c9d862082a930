"""The monitor as a server: for `kgym monitor`, and beside the platform of `kgym up`."""

import contextlib
from collections.abc import AsyncIterator

from kgym.bench.publication import BenchmarkStore
from kgym.errors import UserError
from kgym.web.scopes import Scope
from kgym.web.server import LOOPBACK, Address, serve
from kgym_monitor.agent_link import FindAgent
from kgym_monitor.app import Monitor
from kgym_monitor.monitor_state import MonitorState


@contextlib.asynccontextmanager
async def monitor(
    scheduler: str,
    token: str | None,
    benchmarks: BenchmarkStore,
    host: str = LOOPBACK,
    port: int = 0,
    find_agent: FindAgent = lambda: None,
) -> AsyncIterator[Address]:
    """Serve pages of the scheduler at this URL as long as the context lasts; port 0: any.

    `benchmarks` is where published benchmarks are read from. `find_agent` is asked where the agent
    service is whenever a page shows runs.

    Raises UserError `token_needed` if the scheduler asks for a token and this is none that allows
    reading, or as `kgym.web.server.serve` does; InfrastructureError `scheduler_away`, and
    `front_end_missing` where the packages of the pages are not installed.
    """
    async with MonitorState.opened(scheduler, token, benchmarks, find_agent) as state:
        known = await state.tokens.caller(token) if token else await state.tokens.anybody()
        if known is None or not known.may(Scope.READ):
            raise UserError(
                "token_needed",
                f"the scheduler at {scheduler} asks the monitor for a token that allows reading:"
                " `kgym token create monitor --scope read`, then --token or KGYM_TOKEN",
            )
        async with serve(Monitor(state), host, port) as address:
            yield address
