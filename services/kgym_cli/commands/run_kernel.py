"""`kgym run-kernel`, also installed as `run_kernel`, and `kgym mcp`: commands of agents."""

import asyncio
from pathlib import Path

import click

from kgym.bugs import bundle as bugs
from kgym.bugs import tree_changes
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.ended_job import PATIENCE_SECONDS
from kgym.bugs.kernel_run import KernelRun, RunOptions
from kgym.bugs.kernel_run import run_kernel as try_patch
from kgym.bugs.kernel_run_text import run_text
from kgym.bugs.sweep import Moved
from kgym.bugs.sweep_rows import Row
from kgym.bugs.tree_changes import SourceTree
from kgym.client import AsyncClient
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.agents.called_jobs import CalledJobs
from kgym_cli.commands.bug_trial import reasons
from kgym_cli.commands.trial_options import accept_option, effort_options
from kgym_cli.inputs.parameters import FOLDER, PATH_OR_STDIN
from kgym_cli.inputs.patch_files import patch_text
from kgym_cli.jobs.job_answer import exit_status
from kgym_cli.output import echo, json_option, leave, people, printed_json
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import options_of, settings


@click.command("run-kernel")
@options_of("run-kernel")
@click.option(
    "--tree",
    type=FOLDER,
    default=Path(),
    show_default=False,
    help="Source tree.  [default: the current folder]",
)
@click.option(
    "--patch",
    type=PATH_OR_STDIN,
    help="Diff, or mails with diffs, to test instead of the tree's changes; - is standard input.",
)
@click.option(
    "--thorough", is_flag=True, help="Also run programs close to the reproducer: a minute more."
)
@click.option("--fresh", is_flag=True, help="Run again, even if the same changes were run before.")
@click.option(
    "--wait",
    type=click.FloatRange(0, min_open=True),
    help="Answer after this many seconds at the latest; repeat the command to wait longer.",
)
@effort_options
@accept_option
@json_option(KernelRun)
def run_kernel(
    tree: Path,
    patch: Path | None,
    thorough: bool,
    fresh: bool,
    wait: float | None,
    confidence: float,
    instances: int | None,
    time: float | None,
    accept_findings: str,
    as_json: bool,
) -> None:
    """Test the changes in a source tree, or a patch: is the crash gone?

    The tree must have been written by `kgym bug source`; all changes in tracked files count,
    committed or not. The answer is one of `crash resolved`, `crash reproduced` (with the report),
    `another crash`, `does not crash, but this is no fix` (with the reasons), `does not compile`
    (with the compiler's output), `does not apply`, `changes nothing` (in this config), `no patch`
    and `no answer`. Without changes, the bug itself is reproduced.

    The same changes are the same job: after an interruption, repeat the command.
    The exit status is 0 for `crash resolved`, 1 if it is not, 2 for bad input, 3 for no answer.
    """
    source = None if patch is not None else tree_changes.source_tree(tree)
    if patch is None and source is None:
        raise UserError(
            "bad_tree", f"{tree.absolute()} is not in a Git repository: use --tree or --patch"
        )
    named = settings().bug or remembered(source or tree_changes.source_tree(tree))
    options = RunOptions(
        trial=TrialOptions(instances, time, confidence=confidence, variants=thorough),
        accepted=reasons(accept_findings),
        fresh=fresh,
        drop_binaries=settings().drop_binaries,
        seconds=wait,
        # If this machine's own platform is gone, waiting for it is useless: nothing restarts it.
        patience=PATIENCE_SECONDS if settings().server else 0,
    )
    # Changes are computed with Git settings of our own: an agent may have written the tree's.
    diff = tree_changes.changes(source) if source else patch_text(patch or Path("-")).diff or ""
    if patch is not None and not diff.strip():
        raise UserError("empty_patch", f"the patch {patch} is empty")
    with address(work=True, quiet=True) as (url, token):
        row = asyncio.run(_run(url, token, bugs.load(named), diff, options, source))
    if not printed_json(row, as_json):
        echo(run_text(row))
    leave(exit_status(row.whose))


def remembered(tree: SourceTree | None) -> str:
    """Return a tree's bug; raise UserError `no_bug` if it is not recorded."""
    if tree is None or tree.bug is None:
        raise UserError(
            "no_bug", "give --bug or KGYM_BUG; only trees of `kgym bug source` record their bug"
        )
    return tree.bug


async def _run(
    url: str, token: str | None, bug: Bug, diff: str, options: RunOptions, tree: SourceTree | None
) -> KernelRun:
    async with AsyncClient(url, token) as client:
        # Listing a kernel tree takes seconds, so it runs while the platform works.
        rows, left_out = await asyncio.gather(
            try_patch(client, bug, diff, options, _tell), asyncio.to_thread(_unknown_files, tree)
        )
    return rows.model_copy(update={"left_out": left_out})


def _unknown_files(tree: SourceTree | None) -> list[str]:
    return tree_changes.unknown_files(tree) if tree is not None else []


def _tell(news: Moved | Row) -> None:
    """Print progress, on a terminal only: agents read stderr as part of the answer."""
    if people.is_terminal and isinstance(news, Moved):
        job = f" (job {news.job})" if news.job else ""
        people.print(f"{news.stage}{job}", style="dim")


@click.command()
@options_of("mcp")
@click.option(
    "--tree",
    type=FOLDER,
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
