"""Each question that readers have is answered within two clicks, in a real browser."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from kgym.api.steps import Patch
from tests.demo import demo_benchmark, demo_jobs
from tests.demo.demo_jobs import GROUP
from tests.demo.demo_site import demo_site
from tests.demo.showcase import BUG, trial
from tests.monitor.conftest import PATIENCE, Look, Reader, Site, barriers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE)
PHONE = Look("light", 390)
FILE = "kernel/watch_queue.c"


@dataclass
class Clicks:
    """A page on which at most two clicks are allowed."""

    page: Page
    count: int = field(default=0)

    def click(self, at: Locator) -> None:
        self.count += 1
        assert self.count <= 2, "a third click"
        at.click()


@dataclass(frozen=True)
class Shown:
    """A site with the demo's jobs, which have ended, one that is held, and a benchmark."""

    site: Site
    jobs: dict[str, int]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with demo_site(tmp_path_factory.mktemp("data")) as site:
        with ThreadPoolExecutor(1) as pool:  # the browser's event loop may run in this thread
            pool.submit(demo_benchmark.put, site.benchmarks).result()
        wanted = {**demo_jobs.ended(), "traced": demo_jobs.traced()}
        jobs = demo_jobs.submit(site.client, wanted)
        for number in jobs.values():
            site.client.wait(number)
        yield Shown(site, jobs)


@pytest.fixture
def reader(browser: Browser, shown: Shown) -> Iterator[Reader]:
    with Reader(browser, shown.site.url) as reader:
        yield reader


@pytest.mark.parametrize("width", [1280, 390])
def test_why_did_it_fail(browser: Browser, shown: Shown, width: int) -> None:
    why = "the patch hides code from KASAN, kernel/watch_queue.c:320"
    job = shown.jobs["hides"]
    with Reader(browser, shown.site.url, Look("light", width)) as reader:
        page = reader.open("/jobs")
        expect(page.locator(f"#job-{job} .outcome")).to_contain_text(why)
        clicks = Clicks(page)
        clicks.click(page.locator(f"#job-{job} .name"))
        expect(page.locator("#job-live")).to_contain_text(f"Not resolved: {why}")
        # It stands in the patch, too, without a further click.
        expect(page.locator("#on-trial-1 .said.error")).to_contain_text("hides code from KASAN")


def test_which_patches_resolved_and_how_two_differ(reader: Reader, shown: Shown) -> None:
    page = reader.open("/jobs")
    clicks = Clicks(page)
    clicks.click(page.locator(".tag.group").first)
    chips = page.get_by_label("Outcomes")
    expect(chips).to_contain_text("not resolved")
    clicks.click(chips.get_by_role("link", name="1 resolved").or_(chips.locator("a").first))
    expect(page.locator("tbody tr").first).to_be_visible()
    page.goto(f"/groups/{GROUP}?submitter=local")
    clicks = Clicks(page)
    clicks.click(page.locator(f"input[value='{shown.jobs['fixed']}:fix']"))
    clicks.click(page.locator(f"input[value='{shown.jobs['hides']}:fix']"))
    expect(page.locator(".sides .card")).to_have_count(2)
    expect(page.locator(".sides")).to_contain_text("hides code from KASAN")


def test_what_the_agent_does_and_costs(reader: Reader, shown: Shown) -> None:
    page = reader.open("/runs")
    clicks = Clicks(page)
    clicks.click(page.get_by_role("link", name=BUG.name).or_(page.locator("tbody a")).first)
    expect(page.locator("#run-live")).to_contain_text("Cost")
    expect(page.locator(".cycle").first).to_be_visible()
    assert shown.site.run


def test_which_bug_has_a_function_on_its_stack(reader: Reader) -> None:
    page = reader.open("/")
    page.get_by_role("searchbox", name="Find jobs").fill("pipe_ioctl")
    page.keyboard.press("Enter")
    expect(page.locator("tbody")).to_contain_text(BUG.name)


