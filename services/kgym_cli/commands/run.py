"""`kgym run`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from kgym.api.agent.conversation import ToolSpec
from kgym.api.agent.nodes import Node
from kgym.api.agent.runs import CallView, RunFilter, RunPage, RunState, RunView
from kgym.bench.training import of_calls
from kgym_cli.agents.agent_choice import service, tape_of, with_agent
from kgym_cli.agents.agent_models import REPLAY
from kgym_cli.agents.run_answer import FixAnswer, exit_of, follow, written
from kgym_cli.agents.training_data import print_conversations, training_options
from kgym_cli.commands.fix import limit_options, limits
from kgym_cli.inputs.parameters import FILE, FOLDER
from kgym_cli.output import echo, json_option, leave, print_table, printed_json, results
from kgym_cli.settings import options_of

if TYPE_CHECKING:
    from kgym.client.agent_calls import AgentCalls

_run_argument = click.argument("run_id", metavar="RUN", type=click.IntRange(1, 1 << 62))
_number_option = click.option(
    "--number", type=click.IntRange(1), default=1, help="Rank of the fix."
)


@click.group()
def run() -> None:
    """List, show, stop and resume searches for a fix (`kgym fix`)."""


@run.command("list")
@options_of("run list")
@click.option("--state", type=click.Choice([str(run_state) for run_state in RunState]))
@click.option("--limit", type=click.IntRange(1, 100), default=20)
@json_option(RunPage)
def list_(state: str | None, limit: int, as_json: bool) -> None:
    """List runs, the newest first."""
    chosen = RunFilter(state=RunState(state) if state else None)
    page = with_agent(lambda agent: agent.page(None, limit, chosen))
    if printed_json(page, as_json):
        return
    rows = [
        (
            str(view.id),
            escape(view.bug),
            escape(view.strategy),
            escape(view.model),
            view.state,
            str(view.fixes),
            view.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        )
        for view in page.runs
    ]
    print_table("run", "bug", "strategy", "model", "state", "fixes", "created", rows=rows)


@run.command()
@_run_argument
@options_of("run show")
@json_option(RunView)
def show(run_id: int, as_json: bool) -> None:
    """Show a run: debug cycles, fixes and cost."""
    view = with_agent(lambda agent: agent.show(run_id))
    if printed_json(view, as_json):
        return
    FixAnswer.of(view).show(results)
    for note in view.notes:
        results.print(f"note: {note}")
    rows = [
        (
            node.name,
            node.outcome or "",
            escape(node.crash or ""),
            escape(" ".join(_short(node.hypothesis))),
        )
        for node in view.nodes
    ]
    print_table("cycle", "outcome", "crash", "hypothesis", rows=rows)
    for node in view.nodes:
        for line in [*node.problems, *node.answers]:
            results.print(f"{node.name}: {' '.join(line.split())}")


def _short(text: str | None) -> list[str]:
    return (text or "").split()[:20]


@run.command()
@_run_argument
@options_of("run stop")
@json_option(RunView)
def stop(run_id: int, as_json: bool) -> None:
    """Stop a run and abort its jobs; its results are kept."""

    async def ask(agent: "AgentCalls") -> RunView:
        await agent.stop(run_id)
        async for _ in agent.follow(run_id):
            pass
        return await agent.show(run_id)

    view = with_agent(ask)
    if not printed_json(view, as_json):
        FixAnswer.of(view).show(results)


@run.command()
@_run_argument
@options_of("run resume")
@limit_options
@click.option(
    "--record", type=FILE, help="Tape to record; by default the one that the run was recorded on."
)
@click.option("--out", type=FOLDER, help="As for `kgym fix`.")
@click.option("--author", help="Author of the patch, as `Name <mail>`.")
@json_option(FixAnswer)
def resume(
    run_id: int,
    record: Path | None,
    out: Path | None,
    author: str | None,
    as_json: bool,
    **budgets: float | None,
) -> None:
    """Resume a run that was interrupted or stopped, failed, or reached a limit.

    No answer is paid for twice. A new budget replaces the old one and includes what the run
    has already spent.
    """

    async def ask(agent: "AgentCalls") -> FixAnswer:
        before = (await agent.show(run_id)).limits
        # Old events are skipped: only what happens after the resume is shown.
        seen = 0
        async for event in agent.follow(run_id):
            seen = event.number
        await agent.resume(run_id, limits(before, **budgets))
        return await follow(agent, run_id, author, seen)

    view = with_agent(lambda agent: agent.show(run_id))
    # The runs of a service have other numbers, and no tape on this machine.
    if record is None and service() is None and tape_of(run_id).exists():
        record = Path(tape_of(run_id).read_text())
    # As in `kgym fix`: a tape is a file of this machine.
    own = view.model.startswith(REPLAY) or record is not None
    answer = with_agent(ask, work=True, own=own, record=record)
    answer = written(answer, out)
    if not printed_json(answer, as_json):
        answer.show(results)
    leave(exit_of(answer.run))


@run.command()
@_run_argument
@options_of("run calls")
@click.option("--node", help="Only calls of this debug cycle.")
@json_option(list[CallView])
def calls(run_id: int, node: str | None, as_json: bool) -> None:
    """Show the questions to the model, its answers and their cost."""
    calls = with_agent(lambda agent: agent.calls(run_id, node))
    if printed_json(calls, as_json):
        return
    for call in calls:
        reply = call.reply
        price = f"${reply.price:.4f}" if reply and reply.price is not None else "price unknown"
        took = (
            f"{reply.input_tokens}+{reply.output_tokens} tokens, {price}" if reply else call.error
        )
        echo(f"=== {call.name} ({took or 'not answered'})\n{call.prompt}")
        echo(f"--- {reply.model if reply else 'no answer'}\n{reply.text if reply else ''}\n")


@run.command()
@_run_argument
@options_of("run export")
@training_options
def export(run_id: int, form: str, resolved: bool) -> None:
    """Print a run's conversations with the model, as JSON Lines for training.

    A question without tools is a conversation of its own. The reward of an episode is that of its
    debug cycle's patch.
    """

    async def ask(agent: "AgentCalls") -> tuple[RunView, list[CallView], dict[str, Node]]:
        view = await agent.show(run_id)
        nodes = {node.name: await agent.node(run_id, node.name) for node in view.nodes}
        return view, await agent.calls(run_id), nodes

    view, calls, nodes = with_agent(ask)
    print_conversations(of_calls(view.bug, calls, nodes, _tools), form, resolved)


def _tools(call: CallView) -> Sequence[ToolSpec]:
    """Return the tools that a question offered; its values are not stored."""
    from kgym_crashfixer.search.tools import tools_of  # noqa: PLC0415 - only runs have tools
    from kgym_crashfixer.search.work import Purpose, Question  # noqa: PLC0415

    values = {"feedback": "`run_kernel`" in call.prompt}
    purpose = Purpose(call.purpose)
    return tools_of(Question(node=call.node, purpose=purpose, values=values, temperature=0))


@run.command()
@_run_argument
@options_of("run patch")
@_number_option
@click.option("--author", help="Author of the patch, as `Name <mail>`.")
def patch(run_id: int, number: int, author: str | None) -> None:
    """Print a fix as a patch for `git am`."""
    text = with_agent(lambda agent: agent.patch(run_id, number, author))
    click.echo(text, nl=False)


@run.command()
@_run_argument
@options_of("run report")
@_number_option
def report(run_id: int, number: int) -> None:
    """Print the evidence for a fix, as Markdown."""
    echo(with_agent(lambda agent: agent.report(run_id, number)).markdown, end="")
