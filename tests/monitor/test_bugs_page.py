"""The pages of bugs: what they say of them, live, by filters that stand in the address."""

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from kgym.api.bugs import BugFilter, BugView
from kgym.api.jobs import JobRequest, JobView
from tests.demo.demo_site import demo_site
from tests.demo.showcase import BUG, trial
from tests.monitor.browsing import Visitor
from tests.monitor.conftest import PATIENCE, Reader, Site
from tests.tables import json_rows

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site of its own: these tests count all jobs on a bug."""
    with demo_site(tmp_path_factory.mktemp("data")) as own:
        yield own


@pytest.fixture(scope="module")
def fixed(site: Site) -> JobView:
    """A job that has resolved the demo's bug, and is counted."""
    job = site.client.submit(trial())
    site.client.wait(job.id)
    counted(site, BUG.name)
    return job


def counted(site: Site, name: str) -> BugView:
    """Return a bug once all its jobs have ended, as they are counted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = site.client.bugs(BugFilter(name=name)).bugs
        if listed and not {"waiting", "running"} & set(listed[0].outcomes):
            return listed[0]
        time.sleep(0.1)
    raise AssertionError(f"{name} was not counted within a minute")


def renamed(name: str) -> JobRequest:
    """A job on another bug."""
    return trial().model_copy(update={"tags": [f"bug={name}"]})


def test_the_list_says_what_is_known_of_a_bug(visitor: Visitor, fixed: JobView) -> None:
    text = visitor.get("/bugs").text
    for words in (BUG.name, "KASAN slab-out-of-bounds", ">kernel<", "</svg>resolved"):
        assert words in text
    assert f'href="/bugs/{BUG.name}"' in text
    assert f'href="/jobs/{fixed.id}"' in text
    assert f"/jobs?bug={BUG.name}&amp;outcome=resolved" in text
    assert "</svg>1 resolved" in text


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize(("query", "shown"), json_rows(__file__, "bug_filters.jsonl"))
def test_filters_stand_in_the_address(visitor: Visitor, query: str, shown: bool) -> None:
    answer = visitor.get(f"/bugs?{query}")
    assert answer.status_code == 200
    assert (f'href="/bugs/{BUG.name}"' in answer.text) == shown
    # Shipped bugs that no job has may match, too.
    assert not (shown and "No bug matches this filter" in answer.text)


@pytest.mark.parametrize("query", ["patch=perhaps", "outcome=x", "cursor=1;2", "text=" + "x" * 300])
def test_a_wrong_filter_is_said(visitor: Visitor, query: str) -> None:
    answer = visitor.get(f"/bugs?{query}")
    assert answer.status_code == 200
    assert 'role="alert"' in answer.text


def test_a_bug_has_a_page(visitor: Visitor, fixed: JobView) -> None:
    text = visitor.get(f"/bugs/{BUG.name}").text
    assert "1 of 1 trials resolve it" in text
    assert "CVE-2022-0995" in text
    assert f'id="job-{fixed.id}"' in text
    assert f'<a href="/bugs/{BUG.name}">{BUG.name}</a>' in visitor.get(f"/jobs/{fixed.id}").text


def test_a_shipped_bug_without_a_job_has_a_page_too(visitor: Visitor) -> None:
    text = visitor.get("/bugs/shm-remap-removed").text
    assert "WARNING in shm_open" in text
    assert "This bug has no jobs yet" in text


def test_a_bug_that_nobody_knows_is_not_found(visitor: Visitor) -> None:
    for name in ("nobody-knows", "%3Cscript%3E", "x" * 300, "a%00b"):
        answer = visitor.get(f"/bugs/{name}")
        assert answer.status_code == 404, name
        assert "<script>" not in answer.text


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a/b:c@1", "x=1+2", "/etc/passwd"])
def test_whatever_a_bug_is_called_it_has_a_page(site: Site, visitor: Visitor, name: str) -> None:
    job = site.client.submit(renamed(name))
    site.client.wait(job.id)
    counted(site, name)
    assert f'href="/bugs/{quote(name)}"' in visitor.get("/bugs").text
    answer = visitor.get(f"/bugs/{quote(name)}")
    assert answer.status_code == 200
    assert f'id="job-{job.id}"' in answer.text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("fixed")
def test_a_bug_s_page_tells_of_a_new_job_without_reloading(reader: Reader, site: Site) -> None:
    page = reader.live("/bugs")
    page.evaluate("window.sameDocument = true")
    job = site.client.submit(renamed("seen-live"))
    row = page.locator("tr", has_text="seen-live")
    expect(row).to_be_visible()
    site.client.wait(job.id)
    expect(row).to_contain_text("1 resolved")
    assert page.evaluate("window.sameDocument") is True
    page.get_by_label("Patch").select_option("resolved")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page.locator("tr", has_text="seen-live")).to_be_visible()
    page.get_by_role("link", name="seen-live").click()
    page.wait_for_selector("#live-mark[data-state='live']")
    expect(page.locator("#bug-live")).to_contain_text("1 of 1 trials resolve it")
    site.showcase.let_go.clear()
    held = site.client.submit(trial("HELD").model_copy(update={"tags": ["bug=seen-live"]}))
    expect(page.locator("#newer")).to_contain_text("newer job")
    expect(page.locator("#bug-live")).to_contain_text("running")
    site.client.abort(held.id)
    site.showcase.let_go.set()
    expect(page.locator("#bug-live")).to_contain_text("1 aborted")
