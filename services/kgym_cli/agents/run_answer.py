"""What commands print about a run, and its exit status."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from rich.console import Console
from rich.markup import escape

from kgym.api.agent.report import Report
from kgym.api.agent.runs import RunState, RunView
from kgym.api.steps import Strict
from kgym.bugs import patch_kit
from kgym.client.agent_client import AgentClient
from kgym.errors import UserError, file_errors
from kgym_cli.agents.agent_models import REPLAY
from kgym_cli.agents.run_view import watch
from kgym_cli.output import Exit, people

if TYPE_CHECKING:
    from kgym.client.agent_calls import AgentCalls

# A run that was stopped or reached a limit has found no fix: a negative answer, not a failure.
_STATUSES = {
    RunState.RUNNING: Exit.OK,
    RunState.RESOLVED: Exit.OK,
    RunState.UNRESOLVED: Exit.NEGATIVE,
    RunState.LIMITED: Exit.NEGATIVE,
    RunState.STOPPED: Exit.NEGATIVE,
    RunState.FAILED: Exit.INFRASTRUCTURE,
    RunState.INTERRUPTED: Exit.INFRASTRUCTURE,
}
# Reasons for which a failed run is an answer, or the user's fault: retrying cannot help.
_NEGATIVE = {"does_not_reproduce"}
_USER = {"bad_bundle", "model_key_refused", "model_quota_exceeded", "no_such_model", "not_on_tape"}


class Cycles(Strict):
    """Counts of a run's debug cycles."""

    cycles: int
    depth: int = Field(description="of the deepest tree")
    candidates: int = Field(description="patches that were written")
    outcomes: dict[str, int] = Field(description="how cycles ended: `resolved`, `crashed` …")

    @classmethod
    def of(cls, run: RunView) -> "Cycles":
        """Count those of a run."""
        return cls(
            cycles=len(run.nodes),
            depth=max((node.depth for node in run.nodes), default=0),
            candidates=sum(cycle.candidates for cycle in run.nodes),
            outcomes=Counter(cycle.outcome or "under_way" for cycle in run.nodes),
        )


class FixAnswer(Strict):
    """Output of `kgym fix` and `kgym run resume`."""

    resolved: bool
    replayed: bool = Field(description="a tape answered instead of a model")
    run: RunView
    cycles: Cycles
    patch: str | None = Field(None, description="for `git am`; null without a fix")
    report: Report | None = None
    written: list[str] = Field([], description="files that were written")

    @classmethod
    def of(
        cls, run: RunView, patch: str | None = None, report: Report | None = None
    ) -> "FixAnswer":
        """Return the answer for a run as it is."""
        return cls(
            resolved=run.state is RunState.RESOLVED,
            replayed=run.model.startswith(REPLAY),
            run=run,
            cycles=Cycles.of(run),
            patch=patch,
            report=report,
        )

    def show(self, console: Console) -> None:
        """Print it for people."""
        run = self.run
        style = "green" if run.state is RunState.RESOLVED else "red"
        reason = f": {escape(run.reason)}" if run.reason else ""
        console.print(f"run {run.id} [bold {style}]{run.state}[/]{reason}", markup=True)
        spent = run.spent
        tokens = spent.input_tokens + spent.output_tokens
        took = f"{spent.cost}, {tokens} tokens, {spent.builds} kernels, {spent.seconds:.0f} s"
        counted = ", ".join(f"{number} {word}" for word, number in self.cycles.outcomes.items())
        console.print(f"took {took}")
        console.print(f"{len(run.nodes)} debug cycles: {counted or 'none'}")
        if self.replayed:
            console.print("replayed from a tape: tokens and dollars are those of the recording")
        for fix in run.ranked:
            sure = f"{fix.confidence:.0%} sure" if fix.confidence is not None else "not measured"
            message = f"fix {fix.number}: {fix.node}, {sure}, {fix.lines} lines, {fix.notes} notes"
            console.print(message)
        for path in self.written:
            console.print(f"written: {path}")
        if run.state not in {RunState.RESOLVED, RunState.UNRESOLVED, RunState.RUNNING}:
            console.print(f"resume with `kgym run resume {run.id}`")


async def follow(agent: "AgentCalls", run: int, author: str | None, after: int = 0) -> FixAnswer:
    """Show a run until it ends; return its result."""
    try:
        await watch(run, agent.follow(run, after))
    except asyncio.CancelledError:
        if isinstance(agent, AgentClient):
            message = f"run {run} goes on: `kgym run show {run}`; `kgym run stop {run}` ends it"
        else:
            message = f"run {run} and its jobs stop; resume with `kgym run resume {run}`"
        people.print(message)
        raise
    view = await agent.show(run)
    if not view.ranked:
        return FixAnswer.of(view)
    # Rank 1 is the best fix; others are available through `kgym run patch --number`.
    patch, report = await agent.patch(run, 1, author), await agent.report(run)
    return FixAnswer.of(view, patch, report)


def written(answer: FixAnswer, out: Path | None) -> FixAnswer:
    """Write the patch kit, if there is a fix: the patch, and its report as the cover note."""
    if answer.patch is None or answer.report is None:
        return answer
    out = out or Path(f"{answer.run.bug}-run{answer.run.id}")
    names = write_kit(out, answer.patch, answer.report.markdown)
    return answer.model_copy(update={"written": names})


def write_kit(folder: Path, mail: str, note: str) -> list[str]:
    """Write a patch kit; return its files. Raises UserError `cannot_write`."""
    files = patch_kit.files(mail, note)
    with file_errors(folder, "cannot_write"):
        _write_kit(folder, files)
    return [str(folder / name) for name in files]


def _write_kit(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # `git am FOLDER/*.patch` would apply it, too.
    if others := [path for path in folder.glob("*.patch") if path.name not in files]:
        raise UserError("cannot_write", f"{others[0]} is there: name another folder with --out")
    for name, text in files.items():
        # As the mail's header says, whatever this machine's encoding is.
        (folder / name).write_text(text, "utf-8", newline="")


def exit_of(run: RunView) -> Exit:
    """Return the exit status: 0 fixed, 1 not fixed, 2 bad input, 3 platform or provider error."""
    reason = run.reason.partition(":")[0]
    if run.state is RunState.FAILED and reason in _NEGATIVE:
        return Exit.NEGATIVE
    if run.state is RunState.FAILED and reason in _USER:
        return Exit.USER
    return _STATUSES[run.state]
