"""The search box: what it leads to."""

import pytest

from kgym_monitor.routes import search_routes
from kgym_scheduler.database import job_lists
from tests.demo import checked_patches
from tests.demo.showcase import BUG, trial
from tests.monitor.browsing import Visitor, rows, words
from tests.monitor.conftest import Site
from tests.tables import json_rows

FUNCTION = "watch_queue_set_filter"


@pytest.mark.parametrize("typed", json_rows(__file__, "searches.jsonl"))
def test_a_function_leads_to_its_bug_and_to_the_jobs_that_crashed_in_it(
    site: Site, visitor: Visitor, typed: str
) -> None:
    broken, fixed = site.client.submit(trial("BROKEN")), site.client.submit(trial())
    site.client.wait(broken.id)
    site.client.wait(fixed.id)
    assert FUNCTION in (site.client.job(broken.id).title or "")
    page = visitor.get("/search", params={"q": typed})
    assert broken.id in rows(page)
    assert BUG.name in words(page)
    assert f'href="/bugs/{BUG.name}"' in page.text
    assert fixed.id in rows(visitor.get(f"/jobs?bug={BUG.name}"))


def test_what_no_bug_has_is_looked_for_in_jobs(site: Site, visitor: Visitor) -> None:
    job = site.client.submit(trial(tags=("night:77",)))
    page = visitor.get("/search?q=NIGHT:77")
    assert (page.url.path, rows(page)) == ("/jobs", [job.id])
    assert visitor.get(f"/search?q=%23{job.id}").url.path == f"/jobs/{job.id}"
    assert visitor.get("/search?q=").url.path == "/jobs"
    assert visitor.get(f"/search?q=Job%20{job.id}").url.path == f"/jobs/{job.id}"
    assert visitor.get(f"/search?q={BUG.name}").url.path == f"/bugs/{BUG.name}"


def test_a_function_anywhere_on_a_stack_leads_to_its_jobs(site: Site, visitor: Visitor) -> None:
    job = site.client.wait(site.client.submit(trial("SAME")).id)
    page = visitor.get("/search?q=pipe_ioctl")  # the caller, which no title names
    assert "pipe_ioctl" not in (job.title or "")
    assert job.id in rows(page)


def test_a_patch_that_was_only_checked_is_found_by_its_name(site: Site, visitor: Visitor) -> None:
    job = site.client.wait(site.client.submit(checked_patches.request()).id)
    name = checked_patches.patches()[0].name
    assert job.id in rows(visitor.get("/search", params={"q": name}))


def test_what_is_not_there_is_said(visitor: Visitor) -> None:
    page = visitor.get("/search?q=nobody_calls_this")
    assert page.url.path == "/search"
    assert "Nothing found for “nobody_calls_this”" in words(page)


def test_what_only_the_newest_jobs_lack_may_be_there(
    site: Site, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        site.client.submit(trial())
    monkeypatch.setattr(job_lists, "SCANNED", 1)
    monkeypatch.setattr(job_lists, "READ", 1)
    page = visitor.get("/search?q=nobody_calls_this")
    assert page.url.path == "/jobs"
    assert "Nothing found" not in words(page)


def test_a_search_is_text_and_has_a_bound(visitor: Visitor) -> None:
    page = visitor.get("/search", params={"q": "<b onx=1>slab"})
    assert "<b onx" not in page.text
    assert visitor.get("/search", params={"q": "9" * 3000}).status_code == 200
    assert visitor.get("/search", params={"q": "\0\ud7ff%_\\"}).status_code < 500
    assert len(search_routes.plain("x" * 10_000)) == search_routes.LONGEST
    assert search_routes.job_number("\u0663") is None
    assert search_routes.bugs("in") == []
