"""`kgym bench list`."""

from datetime import datetime
from pathlib import Path
from typing import Literal

import click
from pydantic import Field
from rich.markup import escape

from kgym.bench import dataset
from kgym.bench.bug_record import BugRecord, Status
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options, dataset_argument
from kgym_cli.output import json_option, people, print_table, printed_json
from kgym_cli.output.answer import Answer


class BenchBug(Answer):
    """Summary of a dataset's bug."""

    id: str
    title: str
    status: Status
    type: str
    class_: str = Field(serialization_alias="class")
    subsystems: list[str] | None
    reproducer: Literal["c", "syz", "both", "none"]
    reported: datetime | None
    fixed: datetime | None
    days_open: float | None = Field(description="from report to fix")
    files: list[str] | None = Field(description="changed by the fix")
    lines: int | None = Field(description="changed by the fix")
    has_cause: bool

    @classmethod
    def of(cls, bug: BugRecord) -> "BenchBug":
        """Return a bug's summary."""
        facts = bug.facts
        same = facts.model_dump(include=set(cls.model_fields))
        return cls(**same, class_=facts.crash_class, days_open=facts.days_open)


@click.command("list")
@dataset_argument
@choice_options
@json_option(list[BenchBug])
def list_(folder: Path, chosen: ChosenBugs, as_json: bool) -> None:
    """List the bugs of the dataset in DIR that match all options.

    A repeated option matches any of its values. An option about a fact leaves out bugs for which
    that fact is unknown.
    """
    whole = dataset.load(folder)
    bugs = [BenchBug.of(bug) for bug in chosen.of(whole).bugs]
    if printed_json(bugs, as_json):
        return
    rows = (
        (
            bench_bug.id[:12],
            bench_bug.status,
            bench_bug.reproducer,
            f"{bench_bug.fixed:%Y-%m-%d}" if bench_bug.fixed else "",
            "" if bench_bug.lines is None else str(bench_bug.lines),
            escape(bench_bug.title),
        )
        for bench_bug in bugs
    )
    print_table("bug", "status", "programs", "fixed", "lines", "title", rows=rows)
    people.print(f"{len(bugs)} of {len(whole)} bugs", markup=False)
