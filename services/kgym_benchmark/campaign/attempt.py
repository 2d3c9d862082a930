"""One attempt of an agent on a bug, in a folder of its own, from its start to its patch.

`ended.json` is written last, so a result is complete or absent. A killed attempt starts again, and
gets the jobs and the model's answers that it already had.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from kgym import tasks
from kgym.api.steps import Count, Sha256, Strict
from kgym.atomic_files import replace_file
from kgym.bench import atif
from kgym.bench.attempt_record import Account, Cost, Count32, Words
from kgym.bench.campaign import Campaign, Planned
from kgym.bugs.bug import TrialOptions
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.host import sandbox
from kgym.source import patching
from kgym.source.source_folder import SourceFolder
from kgym_benchmark.campaign.adapters import Command
from kgym_benchmark.campaign.model_proxy import ModelProxy
from kgym_benchmark.campaign.subjects import Subject
from kgym_benchmark.kenv.agent_kernels import AgentKernels
from kgym_benchmark.kenv.door import Door, KernelCall, RunKernel
from kgym_benchmark.kenv.environment import LOG, PATCH, TRAJECTORY, Ended, Environment, Given
from kgym_benchmark.kenv.protocol import Case

ENDED, CALLS, ATIF = "ended.json", "kernel_runs.jsonl", "trajectory.atif.json"
# Characters of the reason why an agent did not finish.
_ERROR = 1000
# Bytes of the log of an agent that failed, for the reason.
_LAST_WORDS = 400
# Writes a file atomically; it is durable then.
write = partial(replace_file, durable=True)
AGENT_FAILED = "agent_failed"
Tree = Callable[[Subject, ExitStack], Awaitable[SourceFolder]]


class AgentEnded(Strict):
    """The end of an attempt, with its costs."""

    seconds: Cost | None
    kernel_seconds: Cost | None = 0
    kernel_runs: Count32 | None = 0
    model_seconds: Cost | None = None
    dollars: Cost | None = Field(None, description="null: unknown")
    tokens: Count | None = None
    error: Words | None = None
    environment: Sha256 | None = None
    account: Account | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to be made, and its folder."""

    campaign: Campaign
    planned: Planned
    subject: Subject
    report: str
    """The crash report, as seen by the platform."""
    folder: Path
    key: Callable[[str], str | None] = lambda _: None
    """Returns the value of an environment variable: the key of a model."""

    def ended(self) -> AgentEnded | None:
        """Return its end, if it has ended."""
        try:
            return AgentEnded.model_validate_json((self.folder / ENDED).read_bytes())
        except FileNotFoundError:
            return None

    @property
    def patch(self) -> str:
        """The patch of an attempt that has ended."""
        return (self.folder / PATCH).read_bytes().decode()  # keeps the line ends

    @property
    def oracle_files(self) -> tuple[str, ...]:
        """The files of the developers' fix; raises UserError `no_fix` if it is unknown."""
        fix = self.subject.bug.fix
        if fix is None:
            raise UserError("no_fix", f"{self.subject.id}: no fix is known for an oracle to name")
        return tuple(patching.files(fix))

    def keep(self, ended: AgentEnded, patch: str) -> None:
        """Write the result; after this, the attempt is not made again."""
        write(self.folder / PATCH, patch.encode())
        write(self.folder / ENDED, ended.model_dump_json(indent=1).encode())


async def in_environment(
    attempt: Attempt, command: Command, client: AsyncClient, tree: Tree, *, last_try: bool
) -> AgentEnded:
    """Run a program on the bug in an environment, and keep its results.

    Raises InfrastructureError `agent_failed` for a program that fails before it has done anything,
    unless this is the `last_try`.
    """
    folder = attempt.folder
    calls: list[KernelCall] = []
    folder.mkdir(parents=True, exist_ok=True)
    kernels = _kernels(attempt, client)
    # Files of a killed start of the same attempt.
    for name in (LOG, CALLS):
        (folder / name).unlink(missing_ok=True)

    def record_call(call: KernelCall) -> None:
        calls.append(call)
        with (folder / CALLS).open("a") as file:
            file.write(call.model_dump_json() + "\n")

    async with AsyncExitStack() as stack:
        held = stack.enter_context(ExitStack())
        bug_tree = await tree(attempt.subject, held)
        proxy = await _proxy(attempt, command, stack)
        place = folder / "environment"
        await asyncio.to_thread(sandbox.remove, place)  # left by a killed attempt
        most = attempt.campaign.attempt.kernel_runs
        door = Door(_case(attempt), kernels, most, record_call)
        given = _given(attempt, command, proxy)
        environment = await stack.enter_async_context(Environment(place, bug_tree, door, given))
        digest = await asyncio.to_thread(environment.digest, command.words)
        ended = await _run(environment, command, folder / LOG, proxy)
        patch, error = await _patch(environment)
        trajectory, account = environment.trajectory(), _account(environment.metadata())
    if trajectory is not None:
        write(folder / TRAJECTORY, trajectory)
    stopped = proxy is not None and proxy.refusal is not None
    if ended.status and not (patch or calls or stopped or last_try):
        last_words = (folder / LOG).read_bytes()[-_LAST_WORDS:].decode(errors="replace")
        raise InfrastructureError(AGENT_FAILED, f"{ended.error}: {' '.join(last_words.split())}")
    costs = _costs(command, trajectory, proxy)
    done = AgentEnded(
        seconds=ended.seconds,
        kernel_seconds=round(door.seconds, 3),
        kernel_runs=len(calls),
        error=(ended.error or error or "")[:_ERROR] or None,
        environment=digest,
        account=account,
        **costs,
    )
    attempt.keep(done, patch)
    return done


