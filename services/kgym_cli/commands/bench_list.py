"""`kgym bench list`."""

from pathlib import Path

import click
from rich.markup import escape

from kgym.bench import dataset
from kgym.bench.bug_record import BugFacts
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options, dataset_argument
from kgym_cli.output import json_option, people, print_table, printed_json


@click.command("list")
@dataset_argument
@choice_options
@json_option(list[BugFacts])
def list_(folder: Path, chosen: ChosenBugs, as_json: bool) -> None:
    """List the bugs of the dataset in DIR that match all options.

    A repeated option matches any of its values. An option about a fact leaves out bugs for which
    that fact is unknown.
    """
    whole = dataset.load(folder)
    bugs = [bug.facts for bug in chosen.of(whole).bugs]
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
    people.print(f"{len(bugs)} of {len(whole)} bugs")
