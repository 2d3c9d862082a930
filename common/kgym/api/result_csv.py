"""Tables as CSV (RFC 4180), for spreadsheets; first of all a group's results."""

import csv
import io
from collections.abc import Iterable

from kgym.api.groups import GroupResult

COLUMNS = tuple(GroupResult.model_fields)
# What a spreadsheet takes a cell for a formula by: a title or a tag is anybody's words.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def header() -> str:
    """Return the first line: the names of the columns."""
    return text([COLUMNS])


def lines(results: Iterable[GroupResult]) -> str:
    """Return a line for each of the results: tags with blanks between, nothing for null."""
    return text(map(_row, results))


def text(rows: Iterable[Iterable[object]]) -> str:
    """Return the rows as lines; no cell is a formula."""
    file = io.StringIO()
    csv.writer(file).writerows(map(_cell, row) for row in rows)
    return file.getvalue()


def _row(result: GroupResult) -> list[object]:
    values = result.model_dump(mode="json") | {"tags": " ".join(result.tags)}
    return [values[column] for column in COLUMNS]


def _cell(value: object) -> object:
    match value:
        case bool():
            return str(value).lower()
        case str() if value.startswith(_FORMULAS):
            return f"'{value}"
    return value
