"""`kgym demo --bench`: two scripted agents on bugs, through kEnv, with and without feedback."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from kgym.bench.campaign import AgentEntry, AttemptLimits, Campaign
from kgym.bench.report import Report
from kgym.bugs import bundle as bugs
from kgym.bugs.bug import Bug
from kgym.configs import CONFIGS
from kgym.errors import InfrastructureError, UserError
from kgym_benchmark.campaign import subjects
from kgym_benchmark.campaign.subjects import Subjects
from kgym_cli.bench import manifest
from kgym_cli.bench.campaign_run import carried_out
from kgym_cli.bench.leaderboard import of_folder
from kgym_cli.output import people
from kgym_cli.settings import settings

AGENTS = CONFIGS / "demo-agents"
# Shipped bugs on another kernel, used if there are too few others.
OTHERS = tuple(
    f"{name}@linux-5.10"
    for name in ("watch-queue-filter", "fsconfig-source-fd", "shm-remap-removed")
)
DEMO = "watch-queue-filter"
# Seconds that a patched kernel must survive on each of two VMs.
SECONDS = 20


def run(count: int, *, one_kernel: bool) -> Report:
    """Run the rest of the campaign; return its leaderboard.

    Raises UserError `bad_option` if there are too few bugs, InfrastructureError `no_verdict`.
    """
    chosen = _chosen(count, one_kernel=one_kernel)
    campaign = Campaign(
        name="demo",
        bugs=[name for name, _ in chosen],
        feedback=[True, False],
        parallel=2,
        instances=2,
        feedback_instances=2,
        time=SECONDS,
        attempt=AttemptLimits(hours=2),
        agents=[
            AgentEntry(name="mender", command=["python3", "/agent/mender.py"], folder="agent"),
            AgentEntry(name="guesser", command=["sh", "/agent/guesser.sh"], folder="agent"),
        ],
    )
    # The folder is named after the bugs: the same command resumes its campaign, and another number
    # of bugs is a campaign of its own.
    named = hashlib.sha256("\n".join(campaign.bugs).encode()).hexdigest()[:12]
    into = settings().data.absolute() / "demo-bench" / named
    chosen_subjects = subjects.load(campaign, into)
    _agents(into / "agent", chosen_subjects)
    kernels = len({str(bug.bug.build.source) for bug in chosen_subjects.bugs})
    people.print(
        f"bugs: {len(chosen)}, kernels to compile: {kernels}, results: {into}", style="dim"
    )
    summary = carried_out(campaign, chosen_subjects, into, into)
    if summary.failed:
        problems = "; ".join(summary.problems)
        raise InfrastructureError("no_verdict", f"{summary.failed} attempts: {problems}")
    manifest.write(into)
    return of_folder(into)


def _chosen(count: int, *, one_kernel: bool) -> list[tuple[str, Bug]]:
    """Return `count` bugs: the demo's, then other shipped ones, then those of datasets."""
    offered = list(_offered(one_kernel=one_kernel))
    if len(offered) < count:
        raise UserError("bad_option", f"--bugs: only {len(offered)} bugs can be run")
    return offered[:count]


def _offered(*, one_kernel: bool) -> Iterator[tuple[str, Bug]]:
    """Yield bugs with a fix and a program."""
    first = bugs.load(DEMO)
    names = [DEMO, *(name for name in bugs.names() if name != DEMO)]
    datasets = sorted((CONFIGS / "datasets").glob("**/bug.toml"))
    for name in (*names, *(str(path.parent) for path in datasets), *OTHERS):
        try:
            bug = bugs.load(name)
        except UserError as error:
            # Some datasets name their programs instead of holding them, as the programs are others'
            # work.
            if error.reason != "no_program":
                raise
            continue
        if bug.fix is not None and (not one_kernel or bug.build.source == first.build.source):
            yield name, bug


def _agents(folder: Path, subjects: Subjects) -> None:
    """Write the folder that the scripted agents see, with the known fixes."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(AGENTS, folder)
    (folder / "patches").mkdir()
    for bug in subjects.bugs:
        assert bug.bug.fix is not None
        (folder / "patches" / f"{bug.id}.json").write_text(bug.bug.fix.model_dump_json())
