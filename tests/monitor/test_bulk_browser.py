"""Jobs aborted and restarted by filter in a real browser, while they change."""

import pytest
from playwright.sync_api import expect

from tests.demo.showcase import trial
from tests.monitor.conftest import PATIENCE, Reader, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

expect.set_options(timeout=PATIENCE)


def test_jobs_of_a_filter_are_aborted_with_their_count_before(reader: Reader, site: Site) -> None:
    site.showcase.let_go.clear()
    held = [site.client.submit(trial("HELD", tags=("bulk:2",))) for _ in range(2)]
    other = site.client.submit(trial("HELD", tags=("bulk:3",)))
    page = reader.live("/jobs")
    page.get_by_label("Tag", exact=True).fill("bulk:2")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.wait_for_selector("#live-mark[data-state='live']")
    assert "tag=bulk%3A2" in page.url
    page.get_by_role("link", name="Abort all unfinished that match").click()
    expect(page.locator("main")).to_contain_text("2 jobs will be aborted")
    held.append(site.client.submit(trial("HELD", tags=("bulk:2",))))
    page.get_by_role("button", name="Abort 2 jobs").click()
    expect(page.get_by_role("alert")).to_contain_text("3, not 2")
    assert {site.client.job(job.id).state.final for job in held} == {False}
    page.get_by_role("button", name="Abort 3 jobs").click()
    expect(page.get_by_text("Aborted 3 jobs.")).to_be_visible()
    expect(page.locator("tr .chip.aborted")).to_have_count(3)
    assert not site.client.job(other.id).state.final
    site.showcase.let_go.set()
    page.get_by_role("link", name="Restart all ended that match").click()
    page.get_by_role("link", name="3 that have been aborted").click()
    page.get_by_role("button", name="Restart 3 jobs").click()
    expect(page.get_by_text("Restarted 3 jobs.")).to_be_visible()
    assert [site.client.wait(job.id).state for job in held] == ["succeeded"] * 3
    expect(page.locator("tr .chip.succeeded", has_text="resolved")).to_have_count(3)
    site.client.wait(other.id)


def test_a_waiting_job_says_why_and_goes_on_by_itself(reader: Reader, site: Site) -> None:
    site.showcase.let_go.clear()
    builders = [worker for worker in site.client.workers() if "build" in worker.kinds]
    slots = sum(worker.slots for worker in builders)
    held = [site.client.submit(trial("HELD")) for _ in range(slots)]
    job = site.client.submit(trial("HELD"))
    page = reader.live(f"/jobs/{job.id}")
    expect(page.locator("#job-place")).to_contain_text("next in its queue")
    expect(page.locator("#job-place")).to_contain_text(f"{slots} of {slots} slots in use")
    expect(page.locator(".timeline")).to_contain_text("Builds the package linux-source-6.1")
    site.client.abort(held[0].id)
    expect(page.locator("#job-place")).to_be_empty()
    expect(page.locator("#job-live .chips .chip").first).to_contain_text("running")
    site.showcase.let_go.set()
