"""`kgym source`."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kgym.api.source import (
    FileLook,
    FileText,
    FolderList,
    FolderLook,
    SearchLook,
    SearchResult,
    SourceLine,
    SymbolLook,
    SymbolResult,
)
from kgym.api.states import State
from kgym.bugs import bundle as bugs
from kgym.bugs.bug import Bug
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_cli.inputs.parameters import PATH, complete_bug, parameters
from kgym_cli.inputs.patch_files import patch_file
from kgym_cli.jobs.job_progress import follow
from kgym_cli.output import echo, json_option, people, printed_json
from kgym_cli.platforms.scheduler_choice import scheduler

if TYPE_CHECKING:
    from kgym.client import Client


class _Lines(click.ParamType[tuple[int, int | None]]):
    name = "first-last"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([1-9][0-9]{0,8})(-([1-9][0-9]{0,8})?)?", value)
        if match is None:
            self.fail(f"{value!r} is not a range of lines such as 10-20, 10- or 10", param, ctx)
        first = int(match[1])
        if match[2] is None:
            return first, first
        return first, int(match[3]) if match[3] else None


# A tree.
_tree = parameters(
    click.argument("tree", metavar="BUG_OR_JOB", shell_complete=complete_bug),
    click.option(
        "--step",
        type=click.IntRange(0, 99),
        help="Step of the job whose tree is read.  [default: the first]",
    ),
    click.option(
        "--patch",
        "patches",
        multiple=True,
        type=PATH,
        help="Patch to apply first, as for `kgym check`; may be repeated.",
    ),
)


@click.group()
def source() -> None:
    """Read, list and search a kernel's source as builds see it.

    BUG_OR_JOB is a shipped bug or the folder of a bundle, for its kernel's source with the bug, or
    the id of a job that builds or checks. The first look at a source takes a minute or two for
    its index.
    """


@source.command()
@_tree
@click.argument("path")
@click.option(
    "--lines",
    type=_Lines(),
    default=(1, None),
    show_default=False,
    help="Only these lines: 10-20, 10- or 10.",
)
@json_option(FileText)
def read(tree: str, path: str, lines: tuple[int, int | None], as_json: bool, **how: Any) -> None:
    """Print a file."""
    first, last = lines
    with _opened(tree, how) as (client, job, common):
        file = client.read_source(job, FileLook(path=path, first=first, last=last, **common))
    if printed_json(file, as_json):
        return
    echo(file.text, end="" if file.text.endswith("\n") or not file.text else "\n")
    if file.cut:
        people.print(f"cut: continue with --lines {file.last + 1}-")


@source.command()
@_tree
@click.argument("path", default="")
@json_option(FolderList)
def ls(tree: str, path: str, as_json: bool, **how: Any) -> None:
    """List a folder.  [default PATH: the root]"""
    with _opened(tree, how) as (client, job, common):
        listing = client.list_source(job, FolderLook(path=path, **common))
    if printed_json(listing, as_json):
        return
    marks = {"folder": "/", "link": "@"}
    for entry in listing.entries:
        echo(f"{entry.name}{marks.get(entry.kind, '')}")
    _print_cut(listing.cut)


@source.command()
@_tree
@click.argument("pattern")
@click.option("--glob", help="Only matching paths: *.h, fs/**/*.c, {mm,fs}/**.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100)
@json_option(SearchResult)
def search(
    tree: str,
    pattern: str,
    glob: str | None,
    ignore_case: bool,
    limit: int,
    as_json: bool,
    **how: Any,
) -> None:
    """Print the lines that match PATTERN, a regular expression (RE2)."""
    with _opened(tree, how) as (client, job, common):
        wanted = SearchLook(
            pattern=pattern, glob=glob, ignore_case=ignore_case, limit=limit, **common
        )
        search = client.search_source(job, wanted)
    if printed_json(search, as_json):
        return
    _print(search.matches)
    _print_cut(search.cut)


@source.command()
@_tree
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1000), default=100)
@json_option(SymbolResult)
def symbol(tree: str, name: str, limit: int, as_json: bool, **how: Any) -> None:
    """Print definitions, callers and other uses of NAME."""
    with _opened(tree, how) as (client, job, common):
        symbol = client.find_symbol(job, SymbolLook(name=name, limit=limit, **common))
    if printed_json(symbol, as_json):
        return
    for definition in symbol.definitions:
        lines = f"{definition.line}-{definition.last}"
        echo(f"{definition.path}:{lines}: {definition.kind}: {definition.text}")
    for use in symbol.uses:
        where = f" in {use.function}" if use.function else ""
        echo(f"{use.path}:{use.line}:{where}: {use.text.strip()}")
    _print_cut(symbol.cut)


def _print(lines: Sequence[SourceLine]) -> None:
    for line in lines:
        echo(f"{line.path}:{line.line}: {line.text}")


def _print_cut(cut: object) -> None:
    if cut:
        why = "time limit" if cut == "time" else "more lines than --limit"
        people.print(f"cut: there is more ({why})")


@contextmanager
def _opened(tree: str, how: dict[str, Any]) -> Iterator[tuple["Client", int, dict[str, Any]]]:
    """Yield a client, the job whose tree is read, and common arguments of requests."""
    patches = [patch_file(path) for path in how["patches"]]
    common = {"patches": patches, "step": how["step"]}
    # Digits are always a job: a bundle's folder of such a name can be given as ./12.
    if tree.isascii() and tree.isdecimal():
        with scheduler(work=False) as client:
            yield client, int(tree), common
        return
    if how["step"] is not None:
        raise UserError("bad_option", "--step needs the id of a job, not a bug")
    bug = bugs.load(tree)
    with scheduler(work=True) as client:
        yield client, _readable(client, bug), common


def _readable(client: "Client", bug: Bug) -> int:
    """Return a job with the bug's source; reuse an earlier one if its source still exists."""
    request = bug.source()
    digest = hashlib.sha256(request.model_dump_json().encode()).hexdigest()[:32]
    job = client.submit(request, key=f"source-{digest}")
    if job.state is State.SUCCEEDED:
        try:
            client.list_source(job.id, FolderLook())
        except KgymError as error:
            # Retention may have removed the earlier job's source. A submission without the key
            # makes a new one.
            if error.reason != "source_not_made":
                raise
            job = client.submit(request)
    elif job.state.final:
        job = client.submit(request)
    if not job.state.final:
        job = follow(client, job)
    if job.state is not State.SUCCEEDED:
        failure = job.steps[0].failure
        if failure is None:
            raise InfrastructureError("interrupted", f"job {job.id} is {job.state}")
        family = UserError if failure.cause == "user" else InfrastructureError
        raise family(failure.reason, failure.message, **failure.details)
    return job.id
