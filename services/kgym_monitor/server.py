"""The monitor's server, for `kgym monitor` and `kgym up`."""

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
    """Context manager: serve pages of the scheduler at a URL; port 0: any free port.

    `benchmarks`: store of published benchmarks. `find_agent` is called for the agent service's URL
    whenever a page shows runs.

    Raises UserError `token_needed` if the scheduler needs a token and this one does not allow
    reading, or as `kgym.web.server.serve` does; InfrastructureError `scheduler_away`, and
    `front_end_missing` if the pages' packages are not installed.
    """
    async with MonitorState.opened(scheduler, token, benchmarks, find_agent) as state:
        known = await state.tokens.caller(token) if token else await state.tokens.anybody()
        if known is None or not known.may(Scope.READ):
            raise UserError(
                "token_needed",
                f"the monitor needs a token that allows reading at the scheduler at {scheduler}:"
                " `kgym token create monitor --scope read`, then --token or KGYM_TOKEN",
            )
        async with serve(Monitor(state), host, port) as address:
            yield address
