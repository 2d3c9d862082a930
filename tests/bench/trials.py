"""What a trial costs: 60 patches of two calibrated shipped bugs, with a warm entry.

trials_per_hour       all patches in one sweep, those that do not compile among them
trial_s               one right patch alone, from its check to its verdict (median of three)
crash_s               the same of a patch whose kernel still crashes
uncompilable_s        the same of one that does not compile, which its check finds out
cpu_s_per_trial       of all cores while the sweep ran; nothing else may run
disk_mb_per_trial     by which the data folder grew
parts_s               seconds of each stage in the steps' records, per trial: those of a patched
                      kernel's VMs are summed up, and overlap; `controls` includes the trace
unexpected            patches of which the sweep says something else than is true of them
bare_compile_s        the compiler alone on the patched file
bare_boot_s           QEMU alone until its first program

`--variants` measures the sweep and one patch alone with variants, too.
"""

import asyncio
import logging
import os
import shutil
import statistics
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from kgym.api.jobs import JobView
from kgym.api.steps import BuildArtifact, BuildResult, CheckResult, ReproduceResult, ReproduceSpec
from kgym.bugs.bug import BUILD_BEFORE, Bug, TrialOptions
from kgym.bugs.conclusion import seconds
from kgym.bugs.sweep import Candidate, Moved, Subject, SweepOptions, sweep
from kgym.bugs.sweep_rows import Row
from kgym.client import AsyncClient, Client
from kgym.configs import data_folder
from kgym.host import process_logs
from tests.alone import platform_alone
from tests.bench.check import bare
from tests.bench.overhead import bare_qemu
from tests.bench.trial_patches import Kind, Tried, trial_patches
from tests.figures import parser, show

VARIANTS = TrialOptions(variants=True)
PLAIN = TrialOptions()
ROUNDS = 3
# Stages of a build's record, by the part of a trial that they are counted as.
BUILD_PARTS = {"make": "build", "link": "link", "image": "images", "artifacts": "artifacts"}
MOST = {"trial_s": 18, "crash_s": 10, "disk_mb_per_trial": 5, "trial_variants_s": 60}


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep, and what it took of the machine."""

    seconds: float
    cpu_s: float
    disk_mb: float
    rows: list[Row]


class Bench:
    """The measurements on a platform with nothing else to do."""

    def __init__(self, url: str, client: Client, name: str) -> None:
        self.url, self.client, self.name = url, client, name
        self.shown: dict[str, JobView] = {}

    def show_bugs(self, tried: Sequence[Tried], trial: TrialOptions) -> None:
        """Make what is made once: the entries, the calibrated baselines, their shared parts."""
        for bug in {each.bug.name: each.bug for each in tried}.values():
            assert bug.fix is not None
            self.shown[bug.name] = self._done(bug.shown(trial))
            self._done(bug.check([bug.fix]))
            self._done(bug.trial(bug.fix, self.shown[bug.name].id, trial))

    def sweep(self, tried: Sequence[Tried], trial: TrialOptions) -> Swept:
        """Try all patches in one sweep; showing the bugs is not counted."""
        rows: list[Row] = []
        bugs = {each.bug.name: each.bug for each in tried}
        name = f"{self.name}-{'variants' if trial.variants else 'plain'}"

        def subject(bug: Bug, patches: Sequence[Tried]) -> Subject:
            candidates = [Candidate(each.patch.name, each.patch) for each in patches]
            return Subject(bug, candidates, trial)

        def tell(news: Moved | Row) -> None:
            if isinstance(news, Row):
                rows.append(news)

        async def swept(subjects: list[Subject]) -> float:
            async with AsyncClient(self.url) as client:
                begun = monotonic()
                await sweep(client, subjects, SweepOptions(name), tell)
                return monotonic() - begun

        # The sweep's own job that shows each bug runs before the clock starts.
        first = {each.bug.name: each for each in trial_patches(f"{name}-first")}
        asyncio.run(swept([subject(bug, [first[bug.name]]) for bug in bugs.values()]))
        rows.clear()
        own = {name: [each for each in tried if each.bug.name == name] for name in bugs}
        subjects = [subject(bug, own[bug.name]) for bug in bugs.values()]
        busy, disk = busy_seconds(), disk_mb(data_folder())
        taken = asyncio.run(swept(subjects))
        cpu, grown = busy_seconds() - busy, disk_mb(data_folder()) - disk
        return Swept(taken, cpu, grown, rows)

    def alone(self, tried: Tried, trial: TrialOptions) -> float:
        """Return the seconds from the submission of a patch's check to the end of its trial."""
        begun = monotonic()
        checked = self._done(tried.bug.check([tried.patch])).steps[0].result
        assert isinstance(checked, CheckResult)
        if tried.kind is not Kind.BROKEN:
            self._done(tried.bug.trial(tried.patch, self.shown[tried.bug.name].id, trial))
        return monotonic() - begun

    def _done(self, request: Any) -> JobView:
        job = self.client.wait(self.client.submit(request).id)
        if not job.state.final or job.steps[0].result is None:
            raise SystemExit(f"bench: job {job.id} is {job.state}: {job.steps[0].failure}")
        return job


