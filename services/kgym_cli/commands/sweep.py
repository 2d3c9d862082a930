"""`kgym sweep`."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from kgym import tasks
from kgym.api import csv_text
from kgym.api.outcomes import Outcome
from kgym.bugs import bundle as bugs
from kgym.bugs import earlier_jobs
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.sweep import MOST_UNDER_WAY, Moved, Subject, SweepOptions
from kgym.bugs.sweep import sweep as sweep_all
from kgym.bugs.sweep_rows import Row, counts, status
from kgym.client import AsyncClient
from kgym.errors import UserError, file_errors
from kgym_cli.commands.trial_options import (
    accept_option,
    compare_option,
    compiler_option,
    effort_options,
)
from kgym_cli.inputs import patch_files
from kgym_cli.inputs.parameters import FILE, PATH, complete_bug, group_name
from kgym_cli.inputs.patch_files import Found
from kgym_cli.jobs import sweep_view
from kgym_cli.jobs.job_answer import exit_status
from kgym_cli.jobs.outcome_table import HEADS, cells
from kgym_cli.jobs.sweep_view import View
from kgym_cli.output import json_option, leave, live_view, people, print_json, print_table, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms import interruptible_work
from kgym_cli.settings import options_of

_COLUMNS = (
    *("bug", "patch", "outcome", "verdict", "check", "title", "reason"),
    *("job", "same_as", "compiler_substitution", "seconds", "file"),
    "behavioural_equivalence",
)


class SweepRow(Row):
    """A line of --json: a finished pair of bug and patch."""

    kind: Literal["pair"] = "pair"
    file: str = Field(description="file of the patch")


class SweepSummary(Answer):
    """Last line of --json."""

    kind: Literal["summary"] = "summary"
    name: str = Field(description="group of the jobs")
    pairs: int
    outcomes: dict[Outcome, int] = Field(description="number of pairs per outcome")
    bugs: dict[str, dict[Outcome, int]] = Field(description="number of pairs per bug and outcome")
    seconds: float = Field(description="duration of this command")


@click.command()
@click.argument("names", metavar="BUG...", nargs=-1, required=True, shell_complete=complete_bug)
@click.option(
    "--patches",
    "places",
    multiple=True,
    required=True,
    metavar="DIR",
    type=PATH,
    help="Folder of patches, or one patch file; may be repeated.",
)
@click.option("--name", help="Group of the jobs.  [default: made of bugs and folders]")
@click.option(
    "--under-way",
    type=click.IntRange(1, MOST_UNDER_WAY),
    default=SweepOptions("").under_way,
    help="Most unfinished trials at a time.",
)
@click.option("--retry", is_flag=True, help="Retry what has no answer.")
@effort_options
@compiler_option
@click.option(
    "--validate", is_flag=True, help="Also review the fixes themselves and smoke-test them."
)
@click.option("--variants", is_flag=True, help="Also run programs close to each bug's reproducer.")
@compare_option
@accept_option
@click.option("--csv", "table", type=FILE, help="Also write the table to this file.")
@options_of("sweep")
@json_option(SweepRow | SweepSummary)
def sweep(
    names: tuple[str, ...],
    places: tuple[Path, ...],
    name: str | None,
    under_way: int,
    retry: bool,
    confidence: float,
    instances: int | None,
    time: float | None,
    compiler: str | None,
    validate: bool,
    variants: bool,
    compare_fix: bool,
    accept_findings: str,
    table: Path | None,
    as_json: bool,
) -> None:
    """Test many patches on many bugs: each is checked, then run once its bug has reproduced.

    BUG is a shipped bug or the folder of a bundle. `DIR/BUG/*.patch` is for that bug,
    `DIR/*.patch` for all bugs; files may end in .diff, .eml or .mbox, and may be compressed. A file
    may hold mails with a series of patches, which count as one. Patches of the same content are
    tested once. Each bug is reproduced once.

    If the command is interrupted or killed, repeat it: it continues with its jobs, and nothing
    runs twice. Another --name starts from scratch. `kgym group` shows and aborts the jobs.

    With --json, each finished pair is a line, and the last line is a summary. The exit status
    is 0 if all patches resolve their bugs, 1 if some do not, 2 for bad input (also if a file
    holds no patch), 3 if some pairs have no answer.
    """
    loaded = [loaded_bug.built_by(compiler) for loaded_bug in _loaded(names)]
    patches = patch_files.find(loaded, places)
    for folder in patches.left_out:
        people.print(f"ignored: {folder}: no bug of that name is swept")
    options = SweepOptions(
        name=group_name(name or patch_files.default_name(names, places)),
        accepted=frozenset(accept_findings.replace(",", " ").split()),
        under_way=under_way,
        retry=retry,
    )
    view = View({bug: len(files) for bug, files in patches.files.items() if files})
    if compare_fix and (unfixed := [bug.name for bug in loaded if bug.fix is None]):
        raise UserError("bad_option", f"--compare-fix: no fix is known of {', '.join(unfixed)}")
    wanted = TrialOptions(
        instances=instances,
        time=time,
        validate=validate,
        confidence=confidence,
        variants=variants or compare_fix,
        compare_fix=compare_fix,
    )
    run = _Run(loaded, patches, options, wanted, view, as_json=as_json)
    run.go(table)
    run.answer()
    leave(exit_status(status(view.rows.values())))


@dataclass(frozen=True)
class _Run:
    """One run of the command."""

    loaded: Sequence[Bug]
    patches: Found
    options: SweepOptions
    wanted: TrialOptions
    view: View
    as_json: bool
    begun: float = field(default_factory=time.monotonic)

    def go(self, table: Path | None) -> None:
        """Run the sweep. Write the results so far even if it is interrupted."""
        if table is not None:
            # Tried first: hours later, an unwritable file would cost the table.
            _write(table, None)
        people.print(f"sweep {self.options.name}: {sum(self.view.pairs.values())} pairs")
        try:
            interruptible_work.run(self._sweep, self.options)
        finally:
            if table is not None:
                _write(table, _csv(self._rows()))

    def answer(self) -> None:
        """Print the sweep's results."""
        rows = self._rows()
        if self.as_json:
            outcomes = [row.outcome for row in rows]
            print_json(
                SweepSummary(
                    name=self.options.name,
                    pairs=len(rows),
                    outcomes={
                        state: outcomes.count(state) for state in Outcome if state in outcomes
                    },
                    bugs=counts(rows),
                    seconds=round(time.monotonic() - self.begun, 1),
                )
            )
        else:
            print_table(*HEADS, rows=map(_cells, rows))
            for row in rows:
                if row.behavioural_equivalence is not None:
                    results.print(f"{row.bug}, {row.patch}: {row.behavioural_equivalence}")
            for substitution in sorted({row.compiler_substitution for row in rows} - {""}):
                people.print(f"compiler: {substitution}")
        people.print(sweep_view.counts(self.view.pairs, rows, len(self.view.pairs)))
        if any(row.outcome is Outcome.INCONCLUSIVE for row in rows) and not self.options.retry:
            people.print("repeat the command with --retry to retry pairs without an answer")

    async def _sweep(self, client: AsyncClient, options: SweepOptions) -> None:
        with live_view.shown(self.view.table) as show:
            beside = [
                asyncio.create_task(self.view.look(client)),
                asyncio.create_task(self.view.refresh(show)),
            ]
            try:
                begun = await earlier_jobs.begun_async(client, options.name)
                subjects = [await self._subject(client, bug, begun) for bug in self.loaded]
                await sweep_all(client, subjects, options, self._hear)
            finally:
                await tasks.end(beside)

    async def _subject(self, client: AsyncClient, bug: Bug, begun: datetime | None) -> Subject:
        """Return a bug's patches and trial options."""
        # Only measurements from before the sweep: the options are part of the jobs' idempotency
        # keys, so a repeated command must compute the same ones.
        trial = await earlier_jobs.informed_async(client, bug, self.wanted, begun)
        files = self.patches.files[bug.name]
        return Subject(bug, await asyncio.to_thread(patch_files.candidates, files), trial)

    def _hear(self, news: Moved | Row) -> None:
        self.view.hear(news)
        if self.as_json and isinstance(news, Row):
            print_json(self._answered(news))

    def _answered(self, row: Row) -> SweepRow:
        return SweepRow(**dict(row), file=str(self.patches.files[row.bug][row.patch]))

    def _rows(self) -> list[SweepRow]:
        """Return the rows so far, ordered by bug and file."""
        keys = ((bug, name) for bug, files in self.patches.files.items() for name in files)
        return [self._answered(self.view.rows[key]) for key in keys if key in self.view.rows]


