"""`kgym report`."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import Field
from rich.markup import escape

from kgym.crash import report as reports
from kgym.crash.report.corpus import check, read_case
from kgym.crash.symbolize import symbolize
from kgym.errors import UserError
from kgym.host.proc import ProgramFailed
from kgym_cli.inputs import compressed_files
from kgym_cli.inputs.parameters import PATH
from kgym_cli.jobs.crash_answer import CrashAnswer
from kgym_cli.output import json_option, printed_json, results
from kgym_cli.output.answer import Answer

# Files that are parsed in the time that a process needs to start.
_WORTH_A_PROCESS = 32

_Result = TypeVar("_Result")


class FieldAnswer(Answer):
    """Counts of cases in which one field was right or wrong."""

    right: int
    wrong: int
    failing: list[str] = Field(description="paths of the cases, in the folder")


class CorpusAnswer(Answer):
    """Result of a corpus."""

    cases: int
    fields: dict[str, FieldAnswer]


@click.group()
def report() -> None:
    """Read crash reports from console logs."""


@report.command()
@click.argument("logs", nargs=-1, required=True, type=PATH)
@click.option(
    "--vmlinux", type=PATH, help="Kernel with debug information, to add source lines to frames."
)
@json_option(CrashAnswer | list[CrashAnswer])
def parse(logs: tuple[Path, ...], vmlinux: Path | None, as_json: bool) -> None:
    """Find the crash in each of LOGS: title, type, frames and report.

    Logs may be compressed with gzip, xz, zstd or bzip2; - is standard input.

    With --json, one log gives an object, several an array in the same order; a log
    without a crash has a null title.
    """
    with _each(logs) as each:
        parsed = list(each(_parse, logs))
    if vmlinux is not None:
        named = iter(_symbolized([answer for answer in parsed if answer], vmlinux))
        parsed = [answer and next(named) for answer in parsed]
    values = list(map(CrashAnswer.of, parsed))
    if printed_json(values[0] if len(values) == 1 else values, as_json):
        return
    for path, answer in zip(logs, values, strict=True):
        if len(logs) > 1:
            results.print(f"[bold]{escape(str(path))}[/]", markup=True)
        results.print(answer.title or "no crash")
        if answer.report:
            results.print(answer.report)


@report.command()
@click.argument("folder", type=PATH)
@json_option(CorpusAnswer)
def corpus(folder: Path, as_json: bool) -> None:
    """Parse the cases below FOLDER and count correct answers.

    The cases are in the format of syzkaller's pkg/report/testdata, which holds the expected
    answers: report and guilty cases, at any depth.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise UserError("cannot_read", f"{folder} holds no cases")
    with _each(paths) as each:
        checked = list(each(_check, paths))
    fields: dict[str, dict[str, Any]] = {}
    for path, right in zip(paths, checked, strict=True):
        for name, is_right in right.items():
            count = fields.setdefault(name, {"right": 0, "wrong": 0, "failing": []})
            count["right" if is_right else "wrong"] += 1
            if not is_right:
                count["failing"].append(str(path.relative_to(folder)))
    if printed_json(CorpusAnswer.model_validate({"cases": len(paths), "fields": fields}), as_json):
        return
    for name, count in fields.items():
        failing = ", ".join(count["failing"])
        total = count["right"] + count["wrong"]
        results.print(f"{name:12} {count['right']} of {total}  {failing}")


@contextmanager
def _each(
    paths: Sequence[Path],
) -> Iterator[Callable[[Callable[[Path], _Result], Iterable[Path]], Iterable[_Result]]]:
    """Yield a `map` that uses all CPUs if there are enough files."""
    cpus = min(len(os.sched_getaffinity(0)), len(paths) // _WORTH_A_PROCESS)
    if cpus < 2:
        yield map
        return
    # Forked: a spawned process would import the parser for longer than it parses.
    with ProcessPoolExecutor(cpus, mp_context=get_context("fork")) as pool:
        yield lambda work, items: pool.map(work, items, chunksize=_WORTH_A_PROCESS // 4)


def _symbolized(
    crash_reports: list[reports.CrashReport], vmlinux: Path
) -> list[reports.CrashReport]:
    if not vmlinux.is_file():
        raise UserError("cannot_read", f"{vmlinux}: no such file")
    try:
        return asyncio.run(symbolize(crash_reports, vmlinux.resolve()))
    except ProgramFailed as error:
        raise UserError("cannot_read", f"{vmlinux}: {error.message}") from error


def _parse(path: Path) -> reports.CrashReport | None:
    return reports.parse(compressed_files.read(path, whole=False))


def _check(path: Path) -> dict[str, bool]:
    return check(read_case(compressed_files.read(path, whole=False)))
