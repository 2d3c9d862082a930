"""How benches print what they have measured."""

import argparse
import json
from collections.abc import Mapping
from typing import Any


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a bench's parser of arguments, with `--json`."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="as one line of JSON")
    return made


def show(
    figures: Mapping[str, Any], options: argparse.Namespace, most: Mapping[str, float] | None = None
) -> None:
    """Print a line for each figure, with its limit, or all in one line of JSON."""
    rounded = {
        name: round(figure, 4) if isinstance(figure, float) else figure
        for name, figure in figures.items()
    }
    if options.json:
        print(json.dumps(rounded))
        return
    limits = most or {}
    for name, figure in rounded.items():
        limit = f"   at most {limits[name]:g}" if name in limits else ""
        print(f"{name:24} {figure}{limit}")
