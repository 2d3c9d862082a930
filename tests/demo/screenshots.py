"""Pictures of the monitor's pages, taken by the Chromium that is installed."""

import base64
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from playwright.sync_api import Browser, Error, Page, sync_playwright

from kgym.errors import InfrastructureError, UserError
from tests.demo.monitor_pages import MonitorPage

Theme = Literal["light", "dark"]
# What Chromium is called, on Debian and elsewhere.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Milliseconds that a page may take to show what it has to: the machine may be busy.
PATIENCE = 60_000
# Pixels of a picture.
LEAST_HEIGHT = 500

# Reads a PNG in a browser: its pixels as places in a palette.
_READ = Path(__file__).with_name("small_png.js").read_text()


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG of a page."""

    page: MonitorPage
    file: Path
    width: int
    """In pixels, as is"""
    height: int


def chromium() -> str:
    """Return the path of the installed Chromium; raises UserError `no_browser`."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise UserError(
            "no_browser",
            "there is no Chromium here: `apt-get install chromium` brings it; looked for"
            f" {', '.join(PROGRAMS)}",
        )
    return program


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a headless Chromium while the context lasts; raises UserError `no_browser`."""
    path = chromium()
    # Chromium's own sandbox is not for root.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield launched
        finally:
            launched.close()


def shoot(
    site: str,
    pages: Sequence[MonitorPage],
    folder: Path,
    *,
    theme: Theme = "light",
    width: int = 1280,
    height: int = 1600,
) -> Iterator[Picture]:
    """Write NAME.png of each page of the monitor at `site` into `folder`, and yield it.

    What is below `height` pixels is left out.

    Raises UserError `no_browser`; InfrastructureError `page_not_shown` if a page does not show
    what it has to.
    """
    with browser() as opened:
        context = opened.new_context(
            base_url=site, color_scheme=theme, locale="en-GB", timezone_id="UTC"
        )
        context.set_default_timeout(PATIENCE)
        tab, blank = context.new_page(), context.new_page()
        for page in pages:
            try:
                shown = _show(tab, page, width, height)
                file = folder / f"{page.name}.png"
                # Else Playwright adds a style for the caret, which the pages' policy forbids.
                taken = tab.screenshot(caret="initial")
                file.write_bytes(_small(taken, blank))
            except Error as error:
                raise InfrastructureError(
                    "page_not_shown", f"{page.name}: {page.path}: {error.message.splitlines()[0]}"
                ) from error
            yield Picture(page, file, width, shown)


def _show(tab: Page, page: MonitorPage, width: int, most: int) -> int:
    """Let the tab show a page as it has to be, from its top; return the height, `most` at most."""
    tab.set_viewport_size({"width": width, "height": LEAST_HEIGHT})
    answer = tab.goto(page.path)
    if answer is None or answer.status != page.status:
        status = answer and answer.status
        raise InfrastructureError(
            "page_not_shown", f"{page.name}: {page.path} answers {status}, not {page.status}"
        )
    # A crash report is loaded when it comes near: on a narrow page it stands further down.
    tab.evaluate("document.querySelector('[data-report]')?.scrollIntoView()")
    tab.wait_for_selector(page.ready)
    tab.wait_for_function("!document.querySelector('.log-window:not([data-filled])')")
    if tab.locator("#live-mark").count():
        tab.wait_for_selector("#live-mark[data-state='live']")
    height = int(tab.evaluate("document.documentElement.scrollHeight"))
    height = max(LEAST_HEIGHT, min(height, most))
    tab.set_viewport_size({"width": width, "height": height})
    tab.evaluate("scrollTo(0, 0)")
    return height


class _Pixels(TypedDict):
    width: int
    palette: list[list[int]]
    indexes: str


def _small(png: bytes, blank: Page) -> bytes:
    """Return the PNG with its 256 most frequent colours; others become the nearest of these.

    `blank` is an empty tab of a browser, without a policy.
    """
    pixels: _Pixels = blank.evaluate(_READ, base64.b64encode(png).decode())
    width, indexes = pixels["width"], base64.b64decode(pixels["indexes"])
    height = len(indexes) // width
    # Each row begins with its filter: 0, none, which is best where pixels are places in a palette.
    rows = (b"\0" + indexes[at : at + width] for at in range(0, len(indexes), width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = bytes(part for colour in pixels["palette"] for part in colour)
    packed = zlib.compress(b"".join(rows), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunks(header, colours, packed))


def _chunks(header: bytes, colours: bytes, packed: bytes) -> Iterator[bytes]:
    for kind, data in ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", packed), (b"IEND", b"")):
        yield struct.pack(">I", len(data)) + kind + data
        yield struct.pack(">I", zlib.crc32(kind + data))
