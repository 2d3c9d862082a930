"""The pages of benchmarks: figures as `kgym.bench` has them, by choices in the address."""

import re
import shutil
import time
from collections.abc import Iterator

import httpx
import pytest

from kgym.bench import query
from kgym.bench.attempt_record import Outcome
from kgym.bench.attempt_table import AttemptTable
from kgym.bench.bug_choice import BugChoice
from kgym.bench.comparison import paired
from kgym.bench.figures import Figure, Results
from kgym.bench.published_benchmark import Benchmark
from kgym.bench.query import Query
from kgym_monitor.benchmarks import board
from kgym_monitor.benchmarks.board_query import BoardQuery
from tests import tables
from tests.demo import demo_benchmark
from tests.demo.demo_benchmark import NAME
from tests.monitor.browsing import Visitor, words
from tests.monitor.conftest import Site

BUGS, SETUPS = demo_benchmark.bugs(40), demo_benchmark.setups(6)
ATTEMPTS = list(demo_benchmark.attempts(BUGS, SETUPS, 3))
HERE = f"/benchmarks/{NAME}"


@pytest.fixture(scope="module")
def here(site: Site) -> Iterator[Visitor]:
    """A visitor of a site with the demo's benchmark."""
    demo_benchmark.put(site.benchmarks)
    with Visitor(site.url) as visitor:
        yield visitor


def read(here: Visitor, path: str) -> httpx.Response:
    """Return a page once its benchmark is read: until then it says so."""
    deadline = time.monotonic() + 120
    while "data-reload" in (page := here.get(path)).text:
        assert "are being read" in words(page)
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return page


def shown(value: float) -> str:
    return f"{100 * value:.2f}"


def rows(page: str) -> dict[str, str]:
    """The lines of the leaderboard, by setup, in order."""
    table = re.search(r'id="board">.*?</table>', page, re.DOTALL)
    assert table is not None
    setups = re.findall(r'data-name="([^"]*)".*?</tr>', table[0], re.DOTALL)
    texts = re.findall(r"<tr data-setup.*?</tr>", table[0], re.DOTALL)
    return dict(zip(setups, texts, strict=True))


_MEAN_ONLY = {Figure.CLEAN, Figure.EPR_BY_EXECUTION, Figure.BEHAVIOURAL_EQUIVALENCE}


def test_the_leaderboard_says_what_the_figures_are(here: Visitor) -> None:
    results = Results(ATTEMPTS, [bug.facts.id for bug in BUGS])
    by_name = {str(setup.setup): setup for setup in results.all_figures(results.setups, 3) if setup}
    lines = rows(read(here, f"{HERE}?more=yes").text)
    assert set(lines) == set(by_name)
    for name, line in lines.items():
        figures = by_name[name]
        for of in (figures.passed, figures.mean):
            for figure in Figure:
                measured = of[figure]
                assert measured is not None
                if of is figures.mean or figure not in _MEAN_ONLY:
                    assert shown(measured.value) in line
                    assert f"{shown(measured.low)} to {shown(measured.high)}" in line
        assert figures.dollars_per_bug is not None
        assert f"${figures.dollars_per_bug:,.2f}" in line
    rates = [by_name[name].mean[Figure.CRR] for name in lines]
    best = [rate.value for rate in rates if rate is not None]
    assert best == sorted(best, reverse=True)
    few = read(here, HERE).text.partition('id="board"')[2].partition("</table>")[0]
    assert 'aria-sort="descending">Resolved, % ↓' in few
    assert few.count('<th scope="col"') == 6  # more do not fit beside each other
    assert read(here, "/benchmarks").text.count(HERE) == 1


def test_setups_that_cannot_be_told_apart_share_a_rank(here: Visitor) -> None:
    page = read(here, HERE)
    lines = list(rows(page.text).items())
    ranks = [int(re.findall(r'<td class="right">(\d+)</td>', line)[0]) for _, line in lines]
    results = Results(ATTEMPTS, [bug.facts.id for bug in BUGS])
    rates = {
        str(setup.setup): setup.mean[Figure.CRR]
        for setup in results.all_figures(results.setups, 3)
        if setup
    }
    first = 0
    for place, (name, _) in enumerate(lines):
        rate, best = rates[name], rates[lines[first][0]]
        assert rate is not None
        assert best is not None
        if rate.high < best.low:
            first = place
        assert ranks[place] == first + 1
    assert "Nothing cheaper resolves more than" in words(page)


@pytest.mark.parametrize("dear", [0, 1])
def test_of_setups_that_resolve_as_much_only_the_cheaper_is_worth_its_price(dear: int) -> None:
    own = [attempt for attempt in ATTEMPTS if attempt.setup == SETUPS[5]]
    prices = {SETUPS[dear]: 9.0, SETUPS[1 - dear]: 1.0}
    tried = [
        attempt.model_copy(update={"setup": setup, "dollars": price, "kernel_dollars": 0.0})
        for setup, price in prices.items()
        for attempt in own
    ]
    facts = {bug.facts.id: bug.facts for bug in BUGS}
    benchmark = Benchmark("demo", "", "1", facts, AttemptTable.of(tried), ())
    shown = board.board(benchmark, BoardQuery())
    assert [(line.setup, line.rank, line.is_frontier) for line in shown["lines"]] == [
        (SETUPS[1 - dear], 1, True),
        (SETUPS[dear], 1, False),
    ]
    assert {group.best for group in shown["groups"]} == {None}


