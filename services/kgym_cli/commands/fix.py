"""`kgym fix`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgym.errors import UserError
from kgym_cli.agents.agent_choice import request_of, service, tape_of, with_agent
from kgym_cli.agents.agent_models import REPLAY
from kgym_cli.agents.agent_models import window as model_window
from kgym_cli.agents.run_answer import FixAnswer, exit_of, follow, written
from kgym_cli.inputs.parameters import FILE, FOLDER, complete_bug, parameters
from kgym_cli.output import json_option, leave, people, printed_json, results
from kgym_cli.settings import options_of, settings

if TYPE_CHECKING:
    from kgym.api.agent.runs import Limits, RunRequest
    from kgym.client.agent_calls import AgentCalls

STRATEGIES = "Strategy: a shipped one (forest, tool, best-first, escalate …), or a file."


# The limits of a run.
limit_options = parameters(
    click.option("--budget-dollars", type=click.FloatRange(0, 1e6, min_open=True)),
    click.option("--budget-tokens", type=click.IntRange(1)),
    click.option("--budget-builds", type=click.IntRange(1), help="Most kernels to build."),
    click.option("--budget-time", type=click.FloatRange(0, 1e7, min_open=True), help="Seconds."),
    click.option("--concurrency", type=click.IntRange(1, 100), help="Parallel questions."),
)


def limits(before: "Limits | None", **given: float | None) -> "Limits | None":
    """Return `before` updated by the given limits; `before` itself if none is given."""
    from kgym.api.agent.runs import Limits  # noqa: PLC0415 - its imports take 0.3 s

    names = {"dollars": "budget_dollars", "tokens": "budget_tokens", "builds": "budget_builds"}
    names |= {"seconds": "budget_time", "concurrency": "concurrency"}
    chosen = {name: given[option] for name, option in names.items() if given[option] is not None}
    return Limits.model_validate({**dict(before or Limits()), **chosen}) if chosen else before


@click.command()
@click.argument("name", shell_complete=complete_bug)
@click.option("--strategy", help=f"{STRATEGIES}  [default: forest, or the tape's]")
@options_of("fix")
@limit_options
@click.option("--trace/--no-trace", default=True, help="Show the model a trace of the crash.")
@click.option("--files", multiple=True, help="File that the fix may change; may be repeated.")
@click.option(
    "--window",
    type=click.IntRange(2_000, 100_000_000),
    help="Tokens per question.  [default: the model's window, at most 200000]",
)
@click.option("--record", type=FILE, help="Tape to record.")
@click.option("--watch/--no-watch", default=True, help="Show the run until it ends.")
@click.option(
    "--out", type=FOLDER, help="Folder for the patch and its cover note.  [default: NAME-runN]"
)
@click.option("--author", help="Author of the patch, as `Name <mail>`.")
@json_option(FixAnswer)
def fix(
    name: str,
    strategy: str | None,
    trace: bool,
    files: tuple[str, ...],
    window: int | None,
    record: Path | None,
    watch: bool,
    out: Path | None,
    author: str | None,
    as_json: bool,
    **budgets: float | None,
) -> None:
    """Search for a fix of a bug with a language model, and prove it.

    NAME is a shipped bug or the folder of a bundle. The bug is reproduced before a model is asked.
    The result is a patch for `git am`, and a report of its evidence. API keys come from the
    providers' usual environment variables or from --model-key-file.

    Every step of a run is stored: resume an interrupted one with `kgym run resume`. If an agent
    service runs (`kgym agent`), it does the search, otherwise this command does.

    The exit status is 0 if a fix was found, 1 if not, 2 for bad input, 3 if the platform or
    the model's provider failed.
    """
    model = settings().model
    if model is None:
        raise UserError("no_model", "name a model: --model PROVIDER:MODEL, or KGYM_MODEL")
    # A tape is a file of this machine, which the service could not open.
    own = model.startswith(REPLAY) or record is not None
    agent_service = None if own else service()
    bounds = limits(None, **budgets)
    here = agent_service is None
    request = request_of(name, strategy, model, trace, files, bounds, here, discussion=True)
    request = request.model_copy(update={"window": window})
    if record is not None:
        _begin(record, request)

    tape = record and record.absolute()

    async def ask(agent: "AgentCalls") -> FixAnswer:
        run = await agent.start(request)
        people.print(f"run {run}")
        if record is not None:
            tape_of(run).write_text(str(tape))
        # --no-watch only makes sense with a service: a run in this process ends with it.
        if agent_service is not None and not watch:
            return FixAnswer.of(await agent.show(run))
        return await follow(agent, run, author)

    answer = with_agent(ask, work=True, own=own, record=record)
    _end(written(answer, out), as_json)


def replayed(name: str, tape: Path, as_json: bool) -> None:
    """Run a tape: the model's answers are replayed, everything else is real."""
    request = request_of(name, None, f"{REPLAY}{tape}", True, (), None, here=True)

    async def ask(agent: "AgentCalls") -> FixAnswer:
        return await follow(agent, await agent.start(request), None)

    _end(with_agent(ask, work=True, own=True), as_json)


def _end(answer: FixAnswer, as_json: bool) -> None:
    """Print the answer and exit."""
    if not printed_json(answer, as_json):
        answer.show(results)
    leave(exit_of(answer.run))


def _begin(tape: Path, request: "RunRequest") -> None:
    from kgym_crashfixer import strategies  # noqa: PLC0415 - as below
    from kgym_crashfixer.models.tape import Head, begin  # noqa: PLC0415

    chosen = request.strategy
    strategy = strategies.load(chosen) if isinstance(chosen, str) else chosen
    head = Head(
        bug=request.bug,
        strategy=strategy,
        files=request.files,
        trace=request.trace,
        window=request.window or model_window(request.model),
    )
    begin(tape, head)
