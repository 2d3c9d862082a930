"""What a patched kernel costs, by SuiteCache and by make, on the same machine in one run.

scratch            make alone, of everything, in an empty tree
bare_incremental   make alone, one file changed, in the tree that this left
suitecache_build   a patch that changes the same file, submitted to finished, with a warm entry
mount              taking the tree: until a program runs in it

Make runs in the sandbox, which takes 0.05 s: some makefiles write absolute paths down,
so elsewhere it would build everything again. Each figure but the first is the median of
several rounds, in turns, so that other work on the machine falls on all alike.
"""

import argparse
import asyncio
import logging
import os
import sqlite3
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildResult, BuildSpec, KernelConfig
from kgym.bugs import bundle
from kgym.client import Client
from kgym.configs import CONFIGS, data_folder
from kgym.host import process_logs
from kgym.host.sandbox import remove
from kgym.source.patching import Change
from kgym_builder.kbuild import kbuild
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.suitecache.compiled_trees import Entry
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_builder.toolchains.toolchain import installed
from tests.alone import alone
from tests.conftest import attempt
from tests.figures import parser, show

BUG = "watch-queue-filter"
MAKE_SECONDS = 4 * 3600.0
MOST = {"incremental_ratio": 1.15, "mount_s": 0.5}


def of_config(build: BuildSpec, config: Path, compiler: str) -> BuildSpec:
    """Return the build with a full config of one's own, such as syzbot's, by this compiler."""
    full = KernelConfig(full=config.read_text())
    return build.model_copy(update={"config": full, "compiler": compiler, "objects": None})


def add_config_options(words: argparse.ArgumentParser) -> None:
    """Add `--config`, `--compiler` and `--bug`, from which `of_config` makes a build."""
    words.add_argument("--config", type=Path, metavar="FILE", help="a full .config instead")
    words.add_argument("--compiler", default="gcc", help="for --config")
    words.add_argument(
        "--bug", default=BUG, metavar="NAME", help="the shipped bug that is patched into it"
    )


@dataclass(slots=True)
class Bare:
    """Make alone, in a tree of its own."""

    spec: BuildSpec
    tree: Tree
    log: Path
    rounds: int = 0

    def scratch(self, config: str) -> float:
        """Return the seconds of a full build."""
        return asyncio.run(self._make(Change(".config", config.encode())))

    def incremental(self) -> float:
        """Return the seconds after a change of one file."""
        self.rounds += 1
        path = self.spec.patches[0].edits[0].file
        return asyncio.run(self._changed(path))

    async def _changed(self, path: str) -> float:
        text = (await self.tree.read([path]))[path]
        return await self._make(Change(path, text + b"\n/* %d */\n" % self.rounds))

    async def _make(self, change: Change) -> float:
        tools = await installed(self.spec.compiler)
        assert tools is not None
        await self.tree.write([change])
        argv = [*kbuild.command(tools), "bzImage"]
        done = await self.tree.run(argv, timeout=MAKE_SECONDS, on_line=Output(self.log))
        return done.seconds


def submitted(client: Client, spec: BuildSpec) -> tuple[float, BuildResult]:
    """Return the seconds from submission to the end, and the result."""
    start = monotonic()
    job = client.wait(client.submit(JobRequest(steps=[spec])).id)
    seconds = monotonic() - start
    result = job.steps[0].result
    if not isinstance(result, BuildResult):
        raise SystemExit(f"job {job.id}: {job.state}: {job.steps[0].failure}")
    return seconds, result


def changed(spec: BuildSpec, number: int) -> BuildSpec:
    """Return the build with another patch of the same file; never answered from memory."""
    patch = spec.patches[0]
    (first, *others) = patch.edits
    edit = first.model_copy(update={"replacement": f"/* {number} */ {first.replacement}"})
    patches = [patch.model_copy(update={"edits": [edit, *others]}), *spec.patches[1:]]
    return spec.model_copy(update={"patches": patches, "cache": "fresh"})


def taken(spec: BuildSpec, work: Path, rounds: int) -> tuple[float, Entry]:
    """Return the seconds until a program runs in the tree, and the entry."""

    async def take(folder: Path) -> tuple[float, Entry]:
        run = attempt(folder, spec)
        suite = SuiteCache(data_folder() / "cache", CONFIGS / "backports")
        with run.held:
            # Before the clock starts: a worker asks the package manager once.
            identified = await suite.identify(spec, run)
            start = monotonic()
            entry = await suite.take(spec, identified, run, Output(folder / "build.log"))
            await entry.tree(folder / "tree").run(["true"])
            return monotonic() - start, entry

    mounts = [asyncio.run(take(work / f"mount-{number}")) for number in range(rounds)]
    return statistics.median(seconds for seconds, _ in mounts), mounts[0][1]


def built(spec: BuildSpec, entry: Entry, work: Path) -> tuple[float, Bare]:
    """Build everything by make; return the seconds, and make in the tree that this left."""
    sources = KernelSources(data_folder() / "cache" / "sources")
    source = asyncio.run(sources.get(spec.source, lambda *_: None))
    bare = Bare(spec, Tree((source.tree,), work / "tree"), work / "make.log")
    return bare.scratch(entry.about.config), bare


def measure(client: Client, spec: BuildSpec, work: Path, rounds: int) -> dict[str, float]:
    """Measure all on one config."""
    first, result = submitted(client, changed(spec, 0))  # now the entry is there, and mounted
    if not result.tree_cached:
        sys.stderr.write(f"bench: made the entry in {first:.0f} s\n")
    mount, entry = taken(spec, work, rounds)
    scratch, bare = built(spec, entry, work)
    turns = [
        (bare.incremental(), *submitted(client, changed(spec, number)))
        for number in range(1, rounds + 1)
    ]
    incremental = statistics.median(turn for turn, _, _ in turns)
    build = statistics.median(turn for _, turn, _ in turns)
    return {
        "scratch_s": scratch,
        "bare_incremental_s": incremental,
        "suitecache_build_s": build,
        "speedup": scratch / build,
        "incremental_ratio": build / incremental,
        "mount_s": mount,
        "image_bytes": entry.about.image_bytes,
        "objects": _objects(entry),
        "shortcut": all(turn.shortcut for _, _, turn in turns),
        **{f"{name}_s": seconds for name, seconds in turns[-1][2].seconds.items()},
    }


def _objects(entry: Entry) -> int:
    with sqlite3.connect(entry.index) as database:
        count: int = database.execute("SELECT count(*) FROM objects").fetchone()[0]
    database.close()
    return count


def main() -> None:
    """Measure, and print a table."""
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=3)
    add_config_options(words)
    options = words.parse_args()
    spec = bundle.load(options.bug).build
    if options.config:
        spec = of_config(spec, options.config, options.compiler)
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
    try:
        with alone(data_folder()) as client:
            figures = measure(client, spec, work, options.rounds)
    finally:
        remove(work)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    show({**figures, **machine}, options, MOST)


if __name__ == "__main__":
    main()
