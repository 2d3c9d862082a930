"""All pages of the monitor: what the tests, the screenshots and the bench go through."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter


@dataclass(frozen=True, slots=True)
class MonitorPage:
    """A page of the monitor, with the name of its screenshot."""

    name: str
    path: str
    ready: str
    """CSS selector of what is visible once the page shows what it has to."""
    description: str
    """What there is to see, as a picture's alternative text says it."""
    status: int = 200
    """Of the answer."""

    @property
    def needs(self) -> set[str]:
        """Whose numbers stand in its path."""
        return {name for _, name, _, _ in Formatter().parse(self.path) if name}


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_PAGES = [MonitorPage(name, **about) for name, about in _TABLES.items()]
NAMES = tuple(_TABLES)


def pages(numbers: Mapping[str, int]) -> list[MonitorPage]:
    """Return the pages of these jobs (`demo_jobs`) and of this `run`, and those that need neither.

    `numbers` are theirs, by the names that stand in the pages' paths.
    """
    return [
        replace(page, path=page.path.format_map(numbers))
        for page in _PAGES
        if page.needs <= numbers.keys()
    ]
