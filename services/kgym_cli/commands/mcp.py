"""`kgym mcp`."""

import asyncio
from pathlib import Path

import click

from kgym.bugs import bundle as bugs
from kgym.bugs import tree_changes
from kgym.bugs.bug import Bug
from kgym.bugs.ended_job import PATIENCE_SECONDS
from kgym.bugs.kernel_run import RunOptions
from kgym.bugs.tree_changes import SourceTree
from kgym.client import AsyncClient
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.agents.called_jobs import CalledJobs
from kgym_cli.commands.run_kernel import remembered
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import options_of, settings


@click.command()
@options_of("mcp")
@click.option(
    "--tree",
    type=click.Path(path_type=Path, file_okay=False),
    help="Source tree of the bug; its changes are tried if a call gives no patch.",
)
def mcp(tree: Path | None) -> None:
    """Serve tools for one bug to an agent: Model Context Protocol on stdin and stdout.

    The tools check and run changes, trace, run programs, show the crash and its kernel, and read
    the source, its history and, if the bundle has any, mails on the bug. They only reach jobs of
    this bug.
    """
    extras.require("mcp")
    source = tree_changes.source_tree(tree) if tree is not None else None
    if tree is not None and source is None:
        raise UserError("bad_tree", f"{tree.absolute()} is not in a Git repository")
    bug = bugs.load(settings().bug or remembered(source))
    # Quiet: some clients show stderr to the model.
    with address(work=True, quiet=True) as (url, token):
        try:
            asyncio.run(_serve(url, token, bug, source))
        except* BrokenPipeError:
            pass  # the agent has exited


async def _serve(url: str, token: str | None, bug: Bug, tree: SourceTree | None) -> None:
    from kgym_cli.agents.bug_tools import BugTools  # noqa: PLC0415 - for --help without the extra
    from kgym_cli.agents.mcp_server import server  # noqa: PLC0415

    async with AsyncClient(url, token) as client, CalledJobs(client) as jobs:
        # If this machine's own platform is gone, waiting for it is useless: nothing restarts it.
        patience = PATIENCE_SECONDS if settings().server else 0
        options = RunOptions(patience=patience, submitted=jobs.submitted)
        tools = BugTools(client, bug, tree, options)
        await server(bug, tools, jobs).run_stdio_async()
