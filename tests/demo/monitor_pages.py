"""All pages of the monitor: what the tests, the screenshots and the bench go through."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from string import Formatter

from tests.demo import demo_benchmark
from tests.demo.showcase import BUG

_BENCH = f"/benchmarks/{demo_benchmark.NAME}"


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


_PAGES = (
    MonitorPage(
        "overview",
        "/",
        "body:has(#chart-throughput canvas) section[aria-labelledby='recent-title'] tbody tr",
        "queues, running steps, workers, storage, step results over time, the latest jobs",
    ),
    MonitorPage(
        "jobs",
        "/jobs",
        "tbody tr[id^='job-']",
        "the list of jobs with their filters, states and verdicts",
    ),
    MonitorPage(
        "job",
        "/jobs/{fixed}",
        "#step .big",
        "a job whose patch fixes the bug: its four steps on a time axis, and what the VMs showed",
    ),
    MonitorPage(
        "job-crash",
        "/jobs/{fixed}?step=1",
        "[data-report] a[href*='watch_queue.c']",
        "a step that crashed the kernel: the crash report, its stack linked to source lines",
    ),
    MonitorPage(
        "job-build",
        "/jobs/{fixed}?step=2",
        ".log-line",
        "a build: the patch as a diff, and the log",
    ),
    MonitorPage(
        "job-failed",
        "/jobs/{broken}",
        ".log-line",
        "a job that failed: the reason, and the end of the compiler's log",
    ),
    MonitorPage(
        "job-check",
        "/jobs/{check}",
        "#step .beside.error",
        "a check: which of three patches apply and compile, and the compiler's messages below"
        " their lines",
    ),
    MonitorPage(
        "job-running",
        "/jobs/{running}",
        "#job-live progress",
        "a job that runs: its progress, and its log as it is written",
    ),
    MonitorPage(
        "console",
        "/jobs/{fixed}/steps/1/files/console-0.log",
        ".log-line",
        "the console of a VM whose kernel crashed",
    ),
    MonitorPage(
        "consoles",
        "/jobs/{fixed}/steps/1/consoles",
        ".consoles .card:last-child .log-line",
        "the consoles of two VMs side by side, each at its end",
    ),
    MonitorPage(
        "abort",
        "/jobs/abort?state=running",
        "main form button",
        "the question before many jobs are aborted, with their number",
    ),
    MonitorPage(
        "patch",
        "/jobs/{check}/steps/0/patches/1",
        ".beside.error",
        "a patch of a check: errors and new warnings below its lines, and those in other files",
    ),
    MonitorPage(
        "search",
        "/search?q=watch_queue_set_filter",
        "main tbody tr",
        "what a function leads to: the bug that names it, and the jobs that crashed in it",
    ),
    MonitorPage(
        "runs",
        "/runs",
        "#runs-live tbody tr",
        "the list of runs: what each has come to, and what it took",
    ),
    MonitorPage(
        "run",
        "/runs/{run}?node=t0.1",
        "#forest a.is-resolved",
        "a run: its fix, the debug forest, and a cycle with its hypothesis, patches and steps",
    ),
    MonitorPage(
        "run-questions",
        "/runs/{run}/calls?text=filter",
        "main tbody tr",
        "the questions to the model in which a word stands, or in whose answers",
    ),
    MonitorPage(
        "run-compare",
        "/runs/compare?with={run}:t0.0&with={run}:t0.1",
        ".sides table.diff",
        "two debug cycles side by side, with what only one of their patches changes",
    ),
    MonitorPage(
        "trace",
        "/jobs/{traced}/trace",
        "#trace details.thread",
        "what the kernel executed before it crashed: calls as a tree, and their times on an axis",
    ),
    MonitorPage(
        "bugs",
        "/bugs",
        "tbody a[href^='/bugs/']",
        "the bugs: class, subsystem, last verdict, and whether a patch resolves them",
    ),
    MonitorPage(
        "bug",
        f"/bugs/{BUG.name}",
        "#bug-live .chip",
        "one bug: how many patches were tried, what they came to, and its jobs",
    ),
    MonitorPage(
        "suitecache",
        "/suitecache",
        "tbody td.subject",
        "the kernels that are kept compiled: their size, users and verdicts",
    ),
    MonitorPage(
        "benchmark",
        f"{_BENCH}?cutoff=2025-01-31&side=after",
        "body:has(.board-chart canvas) #board tbody tr",
        "a leaderboard: eight figures with their intervals, Pass@k, cost against resolution",
    ),
    MonitorPage(
        "benchmark-compare",
        f"{_BENCH}/compare?first=0&second=5",
        "main .sides",
        "two setups compared on the same bugs, with the test, and what each solves alone",
    ),
    MonitorPage("workers", "/workers", "main tbody tr", "the workers, and what each of them runs"),
    MonitorPage("login", "/login", "input[name='token']", "the login, which asks for a token"),
    MonitorPage(
        "not-found",
        "/jobs/999999",
        "main h1",
        "the page that says that there is no job of this number",
        status=404,
    ),
)
NAMES = tuple(page.name for page in _PAGES)


def pages(numbers: Mapping[str, int]) -> list[MonitorPage]:
    """Return the pages of these jobs (`demo_jobs`) and of this `run`, and those that need neither.

    `numbers` are theirs, by the names that stand in the pages' paths.
    """
    return [
        replace(page, path=page.path.format_map(numbers))
        for page in _PAGES
        if page.needs <= numbers.keys()
    ]
