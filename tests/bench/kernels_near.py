"""What an entry costs that is made from a near one (see `kernels.py`)."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from kgym.api.steps import Backport, BuildSpec
from kgym.api.suitecache import EntryMaking
from kgym.bugs import bundle
from kgym.configs import CONFIGS, data_folder
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.kbuild.object_index import Index
from kgym_builder.suitecache.compiled_trees import INDEX, MAKING, linked_in
from kgym_builder.suitecache.nearest import NearRules
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.conftest import attempt

GOALS = {"near_commit_ratio": 0.15, "near_config_ratio": 0.20}
# C files in which the other commit differs, of folders that lie far from each other.
FILES = 20
DRIVER = "CONFIG_DUMMY=y\n"
SCRATCH, NEAR = NearRules(bases="none"), NearRules(rehearsals=0)


async def measured(work: Path, rounds: int) -> dict[str, float]:
    """Make the shipped kernel from scratch, once, then both others from it; `rounds` play no role.

    All are made in `work`, with sources that are there and configs that are known.
    """
    del rounds
    _link_sources(data_folder().absolute() / "cache" / "sources", work / "cache" / "sources")
    spec = bundle.load("watch-queue-filter").build.model_copy(update={"patches": []})
    scratch, entry, source = await _taken(spec, work, SCRATCH)
    compiled = sorted(Index(entry / INDEX).sources(sorted(linked_in(entry))).values())
    other = other_source(source, appended(source, compiled, FILES))
    commit, near, _ = await _taken(spec.model_copy(update={"backports": [other]}), work, NEAR)
    assert _making(near).base == entry.name, _making(near)
    fragments = [*spec.config.fragments, DRIVER]
    config = spec.config.model_copy(update={"fragments": fragments})
    driver, near, _ = await _taken(spec.model_copy(update={"config": config}), work, NEAR)
    assert _making(near).base == entry.name, _making(near)
    return {
        "scratch_s": scratch,
        "near_commit_s": commit,
        "near_config_s": driver,
        "near_commit_ratio": commit / scratch,
        "near_config_ratio": driver / scratch,
    }


def appended(source: Path, compiled: list[str], files: int) -> dict[str, str]:
    """Return new texts of so many of these files that are C: each defines one variable more."""
    fitting = [path for path in compiled if path.endswith(".c")]
    chosen = fitting[:: max(1, len(fitting) // files)][:files]
    return {
        path: f"{(source / path).read_text()}\nint kgym_near_{number} = {number};\n"
        for number, path in enumerate(chosen)
    }


def other_source(source: Path, texts: Mapping[str, str]) -> Backport:
    """Return what makes another source of this one, in which these files have other texts."""
    lines: list[str] = []
    for path, text in texts.items():
        before = (source / path).read_text().splitlines(keepends=True)
        after = text.splitlines(keepends=True)
        lines += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    return Backport(name="other-commit", diff="".join(lines))


async def _taken(spec: BuildSpec, work: Path, near: NearRules) -> tuple[float, Path, Path]:
    """Return the seconds until the entry was made and stored, its folder, and its source."""
    suite = SuiteCache(work / "cache", CONFIGS / "backports", near=near)
    run = attempt(work, spec)
    with run.held:
        published = await suite.published(spec, run)
        identified = await suite.identify(spec, run)
        begin = monotonic()
        entry = await suite.take(spec, identified, run, Output(run.folder / "build.log"))
        return monotonic() - begin, entry.folder, published.source.tree


def _link_sources(there: Path, here: Path) -> None:
    """Let sources that are there be used; further ones are kept in `here`."""
    (here / "trees").mkdir(parents=True)
    (there / "suites").mkdir(parents=True, exist_ok=True)
    (here / "suites").symlink_to(there / "suites")
    for tree in there.glob("trees/[!.]*"):
        (here / "trees" / tree.name).symlink_to(tree)


def _making(entry: Path) -> EntryMaking:
    return EntryMaking.model_validate_json((entry / MAKING).read_text())
