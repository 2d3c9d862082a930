"""Tables beside tests: JSON, or cells between tabs (there `\\t` is a tab, `\\n` a line break)."""

import json
from pathlib import Path
from typing import Any


def rows(test: str, name: str) -> list[list[str]]:
    """Return the rows of the table of this name beside a test."""
    lines = Path(test).with_name(name).read_text().splitlines()
    return [
        [cell.replace("\\t", "\t").replace("\\n", "\n") for cell in line.split("\t")]
        for line in lines
    ]


def json_rows(test: str, name: str) -> list[Any]:
    """Return the rows of the table of this name beside a test, each a line of JSON."""
    return [json.loads(line) for line in Path(test).with_name(name).read_text().splitlines()]
