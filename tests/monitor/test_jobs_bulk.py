"""Jobs of a list: turned over both ways, and aborted or restarted by filter with a count."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kgym.api.jobs import JobRequest
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.pages.job_filter import PAGE, TRAIL, JobQuery
from tests.cli.worked import working
from tests.demo.monitored import monitored
from tests.demo.showcase import Showcase, trial
from tests.monitor.browsing import Visitor, attribute, rows, words


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Client]]:
    """A monitor of a platform whose jobs stay in the queue, as no worker is there."""
    with (
        Platform(tmp_path_factory.mktemp("idle"), work=False) as platform,
        monitored(platform.url) as url,
        Client(platform.url) as client,
    ):
        yield url, client


@pytest.fixture
def visitor(idle: tuple[str, Client]) -> Iterator[Visitor]:
    with Visitor(idle[0]) as visitor:
        yield visitor


def many(client: Client, count: int, tag: str) -> list[int]:
    """Submit jobs of one step each."""
    request = JobRequest(steps=trial().steps[:1], tags=[tag])
    return client.submit_all([request] * count).jobs


@pytest.mark.thorough
def test_jobs_of_a_filter_are_aborted_after_their_count_was_shown(
    idle: tuple[str, Client], visitor: Visitor
) -> None:
    _, client = idle
    meant, other = many(client, 3, "night:1"), many(client, 1, "night:2")
    page = visitor.get("/jobs?tag=night:1&state=queued")
    asked = visitor.get(attribute(page, 'href="(/jobs/abort[^"]*)"'))
    assert "3 jobs will be aborted" in words(asked)
    assert "Tag night:1" in words(asked)
    assert "State queued" in words(asked)
    done = visitor.submit(asked, "/jobs/abort/filtered")
    assert "Aborted 3 jobs." in words(done)
    assert done.url.params["tag"] == "night:1"
    assert {client.job(number).state for number in meant} == {"aborted"}
    assert client.job(other[0]).state == "queued"


@pytest.mark.thorough
def test_another_number_than_was_shown_is_asked_about_again(
    idle: tuple[str, Client], visitor: Visitor
) -> None:
    _, client = idle
    jobs = many(client, 2, "late:1")
    asked = visitor.get("/jobs/abort?tag=late:1")
    jobs += many(client, 1, "late:1")
    again = visitor.submit(asked, "/jobs/abort/filtered")
    assert again.status_code == 409
    assert "Nothing was done" in words(again)
    assert "3, not 2" in words(again)
    assert {client.job(number).state for number in jobs} == {"queued"}
    assert "Aborted 3 jobs." in words(visitor.submit(again, "/jobs/abort/filtered"))
    assert {client.job(number).state for number in jobs} == {"aborted"}


@pytest.mark.thorough
def test_jobs_that_have_ended_are_restarted_by_their_state(
    idle: tuple[str, Client], visitor: Visitor
) -> None:
    _, client = idle
    jobs = many(client, 3, "again:1")
    client.abort_all(jobs[:2])
    asked = visitor.get("/jobs/restart?tag=again:1")
    assert "2 that have been aborted" in words(asked)
    assert "none that have failed" in words(asked)
    asked = visitor.get(attribute(asked, r'href="(/jobs/restart\?[^"]*state=aborted[^"]*)"'))
    assert "2 jobs will be run again" in words(asked)
    client.abort(jobs[2])
    again = visitor.submit(asked, "/jobs/restart/filtered")
    assert "3, not 2" in words(again)
    assert "Restarted 3 jobs." in words(visitor.submit(again, "/jobs/restart/filtered"))
    assert {client.job(number).state for number in jobs} == {"queued"}


@pytest.mark.thorough
def test_over_a_thousand_jobs_are_aborted_at_once(
    idle: tuple[str, Client], visitor: Visitor
) -> None:
    _, client = idle
    many(client, 1000, "much:1")
    many(client, 50, "much:1")
    asked = visitor.get("/jobs/abort?tag=much:1")
    assert "1,050 jobs will be aborted" in words(asked)
    assert "Aborted 1,050 jobs." in words(visitor.submit(asked, "/jobs/abort/filtered"))
    assert "No unfinished job" in words(visitor.get("/jobs/abort?tag=much:1"))


def test_nothing_is_done_without_a_number_or_with_a_wrong_filter(
    idle: tuple[str, Client], visitor: Visitor
) -> None:
    _, client = idle
    [job] = many(client, 1, "safe:1")
    asked = visitor.get("/jobs/abort?tag=safe:1")
    for changed in (
        {"expected": ""},
        {"expected": "0"},
        {"expected": "x"},
        {"expected": "99999999999999999999"},
        {"filter": "state=odd"},
        {"filter": "tag=" + "x" * 5000},
        {"filter": "tag=safe:1&text=" + "y" * 300},
        {"form_key": "x"},
    ):
        answer = visitor.submit(asked, "/jobs/abort/filtered", **changed)
        assert answer.status_code in {403, 422}, changed
        assert client.job(job).state == "queued"
    assert visitor.submit(asked, "/jobs/abort/filtered", form_key="").status_code == 403
    for path in ("/jobs/abort?state=odd", "/jobs/restart?after=yesterday", "/jobs/x/filtered"):
        answer = visitor.get(path)
        assert answer.status_code in {405, 422}
    assert "No unfinished job" in words(visitor.get("/jobs/abort?state=succeeded&tag=safe:1"))


def test_the_filter_of_the_question_is_text(visitor: Visitor) -> None:
    evil = "<script>x</script>\"'"
    page = visitor.get("/jobs/abort", params={"text": evil})
    assert evil in words(page)
    assert "<script>x" not in page.text


def test_a_list_is_turned_over_both_ways(idle: tuple[str, Client], visitor: Visitor) -> None:
    _, client = idle
    jobs = sorted(many(client, 2 * PAGE + 5, "pages:1"), reverse=True)
    page = visitor.get("/jobs?tag=pages:1")
    seen = [rows(page)]
    assert 'rel="prev"' not in page.text
    while 'rel="next"' in page.text:
        page = visitor.get(attribute(page, 'href="([^"]*)" rel="next"'))
        seen.append(rows(page))
    assert [len(numbers) for numbers in seen] == [PAGE, PAGE, 5]
    assert [number for numbers in seen for number in numbers] == jobs
    assert page.url.params["tag"] == "pages:1"
    for before in reversed(seen[:-1]):
        page = visitor.get(attribute(page, 'href="([^"]*)" rel="prev"'))
        assert rows(page) == before
    assert urlsplit(str(page.url)).query == "tag=pages%3A1"


def test_the_way_back_is_bounded() -> None:
    query = JobQuery(tag="a:1")
    for number in range(1, 100):
        address = query.older_page(f"{number}-1")
        query = JobQuery.read(dict(re.findall(r"(\w+)=([^&]*)", address)))
    assert len(query.address()) < 2000
    assert query.newer_page is not None
    for _ in range(TRAIL + 1):
        assert query.newer_page is not None
        query = JobQuery.read(dict(re.findall(r"(\w+)=([^&]*)", query.newer_page)))
    assert query.newer_page is None


@pytest.mark.thorough
def test_jobs_that_end_before_the_answer_change_the_count(tmp_path: Path) -> None:
    showcase = Showcase()
    with (
        Platform(tmp_path, work=False) as platform,
        working(platform, tmp_path, showcase.answers),
        monitored(platform.url) as url,
        Client(platform.url) as client,
        Visitor(url) as visitor,
    ):
        held = [client.submit(trial("HELD", tags=("end:1",))) for _ in range(2)]
        asked = visitor.get("/jobs/abort?tag=end:1")
        client.abort(held[0].id)
        showcase.let_go.set()
        again = visitor.submit(asked, "/jobs/abort/filtered")
        assert "1, not 2" in words(again) or "0, not 2" in words(again)
        assert client.wait(held[1].id).state == "succeeded"
        last = visitor.submit(asked, "/jobs/abort/filtered")
        assert "0, not 2" in words(last)
        assert "No unfinished job" in words(last)
