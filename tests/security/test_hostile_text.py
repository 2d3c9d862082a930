"""Text that a patch chose is read in linear time: it must not hold up the worker itself.

What takes quadratic time would take hours here; the regular expressions could not even be
interrupted.
"""

from collections.abc import Callable

import pytest

from kgym.source import diagnostics
from kgym_builder.kbuild.object_index import Recipes
from kgym_builder.kbuild.saved_commands import Recipe
from kgym_builder.patches import changed_functions

MANY = 200_000


def read_log(line: str) -> None:
    diagnostics.parse([line])


def read_source(text: str) -> None:
    changed_functions.changed(text, text + "int f;\n")


def read_command(command: str) -> None:
    Recipes().add(Recipe("include/generated/x.h", command, "", ()))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_log, "Makefile"),
        (read_log, "ld.o"),
        (read_log, "a.c:1: "),
        (read_source, "\\'"),
        (read_source, '\\"'),
        (read_source, "{"),
        (read_source, "f("),
        (read_source, "#if\n"),
        (read_source, "/* "),
        (read_command, "abcd"),
        (read_command, ".c "),
    ],
)
@pytest.mark.parametrize("start", ["", "'", "#"])
@pytest.mark.thorough
def test_it_is_read_in_linear_time(read: Callable[[str], None], text: str, start: str) -> None:
    read(start + text * MANY)