def parts(jobs: Sequence[JobView], rows: Sequence[Row]) -> dict[str, float]:
    """Return the seconds of each part of these trials, summed up, from the steps' records."""
    tried_s = {job.id: sum(map(seconds, job.steps)) for job in jobs}
    total: defaultdict[str, float] = defaultdict(float)
    total["check"] = sum(row.seconds - tried_s.get(row.job or 0, 0.0) for row in rows)
    for result in (step.result for job in jobs for step in job.steps):
        if isinstance(result, BuildResult):
            for stage, part in BUILD_PARTS.items():
                total[part] += result.seconds.get(stage, 0.0)
            late = result.seconds.get("link", 0.0) + result.seconds.get("image", 0.0)
            total["build"] -= late
        if isinstance(result, ReproduceResult):
            total["images"] += result.seconds.get("prepare", 0.0)
            total["boot"] += sum(each.boot_seconds or 0 for each in result.instances)
            total["runs"] += sum(each.run_seconds or 0 for each in result.instances)
            total["controls"] += result.evidence.seconds if result.evidence else 0.0
    return dict(total)


def busy_seconds() -> float:
    """Return the processor time that all cores have spent on any work since the start."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    times = dict(zip(names, map(int, fields), strict=False))
    return sum(times[name] for name in names if name not in {"idle", "iowait"}) / os.sysconf(
        "SC_CLK_TCK"
    )


def disk_mb(folder: Path) -> float:
    """Return the megabytes that a folder's files take on the disk, each hard link once."""
    statuses = (path.lstat() for path in _files(folder))
    return sum({each.st_ino: each.st_blocks * 512 for each in statuses}.values()) / 1e6


def _files(folder: Path) -> Iterator[Path]:
    for top, _, names in os.walk(folder):
        yield from (Path(top) / name for name in names)


def measured(bench: Bench, few: int) -> dict[str, Any]:
    """Measure the sweep, then patches alone."""
    tried = trial_patches(bench.name)[:few]
    bench.show_bugs(tried, PLAIN)
    swept = bench.sweep(tried, PLAIN)
    number, rows = len(tried), swept.rows
    by_name = {(each.bug.name, each.patch.name): each for each in tried}
    unlike = [row for row in rows if not by_name[row.bug, row.patch].agrees(row)]
    jobs = [bench.client.job(row.job) for row in rows if row.job]
    others = trial_patches(f"{bench.name}-alone")
    return {
        "trials": number,
        "outcomes": dict(Counter(str(row.outcome) for row in rows)),
        "unexpected": [f"{row.bug}/{row.patch}: {row.outcome}: {row.reason}" for row in unlike],
        "trials_per_hour": number / swept.seconds * 3600,
        "cpu_s_per_trial": swept.cpu_s / number,
        "disk_mb_per_trial": swept.disk_mb / number,
        "parts_s": {name: round(s / number, 2) for name, s in parts(jobs, rows).items()},
        "trial_s": _alone(bench, others, Kind.RIGHT, PLAIN),
        "crash_s": _alone(bench, others, Kind.CRASHES, PLAIN),
        "uncompilable_s": _alone(bench, others, Kind.BROKEN, PLAIN),
    }


def with_variants(bench: Bench, few: int) -> dict[str, float]:
    """Measure a sweep with variants, and one right patch alone."""
    tried = trial_patches(f"{bench.name}-variants")[:few]
    bench.show_bugs(tried, VARIANTS)
    swept = bench.sweep(tried, VARIANTS)
    others = trial_patches(f"{bench.name}-variants-alone")
    return {
        "trials_per_hour_variants": len(tried) / swept.seconds * 3600,
        "trial_variants_s": _alone(bench, others, Kind.RIGHT, VARIANTS),
    }


def _alone(bench: Bench, tried: Sequence[Tried], kind: Kind, trial: TrialOptions) -> float:
    # With few patches, only the first one's bug has been shown.
    own = [each for each in tried if each.kind is kind and each.bug.name in bench.shown]
    return statistics.median(bench.alone(each, trial) for each in own[:ROUNDS])


def baseline(bench: Bench, work: Path) -> dict[str, float]:
    """Measure the machine: the compiler on the patched file, and QEMU until its first program."""
    bug = next(each.bug for each in trial_patches("bare") if each.bug.name in bench.shown)
    shown = bench.shown[bug.name]
    before = shown.step(BUILD_BEFORE)
    assert before is not None
    kernel = work / "kernel"
    bench.client.download(shown.id, before.number, BuildArtifact.KERNEL, kernel)
    spec = next(step for step in bug.shown().steps if isinstance(step, ReproduceSpec))
    boots = [bare_qemu(kernel, spec.vm, 0, data_folder() / "cache", work) for _ in range(ROUNDS)]
    return {"bare_compile_s": bare(bug, work)[0], "bare_boot_s": statistics.median(boots)}


def main() -> None:
    """Measure, and print the figures."""
    words = parser(__doc__)
    words.add_argument("--few", type=int, default=60, metavar="N", help="only the first N patches")
    words.add_argument("--variants", action="store_true", help="also with variants")
    options = words.parse_args()
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
    try:
        with (
            platform_alone(data_folder()) as platform,
            Client(platform.url, platform.owner) as client,
        ):
            bench = Bench(platform.url, client, f"trials-{uuid.uuid4().hex[:12]}")
            figures = measured(bench, options.few)
            if options.variants:
                figures |= with_variants(bench, options.few)
            figures |= baseline(bench, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    show({**figures, **machine}, options, MOST)


if __name__ == "__main__":
    main()
