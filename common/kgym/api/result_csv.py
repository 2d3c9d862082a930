"""Tables as CSV (RFC 4180) for spreadsheets, such as a group's results."""

import csv
import io
from collections.abc import Iterable

from kgym.api.groups import GroupResult

COLUMNS = tuple(GroupResult.model_fields)
# A spreadsheet takes a cell with such a beginning for a formula, and titles and tags are
# untrusted (CSV injection).
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def header() -> str:
    """Return the line of column names."""
    return text([COLUMNS])


def lines(results: Iterable[GroupResult]) -> str:
    """Return a line for each result: tags separated by blanks, nothing for null."""
    return text(map(_row, results))


def text(rows: Iterable[Iterable[object]]) -> str:
    """Return the rows as CSV, with formulas quoted."""
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
