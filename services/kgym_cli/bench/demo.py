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
from kgym_benchmark.campaign.runner import Summary
from kgym_benchmark.campaign.subjects import Subjects
from kgym_cli.bench.campaign_run import carried_out
from kgym_cli.bench.leaderboard import of_folder
from kgym_cli.output import people
from kgym_cli.settings import settings

AGENTS = CONFIGS / "demo-agents"
# Shipped bugs on another kernel, where the others do not suffice.
OTHERS = tuple(
    f"{name}@linux-5.10"
    for name in ("watch-queue-filter", "fsconfig-source-fd", "shm-remap-removed")
)
DEMO = "watch-queue-filter"
# That a patched kernel has to survive, on each of two VMs.
SECONDS = 20


def run(count: int, *, one_kernel: bool) -> Report:
    """Run the campaign as far as it was not; return its leaderboard.

    Raises UserError `bad_option` for more bugs than there are, InfrastructureError `no_verdict`.
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
    named = hashlib.sha256("\n".join(campaign.bugs).encode()).hexdigest()[:12]
    into = settings().data.absolute() / "demo-bench" / named
    chosen_subjects = subjects.load(campaign, into)
    _agents(into / "agent", chosen_subjects)
    kernels = len({str(bug.bug.build.source) for bug in chosen_subjects.bugs})
    people.print(
        f"bugs: {len(chosen)}, kernels that are compiled once: {kernels}, results: {into}",
        style="dim",
        markup=False,
    )
    summary = carried_out(campaign, chosen_subjects, into, into)
    _whole(summary)
    return of_folder(into)


def _whole(summary: Summary) -> None:
    if summary.failed:
        problems = "; ".join(summary.problems)
        raise InfrastructureError("no_verdict", f"{summary.failed} attempts: {problems}")


def _chosen(count: int, *, one_kernel: bool) -> list[tuple[str, Bug]]:
    """Return so many bugs: the demo's first, the other shipped ones, those of datasets."""
    offered = list(_offered(one_kernel=one_kernel))
    if len(offered) < count:
        raise UserError("bad_option", f"--bugs: there are {len(offered)} bugs to run")
    return offered[:count]


def _offered(*, one_kernel: bool) -> Iterator[tuple[str, Bug]]:
    """Yield the bugs that can be run here."""
    first = bugs.load(DEMO)
    names = [DEMO, *(name for name in bugs.names() if name != DEMO)]
    datasets = sorted((CONFIGS / "datasets").glob("**/bug.toml"))
    for name in (*names, *(str(path.parent) for path in datasets), *OTHERS):
        try:
            bug = bugs.load(name)
        except UserError as error:
            if error.reason != "no_program":
                raise
            continue
        if bug.fix is not None and (not one_kernel or bug.build.source == first.build.source):
            yield name, bug


def _agents(folder: Path, subjects: Subjects) -> None:
    """Write what the scripted agents find."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(AGENTS, folder)
    (folder / "patches").mkdir()
    for bug in subjects.bugs:
        assert bug.bug.fix is not None
        (folder / "patches" / f"{bug.id}.json").write_text(bug.bug.fix.model_dump_json())
