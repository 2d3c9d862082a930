"""The benchmark's own speed, by parts.

board  `benchmark_board`: the figures of a large table, and the pages of its dashboard
kenv   `benchmark_kenv`: what agents wait for
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.bench.benchmark_board import board
from tests.bench.benchmark_kenv import kenv

PARTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {"board": board, "kenv": kenv}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="all by default")
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for part in options.part or PARTS:
        figures |= PARTS[part]()
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
