"""`kgym bench door`."""

import asyncio
import secrets
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
from kgym_cli.output import json_option, people, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import address

if TYPE_CHECKING:
    from kgym_benchmark.kenv.door import KernelCall
    from kgym_benchmark.kenv.protocol import Case


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
    from kgym_benchmark.kenv.agent_kernels import AgentKernels  # noqa: PLC0415 - needs `bench`
    from kgym_benchmark.kenv.door import Door  # noqa: PLC0415

    bug, trial = bugs.load(name), TrialOptions(instances)

    async def serve(url: str, token: str | None) -> None:
        async with AsyncClient(url, token) as client:
            case = await _case(client, bug, trial)
            run = AgentKernels(client, bug, case.report, trial).run if feedback else None
            # A container's network may reach other machines, and run_kernel executes whatever it is
            # sent.
            secret = secrets.token_urlsafe(24)
            answering = Door(case, run, kernel_runs, _tell, secret=secret)
            async with answering.on_port(host, port) as endpoint:
                if not printed_json(DoorAnswer(bug=bug.name, endpoint=endpoint), as_json):
                    results.print(f"KENV_KGYM_ENDPOINT={endpoint}")
                await asyncio.Event().wait()

    with address(work=True) as (url, token):
        asyncio.run(serve(url, token))


async def _case(client: AsyncClient, bug: Bug, trial: TrialOptions) -> "Case":
    """Reproduce the bug; return what its environment shows."""
    from kgym_benchmark.kenv.protocol import Case  # noqa: PLC0415 - needs the extra `bench`

    shown = await run_kernel(client, bug, "", RunOptions(trial=trial))
    if shown.title is None:
        raise InfrastructureError("not_shown", f"{bug.name} does not reproduce: {shown.reason}")
    source = bug.build.source
    git = source if isinstance(source, GitSource) else None
    return Case(
        bug=bug.name,
        report=shown.report or shown.title,
        program=bug.reproducers[0].text,
        repository=git.url if git else "",
        commit=git.commit if git else "",
    )


def _tell(call: "KernelCall") -> None:
    people.print(f"run_kernel: {call.answer} ({call.seconds:.0f} s)", style="dim")
