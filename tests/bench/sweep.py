"""What a sweep spends on patches that do not compile: 150 of 200, on one bug, with a warm entry.

broken_each_s   from the sweep's begin until the last of their rows, by their number; the others
                are checked, and the bug is shown, in the same time
check_each_s    what their rows say that their checks took: as many at a time as there are cores
bare_compile_s  the compiler alone on the file that they change, before and after (the mean)
each_ratio      broken_each_s by bare_compile_s, shared by the cores
"""

import asyncio
import logging
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from time import monotonic

from kgym.api.outcomes import Outcome
from kgym.api.steps import Patch
from kgym.bugs import bundle
from kgym.bugs.sweep import Candidate, Moved, Subject, SweepOptions, sweep
from kgym.bugs.sweep_rows import Row
from kgym.client import AsyncClient, Client
from kgym.configs import data_folder
from kgym.host import process_logs
from tests.alone import platform_alone
from tests.bench.check import bare, patches
from tests.figures import parser, show

BUG = bundle.load("watch-queue-filter")
PATCHES = 200
BROKEN = 150


def candidates(run: str) -> list[Candidate]:
    """Return patches that no other run has: three of four have a name that nothing declares."""
    return [
        Candidate(patch.name, _own(patch, run, f"NO_{number}" if number % 4 else ""))
        for number, patch in enumerate(patches(BUG, PATCHES))
    ]


def _own(patch: Patch, run: str, unknown: str) -> Patch:
    first, *others = patch.edits
    text = f"/* {run} */ {first.replacement}"
    if unknown:
        text = text.replace("WATCH_TYPE__NR", unknown)
    changed = first.model_copy(update={"replacement": text})
    return patch.model_copy(update={"edits": [changed, *others]})


async def measured(url: str) -> dict[str, float]:
    """Sweep until all that do not compile have their rows; abort the rest."""
    name, rows, all_known = f"bench-{uuid.uuid4().hex}", list[Row](), asyncio.Event()

    def tell(news: Moved | Row) -> None:
        if isinstance(news, Row) and news.outcome is Outcome.DOES_NOT_COMPILE:
            rows.append(news)
            if len(rows) == BROKEN:
                all_known.set()

    subject = Subject(BUG, candidates(name))
    async with AsyncClient(url) as client:
        begun = monotonic()
        sweeping = asyncio.create_task(sweep(client, [subject], SweepOptions(name), tell))
        waiting = asyncio.create_task(all_known.wait())
        await asyncio.wait([sweeping, waiting], return_when=asyncio.FIRST_COMPLETED)
        seconds = monotonic() - begun
        for task in (sweeping, waiting):
            task.cancel()
        await asyncio.gather(sweeping, waiting, return_exceptions=True)
        await client.abort_group(name)
    if len(rows) < BROKEN:
        raise SystemExit(f"bench: of {BROKEN} patches that do not compile, {len(rows)} have a row")
    checks = [row.seconds for row in rows]
    return {"broken_each_s": seconds / BROKEN, "check_each_s": sum(checks) / BROKEN}


def main() -> None:
    """Measure, and print a table."""
    options = parser(__doc__).parse_args()
    process_logs.configure(level=logging.WARNING)
    with platform_alone(data_folder()) as platform:
        with Client(platform.url) as client:  # the entry and the base are made once
            client.wait(client.submit(BUG.check(patches(BUG, 1))).id)
        work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
        try:
            before, _ = bare(BUG, work)
            results = asyncio.run(measured(platform.url))
            after, _ = bare(BUG, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    results["bare_compile_s"] = compiler = (before + after) / 2
    results["each_ratio"] = results["broken_each_s"] / (compiler / (os.cpu_count() or 1))
    show(results, options, {"broken_each_s": 0.5})


if __name__ == "__main__":
    main()
