"""The benchmark's own speed, by parts.

board  `benchmark_board`: the figures of a large table, and the pages of its dashboard
kenv   `benchmark_kenv`: what agents wait for
"""

from collections.abc import Callable, Mapping
from typing import Any

from tests.bench.benchmark_board import board
from tests.bench.benchmark_kenv import kenv
from tests.figures import parser, show

PARTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {"board": board, "kenv": kenv}


def main() -> None:
    """Print the figures."""
    words = parser(__doc__)
    words.add_argument("--part", action="append", choices=tuple(PARTS), help="all by default")
    options = words.parse_args()
    figures: dict[str, Any] = {}
    for part in options.part or PARTS:
        figures |= PARTS[part]()
    show(figures, options)


if __name__ == "__main__":
    main()