def _cells(row: Row) -> tuple[str, ...]:
    reason = f"as {row.same_as}: {row.reason}" if row.same_as else row.reason
    return cells(row.job, row.outcome, (row.bug, row.patch), row.seconds, reason)


def _loaded(names: Sequence[str]) -> list[Bug]:
    """Load the bugs of a sweep; raise UserError `bad_option` if two bugs have the same name."""
    loaded = [bugs.load(name) for name in dict.fromkeys(names)]
    # Rows, jobs and `DIR/BUG/*.patch` go by the bug's name.
    named = [bug.name for bug in loaded]
    if twice := {name for name in named if named.count(name) > 1}:
        raise UserError("bad_option", f"several bugs are named {', '.join(sorted(twice))}")
    return loaded


def _csv(rows: Iterable[SweepRow]) -> str:
    values = [row.model_dump(mode="json") for row in rows]
    for value in values:
        alike = value["behavioural_equivalence"]
        value["behavioural_equivalence"] = alike["value"] if alike else None
    return csv_text.text([_COLUMNS, *([value[name] for name in _COLUMNS] for value in values)])


def _write(path: Path, text: str | None) -> None:
    """Write a file atomically; None only checks that it can be written."""
    part = path.with_name(f".{path.name}.part")
    with file_errors(path, "cannot_write"):
        part.write_text(text or "", newline="")
        if text is None:
            part.unlink()
        else:
            part.replace(path)
