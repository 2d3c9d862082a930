"""The messages of compilers and linkers, out of a build log."""

import pytest

from kgym.source.diagnostics import parse
from tests.tables import rows


@pytest.mark.parametrize(
    ("line", "file", "number", "column", "severity", "message"), rows(__file__, "diagnostics.tsv")
)
def test_a_line_is_read(
    line: str, file: str, number: str, column: str, severity: str, message: str
) -> None:
    diagnostics = parse([line])
    places = [(it.file, str(it.line or ""), str(it.column or "")) for it in diagnostics]
    assert places == ([(file, number, column)] if file else [])
    assert all(diagnostic.severity == severity for diagnostic in diagnostics)
    assert all(diagnostic.message.startswith(message) for diagnostic in diagnostics)


def test_the_same_message_counts_once() -> None:
    assert len(parse(["a.h:1:1: error: x"] * 3 + ["a.h:2:1: error: x"])) == 2
