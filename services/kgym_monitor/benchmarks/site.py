"""A benchmark's pages as static files for any web server, without requests to other hosts.

The pages are the monitor's, under the same policy, without what needs a server: filters and
single attempts.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from kgym.bench.attributes import ATTRIBUTES
from kgym.bench.bug_record import PublishedBug
from kgym.bench.published_benchmark import Benchmark
from kgym.errors import UserError
from kgym_monitor.assets import assets
from kgym_monitor.benchmarks import board
from kgym_monitor.benchmarks.board_query import BoardQuery
from kgym_monitor.page_policy import POLICY
from kgym_monitor.pages.rendering import Rendering

# Marker file of folders that may be replaced.
MARK = "made-by-kgym-bench-site"
# Most bugs with a page.
BUGS = 5000
# Setups with pairwise comparisons: the best ones.
COMPARED = 10
# Largest k with a leaderboard.
RUNS = 10
# Directives that browsers ignore in a <meta> element.
_UNMADE = ("frame-ancestors",)


@dataclass(frozen=True)
class SiteSource:
    """A benchmark, and its bugs with fixes, by id."""

    benchmark: Benchmark
    fixes: Mapping[str, PublishedBug]


class FileLinks:
    """Links between files of one folder; same methods as `benchmark_routes.LiveLinks`."""

    is_static = True

    def __init__(self, bugs: Mapping[str, int], pairs: frozenset[tuple[int, int]]) -> None:
        self._bugs, self._pairs = bugs, pairs

    def board(self, **changed: str | None) -> str | None:
        """Return the leaderboard for a k, or grouped by an attribute."""
        given = {name: value for name, value in changed.items() if value}
        if not given:
            return "index.html"
        if len(given) == 1 and (name := next(iter(given))) in {"k", "by"}:
            return f"{name}-{given[name]}.html"
        return None

    def bugs(self, **changed: str | None) -> str:
        """Return a page of the list of bugs."""
        cursor = changed.get("cursor")
        return f"bugs-{cursor}.html" if cursor else "bugs.html"

    def bug(self, name: str) -> str | None:
        """Return the page of a bug."""
        return f"bug-{self._bugs[name]}.html" if name in self._bugs else None

    def compare(self, first: int | None = None, second: int | None = None) -> str | None:
        """Return the comparison of two setups, or the list of comparisons."""
        if first is None or second is None:
            return "compare.html"
        return f"compare-{first}-{second}.html" if (first, second) in self._pairs else None

    def query(self) -> None:
        """Return None: a query needs a server."""

    def attempt(self, bug: str, setup: int, run: int) -> None:
        """Return None: attempts have no pages."""


def write(source: SiteSource, folder: Path) -> int:
    """Write the site, replacing an earlier one; return the number of pages.

    Raises UserError `folder_in_use` if the folder holds anything else.
    """
    there = folder.exists() and any(folder.iterdir())
    if there and not (folder / MARK).exists():
        raise UserError("folder_in_use", f"{folder} is not a site: name a new folder")
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    count = 0
    for name, text in _pages(source):
        (beside / name).write_text(text)
        count += 1
    _write_assets(beside / "assets")
    (beside / MARK).touch()
    # The new site is complete before the old one is removed.
    shutil.rmtree(folder, ignore_errors=True)
    beside.replace(folder)
    return count


def _pages(source: SiteSource) -> Iterator[tuple[str, str]]:
    """Yield file names and contents of all pages."""
    benchmark, rendering = source.benchmark, Rendering()
    leaderboard = board.board(benchmark, BoardQuery())
    ready = [line.number for line in leaderboard["lines"] if line.figures is not None][:COMPARED]
    pairs = list(combinations(ready, 2))
    numbers = {bug: place for place, bug in enumerate(benchmark.facts) if place < BUGS}
    links = FileLinks(numbers, frozenset(pairs))
    policy = "; ".join(
        directive for directive in POLICY.split("; ") if not directive.startswith(_UNMADE)
    )

    def page(template: str, title: str, shown: Mapping[str, Any]) -> str:
        given: dict[str, Any] = {
            "layout": "site.html",
            "asset": lambda name: f"assets/{_asset(name)}",
            "policy": policy,
            "title": title,
            "name": benchmark.name,
            "links": links,
            "query": BoardQuery(),
            "attributes": ATTRIBUTES,
            "words": board,
            "fault": None,
            "pairs": [],
        }
        return rendering.fragment(template, {**given, **shown})

    title = f"Benchmark {benchmark.name}"
    yield "index.html", page("benchmark.html", title, leaderboard)
    for k in range(1, min(leaderboard["most"], RUNS) + 1):
        shown = board.board(benchmark, BoardQuery(k=str(k)))
        yield f"k-{k}.html", page("benchmark.html", title, shown)
    for by in ATTRIBUTES:
        shown = board.board(benchmark, BoardQuery(by=by))
        yield f"by-{by}.html", page("benchmark.html", title, shown)
    yield from _lists(benchmark, page)
    setups = dict(benchmark.setups)
    named = [(first, setups[first], second, setups[second]) for first, second in pairs]
    shown = board.compared(benchmark, BoardQuery()) | {"pairs": named}
    yield "compare.html", page("benchmark_compare.html", "Compare", shown)
    for first, second in pairs:
        shown = board.compared(benchmark, BoardQuery(first=str(first), second=str(second)))
        yield f"compare-{first}-{second}.html", page("benchmark_compare.html", "Compare", shown)
    for bug, number in numbers.items():
        shown = board.bug(benchmark, BoardQuery(), bug) | {"fix": source.fixes[bug]}
        yield f"bug-{number}.html", page("benchmark_bug.html", f"Bug {bug[:12]}", shown)


def _lists(benchmark: Benchmark, page: Callable[..., str]) -> Iterator[tuple[str, str]]:
    cursor: str | None = None
    while True:
        shown = board.bugs(benchmark, BoardQuery(cursor=cursor))
        name = f"bugs-{cursor}.html" if cursor else "bugs.html"
        yield name, page("benchmark_bugs.html", f"Bugs of {benchmark.name}", shown)
        if (cursor := shown["following"]) is None:
            return


_USED = (
    *("icon.svg", "monitor.css", "board.css", "theme.js", "theme_switch.js", "board_charts.js"),
    *("uplot/dist/uPlot.iife.min.js", "uplot/dist/uPlot.min.css"),
)


def _asset(name: str) -> str:
    """Return an asset's file name in the site; raise KeyError if it is not used there."""
    return {used: used.rpartition("/")[2] for used in _USED}[name]


def _write_assets(folder: Path) -> None:
    folder.mkdir()
    for name in _USED:
        (folder / _asset(name)).write_bytes(assets().files[name].content)
