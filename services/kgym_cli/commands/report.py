"""`kgym report`."""

import gzip
from pathlib import Path
from typing import Any

import click

from kgym import report as reports
from kgym.errors import UserError
from kgym_cli.output import json_option, print_json, tables

_NOTHING: dict[str, Any] = {
    "title": None,
    "alt_titles": [],
    "type": None,
    "corrupted": False,
    "report": None,
    "frames": [],
}


@click.group()
def report() -> None:
    """Read crash reports out of console logs."""


@report.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def parse(logs: tuple[Path, ...], as_json: bool) -> None:
    """Find the crash in each of LOGS (plain or gzip): its title, type, frames and report.

    With --json, one log gives an object, several give an array in their order;
    a log without a crash has a null title.
    """
    found = [_parse(path) for path in logs]
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for path, one in zip(logs, found, strict=True):
        if len(logs) > 1:
            tables.print(f"[bold]{path}[/]")
        tables.print(one["title"] or "no crash", markup=False)
        if one["report"]:
            tables.print(one["report"], markup=False)


def _parse(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error
    except EOFError as error:
        raise UserError("cannot_read", f"{path}: the gzip file is cut short") from error
    crash = reports.parse(data)
    return _NOTHING if crash is None else crash.as_dict()
