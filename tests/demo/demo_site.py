"""A platform whose steps' results are given, and its monitor: for tests and screenshots."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kgym.api.steps import StepKind
from kgym.client import Client
from kgym.transport.artifact_storage import LocalStorage
from kgym_cli.platforms.embedded_platform import Platform
from kgym_tracer.minimize_step import Minimizer
from tests.demo import demo_benchmark, demo_jobs, past_attempts
from tests.demo.demo_agent import demo_agent
from tests.demo.given_steps import working
from tests.demo.monitor_pages import MonitorPage, pages
from tests.demo.monitored import monitored
from tests.demo.showcase import ENTRY, Showcase


@dataclass(frozen=True)
class DemoSite:
    """A monitor, and the scheduler and the agent behind it."""

    url: str
    scheduler: str
    """Its URL."""
    client: Client
    showcase: Showcase
    data: Path
    benchmarks: LocalStorage
    """Where benchmarks are published."""
    run: int
    """The number of a run of the agent that has ended."""


def filled(site: DemoSite) -> list[MonitorPage]:
    """Put the demo data into a site; return all pages. Takes some ten seconds."""
    _keep_entry(site.data)
    demo_benchmark.put(site.benchmarks)
    traced = site.client.submit(demo_jobs.traced()).id
    site.client.wait(traced)
    return pages({**demo_jobs.put(site.client), "traced": traced, "run": site.run})


def _keep_entry(data: Path) -> None:
    """Have the entry of SuiteCache in storage that the showcase's builds say they use."""
    about = {
        "kernel_release": "6.1.192",
        "compiler_version": "gcc-12 12.2.0",
        "source_identity": "package:linux-source-6.1=6.1.192-1",
        "backports": [],
    }
    storage, key = LocalStorage(data / "artifacts"), f"suitecache/{ENTRY}"
    with tempfile.TemporaryDirectory() as folder:
        image, about_file = Path(folder, "image"), Path(folder, "about.json")
        image.write_bytes(bytes(12_000_000))
        about_file.write_text(json.dumps(about))
        asyncio.run(storage.put(f"{key}/0123/image.squashfs", image))
        asyncio.run(storage.put(f"{key}/about.json", about_file))


@contextmanager
def demo_site(data: Path) -> Iterator[DemoSite]:
    """Run a platform with two workers and a past, an agent and the monitor, in an empty folder."""
    showcase, real = Showcase(), {StepKind.MINIMIZE: Minimizer()}
    with Platform(data, work=False) as platform:
        past_attempts.add(data, past_attempts.month(datetime.now(UTC)))
        try:
            with (
                working(platform.url, data, showcase.answers, real),
                working(platform.url, data, showcase.answers, real),
                demo_agent(data, platform.url) as agent,
                monitored(platform.url, agent=agent.url, benchmarks=data / "benchmarks") as url,
                Client(platform.url) as client,
            ):
                run = agent.begin_run()
                agent.end(run)
                benchmarks = LocalStorage(data / "benchmarks")
                yield DemoSite(url, platform.url, client, showcase, data, benchmarks, run)
        finally:
            showcase.let_go.set()
