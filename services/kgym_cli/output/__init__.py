"""How commands answer: JSON for programs on stdout, words for people, and exit statuses."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NoReturn, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kgym.errors import KgymError, UserError

# Columns of what is no terminal: a file, a pipe. Nothing is wrapped or cut to fit it.
WIDE = 1 << 16
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Return text that a terminal only shows: without control characters but newline and tab.

    Logs, reports and findings hold what patches, programs and guests said; an escape
    sequence in it could rewrite the screen, its title or the clipboard.
    """
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


class Terminal(Console):
    """A console that shows foreign text as it is: its control characters are `plain`.

    What foreign text means as markup has to be escaped where it stands beside markup of ours.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "soft_wrap": True, **options})
        if not self.file.isatty() and "width" not in options:
            self.width = WIDE

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments, with the escape sequences of our own styles only."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


# Progress and remarks, on stderr.
people = Terminal(stderr=True)
# What a command was asked for, on stdout, which carries nothing else.
results = Terminal()


class Exit(IntEnum):
    """What the exit status of a command means."""

    OK = 0
    NEGATIVE = 1
    USER = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = 130
    UNREAD = 141
    """Whoever read the output has closed it: what a shell calls the end by SIGPIPE."""


_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(answer: Any) -> Callable[[_Command], _Command]:
    """Add --json, and --json-schema, to a command that prints an answer of this type."""

    def add(command: _Command) -> _Command:
        shown = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
        schema = click.option(
            "--json-schema",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=partial(_print_schema, answer),
            help="Print the schema of what --json prints, and end.",
        )
        return shown(schema(command))

    return add


def _print_schema(answer: Any, context: click.Context, _: click.Parameter, wanted: Any) -> None:
    if wanted and not context.resilient_parsing:
        from kgym_cli.output.answer import schema  # noqa: PLC0415 - for --help without pydantic

        click.echo(json.dumps(schema(answer), indent=1))
        context.exit()


def print_json(value: object) -> None:
    """Print an answer as one line."""
    from kgym_cli.output.answer import text  # noqa: PLC0415 - as above

    click.echo(text(value))


def print_table(*columns: str, rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout; cells are markup.

    Off a terminal each row is one line, as long as it has to be, with `-` for an empty
    cell, so that `awk` and `cut` find the columns.
    """
    if results.is_terminal:
        table = Table(*columns, box=None)
        for row in rows:
            table.add_row(*row)
        for column in table.columns:
            column.overflow = "fold"
        results.print(table, soft_wrap=False)
        return
    lines = [columns, *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)
        )
        results.print("  ".join(cells).rstrip(), markup=False)


def _cell(markup: str) -> str:
    return " ".join(Text.from_markup(markup).plain.split()) or "-"


def echo(text: str, *, end: str = "\n") -> None:
    """Print foreign text on stdout."""
    click.echo(plain(text) + end, nl=False)


def leave(status: Exit) -> NoReturn:
    """End the command with this status."""
    click.get_current_context().exit(status)


def status_of(error: KgymError) -> Exit:
    """Return the exit status that tells whose error it is."""
    return Exit.USER if isinstance(error, UserError) else Exit.INFRASTRUCTURE
