"""The shipped bugs for lists and shell completion, read from their tables alone.

`kgym.bugs.bundle` loads and checks whole bundles, but its imports take longer than reading this
list. A test checks that both agree.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kgym.configs import CONFIGS
from kgym.errors import UserError


@dataclass(frozen=True, slots=True)
class ShippedBug:
    """The table of a shipped bug; fields as in `bug.toml` (docs/own-bug.md)."""

    name: str
    title: str
    alt_titles: list[str]
    kind: str
    """Its class, such as `use-after-free`."""
    summary: str
    references: list[str]
    files: list[str]
    has_fix: bool
    """Whether a fix is known: written down, or the reversed regression."""


def names(configs: Path = CONFIGS) -> list[str]:
    """Return the names of the shipped bugs, sorted."""
    return sorted(path.parent.name for path in (configs / "bugs").glob("*/bug.toml"))


def shipped(configs: Path = CONFIGS) -> list[ShippedBug]:
    """Return the shipped bugs, sorted by name.

    Raises UserError `bad_bundle` if a table cannot be read, or has no title.
    """
    return [_read(name, configs / "bugs" / name / "bug.toml") for name in names(configs)]


@cache
def by_name() -> Mapping[str, ShippedBug]:
    """Return the shipped bugs by name, read once; none if a table cannot be read."""
    try:
        return {bug.name: bug for bug in shipped()}
    except UserError:
        return {}


def _read(name: str, path: Path) -> ShippedBug:
    try:
        table = tomllib.loads(path.read_text())
        return ShippedBug(
            name=name,
            title=table["title"],
            alt_titles=table.get("alt_titles", []),
            kind=table.get("class", ""),
            summary=table.get("summary", "").strip(),
            references=table.get("references", []),
            files=table.get("files", []),
            has_fix=bool({"fix", "regress"} & table.keys()),
        )
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise UserError("bad_bundle", f"{path}: {error!r}") from error
