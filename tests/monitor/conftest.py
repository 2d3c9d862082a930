"""A platform whose steps do what the showcase says, a monitor of it, and a browser."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from kgym.client import Client
from kgym_cli.embedded_platform import Platform
from tests.cli.worked import working
from tests.monitor.monitored import monitored
from tests.monitor.showcase import Showcase

PATIENCE = 60_000
"""Milliseconds that a page may take to show what it has to: the machine may be busy."""


@dataclass(frozen=True)
class Site:
    """A monitor, and the scheduler behind it."""

    url: str
    scheduler: str
    """Its URL."""
    client: Client
    showcase: Showcase
    data: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data, showcase = tmp_path_factory.mktemp("data"), Showcase()
    with Platform(data, work=False) as platform:
        try:
            with (
                working(platform, data, showcase.answers),
                working(platform, data, showcase.answers),
                monitored(platform.url) as url,
                Client(platform.url) as client,
            ):
                yield Site(url, platform.url, client, showcase, data)
        finally:
            showcase.let_go.set()


@pytest.fixture(scope="module")  # its event loop runs in this thread as long as it is open
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium: `apt-get install chromium`")
    # Chromium's own sandbox is not for root.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()


@dataclass(frozen=True)
class Look:
    """How a reader's browser is: light or dark, and how wide."""

    scheme: str
    width: int


LOOKS = [Look(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]


class Reader:
    """Somebody with a browser; whatever the policy of a page refused is noted."""

    def __init__(self, browser: Browser, site: str, look: Look = LOOKS[0]) -> None:
        self.context = browser.new_context(
            base_url=site,
            color_scheme="dark" if look.scheme == "dark" else "light",
            viewport={"width": look.width, "height": 800},
        )
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.context.add_init_script(
            "document.addEventListener('securitypolicyviolation', (event) => console.error("
            "'policy: ' + event.violatedDirective + ' ' + event.blockedURI + event.sample))"
        )
        self.page.on(
            "console",
            lambda said: self.faults.append(said.text) if _is_fault(said.type, said.text) else None,
        )

    def open(self, path: str) -> Page:
        """Show a page of the monitor."""
        self.page.goto(path)
        return self.page

    def live(self, path: str) -> Page:
        """Show a page that hears of changes; return once it does."""
        page = self.open(path)
        page.wait_for_selector("#live-mark[data-state='live']")
        return page


def _is_fault(kind: str, text: str) -> bool:
    return kind == "error" and "Failed to load resource" not in text


@pytest.fixture
def reader(browser: Browser, site: Site) -> Iterator[Reader]:
    """A reader whose pages have to be without a fault."""
    one = Reader(browser, site.url)
    yield one
    one.context.close()
    assert one.faults == [], json.dumps(one.faults, indent=2)
