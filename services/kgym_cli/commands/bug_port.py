"""`kgym bug port`."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Literal

import click
from pydantic import Field
from rich.markup import escape

from kgym.api import csv_text
from kgym.bugs import bundle as bugs
from kgym.bugs import fixed_bug
from kgym.bugs import port as campaign
from kgym.bugs.bundle_folder import toml, write_folder
from kgym.bugs.conclusion import in_one_line
from kgym.bugs.port import Outcome, PortOptions, PortRow, Subject, bug_on
from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym.errors import UserError, file_errors
from kgym_cli.inputs.parameters import FILE, FOLDER, SECONDS
from kgym_cli.output import Exit, json_option, leave, people, print_json, print_table
from kgym_cli.output.answer import Answer
from kgym_cli.platforms import interruptible_work

_KERNELS = ("campaign-6.1", "campaign-6.12", "campaign-5.10")
_COLUMNS = (
    *("bug", "kernel", "outcome", "title", "crash", "crashed", "completed", "needs"),
    *("fix", "job", "seconds", "reason"),
)
# All other outcomes are yellow.
_STYLES = {Outcome.COMES_BACK: "green", Outcome.REVERSES: "green", Outcome.INCONCLUSIVE: "magenta"}


class PortAnswer(PortRow):
    """A line of --json: a bug on a kernel."""

    kind: Literal["pair"] = "pair"


class PortSummary(Answer):
    """Last line of --json."""

    kind: Literal["summary"] = "summary"
    name: str = Field(description="group of the jobs")
    pairs: int
    outcomes: dict[Outcome, int] = Field(description="number of pairs per outcome")
    seconds: float = Field(description="duration of this command")


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--repros", type=FOLDER, help="Folder of C programs, ID.c.  [default: DIR]")
@click.option(
    "--kernel", "kernels", multiple=True, default=_KERNELS, help="Shared kernel; may be repeated."
)
@click.option("--only", multiple=True, metavar="ID", help="Only bugs whose id has this prefix.")
@click.option("--dry-run", is_flag=True, help="Only reverse the fixes: compile and run nothing.")
@click.option("--attempts", type=click.IntRange(1, 100), default=5)
@click.option("--time", "seconds", type=SECONDS, default=60, help="Seconds per run.")
@click.option("--name", help="Group of the jobs.  [default: made of DIR]")
@click.option("--retry", is_flag=True, help="Retry what has no answer.")
@click.option(
    "--write",
    type=FOLDER,
    help="Write a bundle of each bug that comes back into this folder, as KERNEL/ID.",
)
@click.option(
    "--without-programs",
    is_flag=True,
    help="Bundles only name their programs, which are others' work, by SHA-256.",
)
@click.option("--csv", "table", type=FILE)
@json_option(PortAnswer | PortSummary)
def port(
    folder: Path,
    repros: Path | None,
    kernels: tuple[str, ...],
    only: tuple[str, ...],
    dry_run: bool,
    attempts: int,
    seconds: float,
    name: str | None,
    retry: bool,
    write: Path | None,
    without_programs: bool,
    table: Path | None,
    as_json: bool,
) -> None:
    """Reintroduce fixed bugs on other kernels: reverse each fix, crash the kernel, prove the fix.

    DIR holds bugs in kBenchSyz's form: ID.json with `title`, `patch` and `fix-commits`. Bugs
    without a C program are skipped. A fix is reversed exactly or not at all.

    If the command is interrupted or killed, repeat it; nothing runs twice. The exit status is 0 if
    each bug has an answer on each kernel, 2 for bad input, 3 if some have none.
    """
    begun = time.monotonic()
    subjects, unread = _subjects(folder, repros or folder, only)
    for kernel in kernels:
        bugs.refuse_unknown_kernel(kernel)
    # The same folder is the same campaign: its jobs are found again.
    digest = sha256(str(folder.resolve()).encode()).hexdigest()
    group = name or f"port-{digest[:10]}"
    sweep = SweepOptions(group, retry=retry)
    # All bugs of a kernel share one build of it (kgym/bugs/port.py): a full build per bug would
    # take days.
    options = PortOptions(sweep, attempts, 2, seconds, only_reverse=dry_run)
    rows_by_bug: dict[tuple[str, str], PortRow] = {}

    def hear(row: PortRow) -> None:
        rows_by_bug[row.kernel, row.bug] = row
        people.print(f"{row.kernel} {row.bug[:12]}: {row.outcome} {row.reason}")
        if as_json:
            print_json(PortAnswer(**dict(row)))

    async def work(client: AsyncClient, sweep: SweepOptions) -> None:
        await campaign.port(client, kernels, subjects, replace(options, sweep=sweep), hear)

    bug_count = len(subjects) + len(unread)
    # Unreadable bugs are rows of the table, too: a campaign of hundreds must not fail for one file.
    people.print(f"{group}: {bug_count} bugs on {len(kernels)} kernels")
    try:
        for kernel, (bug, reason) in product(kernels, unread.items()):
            why = in_one_line(reason)
            hear(PortRow(bug=bug, kernel=kernel, outcome=Outcome.REFUSED, reason=why))
        if subjects:
            interruptible_work.run(work, sweep)
    finally:
        rows = sorted(rows_by_bug.values(), key=lambda row: (kernels.index(row.kernel), row.bug))
        if table is not None:
            _write(table, rows)
    if write is not None:
        _bundles(write, rows, subjects, options, with_program=not without_programs)
    counted = Counter(row.outcome for row in rows)
    if as_json:
        took = round(time.monotonic() - begun, 1)
        print_json(PortSummary(name=group, pairs=len(rows), outcomes=dict(counted), seconds=took))
    else:
        print_table("bug", "kernel", "outcome", "crash or title", "why", rows=map(_cells, rows))
    people.print(", ".join(f"{count} {outcome}" for outcome, count in counted.items()))
    leave(Exit.INFRASTRUCTURE if counted[Outcome.INCONCLUSIVE] else Exit.OK)


def _subjects(
    folder: Path, repros: Path, only: Sequence[str]
) -> tuple[list[Subject], dict[str, str]]:
    """Return bugs that have a program, and by id why other files are unusable.

    Raises UserError `no_bugs` if there is neither, `cannot_read`.
    """
    with file_errors(folder, "cannot_read"):
        files = sorted(folder.glob("*.json"))
    bugs_read, unread = [], {}
    for file in files:
        program = repros / f"{file.stem}.c"
        if (only and not file.stem.startswith(tuple(only))) or not program.is_file():
            continue
        try:
            bug = fixed_bug.read(file)
            if bug.id != file.stem:
                raise UserError("bad_fixed_bug", f"{file}: the file's name is not its id, {bug.id}")
            bugs_read.append(Subject(bug, program))
        except UserError as error:
            unread[file.stem] = error.message
    if not bugs_read and not unread:
        raise UserError("no_bugs", f"no bug ID.json in {folder} whose program ID.c is in {repros}")
    return bugs_read, unread


def _cells(row: PortRow) -> tuple[str, ...]:
    return (
        row.bug[:12],
        escape(row.kernel),
        f"[{_STYLES.get(row.outcome, 'yellow')}]{row.outcome}[/]",
        escape(row.crash or row.title or ""),
        escape(row.reason),
    )


def _write(path: Path, rows: Iterable[PortRow]) -> None:
    """Write the table as CSV."""
    values = (row.model_dump(mode="json") | {"needs": " ".join(row.needs)} for row in rows)
    text = csv_text.text([_COLUMNS, *([value[name] for name in _COLUMNS] for value in values)])
    with file_errors(path, "cannot_write"):
        path.write_text(text, newline="")


def _bundles(
    target: Path,
    rows: Iterable[PortRow],
    subjects: Iterable[Subject],
    options: PortOptions,
    *,
    with_program: bool,
) -> None:
    """Write a bundle of each bug that came back, replacing earlier ones."""
    known = {subject.bug.id: subject for subject in subjects}
    for row in rows:
        if row.outcome is Outcome.COMES_BACK:
            folder = target / row.kernel / row.bug
            write_bundle(folder, row, known[row.bug], options, with_program=with_program)


def write_bundle(
    folder: Path, row: PortRow, subject: Subject, options: PortOptions, *, with_program: bool = True
) -> None:
    """Write the bundle of a bug that came back, replacing an earlier one.

    `with_program=False`: the bundle names its program by file name and SHA-256 (KGYM_PROGRAMS).
    Raises UserError `cannot_write`, and as `bug_on` does.
    """
    bug = bug_on(subject, row.kernel, options)
    # A crash's title depends on the kernel. The observed one is the bundle's title, syzbot's an
    # alternative.
    title, own = row.crash or subject.bug.title, subject.bug
    commits = [f"commit {commit.hash}: {commit.title}" for commit in own.commits]
    others = [] if title == own.title else [own.title]
    program = 'file = "repro.c"'
    if not with_program:
        digest = sha256(subject.program.read_bytes()).hexdigest()
        program = f'file = {toml(subject.program.name)}\nsha256 = "{digest}"'
    lines = [
        f"title = {toml(title)}",
        f"alt_titles = {toml(others)}",
        f"references = {toml([f'syzbot {own.id}', *commits])}",
        f"files = {toml(bug.file.files)}",
        f"\n[kernel]\nuse = {toml(row.kernel)}",
        f"\n[reproducer]\n{program}\ntime = {options.time}\ninstances = {options.survivals}",
        *([f"\n[vm]\nappend = {toml(bug.file.vm.append)}"] if bug.file.vm.append else []),
        '\n[regress]\npatch = "regress.patch"\n',
    ]
    files = {"bug.toml": "\n".join(lines), "regress.patch": bug.build.patches[0].diff or ""}
    if with_program:
        files["repro.c"] = bug.reproducers[0].text
    write_folder(folder, files)