async def _run(
    environment: Environment, command: Command, log: Path, proxy: ModelProxy | None
) -> Ended:
    """Run the agent; end it when its budget is used up."""
    running = asyncio.create_task(environment.run(command.words, log))
    if proxy is None:
        return await running
    loop = asyncio.get_running_loop()
    begun = loop.time()
    # An agent without a model would loop on refusals until its hours are over.
    ended = asyncio.create_task(proxy.exhausted.wait())
    try:
        await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            done = running.result()
            return replace(done, error=proxy.refusal or done.error)
        return Ended(round(loop.time() - begun, 3), error=proxy.refusal)
    finally:
        await tasks.end([running, ended])


async def _proxy(attempt: Attempt, command: Command, stack: AsyncExitStack) -> ModelProxy | None:
    """Return the proxy of the agent's model, if the campaign lists the model."""
    planned = attempt.planned
    access = attempt.campaign.models.get(planned.setup.model)
    if access is None:
        return None
    key = None
    if access.key_env is not None and (key := attempt.key(access.key_env)) is None:
        raise InfrastructureError(
            "no_model_key", f"the variable {access.key_env} holds no key of {planned.setup.model}"
        )
    tape = attempt.folder / "model.jsonl"
    limit = attempt.campaign.attempt.dollars
    proxy = ModelProxy(planned.setup.model, access, key, tape, limit)
    return await stack.enter_async_context(proxy)


def _case(attempt: Attempt) -> Case:
    program = next(
        (reproducer for reproducer in attempt.subject.bug.reproducers if reproducer.kind == "syz"),
        attempt.subject.bug.reproducers[0],
    )
    return Case(
        bug=attempt.subject.id,
        report=attempt.report,
        program=program.text,
        has_oracle=attempt.planned.setup.oracle,
    )


def _kernels(attempt: Attempt, client: AsyncClient) -> RunKernel | None:
    """Return the function that runs kernels for the agent; None if it may not run any."""
    if not attempt.planned.setup.feedback:
        return None
    campaign = attempt.campaign
    trial = TrialOptions(campaign.feedback_instances, campaign.time)
    # Those of a killed start of the same attempt.
    path = attempt.folder / CALLS
    lines = path.read_bytes().splitlines() if path.exists() else []
    own = {call.get("job") for call in map(atif.parse_json, lines) if isinstance(call, dict)}
    return AgentKernels(client, attempt.subject.bug, attempt.report, trial, own).run


def _given(attempt: Attempt, command: Command, proxy: ModelProxy | None) -> Given:
    campaign, setup = attempt.campaign, attempt.planned.setup
    return Given(
        bug=attempt.subject.id,
        commit_from=campaign.commit_from,
        feedback=setup.feedback,
        environment={**command.environment, **_variables(attempt, command)},
        oracle_files=attempt.oracle_files if setup.oracle else None,
        folders=command.folders,
        agent_config=command.agent_config,
        model_config=command.model_config,
        model_folder=proxy.folder if proxy else None,
        seconds=campaign.attempt.hours * 3600,
    )


def _variables(attempt: Attempt, command: Command) -> dict[str, str]:
    """Return the environment variables for an agent's command."""
    planned = attempt.planned
    variables = {"KENV_MODEL": planned.setup.model, "KENV_RUN": str(planned.run)}
    if command.agent_config is not None:
        variables["KENV_AGENT_CONFIG"] = "/KBDr/agent-config"
    return variables


async def _patch(environment: Environment) -> tuple[str, str | None]:
    """Return the patch, and the error if it is invalid."""
    try:
        return await environment.patch(), None
    except UserError as error:
        return "", error.message


def _account(metadata: bytes | None) -> Account | None:
    """Return the agent's own account, as Live-kBench's invokers write it; None if it has none."""
    parsed = atif.parse_json(metadata)
    if not isinstance(parsed, Mapping):
        return None
    ended = parsed.get("exitReason")
    return Account(
        dollars=pointed(parsed, "dollarCost"),
        seconds=pointed(parsed, "timeCost"),
        # JSON may contain lone surrogates, which no file of ours can.
        ended=ended[:_ERROR].encode(errors="replace").decode() if isinstance(ended, str) else None,
    )


def _costs(command: Command, trajectory: bytes | None, proxy: ModelProxy | None) -> dict[str, Any]:
    """Return the costs of the model: as counted by the proxy, or else as the agent reports them."""
    if proxy is not None:
        return {
            "dollars": proxy.dollars,
            "tokens": proxy.tokens,
            "model_seconds": round(proxy.seconds, 3),
        }
    if command.free:
        return {"dollars": 0.0, "tokens": 0, "model_seconds": 0.0}
    report = atif.parse_json(trajectory)
    dollars, tokens = (pointed(report, place) for place in (command.cost, command.tokens))
    # Agents report 0 for a model whose price they do not know.
    return {"dollars": dollars or None, "tokens": int(tokens) if tokens is not None else None}


def pointed(value: Any, place: str | None) -> float | None:
    """Return the number at a path such as `info.cost`; None if there is none."""
    for name in (place or "").split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    # An agent wrote the value: it may be NaN, negative or absurd. `True` is an int.
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and 0 <= value < 1e12 else None
