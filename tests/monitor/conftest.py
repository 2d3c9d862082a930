"""A platform whose steps do what the showcase says, a monitor of it, and a browser."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from kgym.errors import UserError
from tests.conftest import turns
from tests.demo import screenshots
from tests.demo.demo_site import DemoSite as Site
from tests.demo.demo_site import demo_site
from tests.demo.screenshots import PATIENCE
from tests.monitor.browsing import Visitor


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with demo_site(tmp_path_factory.mktemp("data")) as demo:
        yield demo


@pytest.fixture(scope="module")  # its event loop runs in this thread as long as it is open
def browser() -> Iterator[Browser]:
    try:
        screenshots.chromium()
    except UserError as error:
        pytest.skip(str(error))
    with screenshots.browser() as browser_:
        yield browser_


@dataclass(frozen=True)
class Look:
    """How a reader's browser is: light or dark, and how wide."""

    scheme: str
    width: int


LOOKS = [Look(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]
EACH_LOOK = turns(LOOKS, 1, [f"{look.scheme}-{look.width}" for look in LOOKS])


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
            lambda message: (
                self.faults.append(message.text) if _is_fault(message.type, message.text) else None
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        assert kind is not None or self.faults == [], json.dumps(self.faults, indent=2)

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
    with Reader(browser, site.url) as reader:
        yield reader


@pytest.fixture
def visitor(site: Site) -> Iterator[Visitor]:
    with Visitor(site.url) as visitor:
        yield visitor


def barriers(page: Page) -> list[tuple[str, str, str | None]]:
    """Return what keeps readers off a page, as axe-core finds it, each with an example."""
    return [
        (fault["id"], fault["nodes"][0]["html"], fault["nodes"][0].get("failureSummary"))
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in {"serious", "critical"}
    ]
