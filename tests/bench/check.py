"""What a check costs over the compiler alone: on the shipped bug's file, with a warm entry.

bare     the command that kbuild saved, run in the tree
check    one patch, submitted to result
check10  ten patches in one step, submitted to result; against ten times bare by the cores
mount    an empty command in the tree: what taking it costs
"""

import asyncio
import dataclasses
import logging
import os
import shutil
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

from kgym.api.jobs import JobRequest
from kgym.api.steps import CheckResult, CheckSpec, Patch
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.client import Client
from kgym.configs import CONFIGS, data_folder
from kgym.host import process_logs
from kgym.host.sandbox import remove
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.saved_commands import compile_words
from kgym_builder.suitecache.suitecache import Entry, SuiteCache
from tests.alone import alone
from tests.bench.build import add_config_options, of_config
from tests.conftest import attempt
from tests.figures import parser, show


def _patches(bug: Bug, number: int) -> list[Patch]:
    """Return the fix, made so many different patches by a comment."""
    assert bug.fix is not None
    (first, *others) = bug.fix.edits
    return [
        Patch(
            name=f"fix-{n}",
            edits=[
                first.model_copy(update={"replacement": f"/* {n} */ {first.replacement}"}),
                *others,
            ],
        )
        for n in range(number)
    ]


def spec(bug: Bug, number: int) -> CheckSpec:
    """Return the check of so many patches, never answered from memory."""
    build = bug.build
    return CheckSpec(
        source=build.source,
        config=build.config,
        compiler=build.compiler,
        cache="fresh",
        base=build.patches,
        patches=_patches(bug, number),
    )


def submitted(client: Client, bug: Bug, number: int) -> float:
    """Return the seconds from submission to result."""
    start = monotonic()
    job = client.wait(client.submit(JobRequest(steps=[spec(bug, number)])).id)
    seconds = monotonic() - start
    result = job.steps[0].result
    if not isinstance(result, CheckResult):
        raise SystemExit(f"job {job.id}: {job.state}: {job.steps[0].failure}")
    outcomes = {patch.outcome for patch in result.patches}
    if outcomes != {"compiles"}:
        raise SystemExit(f"job {job.id}: {outcomes}")
    return seconds


async def with_entry(bug: Bug, work: Path, use: Callable[[Entry], Awaitable[float]]) -> float:
    """Take the entry as a step does, and use it."""
    first = spec(bug, 1)
    run = attempt(work, first)
    suite = SuiteCache(data_folder() / "cache", CONFIGS / "backports")
    with run.held:
        identified = await suite.identify(first, run)
        return await use(await suite.take(first, identified, run, Output(work / "build.log")))


async def in_tree(entry: Entry, folder: Path, argv: list[str]) -> float:
    """Return the seconds of a command in a new use of the tree."""
    tree = entry.tree(folder)
    done = await tree.run(argv)
    await asyncio.to_thread(remove, folder)
    return done.seconds


def bare(bug: Bug, work: Path) -> tuple[float, float]:
    """Return the seconds of the compiler alone, and of an empty command."""
    file = bug.file.files[0]

    async def mount(entry: Entry) -> float:
        return await in_tree(entry, work / "mount", ["true"])

    async def compiler(entry: Entry) -> float:
        (object_,) = Index(entry.index).dependents([file])[file].objects
        words = compile_words(object_.command)
        assert words is not None
        return await in_tree(entry, work / "bare", list(words))

    taken = asyncio.run(with_entry(bug, work, mount))
    return asyncio.run(with_entry(bug, work, compiler)) - taken, taken


def measured(client: Client, bug: Bug, work: Path, rounds: int) -> dict[str, float]:
    """Measure all in turns, so that other work on the machine falls on each; return medians."""
    submitted(client, bug, 1)  # what is made once: the entry, the base
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        compiler, mount = bare(bug, work)
        turn = {
            "bare_compile_s": compiler,
            "check_s": submitted(client, bug, 1),
            "check10_s": submitted(client, bug, 10),
            "mount_s": mount,
        }
        for name, seconds in turn.items():
            figures.setdefault(name, []).append(seconds)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    cores = os.cpu_count() or 1
    return {
        **medians,
        "cores": cores,
        "check_over_s": medians["check_s"] - medians["bare_compile_s"],
        "check10_ratio": medians["check10_s"] / (10 * medians["bare_compile_s"] / cores),
    }


def main() -> None:
    """Measure, and print a table."""
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=5)
    add_config_options(words)
    options = words.parse_args()
    bug = bundle.load(options.bug)
    if options.config:
        build = of_config(bug.build, options.config, options.compiler)
        bug = dataclasses.replace(bug, build=build)
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
    try:
        with alone(data_folder()) as client:
            results = measured(client, bug, work, options.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    show(results, options, {"check_over_s": 1.0, "check10_ratio": 2.0})


if __name__ == "__main__":
    main()
