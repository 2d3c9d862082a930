"""The dashboard of a benchmark of 534 bugs, 50 setups and 10 attempts of each on each.

metrics_s         processor time from attempts in memory to all figures with intervals: Pass@k and
                  Mean@k of all setups for k from 1 to 10, curves, solves, paired tests of all
                  setups with the best one
dashboard_p95_ms  the monitor's answer to any page of it, each address new to the monitor at first
dashboard_cpu_ms  processor time of the monitor for a page, which other work does not stretch
publish_s         what it took to publish all attempts
first_s           from the first visit after that until the monitor shows the leaderboard
"""

import statistics
import tempfile
import time
from pathlib import Path

import httpx

from kgym.bench.attempt_record import AttemptRecord
from kgym.bench.attempt_table import AttemptTable
from kgym.bench.comparison import paired
from kgym.bench.figures import Figure, Results, solves
from kgym.transport.artifact_storage import LocalStorage
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.platforms.servers import free_port
from tests.bench.dispatch import cpu_seconds
from tests.bench.monitor import served
from tests.demo import demo_benchmark

BUGS, SETUPS, RUNS = 534, 50, 10
NAME = "big"
# Of each address.
VISITS = 10
ADDRESSES = (
    "",
    *(f"?k={k}" for k in (1, 3, 5)),
    *(f"?by={by}" for by in ("type", "subsystem", "lines")),
    *("?types=WARNING", "?fixed_from=2025-02-01", "?cutoff=2025-01-31&side=after"),
    *("?agent=tool", "?feedback=no&k=3"),
    *("/bugs", "/bugs?types=WARNING", "/compare?first=3&second=7", "/compare?first=0&second=49"),
    f"/bugs/{demo_benchmark.FIRST}",
    f"/bugs/{demo_benchmark.FIRST}/attempts/0/1",
)


def board(setups: int = SETUPS) -> dict[str, float]:
    """Measure; return the figures."""
    bugs, by = demo_benchmark.bugs(BUGS), demo_benchmark.setups(setups)
    attempts = list(demo_benchmark.attempts(bugs, by, RUNS))
    figures = {"metrics_s": metrics([bug.facts.id for bug in bugs], attempts)}
    with (
        tempfile.TemporaryDirectory() as folder,
        Platform(Path(folder, "data"), work=False) as platform,
    ):
        begun = time.monotonic()
        store = LocalStorage(Path(folder, "benchmarks"))
        demo_benchmark.publish(store, NAME, bugs, attempts)
        figures["publish_s"] = round(time.monotonic() - begun, 1)
        port = free_port()
        words = ["-m", "kgym_cli", "monitor", "--server", platform.url]
        words += ["--monitor-port", str(port), "--benchmarks", str(store.root)]
        with served(words, port, Path(folder, "monitor.log")) as (url, pid):
            return figures | pages(f"{url}/benchmarks/{NAME}", pid)


def metrics(bugs: list[str], attempts: list[AttemptRecord]) -> float:
    """Return the processor time of all figures, in seconds."""
    begun = time.process_time()
    results = Results(AttemptTable.of(attempts), bugs)
    by = results.setups
    for k in range(1, RUNS + 1):
        assert all(results.all_figures(by, k))
    assert len(results.curves(by, [Figure.CRR, Figure.EPR])) == 2 * len(by)
    solves(results, by, RUNS)
    for page in by[:-1]:
        assert paired(results, page, by[-1], Figure.CRR, RUNS, best=True)
    return round(time.process_time() - begun, 2)


def pages(url: str, pid: int) -> dict[str, float]:
    """Visit all pages; return how long the monitor took."""
    with httpx.Client(trust_env=False, timeout=600) as visitor:
        begun = time.monotonic()
        while "data-reload" in visitor.get(url).text:
            time.sleep(0.2)
        first = time.monotonic() - begun
        took, before = [], cpu_seconds(pid)
        for address in ADDRESSES:
            for _ in range(VISITS):
                start = time.monotonic()
                assert visitor.get(url + address).is_success, address
                took.append(time.monotonic() - start)
        cpu = cpu_seconds(pid) - before
    return {
        "first_s": round(first, 1),
        "dashboard_p95_ms": round(1000 * statistics.quantiles(took, n=20)[-1], 1),
        "dashboard_median_ms": round(1000 * statistics.median(took), 1),
        "dashboard_cpu_ms": round(1000 * cpu / len(took), 1),
    }
