"""A platform whose steps' results are given, and its monitor: for tests and screenshots.

In the checkout only, as `kgym_dev` is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kgym.client import Client
from kgym_cli import past_attempts
from kgym_cli.demo_agent import demo_agent
from kgym_cli.embedded_platform import Platform
from kgym_cli.monitored import monitored
from kgym_dev.given_steps import working
from kgym_dev.showcase import Showcase


@dataclass(frozen=True)
class DemoSite:
    """A monitor, and the scheduler and the agent behind it."""

    url: str
    scheduler: str
    """Its URL."""
    client: Client
    showcase: Showcase
    data: Path
    run: int
    """The number of a run of the agent that has ended."""


@contextmanager
def demo_site(data: Path) -> Iterator[DemoSite]:
    """Run a platform with two workers and a past, an agent and the monitor, in an empty folder."""
    showcase = Showcase()
    with Platform(data, work=False) as platform:
        past_attempts.add(data, past_attempts.month(datetime.now(UTC)))
        try:
            with (
                working(platform.url, data, showcase.answers),
                working(platform.url, data, showcase.answers),
                demo_agent(data, platform.url) as agent,
                monitored(platform.url, agent=agent.url) as url,
                Client(platform.url) as client,
            ):
                run = agent.begin_run()
                agent.end(run)
                yield DemoSite(url, platform.url, client, showcase, data, run)
        finally:
            showcase.let_go.set()
