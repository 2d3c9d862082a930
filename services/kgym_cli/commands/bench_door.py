"""`kgym bench door`."""

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from pydantic import Field

from kgym.api.steps import GitSource
from kgym.bugs import bundle as bugs
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.kernel_run import RunOptions, run_kernel
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError
from kgym_cli import extras
from kgym_cli.inputs.parameters import complete_bug
from kgym_cli.output import json_option, people, print_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import address

if TYPE_CHECKING:
    from kgym_benchmark.kenv.door import KernelCall


class DoorAnswer(Answer):
    """Endpoint of a bug for its environment, printed once it answers."""

    bug: str
    endpoint: str = Field(
        description="for KENV_KGYM_ENDPOINT; secret: anyone who knows it can run kernels"
    )


@click.command()
@click.argument("name", shell_complete=complete_bug)
@click.option("--feedback", is_flag=True, help="Allow run_kernel.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: any free port.")
@click.option("--kernel-runs", type=click.IntRange(0), default=20, help="Maximum.")
@click.option("--instances", type=click.IntRange(1, 1000), default=5, help="VMs per run.")
@json_option(DoorAnswer)
def door(
    name: str, feedback: bool, host: str, port: int, kernel_runs: int, instances: int, as_json: bool
) -> None:
    """Serve a bug to an environment in a container until interrupted.

    A docker/kenv container reads the bug and calls run_kernel at the endpoint that this prints.
    Campaigns need no containers: `kgym bench run` makes environments of its own.
    """
    extras.require("bench")
    bug = bugs.load(name)
    trial = TrialOptions(instances)
    with address(work=True) as (url, token):
        asyncio.run(
            _serve(_Door(bug, url, token, trial, feedback, kernel_runs, as_json), (host, port))
        )


@dataclass(frozen=True, slots=True)
class _Door:
    """Options of the command."""

    bug: Bug
    url: str
    token: str | None
    trial: TrialOptions
    feedback: bool
    kernel_runs: int
    as_json: bool


async def _serve(door: _Door, place: tuple[str, int]) -> None:
    """Reproduce the bug, then answer calls until cancelled."""
    from kgym_benchmark.kenv.agent_kernels import AgentKernels  # noqa: PLC0415 - needs `bench`
    from kgym_benchmark.kenv.door import Door  # noqa: PLC0415 - needs the extra `bench`
    from kgym_benchmark.kenv.protocol import Case  # noqa: PLC0415

    async with AsyncClient(door.url, door.token) as client:
        shown = await run_kernel(client, door.bug, "", RunOptions(trial=door.trial))
        if shown.title is None:
            raise InfrastructureError(
                "not_shown", f"{door.bug.name} does not reproduce: {shown.reason}"
            )
        source = door.bug.build.source
        git = source if isinstance(source, GitSource) else None
        case = Case(
            bug=door.bug.name,
            report=shown.report or shown.title,
            program=door.bug.reproducers[0].text,
            repository=git.url if git else "",
            commit=git.commit if git else "",
        )
        answering = Door(
            case,
            AgentKernels(client, door.bug, case.report, door.trial).run if door.feedback else None,
            door.kernel_runs,
            _tell,
            # A container's network may reach other machines, and run_kernel executes whatever it is
            # sent.
            secret=secrets.token_urlsafe(24),
        )
        async with answering.on_port(*place) as endpoint:
            if door.as_json:
                print_json(DoorAnswer(bug=door.bug.name, endpoint=endpoint))
            else:
                results.print(f"KENV_KGYM_ENDPOINT={endpoint}")
            await asyncio.Event().wait()


def _tell(call: "KernelCall") -> None:
    people.print(f"run_kernel: {call.answer} ({call.seconds:.0f} s)", style="dim")
