"""Choice of the agent that a command talks to: a service, or one in the command's own process.

Commands run searches themselves if no agent service runs, with the same classes and the same store:
the first search needs no service. A service is for many users who share one key.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kgym.api.faults import refused_at
from kgym.bugs import bundle as bugs
from kgym_cli import extras
from kgym_cli.agents.agent_models import REPLAY, opener, window
from kgym_cli.platforms.interruptible_work import interruptible
from kgym_cli.platforms.running_platform import running
from kgym_cli.platforms.scheduler_choice import address, usable_data_folder
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym.api.agent.runs import Limits, RunRequest
    from kgym.api.agent.strategy import Strategy
    from kgym.bugs.bug import Bug
    from kgym.client.agent_calls import AgentCalls
    from kgym_crashfixer.models.model import Model
    from kgym_crashfixer.platform_protocol import Platform, Submitted
    from kgym_crashfixer.runs.agent import Agent
    from kgym_crashfixer.runs.run_store import Stored

T = TypeVar("T")
# Subfolder of the data folder in which the service announces its URL.
FOLDER = "agent"


def service() -> tuple[str, str | None] | None:
    """Return URL and token of the configured agent service, or of one that runs here."""
    if (named := settings().agent) is not None:
        return named.rstrip("/"), settings().token
    platform = running(usable_data_folder() / FOLDER)
    return (platform.url, settings().token) if platform is not None else None


def service_url() -> str | None:
    """Return the URL of the configured agent service, or of one that runs here now.

    Unlike `service`, it does not create the data folder: the monitor only reads it.
    """
    if (named := settings().agent) is not None:
        return named.rstrip("/")
    platform = running(settings().data / FOLDER)
    return platform.url if platform is not None else None


def runs_folder() -> Path:
    """Return the folder in which the agent stores its runs."""
    return settings().agent_runs or usable_data_folder() / "runs"


def tape_of(run: int) -> Path:
    """Return the file that names the tape of a run that `--record` records."""
    return runs_folder() / str(run) / "tape"


def with_agent(
    ask: "Callable[[AgentCalls], Awaitable[T]]",
    *,
    work: bool = False,
    own: bool = False,
    record: Path | None = None,
) -> T:
    """Call `ask` with an agent: the service if there is one, else an agent in this process.

    With `work`, an agent in this process can run searches on the commands' platform. With `own`,
    the service is never used.
    """
    extras.require("agent")
    agent_service = None if own else service()
    if agent_service is not None:
        return interruptible(_remote(ask, *agent_service))
    # Reading runs needs no platform: they are files in the runs folder.
    with address(work=True) if work else nullcontext(("", None)) as (url, token):
        return interruptible(_local(ask, url, token, opener(record)))


def request_of(
    name: str,
    strategy: str | None,
    model: str,
    trace: bool,
    files: tuple[str, ...],
    chosen: "Limits | None",
    here: bool,
    discussion: bool = False,
) -> "RunRequest":
    """Return the request for a run; `here`: the agent can read this machine's files.

    The model may read mails on the bug only with `discussion`, which measured agents never get.
    """
    from kgym.api.agent.runs import RunRequest  # noqa: PLC0415
    from kgym_crashfixer import strategies  # noqa: PLC0415 - as above
    from kgym_crashfixer.models import tape  # noqa: PLC0415
    from kgym_crashfixer.runs.bugs import packed  # noqa: PLC0415

    bug = bugs.load(name, mails=discussion)
    asked: dict[str, Any] = {"bug": bug.name, "model": model, "trace": trace, "files": list(files)}
    head = tape.head(Path(model.removeprefix(REPLAY))) if model.startswith(REPLAY) else None
    # A tape answers only the questions that it was recorded for, so the recorded strategy, files
    # and trace are the defaults.
    if strategy is None and head is not None:
        asked |= {"strategy": head.strategy, "files": list(files) or head.files}
        asked |= {"trace": trace and head.trace}
    else:
        asked |= {"strategy": strategies.load(strategy or "forest")}
    asked |= {"limits": chosen} if chosen is not None else {}
    # The agent has the shipped bugs as well. Any other bundle must reach it: as a path if it sees
    # this machine's files, otherwise packed into the request.
    if not bugs.is_shipped(name):
        own = Path(bugs.named(name)[0]).resolve()
        asked |= {"folder": str(Path(name).resolve())} if here else {"bundle": packed(own, bug)}
    with refused_at("the options", "bad_option"):
        return RunRequest.model_validate(asked | {"discussion": discussion})


async def _remote(ask: "Callable[[AgentCalls], Awaitable[T]]", url: str, token: str | None) -> T:
    from kgym.client.agent_client import AgentClient  # noqa: PLC0415 - as below

    async with AgentClient(url, token) as agent:
        return await ask(agent)


async def _local(
    ask: "Callable[[AgentCalls], Awaitable[T]]",
    url: str,
    token: str | None,
    model: "Callable[[str], Model]",
) -> T:
    async with hosted(url, token, model) as agent:
        return await ask(agent)


@asynccontextmanager
async def hosted(
    url: str, token: str | None, model: "Callable[[str], Model]"
) -> "AsyncIterator[Agent]":
    """Context manager: an agent in this process whose runs use the scheduler at `url`."""
    # Its imports take longer than a command that needs no agent.
    from kgym_crashfixer.runs.agent import Agent  # noqa: PLC0415
    from kgym_crashfixer.runs.run_store import RunStore  # noqa: PLC0415

    agent = Agent(RunStore(runs_folder()), model, platforms(url, token))
    try:
        yield agent
    finally:
        await agent.close()


def platforms(
    url: str, token: str | None
) -> "Callable[[Stored, Bug, Strategy, Submitted], AbstractAsyncContextManager[Platform]]":
    """Return a factory of each run's platform, on the scheduler at `url`."""

    from kgym.client import AsyncClient  # noqa: PLC0415 - as above
    from kgym_crashfixer.platform import SchedulerPlatform  # noqa: PLC0415

    @asynccontextmanager
    async def opened(
        run: "Stored", bug: "Bug", strategy: "Strategy", submitted: "Submitted"
    ) -> "AsyncIterator[Platform]":
        async with AsyncClient(url, token) as client:
            # Run ids start from 1 in each runs folder, and several folders may use one scheduler.
            group = f"fix-{run.id}-{run.key[:8]}"
            asked = run.request
            known = await asyncio.to_thread(window, asked.model)
            yield SchedulerPlatform(
                client,
                bug,
                strategy,
                key=run.key,
                group=group,
                submitted=submitted,
                files=asked.files,
                window=asked.window or known,
            )

    return opened
