"""The overview's charts in a real browser: drawn, in numbers, in both schemes, and live."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.routes import overview_routes
from tests.demo import past_attempts
from tests.demo.monitored import monitored
from tests.demo.past_attempts import Past
from tests.demo.screenshots import PATIENCE
from tests.demo.showcase import HOSTILE
from tests.monitor.conftest import EACH_LOOK, Look, Reader, barriers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

expect.set_options(timeout=PATIENCE)

# How many dots of a chart are in the colour of each of its swatches.
PAINTED = """name => {
    const canvas = document.querySelector(`#chart-${name} canvas`);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const shades = new Map();
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 255) continue;
        const shade = `rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`;
        shades.set(shade, (shades.get(shade) ?? 0) + 1);
    }
    const swatches = document.querySelectorAll(`#chart-${name} .swatch`);
    return [...swatches].map((one) => shades.get(getComputedStyle(one).backgroundColor) ?? 0);
}"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("busy")
    with Platform(data, work=False) as platform, monitored(platform.url) as url:
        past_attempts.add(data, past_attempts.month(datetime.now(UTC)))
        yield url


@pytest.fixture
def reader(browser: Browser, busy: str) -> Iterator[Reader]:
    with Reader(browser, busy) as reader:
        yield reader


FITTED = """() => [...document.querySelectorAll(".chart")].every(
    (box) => box.querySelector(".uplot").offsetWidth === box.clientWidth
)"""


def until(happened: Callable[[], object]) -> None:
    """Wait for it; the pages' policy forbids Playwright's `wait_for_function` to ask again."""
    end = time.monotonic() + PATIENCE / 1000
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def drawn(page: Page) -> Page:
    expect(page.locator(".chart canvas")).to_have_count(4)
    return page


def test_each_chart_is_drawn_in_its_legend_s_colours(reader: Reader) -> None:
    page = drawn(reader.open("/?range=week"))
    for name in ("throughput", "failed", "infrastructure", "cache"):
        painted = page.evaluate(PAINTED, name)
        assert len(painted) == {"throughput": 4, "failed": 7, "infrastructure": 3, "cache": 1}[name]
        seen = painted[:2] if name == "throughput" else painted  # few of many are a thin line
        assert all(dots > 5 for dots in seen), (name, painted)
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    until(lambda: all(dots > 5 for dots in page.evaluate(PAINTED, "failed")))


def test_the_range_is_switched_and_stands_in_the_address(reader: Reader) -> None:
    page = drawn(reader.open("/"))
    switch = page.get_by_role("navigation", name="Time range of the charts")
    expect(switch.locator("[aria-current]")).to_have_text("24 hours")
    for words, name in (("Hour", "hour"), ("7 days", "week"), ("30 days", "month")):
        switch.get_by_role("link", name=words, exact=True).press("Enter")
        page.wait_for_url(f"**/?range={name}#history")
        drawn(page)
        expect(switch.locator("[aria-current]")).to_have_text(words)


def test_the_numbers_are_read_by_keyboard(reader: Reader) -> None:
    page = drawn(reader.open("/?range=month"))
    figure = page.locator("#chart-failed")
    expect(figure.get_by_role("img")).to_have_attribute(
        "aria-label", "Failures by cause over time, as a chart; the same in numbers below"
    )
    summary = figure.locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    table = figure.get_by_role("region", name="Failures by cause, in numbers")
    expect(table.get_by_role("columnheader", name="does_not_compile", exact=True)).to_be_visible()
    row = table.get_by_role("row").nth(1)
    today = page.evaluate(
        "new Intl.DateTimeFormat(undefined, {day: 'numeric', month: 'short', timeZone: 'UTC'})"
        ".format(Date.now())"
    )
    expect(row.get_by_role("rowheader")).to_contain_text(today)
    page.keyboard.press("Tab")
    expect(table).to_be_focused()


def test_the_pointer_tells_a_bar_s_numbers(reader: Reader) -> None:
    page = drawn(reader.open("/?range=month"))
    over = page.locator("#drawn-throughput .u-over")
    over.hover(position={"x": 60, "y": 60})
    tip = page.locator("#drawn-throughput .chart-tip")
    expect(tip).to_contain_text("Succeeded")
    over.hover(position={"x": over.bounding_box()["width"] - 8, "y": 60})
    expect(tip).to_be_visible()
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


def test_charts_go_with_the_window(reader: Reader) -> None:
    page = drawn(reader.open("/"))
    for width in (700, 1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        until(lambda: page.evaluate(FITTED))
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_grow_while_one_watches(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nothing to something to more; a reason that is hostile is text."""
    monkeypatch.setattr(overview_routes, "HISTORY_SECONDS", 1.0)  # 30 s, twice, is most of a minute
    with (
        Platform(tmp_path, work=False) as platform,
        monitored(platform.url) as url,
        Reader(browser, url) as reader,
    ):
        page = reader.live("/?range=week")
        expect(page.locator("#history-live .empty")).to_be_visible()
        page.evaluate("window.sameDocument = true")
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        some = [Past(hour - timedelta(hours=n), attempts=10) for n in (9, 50)]
        past_attempts.add(tmp_path, some)
        figure = page.locator("#chart-throughput")
        expect(figure.locator("figcaption")).to_contain_text("20 attempts")
        before = page.evaluate(PAINTED, "throughput")[0]
        figure.locator("summary").click()
        expect(figure.locator("tbody tr")).to_have_count(2)
        reason = HOSTILE.replace("\x1b", "")[:100]
        more = Past(hour - timedelta(hours=20), 3600, "build", "failed", "user", reason, "", 30)
        past_attempts.add(tmp_path, [more, Past(hour - timedelta(hours=30), attempts=30)])
        expect(figure.locator("figcaption")).to_contain_text("80 attempts")
        expect(figure.locator("tbody tr")).to_have_count(4)
        expect(figure.locator("table")).to_be_visible()
        assert page.evaluate(PAINTED, "throughput")[0] != before
        expect(page.locator("#chart-failed .chart-legend")).to_contain_text(reason)
        drawn_failed = page.locator("#drawn-failed .u-over")
        expect(drawn_failed).to_be_visible()
        assert page.evaluate("window.sameDocument") is True
        assert "taken" not in page.title()


@pytest.mark.parametrize("look", EACH_LOOK)
def test_charts_are_accessible_and_keep_the_policy(browser: Browser, busy: str, look: Look) -> None:
    with Reader(browser, busy, look) as reader:
        page = drawn(reader.open("/?range=month"))
        for summary in page.locator("#history summary").all():
            summary.click()
        faults = barriers(page)
        wide = page.evaluate("document.documentElement.scrollWidth")
    assert faults == []
    assert wide <= look.width
