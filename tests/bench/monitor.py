"""What the monitor's pages cost, with 500,000 jobs in the database.

page_p95_ms     server time of the slowest page, on SQLite or PostgreSQL; `pages` has all of them
page_cpu_ms     processor time of scheduler, database and monitor for the dearest page, which other
                work on the machine does not stretch
bare_p95_ms     the same of an answer without content, as the baseline of this run
paint_s         first contentful paint of the slowest page, in headless Chromium
log_mb          JavaScript heap, with the text that it holds, of a live log of 1,000,000 lines
dispatch_ratio  from submission to start with 200 open pages, over the same without, at 20 jobs/s
open_cpu        hundredths of a core that scheduler, database, workers and monitor take then,
closed_cpu      and without open pages: other work on the machine does not stretch these
fill_s          what it took to fill the slower of the databases
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import structlog
from playwright.sync_api import Browser, Page, sync_playwright

from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.api.steps import BuildSpec, StepKind, StepResult
from kgym.client import Client, Refused
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.platforms.process import settle
from kgym_cli.platforms.servers import PostgreSQL, RabbitMQ, free_port
from kgym_monitor.pages.job_filter import PAGE
from kgym_scheduler.database.connection import upgrade
from tests.bench.dispatch import SINGLE_RATE, SINGLE_WORKERS, Bench, cpu_seconds, process, until
from tests.demo import demo_benchmark, demo_jobs, monitor_pages
from tests.demo.demo_agent import DemoAgent, demo_agent
from tests.demo.given_steps import working
from tests.demo.monitor_pages import MonitorPage
from tests.demo.showcase import Showcase, trial
from tests.figures import parser, show
from tests.monitor import many_jobs

JOBS = 500_000
PARTS = ("pages", "paint", "log", "dispatch")
LINES = 1_000_000
# Pages that are open while jobs are dispatched: as many streams as one reader may have.
OPEN = 200
# Of each page.
VISITS = 40
PAINTS = 5
# Of dispatch without and with open pages, in turn.
ROUNDS = 5
# That a server may take to start, with all that it imports, on a busy machine.
START_SECONDS = 300.0
BARE = MonitorPage("bare", "/healthz", "", "")
# A million of these are 44 MB: the scheduler keeps 64 MiB of a log.
LINE = "[{:>12.6f}] CC      fs/ext4/part{}.o"
# That a page may take to have read a million lines, on a busy machine.
LOG_SECONDS = 900.0
# Milliseconds that a page may take to show what it has to.
PATIENCE = 120_000


# --- the platform, a process of its own ---------------------------------------------------


def serve(data: Path, port: int) -> None:
    """Serve the embedded platform until this process is ended; its steps are those of a showcase.

    A build that is marked TALK logs so many lines, then one every while until it is aborted.
    """
    showcase, ended = Showcase(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with Platform(data, port=port, work=False) as platform:
        try:
            with workers(platform.url, data, showcase):
                settle()  # as `up` does
                ended.wait()
        finally:
            showcase.let_go.set()


@contextmanager
def workers(scheduler: str, data: Path, showcase: Showcase) -> Iterator[None]:
    """Let four workers do what the showcase says: three are kept busy by jobs that pages show."""

    def build(run: StepContext) -> StepResult:
        if match := re.search("# TALK ([0-9]+)", run.spec(BuildSpec).config.fragments[-1]):
            _talk(run, int(match[1]), showcase.let_go)
        return showcase.answers[StepKind.BUILD](run)

    answers = {**showcase.answers, StepKind.BUILD: build}
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(working(scheduler, data, answers))
        yield


def _talk(run: StepContext, lines: int, let_go: threading.Event) -> None:
    for start in range(0, lines, 10_000):
        many = range(start, min(lines, start + 10_000))
        run.log("\n".join(LINE.format(number / 1000, number) for number in many))
    number = lines
    while not let_go.wait(0.05):
        run.log(LINE.format(number / 1000, number))
        number += 1


@contextmanager
def served(words: list[str], port: int, log: Path) -> Iterator[tuple[str, int]]:
    """Run a server of ours on this port, in a process of its own; yield its URL and process."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out, process(words, {"KGYM_TOKEN": ""}, out) as started:
        until(lambda: httpx.get(f"{url}/healthz", trust_env=False).is_success, START_SECONDS)
        yield url, started.pid


