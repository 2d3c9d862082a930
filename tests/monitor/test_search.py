"""The search box: what it leads to."""

import pytest

from kgym_monitor.routes import search_routes
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
    assert f'href="/jobs?bug={BUG.name}"' in page.text
    assert fixed.id in rows(visitor.get(f"/jobs?bug={BUG.name}"))


def test_what_no_bug_has_is_looked_for_in_jobs(site: Site, visitor: Visitor) -> None:
    job = site.client.submit(trial(tags=("night:77",)))
    page = visitor.get("/search?q=NIGHT:77")
    assert (page.url.path, rows(page)) == ("/jobs", [job.id])
    assert visitor.get(f"/search?q=%23{job.id}").url.path == f"/jobs/{job.id}"
    assert visitor.get("/search?q=").url.path == "/jobs"
    assert visitor.get(f"/search?q={BUG.name}").url.params["bug"] == BUG.name


def test_a_search_is_text_and_has_a_bound(visitor: Visitor) -> None:
    page = visitor.get("/search", params={"q": "<b onx=1>slab"})
    assert "<b onx" not in page.text
    assert visitor.get("/search", params={"q": "9" * 3000}).status_code == 200
    assert visitor.get("/search", params={"q": "\0\ud7ff%_\\"}).status_code < 500
    assert len(search_routes.plain("x" * 10_000)) == search_routes.LONGEST
    assert search_routes.job_number("\u0663") is None
    assert search_routes.bugs("in") == []