def test_the_table_by_class_has_each_setup(here: Visitor) -> None:
    page = read(here, f"{HERE}?by=class")
    table = page.text.partition('id="by"')[2]
    for setup in SETUPS[:3]:
        assert str(setup)[:40] in table
    chosen = re.search(r'href="([^"]*classes=[^"]*)"', table)
    assert chosen is not None
    assert read(here, chosen[1].replace("&amp;", "&").partition("#")[0]).status_code == 200


def test_a_research_query_is_a_page_and_an_answer(here: Visitor) -> None:
    page = read(here, f"{HERE}/query?levels=setup+lines:5,20&metrics=crr@3+pass:epr@2")
    asked = {"by": ["setup", "lines:5,20"], "metrics": ["crr@3", "pass:epr@2"]}
    facts = {bug.facts.id: bug.facts for bug in BUGS}
    answer = query.answer(AttemptTable.of(ATTEMPTS), facts, Query.model_validate(asked))
    assert len(answer.groups) > len(SETUPS)
    for group in answer.groups:
        assert " / ".join(group.values) in words(page)
        for figure in group.figures:
            assert figure is None or shown(figure.value) in words(page)
    posted = here.post(f"{HERE}/query", json=asked)
    assert posted.json() == answer.model_dump(mode="json")
    table = here.post(f"{HERE}/query", json=asked, headers={"accept": "text/csv"})
    assert (table.text, table.headers["content-type"].partition(";")[0]) == (answer.csv, "text/csv")
    chosen = read(here, f"{HERE}/query?levels=agent&agent={SETUPS[0].agent}")
    assert words(chosen).count(SETUPS[0].agent) >= 1
    assert "no attribute nothing" in words(read(here, f"{HERE}/query?levels=nothing"))
    assert here.post(f"{HERE}/query", json={"by": ["nothing"]}).status_code == 422
    assert here.post("/benchmarks/other/query", json=asked).status_code == 404


@pytest.mark.parametrize(("query", "message"), tables.rows(__file__, "choices.tsv"))
def test_a_choice_stands_in_the_address(here: Visitor, query: str, message: str) -> None:
    page = read(here, f"{HERE}?{query}")
    assert page.status_code == 200
    assert message in words(page)


def test_bugs_are_chosen_by_all_that_a_choice_knows() -> None:
    assert set(BugChoice.model_fields) <= set(BoardQuery.model_fields)


def test_setups_are_chosen(here: Visitor) -> None:
    names = set(rows(read(here, f"{HERE}?feedback=yes").text))
    assert names == {str(setup) for setup in SETUPS if setup.feedback}
    assert set(rows(read(here, f"{HERE}?agent=tool&limit=no").text)) == {
        str(setup) for setup in SETUPS if setup.agent == "tool" and setup.dollars is None
    }


@pytest.mark.parametrize(
    "query",
    [
        *("k=0", "k=4", "k=x", "by=colour", "cutoff=soon", "feedback=maybe", "lines_from=-1"),
        *("reproducer=go", "side=left", "fixed_from=2024-13-01", "text=" + "x" * 2000 + "&k=99"),
    ],
)
def test_a_wrong_choice_is_said(here: Visitor, query: str) -> None:
    page = read(here, f"{HERE}?{query}")
    assert page.status_code == 200
    assert 'role="alert"' in page.text


def test_two_setups_are_compared_by_their_test(here: Visitor) -> None:
    first, second, setups = SETUPS[0], SETUPS[5], numbers(here)
    page = read(here, f"{HERE}/compare?first={setups[str(first)]}&second={setups[str(second)]}")
    results = Results(ATTEMPTS, [bug.facts.id for bug in BUGS])
    compared = paired(results, first, second, Figure.CRR, 3)
    assert compared is not None
    assert shown(compared.difference.value) in page.text
    assert f"{compared.p_value:.4f}" in page.text
    alone = results.solved(first, 3) - results.solved(second, 3)
    assert f"Resolved only by the first: {len(alone)}" in words(page)
    assert "Choose two setups" in read(here, f"{HERE}/compare").text


def numbers(here: Visitor) -> dict[str, str]:
    """The numbers of the setups, as the form has them."""
    form = read(here, f"{HERE}/compare").text
    return {
        name: number for number, name in re.findall(r'<option value="([0-9]+)"[^>]*>([^<]*)', form)
    }


