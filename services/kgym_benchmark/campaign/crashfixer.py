"""CrashFixer as an agent of a campaign: its run is resumed, and never started twice."""

import contextlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kgym.api.agent.runs import Limits, RunRequest, RunState, RunView
from kgym.bench import atif
from kgym.bench.campaign import Campaign
from kgym.client.agent_calls import AgentCalls
from kgym.errors import InfrastructureError
from kgym_benchmark.campaign.attempt import ATIF, AgentEnded, Attempt, write
from kgym_benchmark.kenv.environment import TRAJECTORY

RUN = "run.json"
# Dollars of a run with a limit of 0: CrashFixer requires a positive limit.
_LEAST = 1e-6
_GOES_ON = {RunState.INTERRUPTED, RunState.STOPPED}

# Arguments: a bug's name, a strategy, a model, limits, and the files of the fix for an oracle.
MakeRequest = Callable[[str, str | None, str, Limits, tuple[str, ...]], RunRequest]


@dataclass(frozen=True, slots=True)
class CrashFixer:
    """The agent, and the function that makes requests for it."""

    agent: AgentCalls
    request: MakeRequest


async def worked(attempt: Attempt, crashfixer: CrashFixer) -> AgentEnded:
    """Run CrashFixer on the bug, and keep its best patch.

    Raises InfrastructureError `run_failed` if its run did not finish.
    """
    attempt.folder.mkdir(parents=True, exist_ok=True)
    number = await _number(attempt, crashfixer)
    view = await crashfixer.agent.show(number)
    if view.state in _GOES_ON:
        await crashfixer.agent.resume(number)
    async for _ in crashfixer.agent.follow(number):
        pass
    view = await crashfixer.agent.show(number)
    if view.state in {*_GOES_ON, RunState.FAILED, RunState.RUNNING}:
        message = f"run {number} of CrashFixer is {view.state}: {view.reason}"
        raise InfrastructureError("run_failed", message)
    patch = view.ranked[0].diff if view.ranked else ""
    ended = _ended(view)
    calls = await crashfixer.agent.calls(number)
    setup = attempt.planned.setup
    questions = [
        (call.purpose, call.prompt, call.reply.text if call.reply else "") for call in calls
    ]
    trajectory = atif.conversation(
        questions,
        agent=atif.Agent(name=setup.agent, version="-", model_name=setup.model),
        session=f"crashfixer-{number}",
        dollars=ended.dollars,
    )
    write(attempt.folder / TRAJECTORY, view.model_dump_json(indent=1).encode())
    write(attempt.folder / ATIF, trajectory.model_dump_json(exclude_none=True, indent=1).encode())
    attempt.keep(ended, patch)
    return ended


async def _number(attempt: Attempt, crashfixer: CrashFixer) -> int:
    """Return the number of the attempt's run; start it if there is none."""
    # The idempotency key is saved first, so that a process killed before the number is saved gets
    # the same run when it is started again.
    path = attempt.folder / RUN
    known: dict[str, str | int] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_text())
    if "run" in known:
        return int(known["run"])
    key = str(known.get("key") or secrets.token_hex(16))
    write(path, json.dumps({"key": key}).encode())
    planned = attempt.planned
    request = crashfixer.request(
        attempt.subject.name,
        planned.entry.strategy,
        planned.setup.model,
        _limits(attempt.campaign),
        attempt.oracle_files if planned.setup.oracle else (),
    )
    number = await crashfixer.agent.start(request, key)
    write(path, json.dumps({"key": key, "run": number}).encode())
    return number


def _limits(campaign: Campaign) -> Limits:
    dollars = campaign.attempt.dollars
    return Limits(
        dollars=None if dollars is None else max(dollars, _LEAST),
        seconds=campaign.attempt.hours * 3600,
        # CrashFixer always tries its patch, which takes a build even without feedback.
        builds=max(campaign.attempt.kernel_runs, 1),
    )


def _ended(view: RunView) -> AgentEnded:
    spent = view.spent
    return AgentEnded(
        seconds=round(spent.seconds, 3),
        kernel_runs=spent.builds,
        model_seconds=round(spent.seconds_of_model, 3),
        dollars=spent.dollars,
        tokens=spent.input_tokens + spent.output_tokens,
        error=view.reason if view.state is RunState.LIMITED else None,
    )
