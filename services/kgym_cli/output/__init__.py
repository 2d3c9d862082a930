"""Output of commands: JSON for programs on stdout, text for people, and exit statuses."""

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

# Width of files and pipes: nothing is wrapped or cut.
WIDE = 1 << 16
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Return text without control characters, except newline and tab."""
    # Logs, reports and findings contain output of patches, programs and guests. Escape sequences
    # in it could rewrite the screen, the window's title or the clipboard.
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


class Terminal(Console):
    """A console that replaces control characters in foreign text.

    Callers must escape foreign text if they print it with `markup=True`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "soft_wrap": True, **options})
        if not self.file.isatty() and "width" not in options:
            self.width = WIDE

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; unlike rich, take text literally by default."""
        # Tables and trees contain markup of their own.
        if objects and isinstance(objects[0], str):
            options.setdefault("markup", False)
        super().print(*objects, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield segments; only rich's own control sequences pass."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


# Progress and remarks on stderr.
people = Terminal(stderr=True)
# Results on stdout, and nothing else.
results = Terminal()


class Exit(IntEnum):
    """Exit statuses of commands."""

    OK = 0
    NEGATIVE = 1
    USER = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = 130
    UNREAD = 141
    """The reader has closed the output: a shell's status for SIGPIPE."""


_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(*answers: Any) -> Callable[[_Command], _Command]:
    """Add --json and --json-schema to a command with these types of answers; see `schema`."""

    def add(command: _Command) -> _Command:
        shown = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
        schema = click.option(
            "--json-schema",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=partial(_print_schema, answers),
            help="Print the JSON schema of --json and exit.",
        )
        return shown(schema(command))

    return add


def _print_schema(
    answers: tuple[Any, ...], context: click.Context, _: click.Parameter, wanted: Any
) -> None:
    if wanted and not context.resilient_parsing:
        from kgym_cli.output.answer import schema  # noqa: PLC0415 - for --help without pydantic

        click.echo(json.dumps(schema(*answers), indent=1))
        context.exit()


def print_json(value: object) -> None:
    """Print an answer as one line."""
    from kgym_cli.output.answer import text  # noqa: PLC0415 - as above

    click.echo(text(value))


def printed_json(value: object, as_json: bool) -> bool:
    """Print an answer as `print_json` does if --json is given; return whether it is."""
    if as_json:
        print_json(value)
    return as_json


def print_table(*columns: str, rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout; cells are markup.

    Without a terminal, each row is one line and empty cells are `-`, for `awk` and `cut`.
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
    # Padded by display width: CJK titles take two columns a character.
    for line in lines:
        cells = (
            text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)
        )
        results.print("  ".join(cells).rstrip())


def _cell(markup: str) -> str:
    return " ".join(Text.from_markup(markup).plain.split()) or "-"


def echo(text: str, *, end: str = "\n") -> None:
    """Print foreign text on stdout."""
    click.echo(plain(text) + end, nl=False)


def leave(status: Exit) -> NoReturn:
    """Exit the command with this status."""
    click.get_current_context().exit(status)


def status_of(error: KgymError) -> Exit:
    """Return the exit status for the error's family."""
    return Exit.USER if isinstance(error, UserError) else Exit.INFRASTRUCTURE
