"""The pages in a real browser, under their policy, as jobs run."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from kgym.api.jobs import JobView
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.worked import working
from tests.demo import checked_patches, demo_benchmark, demo_jobs, monitor_pages
from tests.demo.monitored import monitored
from tests.demo.showcase import BUG, HOSTILE, Showcase, trial
from tests.monitor.conftest import EACH_LOOK, PATIENCE, Look, Reader, Site, barriers

BENCH = f"/benchmarks/{demo_benchmark.NAME}"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, JobView]:
    """Jobs that have ended in all the ways there are."""
    more = {
        "hostile": trial("HOSTILE", tags=("night:4",)),
        "hostile check": checked_patches.request(*checked_patches.patches(HOSTILE[:150])),
        "long check": checked_patches.request(*checked_patches.patches() * 3),
    }
    with ThreadPoolExecutor(1) as pool:  # the browser's event loop may run in this thread
        pool.submit(demo_benchmark.put, site.benchmarks).result()
    put = demo_jobs.submit(site.client, {**demo_jobs.ended(), **more})
    return {name: site.client.wait(number) for name, number in put.items()}


def pages(jobs: dict[str, JobView], running: JobView, run: int) -> dict[str, str]:
    """Each kind of page there is, and what else they may have to show."""
    numbers = {name: job.id for name, job in jobs.items()} | {"running": running.id, "run": run}
    return {
        **{page.name: page.path for page in monitor_pages.pages(numbers)},
        "nothing found": "/jobs?tag=none",
        "bad filter": "/jobs?after=yesterday",
        "hostile": f"/jobs/{jobs['hostile'].id}",
        "bugs": "/bugs",
        "bug": f"/bugs/{BUG.name}",
        "no bug found": "/bugs?text=none",
        "suitecache": "/suitecache",
        "benchmarks": "/benchmarks",
        "benchmark, nothing chosen": f"{BENCH}?fixed_from=2029-01-01",
        "benchmark, wrong choice": f"{BENCH}?k=x",
        "bugs of a benchmark": f"{BENCH}/bugs",
        "bug of a benchmark": f"{BENCH}/bugs/{demo_benchmark.FIRST}",
        "attempt": f"{BENCH}/bugs/{demo_benchmark.FIRST}/attempts/0/1",
        "asked what to compare": f"{BENCH}/compare",
        "asked to restart": "/jobs/restart?state=failed",
        "asked what to restart": "/jobs/restart",
        "hostile check": f"/jobs/{jobs['hostile check'].id}",
        "hostile patch": f"/jobs/{jobs['hostile check'].id}/steps/0/patches/0",
        "long check": f"/jobs/{jobs['long check'].id}",
        "patches": f"/jobs/{jobs['long check'].id}/steps/0/patches",
    }


@pytest.mark.usefixtures("jobs")
def test_a_job_is_followed_to_its_end_without_reloading(reader: Reader, site: Site) -> None:
    page = reader.live("/jobs")
    site.showcase.let_go.clear()
    job = site.client.submit(trial("HELD"))
    newer = page.locator("#newer")
    expect(newer).to_contain_text("newer job")
    newer.click()
    row = page.locator(f"#job-{job.id}")
    expect(row).to_contain_text("running")
    row.locator(".name").click()
    page.wait_for_selector("#live-mark[data-state='live']")
    page.evaluate("window.sameDocument = true")
    log = page.locator(".log-view")
    expect(log).to_contain_text("fs/held")
    expect(page.locator("#job-live progress").first).to_be_visible()
    expect(page.locator(".timeline li").nth(1)).to_contain_text("starts when step 0 has succeeded")
    expect(page).to_have_title(f"Running: job {job.id} · kGymSuite")
    site.showcase.let_go.set()
    expect(page.locator("#job-live")).to_have_attribute("data-final", "yes")
    expect(page.locator("#job-live .head").first).to_contain_text("resolved")
    expect(page.locator("#step-title")).to_have_text("Step 3: Reproduce")
    expect(page).to_have_title(f"Resolved: job {job.id} · kGymSuite")
    assert page.evaluate("window.sameDocument") is True


def test_a_list_shows_a_job_as_it_ends(
    reader: Reader, site: Site, jobs: dict[str, JobView]
) -> None:
    site.showcase.let_go.clear()
    job = site.client.submit(trial("HELD"))
    page = reader.live("/jobs")
    row = page.locator(f"#job-{job.id}")
    expect(row).to_contain_text("running")
    row.get_by_role("checkbox").check()
    site.client.abort(job.id)
    expect(row).to_contain_text("aborted")
    expect(row.get_by_role("checkbox")).to_be_checked()
    page = reader.open("/jobs?tag=night:3")
    expect(page.locator(f"#job-{jobs['fixed'].id}")).to_contain_text("6.1.192")
    site.showcase.let_go.set()


def test_a_crash_is_read_with_its_stack(
    reader: Reader, site: Site, jobs: dict[str, JobView]
) -> None:
    page = reader.open(f"/jobs/{jobs['fixed'].id}?step=1")
    report = page.locator("[data-report]").first
    report.scroll_into_view_if_needed()
    expect(report).to_contain_text("watch_queue_set_filter")
    line = report.get_by_role("link", name="kernel/watch_queue.c:401")
    expect(line).to_have_attribute(
        "href", re.compile(r"v6\.1\.192/source/kernel/watch_queue\.c#L401")
    )
    expect(report.locator("summary", has_text="Allocated by")).to_be_visible()
    expect(page.locator("#step .big")).to_contain_text("2 of 2 completed instances crashed")
    page.get_by_role("link", name="console").first.click()
    expect(page.locator(".log-view")).to_contain_text("BUG: KASAN: slab-out-of-bounds")


@pytest.mark.parametrize("width", [1280, 390])
def test_consoles_are_chosen_by_keyboard_and_stand_side_by_side(
    browser: Browser, site: Site, jobs: dict[str, JobView], width: int
) -> None:
    with Reader(browser, site.url, Look("light", width)) as reader:
        page = reader.open(f"/jobs/{jobs['fixed'].id}?step=1")
        for number in (0, 1):
            page.get_by_label(f"Show the console of instance {number}").press("Space")
        page.get_by_role("button", name="Consoles side by side").press("Enter")
        page.wait_for_url("**/consoles?instance=0&instance=1")
        for number in (0, 1):
            console = page.get_by_role("region", name=f"Console of instance {number}")
            expect(console).to_contain_text("=" * 40)
            console.press("Home")
            expect(console.locator(".log-line").first).to_have_attribute("data-number", "1")
        left, right = (view.bounding_box() for view in page.locator(".log-view").all())
        assert left is not None
        assert right is not None
        assert (left["y"] == right["y"]) is (width > 1000)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_failed_job_opens_at_the_end_of_its_log(reader: Reader, jobs: dict[str, JobView]) -> None:
    page = reader.open(f"/jobs/{jobs['broken'].id}")
    expect(page.locator("#step-title")).to_have_text("Step 2: Build")
    expect(page.locator(".log-line").last).to_contain_text("error: expected ';'")
    expect(page.locator("#step table.diff").first).to_be_hidden()
    page.locator("#step details.diff summary").first.click()
    expect(page.locator("#step table.diff .added").first).to_be_visible()


def test_jobs_are_aborted_and_restarted(reader: Reader, site: Site) -> None:
    site.showcase.let_go.clear()
    held = [site.client.submit(trial("HELD", tags=("bulk:1",))) for _ in range(3)]
    page = reader.live("/jobs?tag=bulk:1")
    page.get_by_role("link", name="Abort all unfinished").click()
    expect(page.locator("main")).to_contain_text("3 jobs will be aborted")
    page.get_by_role("button", name="Abort 3 jobs").click()
    expect(page.get_by_text("Aborted 3 jobs.")).to_be_visible()
    states = {site.client.job(job.id).state for job in held}
    assert states == {"aborted"}
    site.showcase.let_go.set()
    for job in held[:2]:
        page.get_by_label(f"Select job {job.id}").check()
    page.get_by_role("button", name="Restart selected").click()
    page.get_by_role("button", name="Restart 2 jobs").click()
    expect(page.get_by_text("Restarted 2 jobs.")).to_be_visible()
    assert [site.client.wait(job.id).state for job in held[:2]] == ["succeeded"] * 2
    page.goto(f"/jobs/{held[2].id}")
    page.locator("summary", has_text="Restart …").click()
    page.get_by_label("Run again from").select_option("0")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("runs again")).to_be_visible()
    assert site.client.wait(held[2].id).state == "succeeded"


def test_what_is_hostile_is_shown_as_text(
    reader: Reader, site: Site, jobs: dict[str, JobView]
) -> None:
    page = reader.open(f"/jobs/{jobs['hostile'].id}")
    shown = HOSTILE.replace("\x1b", "\u241b")
    expect(page.locator(".notice.bad")).to_contain_text(shown)
    expect(page.locator(".log-view")).to_contain_text(shown)
    assert "taken" not in page.title()
    page.goto(f"/jobs/{jobs['hostile check'].id}/steps/0/patches/0")
    expect(page.locator("table.diff .beside.error").first).to_contain_text(shown[:140])
    assert "taken" not in page.title()
    for path in (
        "/bugs?text=",
        "/bugs/",
        "/suitecache?text=",
        "/jobs?bug=",
        "/jobs?tag=",
        "/jobs?group=",
        "/search?q=",
        "/jobs/abort?text=",
        "/login?next=/jobs/",
    ):
        page.goto(path + "%3Cscript%3Edocument.title%3D%27taken%27%3C%2Fscript%3E%22%3E%3Cb%3E")
        assert "taken" not in page.title()
        assert page.locator("main b").count() == 0


@pytest.mark.parametrize("look", EACH_LOOK)
def test_every_page_is_accessible_and_keeps_its_policy(
    browser: Browser, site: Site, jobs: dict[str, JobView], look: Look
) -> None:
    with Reader(browser, site.url, look) as reader:
        violations = {}
        site.showcase.let_go.clear()
        running = site.client.submit(trial("HELD"))
        for name, path in pages(jobs, running, site.run).items():
            page = reader.open(path)
            page.wait_for_function("!document.querySelector('.log-window:not([data-filled])')")
            violations[name] = barriers(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= look.width, f"{name} is {wide} wide"
        site.showcase.let_go.set()
    assert {name: faults for name, faults in violations.items() if faults} == {}


def test_a_page_goes_light_and_dark_and_is_read_by_keyboard(reader: Reader) -> None:
    page = reader.open("/")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Light or dark").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.get_by_role("searchbox").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_search_box_leads_to_jobs_bugs_titles_and_tags(
    reader: Reader, site: Site, jobs: dict[str, JobView]
) -> None:
    checks: list[Callable[[Page], None]] = [
        lambda page: expect(page).to_have_url(re.compile(f"/jobs/{jobs['fixed'].id}$")),
        lambda page: expect(page).to_have_url(re.compile(f"/bugs/{BUG.name}$")),
        lambda page: expect(page.locator(f"#job-{jobs['fixed'].id}")).to_contain_text("night:3"),
        lambda page: expect(page.locator(f"#job-{jobs['fixed'].id}")).to_contain_text("sweep-11"),
        lambda page: expect(page.locator(f"#job-{jobs['broken'].id}")).to_be_visible(),
    ]
    asked = (str(jobs["fixed"].id), BUG.name, "night:3", "sweep-11", "slab-out-of-bounds")
    for words, leads in zip(asked, checks, strict=True):
        page = reader.open("/")
        page.get_by_role("searchbox").fill(words)
        page.keyboard.press("Enter")
        leads(page)


def test_a_log_of_a_million_lines_is_scrolled_and_searched(
    browser: Browser, tmp_path: Path
) -> None:
    lines = 1_000_000
    showcase = Showcase(lines=0, text="".join(f"[{n}] CC kernel/part{n}.o\n" for n in range(lines)))
    showcase.let_go.set()
    with (
        Platform(tmp_path, work=False) as platform,
        working(platform, tmp_path, showcase.answers),
        monitored(platform.url) as url,
        Client(platform.url) as client,
    ):
        job = client.submit(trial())
        client.wait(job.id)
        with Reader(browser, url) as reader:
            page = reader.open(f"/jobs/{job.id}?step=0")
            expect(page.locator(".log-tools .told")).to_contain_text("1,000,000 lines")
            assert page.locator(".log-line").count() < 100
            page.locator(".log-view").evaluate("view => view.scrollTop = view.scrollHeight")
            expect(page.locator(".log-line").last).to_contain_text("part999999.o")
            page.get_by_label("Search the log").fill("part765432.o")
            expect(page.locator(".log-line.chosen")).to_contain_text("[765432]")
            assert page.locator(".log-tools").get_by_text("1 of 1").is_visible()
            session = reader.context.new_cdp_session(page)
            session.send("HeapProfiler.collectGarbage")
            heap = session.send("Runtime.getHeapUsage")["usedSize"]
            assert heap < 100e6


POLL = re.compile(r"[?&]poll=yes")


def test_a_page_whose_poll_fails_says_so_and_recovers(browser: Browser, site: Site) -> None:
    reader = Reader(browser, site.url)
    page = reader.live("/jobs")
    reader.context.route(POLL, lambda route: route.abort())
    expect(page.locator("#live-words")).to_contain_text("Stale since")
    reader.context.unroute(POLL)
    expect(page.locator("#live-words")).to_have_text("Live")
    reader.context.close()


def test_many_windows_on_a_running_job_hold_no_connection(browser: Browser, site: Site) -> None:
    """HTTP/1.1 browsers open six connections to a host: eight windows have to share them."""
    site.showcase.let_go.clear()
    job = site.client.submit(trial("HELD"))
    reader = Reader(browser, site.url)
    windows = [reader.context.new_page() for _ in range(8)]
    for page in windows:
        page.goto(f"/jobs/{job.id}")
    for page in windows:
        page.bring_to_front()
        expect(page.locator(".log-view")).to_contain_text("fs/held")
        page.wait_for_selector("#live-mark[data-state='live']")
    site.showcase.let_go.set()
    for page in windows:
        page.bring_to_front()
        expect(page.locator("#job-live")).to_have_attribute("data-final", "yes")
    reader.context.close()


def test_what_a_reader_is_doing_survives_polls(reader: Reader, site: Site) -> None:
    """Focus, selected text, an opened box and the scroll position stay as the job goes on."""
    site.showcase.let_go.clear()
    job = site.client.submit(trial("HELD"))
    page = reader.live(f"/jobs/{job.id}")
    expect(page.locator(".log-view")).to_contain_text("fs/held")
    page.locator("summary", has_text="What was asked").click()
    page.locator("ol.timeline a").nth(1).focus()
    page.evaluate(
        "scrollTo(0, 120); getSelection().selectAllChildren(document.querySelector('h1'))"
    )
    kept = """() => ({
      focus: document.activeElement.getAttribute("href"),
      selected: String(getSelection()),
      open: document.querySelector("details[id^='spec-']").open,
      scrolled: scrollY,
    })"""
    before = page.evaluate(kept)
    assert before["open"]
    assert before["selected"]
    assert before["focus"].endswith("step=1")
    for _ in range(3):
        with page.expect_response(POLL):
            pass
    assert page.evaluate(kept) == before
    site.showcase.let_go.set()


def test_a_platform_that_stops_and_comes_back_is_noticed(browser: Browser, tmp_path: Path) -> None:
    showcase = Showcase()
    with Platform(tmp_path, work=False) as platform, Client(platform.url) as client:
        port = int(platform.url.rpartition(":")[2])
        job = client.submit(trial())
        with monitored(platform.url) as url, Reader(browser, url) as reader:
            page = reader.live("/jobs")
            expect(page.locator(f"#job-{job.id}")).to_contain_text("waiting")
            platform.stop()
            page.wait_for_selector("#live-mark[data-state='stale']")
            with (
                Platform(tmp_path, port=port, work=False) as again,
                working(again, tmp_path, showcase.answers),
                Client(again.url) as other,
            ):
                other.wait(job.id)
                page.wait_for_selector("#live-mark[data-state='live']")
                expect(page.locator(f"#job-{job.id}")).to_contain_text("resolved")