@contextmanager
def monitored(scheduler: str, agent: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Run a monitor of this scheduler and agent; yield its URL and process."""
    port = free_port()
    words = ["-m", "kgym_cli", "monitor", "--server", scheduler, "--agent", agent]
    words += ["--monitor-port", str(port), "--benchmarks", str(folder / "benchmarks")]
    with served(words, port, folder / "monitor.log") as served_:
        yield served_


@dataclass(frozen=True, slots=True)
class Site:
    """A platform and a monitor of it."""

    database: str
    scheduler: str
    monitor: str
    pids: Sequence[int]
    """The processes that answer, with their children."""


# --- pages --------------------------------------------------------------------------------


@dataclass(slots=True)
class Found:
    """What was measured of a page: milliseconds by database, seconds to paint."""

    server: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    paint: list[float] = field(default_factory=list)

    def p95(self) -> float:
        """Return the server's time on the database where it is longer."""
        return max((_part(taken, 0.95) for taken in self.server.values()), default=0.0)


def shown(client: Client, agent: DemoAgent, folder: Path) -> dict[str, MonitorPage]:
    """Make the run and the jobs that pages show; return all pages, and long lists, by name."""
    run = agent.begin_run()
    agent.end(run)
    demo_benchmark.put(LocalStorage(folder / "benchmarks"))
    jobs = demo_jobs.put(client) | {"run": run}
    limit = time.monotonic() + START_SECONDS
    while client.job(jobs["running"]).state is not State.RUNNING:
        if time.monotonic() > limit:
            raise SystemExit("the job that a page shows running does not run")
        time.sleep(0.1)
    lists = [MonitorPage(name, path, "", "") for name, path in _lists(client).items()]
    return {page.name: page for page in [*monitor_pages.pages(jobs), *lists]}


def _lists(client: Client) -> dict[str, str]:
    """Return what the page of jobs shows where there are many."""
    second = client.page(JobFilter(limit=PAGE)).next
    queued = client.page(JobFilter(limit=1, state=State.QUEUED, submitter="nightly")).jobs[0]
    return {
        "jobs, second page": f"/jobs?cursor={second}",
        "jobs of a bug": "/jobs?bug=extid-0005",
        "jobs failed": "/jobs?state=failed",
        "jobs of a rare submitter": "/jobs?submitter=rarely&state=failed",
        "jobs by text": "/jobs?text=slab-out-of-bounds",
        "jobs by absent text": "/jobs?text=nowhere",
        "jobs by all": "/jobs?kind=reproduce&tag=model:a&bug=extid-0005&outcome=resolved"
        "&submitter=nightly&text=sweep",
        "queued": f"/jobs/{queued.id}",
    }


def visited(
    monitor: str, pages: dict[str, MonitorPage], visits: int, pids: Sequence[int]
) -> dict[str, tuple[list[float], float]]:
    """Return of each page the milliseconds until answers were there, sorted.

    And the processor time of these processes for one, in milliseconds. A visit is made again if
    the host took a processor away during it, as other machines on it do in bursts; at most twice
    as often as such visits are wanted.
    """
    hashes = {}
    with httpx.Client(base_url=monitor, trust_env=False, timeout=60) as client:
        for name, page in pages.items():
            for _ in range(2):  # to warm up
                if (status := client.get(page.path).status_code) != page.status:
                    raise SystemExit(f"{page.path}: {status}")
            taken, made, spent = [], 0, sum(map(cpu_seconds, pids))
            while len(taken) < visits:
                stolen, begun = _stolen(), time.monotonic_ns()
                client.get(page.path)
                took, made = (time.monotonic_ns() - begun) / 1e6, made + 1
                if _stolen() == stolen or made > 2 * visits:
                    taken.append(took)
            spent = sum(map(cpu_seconds, pids)) - spent
            hashes[name] = sorted(taken), 1000 * spent / made
    return hashes


def _stolen() -> int:
    """Return the ticks in which the host ran something else instead (proc_stat(5), `steal`)."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8])


# --- in the browser -----------------------------------------------------------------------

_PAINT = """
() => new Promise((told) => new PerformanceObserver((list) => {
  for (const one of list.getEntriesByName("first-contentful-paint")) told(one.startTime);
}).observe({ type: "paint", buffered: true }))
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run headless Chromium."""
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("there is no chromium: `apt-get install chromium`")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox is not for root
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()


def painted(browser: Browser, monitor: str, path: str, times: int) -> list[float]:
    """Return the seconds to a page's first contentful paint, nothing of it being cached."""
    taken = []
    for _ in range(times):
        context = browser.new_context(base_url=monitor, viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(path, wait_until="commit")
        taken.append(page.evaluate(_PAINT) / 1000)
        context.close()
    return sorted(taken)


def long_log(browser: Browser, monitor: str, client: Client, lines: int) -> float:
    """Return the MB of heap of a page that has scrolled and follows a log of so many lines."""
    job = client.submit(trial(f"TALK {lines}"))
    context = browser.new_context(base_url=monitor, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    try:
        page.goto(f"/jobs/{job.id}?step=0")
        _followed(page, lines)
        view = page.locator(".log-view")
        view.hover()
        for part in range(100):  # from its beginning to its end
            view.evaluate(
                "(view, part) => { view.scrollTop = view.scrollHeight * part }", part / 99
            )
        _until_last(page, lambda last: last > lines - 100)
        view.evaluate("(view) => { view.scrollTop = 0 }")
        _until_last(page, lambda last: 0 < last < 200)
        page.get_by_role("button", name="Follow").click()
        _followed(page, lines)
        elements = page.locator(".log-line").count()
        if elements > 200:
            raise SystemExit(f"{elements} lines are elements")
        return _heap_mb(page)
    finally:
        context.close()
        with contextlib.suppress(Refused):  # it has failed: what went wrong is said above
            client.abort(job.id)


_LAST = "Number(document.querySelector('.log-line:last-child')?.dataset.number ?? 0)"


def _followed(page: Page, lines: int) -> None:
    """Wait until the page shows lines that were logged after so many."""
    shown = _until_last(page, lambda last: last > lines)
    _until_last(page, lambda last: last > shown)


def _until_last(page: Page, wanted: Callable[[int], bool]) -> int:
    """Wait for the number of the last line that is shown; the page's policy lets no other way."""
    limit = time.monotonic() + LOG_SECONDS
    while not wanted(last := page.evaluate(_LAST)):
        if time.monotonic() > limit:
            raise SystemExit(f"the log stays at line {last}")
        time.sleep(0.1)
    return int(last)


def _heap_mb(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    return (usage["usedSize"] + usage["backingStorageSize"]) / 1e6


# --- dispatch -----------------------------------------------------------------------------


# As in `static/live.js`.
POLL_SECONDS = 2.0


class OpenPage:
    """Polls as a visible page does, over a socket of its own, which costs little."""

    def __init__(self, monitor: str, path: str, text: str) -> None:
        rows = ",".join(re.findall('<tr id="job-([0-9]+)"', text))
        mark = "&" if "?" in path else "?"
        self._url, self._path = httpx.URL(monitor), f"{path}{mark}poll=yes&rows={rows}"
        self.answers = 0
        self.polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        reader, writer = await asyncio.open_connection(self._url.host, self._url.port)
        tag = b""
        await asyncio.sleep(random.uniform(0, POLL_SECONDS))
        try:
            while True:
                known = b"If-None-Match: %b\r\n" % tag if tag else b""
                writer.write(
                    b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n" % (self._path.encode(), known)
                )
                head = await reader.readuntil(b"\r\n\r\n")
                if head[9:12] not in {b"200", b"304"}:
                    raise SystemExit(f"{self._path}: {head[9:12].decode()}")
                fields = dict(
                    line.lower().partition(b": ")[::2] for line in head.split(b"\r\n")[1:]
                )
                tag = fields[b"etag"]
                await reader.readexactly(int(fields.get(b"content-length", 0)))
                self.answers += 1
                await asyncio.sleep(POLL_SECONDS)
        finally:
            writer.transport.abort()


def open_paths(job: str) -> list[str]:
    """Return what 200 people look at: most at what changes most."""
    bugs = [f"/jobs?bug=extid-{number:04x}" for number in range(20)]
    shown = [("/", 70), ("/jobs", 60), ("/workers", 10), (job, 20)]
    return [path for path, count in shown for _ in range(count)] + 2 * bugs


async def dispatched(
    bench: Bench, monitor: tuple[str, int], paths: list[str], options: argparse.Namespace
) -> list[dict[bool, tuple[float, float]]]:
    """Return of each round the milliseconds of dispatch (p50), and hundredths of a core.

    By whether these pages are open.
    """
    url, pid = monitor
    times = []
    await bench.begin()
    await bench.latency(2, SINGLE_RATE)  # to warm up
    for number in range(options.rounds):
        pages: list[OpenPage] = []
        both = {}
        for opened in (False, True) if number % 2 else (True, False):
            if opened:
                pages = [await _opened(url, path) for path in paths]
                await asyncio.sleep(2 * POLL_SECONDS)
            begun, spent = time.monotonic(), sum(map(cpu_seconds, [*bench.pids, pid]))
            taken = statistics.median(await bench.latency(options.seconds, SINGLE_RATE))
            spent = sum(map(cpu_seconds, [*bench.pids, pid])) - spent
            both[opened] = taken, 100 * spent / (time.monotonic() - begun)
            if opened:
                if silent := sum(page.polling.done() or not page.answers for page in pages):
                    raise SystemExit(f"{silent} of {len(paths)} pages got no answer")
                for page in pages:
                    page.polling.cancel()
                await asyncio.sleep(1)
        times.append(both)
    return times


async def _opened(monitor: str, path: str) -> OpenPage:
    async with httpx.AsyncClient(base_url=monitor, trust_env=False, timeout=60) as client:
        text = (await client.get(path)).raise_for_status().text
    if 'id="live-mark"' not in text:
        raise SystemExit(f"{path} does not poll")
    return OpenPage(monitor, path, text)


# --- all of it ----------------------------------------------------------------------------


def on_sqlite(folder: Path, options: argparse.Namespace, measured: dict[str, Found]) -> dict:
    """Measure what one machine has: the embedded platform."""
    data = folder / "data"
    data.mkdir()
    url = f"sqlite+aiosqlite:///{data / 'kgym.db'}"
    figures = {"fill_s": _filled(url, options.jobs)}
    port = free_port()
    words = ["-m", "tests.bench.monitor", "--serve", str(data), str(port)]
    with (
        served(words, port, folder / "scheduler.log") as (scheduler, platform),
        demo_agent(data, scheduler) as agent,
        Client(scheduler) as client,
        monitored(scheduler, agent.url, folder) as (monitor, pid),
    ):
        pages = shown(client, agent, folder)
        site = Site("sqlite", scheduler, monitor, [platform, pid])
        figures |= _server(site, pages, options, measured)
        with chromium() as browser:
            if "paint" in options.parts:
                _say("paint")
                for name, page in pages.items():
                    taken = painted(browser, monitor, page.path, options.paints)
                    measured.setdefault(name, Found()).paint = taken
            if "log" in options.parts:
                _say(f"a log of {options.lines} lines")
                figures["log_mb"] = long_log(browser, monitor, client, options.lines)
    return figures


def on_postgresql(folder: Path, options: argparse.Namespace, measured: dict[str, Found]) -> dict:
    """Measure what many machines have: scheduler, PostgreSQL and RabbitMQ."""
    with ExitStack() as stack:
        database = stack.enter_context(PostgreSQL(folder / "postgresql"))
        broker = stack.enter_context(RabbitMQ(folder / "rabbitmq"))
        figures = {"fill_s": _filled(database.url, options.jobs)}
        bench = Bench(folder, database, broker)
        showcase = Showcase()
        with (
            bench.running(0),
            workers(bench.server, folder, showcase),
            demo_agent(folder, bench.server) as agent,
            Client(bench.server) as client,
            monitored(bench.server, agent.url, folder) as (monitor, pid),
        ):
            pages = shown(client, agent, folder)
            site = Site("postgresql", bench.server, monitor, [*bench.pids, pid])
            figures |= _server(site, pages, options, measured)
            showcase.let_go.set()
        if "dispatch" in options.parts:
            _say(f"dispatch with {OPEN} pages")
            paths = open_paths(pages["job"].path)
            with (
                bench.running(SINGLE_WORKERS, 1),
                monitored(bench.server, agent.url, folder) as monitor,
            ):
                rounds = asyncio.run(dispatched(bench, monitor, paths, options))
            figures["dispatch_p50_ms"] = statistics.median(round_[False][0] for round_ in rounds)
            ratios = [round_[True][0] / round_[False][0] for round_ in rounds]
            figures["dispatch_ratio"] = statistics.median(ratios)
            figures["open_cpu"] = statistics.median(round_[True][1] for round_ in rounds)
            figures["closed_cpu"] = statistics.median(round_[False][1] for round_ in rounds)
    return figures


def _filled(url: str, jobs: int) -> float:
    _say(f"{jobs} jobs for {url.partition(':')[0]}")
    begun = time.monotonic()
    asyncio.run(upgrade(url))
    many_jobs.fill(url, jobs)
    return time.monotonic() - begun


def _server(
    site: Site,
    pages: dict[str, MonitorPage],
    options: argparse.Namespace,
    measured: dict[str, Found],
) -> dict[str, float]:
    """Measure what scheduler and monitor answer on this database."""
    figures = {}
    if "pages" in options.parts:
        _say(f"{len(pages)} pages on {site.database}")
        settle()  # the agent runs in this process
        for name, (taken, cpu) in visited(site.monitor, pages, options.visits, site.pids).items():
            page_times = measured.setdefault(name, Found())
            page_times.server[site.database], page_times.cpu[site.database] = taken, cpu
        bare, _ = visited(site.monitor, {"bare": BARE}, options.visits, [])["bare"]
        figures["bare_p95_ms"] = _part(bare, 0.95)
    return figures


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _part(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


def measure(options: argparse.Namespace) -> tuple[dict[str, float], dict[str, Found]]:
    """Return all figures, and those of each page."""
    measured: dict[str, Found] = {}
    figures: dict[str, float] = {}
    for on, name in ((on_sqlite, "sqlite"), (on_postgresql, "postgresql")):
        if options.database in {name, "both"}:
            with tempfile.TemporaryDirectory(prefix="kgym-bench-") as folder:
                for key, value in on(Path(folder), options, measured).items():
                    figures[key] = max(value, figures.get(key, value))
    if "pages" in options.parts:
        figures["page_p95_ms"] = max(page.p95() for page in measured.values())
        figures["page_cpu_ms"] = max(max(page.cpu.values()) for page in measured.values())
    if any(page.paint for page in measured.values()):
        figures["paint_s"] = max(statistics.median(page.paint) for page in measured.values())
    return figures, measured


def main() -> None:
    """Measure, and print the figures."""
    words = parser(__doc__)
    words.add_argument("--jobs", type=int, default=JOBS, help="in the database")
    words.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    words.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all by default")
    words.add_argument("--visits", type=int, default=VISITS, help="of each page")
    words.add_argument("--paints", type=int, default=PAINTS, help="of each page")
    words.add_argument("--lines", type=int, default=LINES, help="of the live log")
    words.add_argument("--seconds", type=float, default=10, help="of dispatch, in each round")
    words.add_argument("--rounds", type=int, default=ROUNDS, help="of dispatch")
    words.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.serve:
        data, port = options.serve
        serve(Path(data), int(port))
        return
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    figures, measured = measure(options)
    table = {
        name: {
            **{f"{base}_p95_ms": round(_part(t, 0.95), 1) for base, t in page.server.items()},
            **{f"{base}_cpu_ms": round(spent, 1) for base, spent in page.cpu.items()},
            **({"paint_s": round(statistics.median(page.paint), 3)} if page.paint else {}),
        }
        for name, page in sorted(measured.items(), key=lambda of: -of[1].p95())
    }
    show({**figures, "pages": table}, options)


if __name__ == "__main__":
    main()
