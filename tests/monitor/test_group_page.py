"""The page of a group: each patch with what is known of it, filtered, sorted, compared."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kgym.api.outcomes import Outcome
from kgym_monitor.pages import group_page
from tests.demo.demo_jobs import GROUP, ended
from tests.demo.demo_site import demo_site
from tests.demo.showcase import trial
from tests.monitor.browsing import Visitor, words
from tests.monitor.conftest import Site

HOME = f"/groups/{GROUP}"
WHOSE = "submitter=local"


@dataclass(frozen=True)
class Sweep:
    """A site with a group of patches, and the numbers of their jobs."""

    site: Site
    jobs: dict[str, int]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    wanted = {name: ended()[name] for name in ("check", "hides", "fixed", "unfixed")}
    with demo_site(tmp_path_factory.mktemp("data")) as site:
        jobs = {name: site.client.submit(request).id for name, request in wanted.items()}
        for job in jobs.values():
            site.client.wait(job)
        yield Sweep(site, jobs)


@pytest.fixture
def reader(sweep: Sweep) -> Iterator[Visitor]:
    with Visitor(sweep.site.url) as visitor:
        yield visitor


def keys(text: str) -> list[str]:
    """Return the listed patches, as the form for two of them names them."""
    return re.findall('name="with" value="([^"]+)"', text)


def test_each_patch_has_a_row_with_what_decided(reader: Visitor, sweep: Sweep) -> None:
    page = reader.get(f"{HOME}?{WHOSE}")
    text = words(page)
    assert "the patch hides code from KASAN, kernel/watch_queue.c:320" in text
    assert "hunk 1 does not apply" in text
    assert "95.2 %" in text
    assert 'title="Variants: passed"' in page.text
    assert 'title="Findings: failed"' in page.text
    assert len(keys(page.text)) == 5  # two that only the check has, and three trials
    assert f"{sweep.jobs['hides']}:fix" in keys(page.text)


def test_a_page_that_leaves_patches_out_says_so(
    reader: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in (5, 4):
        monkeypatch.setattr(group_page, "MOST", most)
        page = reader.get(f"{HOME}?{WHOSE}")
        assert len(keys(page.text)) == most
        assert ("the group has more" in words(page)) == (most == 4)


@pytest.mark.parametrize(
    ("query", "outcomes"),
    [
        ("outcome=resolved", [Outcome.RESOLVED]),
        ("outcome=does_not_apply", [Outcome.DOES_NOT_APPLY]),
        ("text=unfit", [Outcome.DOES_NOT_APPLY]),
        ("text=NIGHT%3A3", [Outcome.RESOLVED]),
        ("outcome=traced", []),
    ],
)
def test_counts_and_words_filter(reader: Visitor, query: str, outcomes: list[Outcome]) -> None:
    page = reader.get(f"{HOME}?{WHOSE}&{query}")
    assert len(keys(page.text)) == len(outcomes)
    table = page.text.partition("<tbody")[2]
    for outcome in outcomes:
        assert f"</svg>{outcome.words}" in table


def test_any_column_sorts_and_turns_round(reader: Visitor) -> None:
    up = reader.get(f"{HOME}?{WHOSE}&sort=job")
    assert 'aria-sort="ascending"' in up.text
    down = reader.get(f"{HOME}?{WHOSE}&sort=job&down=yes")
    jobs = [int(key.partition(":")[0]) for key in keys(up.text)]
    assert jobs == sorted(jobs)
    assert [int(key.partition(":")[0]) for key in keys(down.text)] == sorted(jobs, reverse=True)
    # What is not known stands last either way.
    for order in ("", "&down=yes"):
        last = reader.get(f"{HOME}?{WHOSE}&sort=confidence{order}")
        assert "95.2 %" in last.text.partition("<tbody")[2].partition("</tr>")[0]
    assert reader.get(f"{HOME}?{WHOSE}&sort=colour").status_code == 422


def test_two_patches_stand_side_by_side(reader: Visitor, sweep: Sweep) -> None:
    hides, unfit = f"{sweep.jobs['hides']}:fix", f"{sweep.jobs['check']}:night-3/UNFIT"
    page = reader.get("/patches/compare", params={"with": [hides, unfit]})
    text = words(page)
    assert "Not resolved: the patch hides code from KASAN" in text
    assert "Does not apply: kernel/watch_queue.c: hunk 1 does not apply" in text
    assert "blocking finding" in text
    crashed = reader.get("/patches/compare", params={"with": [f"{sweep.jobs['unfixed']}:", hides]})
    assert "KASAN: slab-out-of-bounds Write in watch_queue_set_filter" in words(crashed)
    for wrong in ("x", "1:x:y", f"{sweep.jobs['check']}:none", "99999999:"):
        assert reader.get("/patches/compare", params={"with": wrong}).status_code == 404


def test_the_rows_come_as_csv(reader: Visitor, sweep: Sweep) -> None:
    answer = reader.get(f"{HOME}/patches.csv?{WHOSE}")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    by_job = {int(row["job"]): row for row in rows}
    row = by_job[sweep.jobs["hides"]]
    assert (row["patch"], row["outcome"], row["findings"], row["controls"]) == (
        *("fix", "not_resolved"),
        *("false", "true"),
    )
    assert (row["files"], row["bug"]) == ("1", "watch-queue-filter")


def test_a_group_that_is_not_there_is_named(reader: Visitor) -> None:
    for what in ("", "/patches.csv"):
        answer = reader.get(f"/groups/none{what}?submitter=local")
        assert (answer.status_code, "no group" in answer.text) == (404, True)


@pytest.mark.thorough
def test_a_poll_brings_the_rows_that_have_changed_and_no_others(
    reader: Visitor, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_page, "MOST", 10)
    monkeypatch.setattr(group_page, "PART", 1)
    address = f"{HOME}?{WHOSE}&poll=yes"
    before = reader.get(address)
    assert len(keys(before.text)) == 5
    job = sweep.site.client.submit(trial(group=GROUP))
    sweep.site.client.wait(job.id)
    seen, tag = "", before.headers["etag"]
    while Outcome.RESOLVED.words not in seen.partition("<tbody")[2]:
        # Equal polls share an answer for a moment.
        after = reader.get(address, headers={"If-None-Match": tag})
        seen, tag = after.text, after.headers["etag"]
        assert set(keys(seen)) <= {f"{job.id}:fix"}
