"""Tables beside tests: cells between tabs, a tab within a cell as `\\t`, a line break as `\\n`."""

from pathlib import Path


def rows(test: str, name: str) -> list[list[str]]:
    """Return the rows of the table of this name beside a test."""
    lines = Path(test).with_name(name).read_text().splitlines()
    return [
        [cell.replace("\\t", "\t").replace("\\n", "\n") for cell in line.split("\t")]
        for line in lines
    ]
