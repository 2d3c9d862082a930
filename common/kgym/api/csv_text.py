"""Tables as CSV (RFC 4180) for spreadsheets, such as a group's patches."""

import csv
import io
from collections.abc import Iterable

from kgym.api.patch_rows import Check, PatchRow

_FIELDS = tuple(name for name in PatchRow.model_fields if name != "evidence")
COLUMNS = (*_FIELDS, *Check)
# Spreadsheets evaluate a cell with such a beginning as a formula, and titles and tags are untrusted
# (CSV injection).
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def header() -> str:
    """Return the line of column names."""
    return text([COLUMNS])


def lines(patches: Iterable[PatchRow]) -> str:
    """Return a line for each patch: tags separated by blanks, nothing for null."""
    return text(map(_row, patches))


def text(rows: Iterable[Iterable[object]]) -> str:
    """Return the rows as CSV, with formulas quoted."""
    file = io.StringIO()
    csv.writer(file).writerows(map(_cell, row) for row in rows)
    return file.getvalue()


def _row(patch: PatchRow) -> list[object]:
    values = patch.model_dump(mode="json") | {"tags": " ".join(patch.tags)}
    return [values[name] for name in _FIELDS] + [patch.evidence.get(check) for check in Check]


def _cell(value: object) -> object:
    match value:
        case bool():
            return str(value).lower()
        case str() if value.startswith(_FORMULAS):
            return f"'{value}"
    return value
