"""The tables of an HTML page. Pages may be hostile: they are read in one pass, without a tree.

Rows and texts beyond the limits are left out, and so are unclosed elements at the end.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

ROWS = 100_000
CELLS = 100
LINKS = 100
# Maximum characters of a cell, and of an address.
TEXT = 10_000


@dataclass(slots=True)
class Cell:
    """A cell with its text, and its links as pairs of address and text."""

    text: str = ""
    links: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class HtmlTable:
    """A table with the texts of its first header row, and its other rows."""

    headers: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)

    def named(self, *names: str) -> Iterator[dict[str, Cell]]:
        """Yield the rows as cells by header; nothing if one of these headers is missing."""
        if not set(names) <= set(self.headers):
            return
        for row in self.rows:
            if len(row) >= len(self.headers):
                yield dict(zip(self.headers, row, strict=False))


def tables(page: str) -> list[HtmlTable]:
    """Return the tables of a page; a nested table ends the cell that contains it."""
    reader = _Reader()
    # The page is fed in one piece, and the parser is never closed: HTMLParser would search for the
    # end of every unclosed element again, in quadratic time.
    # An invalid declaration ends the page: HTMLParser rejects it with an AssertionError.
    with contextlib.suppress(AssertionError):
        reader.feed(page)
    return reader.tables


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[HtmlTable] = []
        self._rows = 0
        self._cells: list[Cell] | None = None
        self._cell: Cell | None = None
        self._is_header = True
        self._address: str | None = None
        self._text: list[str] = []
        self._link_from = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a table, row, cell or link."""
        if tag == "table" and len(self.tables) < ROWS:
            self._end_row()
            self.tables.append(HtmlTable())
        elif tag == "tr" and self.tables:
            self._end_row()
            self._cells, self._is_header = [], True
        elif tag in {"td", "th"} and self._cells is not None:
            self._end_cell()
            self._cell = Cell()
            self._is_header = self._is_header and tag == "th"
        elif tag == "a" and self._cell is not None:
            self._address = (dict(attrs).get("href") or "")[:TEXT]
            self._link_from = len(self._text)

    def handle_endtag(self, tag: str) -> None:
        """End a row, cell or link."""
        if tag in {"td", "th"}:
            self._end_cell()
        elif tag in {"tr", "table"}:
            self._end_row()
        elif tag == "a" and self._cell is not None and self._address is not None:
            if len(self._cell.links) < LINKS:
                text = _plain(self._text[self._link_from :])
                self._cell.links.append((self._address, text))
            self._address = None

    def handle_data(self, data: str) -> None:
        """Add text to the cell."""
        # Bounded: a hostile cell could be as large as the page, in as many parts.
        if self._cell is not None and len(self._text) < TEXT:
            self._text.append(data[:TEXT])

    def _end_cell(self) -> None:
        if self._cell is None or self._cells is None:
            return
        self._cell.text = _plain(self._text)
        if len(self._cells) < CELLS:
            self._cells.append(self._cell)
        self._cell, self._address = None, None
        self._text.clear()

    def _end_row(self) -> None:
        self._end_cell()
        cells, self._cells = self._cells, None
        if not cells or not self.tables:
            return
        self._rows += 1
        table = self.tables[-1]
        if self._is_header and not table.headers:
            table.headers = [cell.text for cell in cells]
        elif self._rows <= ROWS:
            table.rows.append(cells)


def _plain(parts: list[str]) -> str:
    return " ".join("".join(parts).split())[:TEXT]
