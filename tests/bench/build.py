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
import json
import logging
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildResult, BuildSpec, KernelConfig
from kgym.api.worker_calls import Assignment
from kgym.bugs import bundle
from kgym.client import Client
from kgym.configs import CONFIGS, data_folder
from kgym.host import process_logs
from kgym.host.sandbox import remove
from kgym.source.patching import Change
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.kbuild import kbuild
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.suitecache.compiled_trees import IMAGE, Entry
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_builder.toolchains.toolchain import installed
from tests.alone import alone

BUG = "watch-queue-filter"
BIG = Path(__file__).with_name("big.config")
MAKE_SECONDS = 4 * 3600.0
GOALS = {"speedup": 25.0, "incremental_ratio": 1.15, "mount_s": 0.5}


def shipped(bug: str) -> BuildSpec:
    """Return the build of the shipped bug: one patch, on the shared config."""
    return bundle.load(bug).build


def big(bug: str) -> BuildSpec:
    """Return the same with a config of more than three times the objects."""
    spec = shipped(bug)
    fragments = [*spec.config.fragments, BIG.read_text()]
    config = spec.config.model_copy(update={"fragments": fragments})
    return spec.model_copy(update={"config": config, "objects": None})


SPECS = {"shipped": shipped, "big": big}


def of_config(build: BuildSpec, config: Path, compiler: str) -> BuildSpec:
    """Return the build with a full config of one's own, such as syzbot's, by this compiler."""
    full = KernelConfig(full=config.read_text())
    return build.model_copy(update={"config": full, "compiler": compiler, "objects": None})


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, `--compiler` and `--bug`, from which `of_config` makes a build."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a full .config instead")
    parser.add_argument("--compiler", default="gcc", help="for --config")
    parser.add_argument(
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
        folder.mkdir()
        assignment = Assignment(
            step_id=1, job_id=1, number=0, attempt=1, lease=uuid.uuid4(), spec=spec, inputs={}
        )
        run = StepContext(assignment, folder, LocalStorage(data_folder() / "artifacts"))
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


def unpacked(spec: BuildSpec, entry: Entry, work: Path) -> tuple[float, Bare]:
    """Return the seconds that the entry's own full build took, and make in a copy of its tree."""
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-d", work / "unpacked", entry.folder / IMAGE],
        check=True,
        timeout=1200,
    )
    bare = Bare(spec, Tree((work / "unpacked",), work / "tree"), work / "make.log")
    bare.incremental()  # its commands differ a little from the entry's, so there is more to do
    return entry.about.seconds["make"], bare


def measure(
    client: Client, spec: BuildSpec, work: Path, rounds: int, *, quick: bool
) -> dict[str, float]:
    """Measure all on one config."""
    first, result = submitted(client, changed(spec, 0))  # now the entry is there, and mounted
    if not result.tree_cached:
        sys.stderr.write(f"bench: made the entry in {first:.0f} s\n")
    mount, entry = taken(spec, work, rounds)
    scratch, bare = (unpacked if quick else built)(spec, entry, work)
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configs", nargs="+", choices=SPECS, default=["shipped"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="no full build by make: that of the entry counts, and a copy of its tree is used",
    )
    parser.add_argument("--json", action="store_true")
    add_config_options(parser)
    options = parser.parse_args()
    specs = {name: SPECS[name](options.bug) for name in options.configs}
    if options.config:
        spec = of_config(shipped(options.bug), options.config, options.compiler)
        specs = {options.config.stem: spec}
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
    figures_by_part: dict[str, dict[str, float]] = {}
    try:
        with alone(data_folder()) as client:
            for name, spec in specs.items():
                (work / name).mkdir()
                figures_by_part[name] = measure(
                    client, spec, work / name, options.rounds, quick=options.quick
                )
                remove(work / name)
    finally:
        remove(work)
    if options.json:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        first = figures_by_part.pop(next(iter(figures_by_part)))
        sys.stdout.write(json.dumps({**first, **machine, **figures_by_part}) + "\n")
        return
    print_table(figures_by_part)


def print_table(parts: dict[str, dict[str, float]]) -> None:
    """Print a row for each figure, with its goal."""
    names = next(iter(parts.values()))
    sys.stdout.write(f"{'':20}" + "".join(f"{config:>16}" for config in parts) + "  goal\n")
    for name in names:
        figures = "".join(f"{figures_[name]:16,.2f}" for figures_ in parts.values())
        sign = ">=" if name == "speedup" else "<="
        goal = f"  {sign} {GOALS[name]:g}" if name in GOALS else ""
        sys.stdout.write(f"{name:20}{figures}{goal}\n")


if __name__ == "__main__":
    main()