def test_which_worker_runs_what_and_for_how_long(reader: Reader, shown: Shown) -> None:
    shown.site.showcase.let_go.clear()
    job = shown.site.client.submit(trial("HELD")).id
    try:
        page = reader.live("/")
        clicks = Clicks(page)
        clicks.click(page.get_by_role("link", name="Workers").first)
        running = page.locator(f"a[href='/jobs/{job}?step=0']")
        expect(running).to_be_visible()
        expect(page.locator(".chip.running .ticking").first).to_contain_text("s")
    finally:
        shown.site.showcase.let_go.set()
        shown.site.client.wait(job)


def test_which_setup_is_best_at_a_class_and_whether_that_is_significant(reader: Reader) -> None:
    page = reader.open("/benchmarks")
    clicks = Clicks(page)
    clicks.click(page.locator("main a", has_text=demo_benchmark.NAME).first)
    table = page.locator("#by table")
    expect(table).to_contain_text("p of the best")
    row = table.locator("tbody tr", has_text="KASAN").first
    expect(row.locator("td strong")).to_have_count(1)
    expect(page.locator("#board")).to_contain_text("Rank")


def test_a_line_of_a_log_has_an_address(browser: Browser, reader: Reader, shown: Shown) -> None:
    page = reader.open(f"/jobs/{shown.jobs['fixed']}?step=2")
    page.locator(".log-view").scroll_into_view_if_needed()
    line = page.locator(".log-line[data-number='3']")
    expect(line).to_be_visible()
    clicks = Clicks(page)
    clicks.count += 1
    line.click(position={"x": 20, "y": 5})
    expect(line).to_have_class("log-line chosen")
    address = page.evaluate("location.href")
    assert address.endswith(":3")
    with Reader(browser, shown.site.url) as colleague:
        colleague.page.goto(address)
        chosen = colleague.page.locator(".log-line.chosen")
        expect(chosen).to_have_attribute("data-number", "3")


def test_what_the_kernel_did_before_the_crash(reader: Reader, shown: Shown) -> None:
    page = reader.open("/jobs")
    clicks = Clicks(page)
    clicks.click(page.locator(f"#job-{shown.jobs['traced']} .name"))
    clicks.click(page.get_by_role("link", name="Open the trace"))
    expect(page.locator("main")).to_contain_text("watch_queue_set_filter")


def test_a_restart_says_what_it_does_and_keeps_the_old_outcome(
    reader: Reader, shown: Shown
) -> None:
    job = shown.jobs["hides"]
    page = reader.live(f"/jobs/{job}")
    clicks = Clicks(page)
    clicks.click(page.locator("summary", has_text="Restart …"))
    form = page.locator(f"form[action='/jobs/{job}/restart']")
    expect(form).to_contain_text("Not resolved: the patch hides code from KASAN")
    form.locator("select").select_option("3")
    clicks.click(form.get_by_role("button", name="Run again"))
    expect(page.locator("#history")).to_contain_text("Earlier outcomes")
    shown.site.client.wait(job)


def test_many_patches_are_filtered_and_stay_within_a_phone(browser: Browser, shown: Shown) -> None:
    patches = [
        Patch(
            name=f"attempt-{number}{'-BROKEN' if number % 3 else ''}",
            diff=f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1 +1 @@\n-a\n+{number}\n",
        )
        for number in range(200)
    ]
    request = BUG.check(patches).model_copy(update={"group": "many"})
    shown.site.client.wait(shown.site.client.submit(request).id)
    with Reader(browser, shown.site.url, PHONE) as reader:
        page = reader.live("/groups/many?submitter=local")
        expect(page.locator("tbody tr")).to_have_count(200)
        clicks = Clicks(page)
        clicks.click(page.get_by_label("Outcomes").locator("a", has_text="does not compile"))
        expect(page.locator("tbody tr")).to_have_count(133)
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide
        assert barriers(page) == []
