"""`kgym bench validate`."""

from collections import Counter
from pathlib import Path
from typing import Literal, get_args

import click
from pydantic import Field
from rich.markup import escape

from kgym.bench import dataset as datasets
from kgym.bench.dataset import About
from kgym.bench.tried_bug import Base
from kgym.bugs import bundle, calibration
from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym_benchmark.validation.validate import MOST_RUNS, BugVerdict, Outcome, ValidateOptions
from kgym_benchmark.validation.validate import validate as validate_bugs
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options, dataset_argument
from kgym_cli.inputs.parameters import FOLDER, SECONDS
from kgym_cli.output import Exit, json_option, leave, people, print_json, print_table, printed_json
from kgym_cli.output.answer import Answer
from kgym_cli.platforms import interruptible_work

_STYLES = {Outcome.PASSED: "green", Outcome.FAILED: "yellow", Outcome.UNKNOWN: "magenta"}


class VerdictAnswer(BugVerdict):
    """A line of --json: a bug after a stage."""

    kind: Literal["bug"] = "bug"


class ValidateSummary(Answer):
    """The last line of --json."""

    kind: Literal["summary"] = "summary"
    bugs: int
    accepted: int
    racy: int = Field(description="accepted bugs that only some runs reproduced")
    refused: int
    unknown: int = Field(description="bugs without a verdict: repeat the command to retry them")
    dataset: About | None = Field(description="dataset of the accepted bugs")
    folder: Path | None


@click.command()
@dataset_argument
@click.option(
    "--into",
    required=True,
    type=FOLDER,
    help="Folder for verdicts and the dataset of accepted bugs.",
)
@click.option(
    "--base",
    type=click.Choice(get_args(Base)),
    default="parent",
    help="Kernel: the parent of the fix, or the one on which syzbot saw the crash.",
)
@click.option(
    "--kernel", help="Shared kernel on which to reverse the fixes, instead of the bugs' own."
)
@click.option("--attempts", type=click.IntRange(3, 1000), default=5)
@click.option("--time", "seconds", type=SECONDS, default=60, help="Seconds per run.")
@click.option(
    "--most-runs",
    type=click.IntRange(1, calibration.MOST_INSTANCES),
    default=MOST_RUNS,
    help="Most runs that proving a fix may need.",
)
@click.option("--name", help="Group of the jobs.  [default: made of the dataset's SHA-256]")
@click.option("--retry", is_flag=True, help="Retry what has no answer.")
@choice_options
@json_option(VerdictAnswer | ValidateSummary)
def validate(
    folder: Path,
    into: Path,
    base: Base,
    kernel: str | None,
    attempts: int,
    seconds: float,
    most_runs: int,
    name: str | None,
    retry: bool,
    chosen: ChosenBugs,
    as_json: bool,
) -> None:
    """Validate the bugs of the dataset in DIR: accept those on which agents can be measured.

    A bug is accepted if its kernel builds, if at least one attempt reproduces it, if no attempt
    does so with the fix, and if it reproduces often enough to prove a fix. A bug that only some
    attempts reproduce is marked racy.

    If the command is interrupted or killed, repeat it; nothing runs twice. The exit status is 0 if
    each bug has a verdict, 2 for bad input, 3 if some have none.
    """
    if kernel is not None:
        bundle.refuse_unknown_kernel(kernel)
    bugs = chosen.of(datasets.load(folder))
    # The group is part of the jobs' idempotency keys: the same command finds the jobs of an earlier
    # one, and another dataset or kernel gets jobs of its own.
    group = name or f"validate-{bugs.about.sha256[:12]}-{kernel or base}"
    verdicts: dict[str, BugVerdict] = {}

    def hear(verdict: BugVerdict) -> None:
        verdicts[verdict.bug] = verdict
        last = verdict.stages[-1]
        people.print(f"{verdict.bug[:12]}: {last.stage} {last.outcome} {last.reason}")
        if as_json:
            print_json(VerdictAnswer(**dict(verdict)))

    async def work(client: AsyncClient, sweep: SweepOptions) -> About | None:
        options = ValidateOptions(sweep, base, kernel, attempts, seconds, most_runs)
        return await validate_bugs(client, bugs, into, options, hear)

    people.print(f"{group}: {len(bugs)} bugs")
    made = interruptible_work.run(work, SweepOptions(group, retry=retry))
    summary = _summary(verdicts, made, into)
    if not printed_json(summary, as_json):
        rows = [_cells(verdicts[bug_id]) for bug_id in sorted(verdicts)]
        print_table("bug", "stage", "outcome", "crashed", "title", "why", rows=rows)
        people.print(f"{summary.accepted} accepted, {summary.racy} of them racy")
    leave(Exit.INFRASTRUCTURE if summary.unknown else Exit.OK)


def _summary(verdicts: dict[str, BugVerdict], made: About | None, into: Path) -> ValidateSummary:
    counts = Counter(
        "accepted" if bug.accepted else "refused" if bug.final else "unknown"
        for bug in verdicts.values()
    )
    accepted = [
        verdict.validation for verdict in verdicts.values() if verdict.validation is not None
    ]
    return ValidateSummary(
        bugs=len(verdicts),
        accepted=counts["accepted"],
        racy=sum(bug.racy for bug in accepted),
        refused=counts["refused"],
        unknown=counts["unknown"],
        dataset=made,
        folder=None if made is None else into / "accepted" / made.sha256[:12],
    )


def _cells(verdict: BugVerdict) -> tuple[str, ...]:
    last = verdict.stages[-1]
    seen = next((stage for stage in verdict.stages if stage.stage == "reproduces"), None)
    crashed = f"{seen.crashed}/{seen.completed}" if seen and seen.crashed is not None else ""
    return (
        verdict.bug[:12],
        last.stage,
        f"[{_STYLES[last.outcome]}]{last.outcome}[/]",
        crashed,
        escape(verdict.title),
        escape(last.reason),
    )
