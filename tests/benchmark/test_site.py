"""`kgym bench site`: a folder of pages that lead to each other, and to no other host."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kgym.bench import attempt_files
from kgym.bench.attempt_table import AttemptTable
from kgym.bench.published_benchmark import Benchmark
from kgym_monitor.benchmarks import site
from kgym_monitor.benchmarks.site import SiteSource
from tests.benchmark.test_dataset import bug, made
from tests.benchmark.test_publish import attempts
from tests.cli.conftest import Kgym
from tests.demo import demo_benchmark
from tests.monitor.conftest import browser
from tests.refused import refused

__all__ = ["browser"]
HOSTILE = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def source() -> SiteSource:
    """The demo's bugs, as a benchmark; one of them has a hostile title."""
    bugs, setups = demo_benchmark.bugs(12), demo_benchmark.setups(3)
    facts = bugs[0].facts.model_copy(update={"title": HOSTILE})
    bugs[0] = bugs[0].model_copy(update={"facts": facts, "diff": HOSTILE})
    table = AttemptTable.of(demo_benchmark.attempts(bugs, setups, 2))
    by_id = {bug.facts.id: bug for bug in bugs}
    facts_by_id = {name: bug.facts for name, bug in by_id.items()}
    return SiteSource(Benchmark("demo", "", "1", facts_by_id, table, ()), by_id)


@pytest.mark.thorough
def test_all_that_pages_lead_to_is_there(source: SiteSource, tmp_path: Path) -> None:
    count = site.write(source, tmp_path / "site")
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) == count
    for page in pages:
        text = page.read_text()
        assert "<script>document" not in text
        assert "Content-Security-Policy" in text
        for target in re.findall(r'(?:href|src)="([^"]*)"', text):
            assert "//" not in target, f"{page.name} leads to {target}"
            file = target.partition("#")[0]
            assert not file or (tmp_path / "site" / file).is_file(), f"{page.name}: {target}"
    assert "&lt;script&gt;" in (tmp_path / "site" / "bug-0.html").read_text()
    assert "Pass@2" in (tmp_path / "site" / "index.html").read_text()


@pytest.mark.slow
def test_charts_are_drawn_in_a_site_opened_from_a_folder(
    browser: Browser, source: SiteSource, tmp_path: Path
) -> None:
    site.write(source, tmp_path / "site")
    page = browser.new_page()
    page.goto((tmp_path / "site" / "index.html").as_uri())
    charts = page.locator(".board-chart")
    expect(charts.locator("canvas")).to_have_count(charts.count())
    expect(charts.first).not_to_contain_text("not drawn")
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", re.compile("light|dark"))


@pytest.mark.thorough
def test_a_site_is_replaced_and_nothing_else(source: SiteSource, tmp_path: Path) -> None:
    first = site.write(source, tmp_path / "site")
    (tmp_path / "site" / "old.html").touch()
    assert site.write(source, tmp_path / "site") == first
    assert not (tmp_path / "site" / "old.html").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with refused("folder_in_use", match="is not a site"):
        site.write(source, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.thorough
def test_the_command_writes_a_site_of_a_folder(kgym: Kgym, tmp_path: Path) -> None:
    made(bug(), bug(id="e" * 40)).save(tmp_path / "bugs")
    attempt_files.write(tmp_path / "bugs" / "attempts.jsonl", attempts(3))
    done = kgym("bench", "site", tmp_path / "bugs", tmp_path / "public", "--json")
    assert done.status == 0, done.err
    assert len(list((tmp_path / "public").glob("*.html"))) == done.json["pages"]
    # The other bug was never tried, so that there are no figures.
    assert "Not every bug was tried" in (tmp_path / "public" / "index.html").read_text()


@pytest.mark.thorough
def test_the_command_writes_a_site_of_a_published_benchmark(
    kgym: Kgym, data: Path, tmp_path: Path
) -> None:
    made(bug(), bug(id="e" * 40)).save(tmp_path / "bugs")
    attempt_files.write(tmp_path / "bugs" / "attempts.jsonl", attempts(3))
    assert kgym("bench", "publish", tmp_path / "bugs", "--name", "mine").status == 0
    done = kgym("bench", "site", "mine", tmp_path / "public", "--json")
    assert done.status == 0, done.err
    folder = kgym("bench", "site", tmp_path / "bugs", tmp_path / "local", "--json")
    assert done.json["pages"] == folder.json["pages"]
    assert (tmp_path / "public" / "bug-0.html").read_bytes() == (
        tmp_path / "local" / "bug-0.html"
    ).read_bytes()
    missing = kgym("bench", "site", "other", tmp_path / "none")
    assert (missing.status, "no benchmark 'other'" in missing.err) == (2, True)
