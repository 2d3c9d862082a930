"""Tables beside tests: cells between tabs, a line break within a cell as `\\n`."""

from pathlib import Path


def rows(test: str, name: str) -> list[list[str]]:
    """Return the rows of the table of this name beside a test."""
    lines = Path(test).with_name(name).read_text().splitlines()
    return [[cell.replace("\\n", "\n") for cell in line.split("\t")] for line in lines]
