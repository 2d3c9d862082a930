"""`kgym bench list` and `kgym bench show`."""

from collections import Counter
from pathlib import Path
from typing import Literal

import click
from pydantic import Field
from rich.markup import escape

from kgym.bench import dataset
from kgym.bench.bug_record import BugFacts, BugRecord
from kgym.bench.dataset import About, Dataset
from kgym.errors import NotFound
from kgym_cli.bench.bug_choice_options import ChosenBugs, choice_options, dataset_argument
from kgym_cli.output import echo, json_option, people, print_table, printed_json, results
from kgym_cli.output.answer import Answer


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


Part = Literal["report", "c", "syz", "patch", "config"]


class DatasetAnswer(Answer):
    """A dataset, and counts of its bugs."""

    dataset: About
    statuses: dict[str, int]
    classes: dict[str, int] = Field(description="by prefix of the title")
    reproducers: dict[str, int]
    fixed: dict[str, int] = Field(description="by year of the fix; unknown years are left out")


@click.command()
@dataset_argument
@click.argument("bug", required=False)
@click.option(
    "--part",
    type=click.Choice(("report", "c", "syz", "patch", "config")),
    help="Print only this text of the bug.",
)
@json_option(DatasetAnswer | BugRecord)
def show(folder: Path, bug: str | None, part: Part | None, as_json: bool) -> None:
    """Show the dataset in DIR, or a BUG of it, by its id or a prefix of that."""
    whole = dataset.load(folder)
    if bug is None:
        _show_dataset(_counted(whole), as_json=as_json)
        return
    bench_bug = whole.get(bug)
    if part is not None:
        text = _text(bench_bug, part)
        if text is None:
            raise NotFound("no_such_part", f"the dataset holds no {part} of {bench_bug.id}")
        echo(text, end="")
    elif not printed_json(bench_bug, as_json):
        _show_bug(bench_bug)


def _counted(whole: Dataset) -> DatasetAnswer:
    bugs = whole.bugs
    years = sorted(f"{bug.fixed:%Y}" for bug in bugs if bug.fixed is not None)
    return DatasetAnswer(
        dataset=whole.about,
        statuses=dict(Counter(bench_bug.status for bench_bug in bugs).most_common()),
        classes=dict(Counter(bench_bug.crash_class for bench_bug in bugs).most_common()),
        reproducers=dict(Counter(bench_bug.facts.reproducer for bench_bug in bugs).most_common()),
        fixed=dict(Counter(years)),
    )


def _show_dataset(answer: DatasetAnswer, *, as_json: bool) -> None:
    if printed_json(answer, as_json):
        return
    about = answer.dataset
    results.print(f"[bold]{escape(about.name)}[/]: {about.bugs} bugs, {about.sha256}", markup=True)
    for line in (about.description, about.source):
        if line:
            results.print(line)
    for name, counts in (
        ("status", answer.statuses),
        ("programs", answer.reproducers),
        ("fixed", answer.fixed),
        ("class", answer.classes),
    ):
        text = ", ".join(f"{word} {count}" for word, count in counts.items())
        results.print(f"{name}: {text or '-'}")


def _show_bug(bug: BugRecord) -> None:
    results.print(f"[bold]{escape(bug.title)}[/]", markup=True)
    patch, first = bug.patch, bug.crashes[0] if bug.crashes else None
    lines = {
        "id": bug.id,
        "status": bug.status,
        "class": bug.crash_class,
        "subsystems": ", ".join(bug.subsystems or ()),
        "programs": bug.facts.reproducer,
        "reported": str(bug.reported or ""),
        "fixed": str(bug.fixed or ""),
        "kernel": " ".join(filter(None, (first.repository, first.commit))) if first else "",
        "compiler": (first.compiler or "") if first else "",
        "fix": ", ".join(commit.title or commit.id or "" for commit in patch.commits)
        if patch
        else "",
        "parent": (patch.parent or "") if patch else "",
        "files": ", ".join(patch.files or ()) if patch else "",
        "cause": (bug.cause.commit.title or bug.cause.commit.id or "") if bug.cause else "",
    }
    for name, value in lines.items():
        if value:
            results.print(f"{name}: {value}")


def _text(bug: BugRecord, part: Part) -> str | None:
    if part == "patch":
        return bug.patch.diff if bug.patch else None
    fields = {"report": "report", "c": "c_reproducer", "syz": "syz_reproducer", "config": "config"}
    texts = (getattr(crash, fields[part]).text for crash in bug.crashes)
    return next((text for text in texts if text), None)