def test_a_bug_and_its_attempts_have_pages(here: Visitor) -> None:
    listed = read(here, f"{HERE}/bugs")
    assert f"{HERE}/bugs/{demo_benchmark.FIRST}" in listed.text
    page = read(here, f"{HERE}/bugs/{demo_benchmark.FIRST}")
    assert BUGS[0].facts.title in words(page)
    assert "sizeof(*p)" in page.text
    link = re.search(rf'href="({HERE}/bugs/[^"]*/attempts/\d+/\d+)"', page.text)
    assert link is not None
    attempt = read(here, link[1])
    assert "Its patch" in words(attempt)
    assert '<tr class="added">' in attempt.text  # coloured, as diffs are everywhere


@pytest.mark.parametrize(
    "path",
    ["/benchmarks/none", f"{HERE}/bugs/none", f"{HERE}/bugs/{demo_benchmark.FIRST}/attempts/0/99"],
)
def test_what_is_not_published_is_not_found(here: Visitor, path: str) -> None:
    assert read(here, path).status_code == 404


def test_a_new_publish_is_shown(here: Visitor, site: Site) -> None:
    more = ATTEMPTS[0].model_copy(update={"run": 4, "dollars": 1000.0})
    demo_benchmark.publish(site.benchmarks, NAME, BUGS, [*ATTEMPTS, more])
    try:
        page = read(here, f"{HERE}/bugs/{demo_benchmark.FIRST}")
        assert "$1,00" in words(page)
        # Not all bugs were tried four times, so the figures stay those of three.
        assert "first 3 runs" in words(read(here, HERE))
    finally:
        demo_benchmark.put(site.benchmarks)
    assert "$1,00" not in words(read(here, f"{HERE}/bugs/{demo_benchmark.FIRST}"))


def test_a_patch_without_a_verdict_makes_figures_unknown(here: Visitor, site: Site) -> None:
    first = ATTEMPTS[0]
    unknown = first.model_copy(update={"outcome": Outcome.UNKNOWN, "diff": None})
    demo_benchmark.publish(site.benchmarks, "unknown", BUGS, [unknown, *ATTEMPTS[1:]])
    try:
        of_bug = f"/bugs/{first.bug}"
        for path in ("", "/bugs", of_bug, f"{of_bug}/attempts/0/{first.run}"):
            page = read(here, f"/benchmarks/unknown{path}")
            assert page.status_code == 200, path
            assert "nan" not in words(page).lower().split(), path
        board = rows(read(here, "/benchmarks/unknown?more=yes").text)
        assert board[str(first.setup)].count("unknown") >= 4
    finally:
        shutil.rmtree(site.benchmarks.root / "unknown")


@pytest.mark.attack
def test_damaged_and_hostile_benchmarks_harm_no_other(here: Visitor, site: Site) -> None:
    root = site.benchmarks.root
    controls = "\x1b[2J\u202e\x7f\x85"
    titles = {"title": f"<script>document.title='taken'</script>{controls}"}
    hostile = BUGS[0].facts.model_copy(update=titles)
    bug = BUGS[0].model_copy(update={"facts": hostile, "diff": "<script>"})
    disguised = ATTEMPTS[0].setup.model_copy(update={"agent": controls, "model": controls})
    tried = ATTEMPTS[0].model_copy(
        update={"setup": disguised, "bug": hostile.id, "error": controls}
    )
    demo_benchmark.publish(site.benchmarks, "hostile", [bug], [tried])
    demo_benchmark.publish(site.benchmarks, "changed", BUGS, ATTEMPTS)
    (attempts,) = root.glob("changed/*/attempts.jsonl")
    attempts.write_bytes(attempts.read_bytes().replace(b"pass", b"boot", 1))
    for name, index in (("no-json", b"<script>\n"), ("endless", b"x" * 5_000_000)):
        (root / name).mkdir()
        (root / name / "benchmark.json").write_bytes(index)
    try:
        listed = read(here, "/benchmarks")
        assert listed.status_code == 200
        assert "<script>d" not in listed.text
        assert words(listed).count("is damaged") == 2
        assert HERE in listed.text
        for name in ("no-json", "endless", "changed"):
            page = read(here, f"/benchmarks/{name}")
            assert page.status_code == 503
            assert "is damaged" in words(page)
            assert "publish it again" in words(page)
        assert "SHA-256 mismatch" in words(read(here, "/benchmarks/changed"))
        page = read(here, f"/benchmarks/hostile/bugs/{hostile.id}")
        assert "<script>document" not in page.text
        assert "&lt;script&gt;" in page.text
        # In texts and in attributes, such as the options of a filter, which still find them.
        of_bug = f"/bugs/{hostile.id}"
        chosen = "?agent=\u241b[2J\ufffd\u2421\ufffd"
        for path in ("", chosen, "/bugs", "/compare", of_bug, f"{of_bug}/attempts/0/1"):
            page = read(here, f"/benchmarks/hostile{path}")
            assert page.status_code == 200, path
            assert set(controls) & set(page.text) <= set("[2J"), path
        board = read(here, f"/benchmarks/hostile{chosen}").text
        assert (board.count('<option value="\u241b'), len(rows(board))) == (2, 1)
        assert read(here, HERE).status_code == 200
    finally:
        for name in ("hostile", "changed", "no-json", "endless"):
            shutil.rmtree(root / name)
