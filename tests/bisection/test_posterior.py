"""The search for a commit, by simulation: how often it is right, and how many tests it takes."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Calibration
from kgym.bisection.history import Commit, History, parse
from kgym.bisection.posterior import Choice, Rate, Search, expected_steps
from kgym.bugs import calibration
from tests.bisection.histories import history
from tests.refused import refused

RUNS = 10
MOST = 60


@dataclass
class Searched:
    """What a simulated search came to."""

    choice: Choice
    tests: int
    skipped: int


def searched(
    rng: Random,
    search: Search,
    truth: int,
    crashes: float,
    runs: int,
    broken: Collection[int] = (),
    missed: Collection[int] = (),
) -> Searched:
    """Search with runs that crash with this chance; the tests with these numbers miss the bug."""
    choice, tests, skipped = Choice(search.good_end, (), 0), 0, 0
    while choice.commit is not None and tests + skipped < MOST:
        if choice.commit in broken:
            skipped += 1
            search.skip(choice.commit)
        else:
            has = search.with_bug(choice.commit)[truth] and tests not in missed
            quiet = 0
            while quiet < runs and not (has and rng.random() < crashes):
                quiet += 1
            search.record_test(choice.commit, crashed=quiet < runs, quiet=quiet)
            tests += 1
        choice = search.next()
    return Searched(choice, tests, skipped)


def calibrated(rng: Random, crashes: float) -> Rate:
    """Return what runs at the bad end show; none if they do not is not asked for a bisection."""
    while not (seen := sum(rng.random() < crashes for _ in range(RUNS))):
        pass
    return Rate(seen, RUNS)


def runs_for(rate: Rate, confidence: float = 0.95) -> int:
    known = Calibration(runs=rate.runs, crashed=rate.crashed, time=5, accelerator="tcg")
    wanted = calibration.effort(known, 1 - (1 - confidence) / 2)
    return min(wanted.instances, 30) if wanted else 30


@given(st.integers(1, 60), st.integers(0, 2**32), st.booleans(), st.data())
def test_without_noise_the_commit_is_found_in_the_logarithm_of_the_steps(
    size: int, seed: int, fix: bool, data: st.DataObject
) -> None:
    commits = history(seed, size)
    truth = data.draw(st.integers(0, size - 1))
    search = Search(commits, Rate(1000, 1000), fix=fix)
    result = searched(Random(seed), search, truth, 1, 1)
    assert list(result.choice.likely) == [truth]
    assert result.choice.sure >= 0.95
    assert result.tests <= expected_steps(size) + 4  # branches side by side cannot be halved


@pytest.mark.thorough
@given(st.integers(2, 60), st.integers(0, 2**32), st.booleans(), st.data())
def test_what_cannot_be_tried_leaves_the_commits_that_it_hides(
    size: int, seed: int, fix: bool, data: st.DataObject
) -> None:
    commits = history(seed, size)
    truth = data.draw(st.integers(0, size - 1))
    broken = data.draw(st.sets(st.integers(0, size - 2)))
    search = Search(commits, Rate(1000, 1000), fix=fix)
    ended = searched(Random(seed), search, truth, 1, 1, broken)
    assert ended.choice.commit is None
    assert truth in ended.choice.likely
    # No commit that can be tried tells these apart.
    tried = set(range(size)) - broken
    masks = {
        tuple(search.with_bug(at)[place] for at in sorted(tried)) for place in ended.choice.likely
    }
    assert len(masks) == 1


@pytest.mark.thorough
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 9))
def test_a_test_that_misled_is_recovered_from(seed: int, fix: bool, miss: int) -> None:
    """A step of a plain binary search that goes wrong ends at a wrong commit."""
    truth = Random(seed).randrange(100)
    search = Search(history(seed, 100), Rate(10, 10), fix=fix, confidence=0.99)
    result = searched(Random(seed), search, truth, 1, 1, missed=[miss])
    assert list(result.choice.likely) == [truth]
    assert result.tests <= MOST // 2


@pytest.mark.parametrize("fix", [False, True])
def test_a_bug_that_the_good_end_has_is_told(fix: bool) -> None:
    """Its first test missed the bug, as it may; each later one crashes, or none does."""
    search = Search(history(1, 100), Rate(10, 10), fix=fix, confidence=0.99)
    result = searched(Random(1), search, search.elsewhere, 1, 1, missed=[0])
    assert list(result.choice.likely) == [search.elsewhere]


def test_beside_what_cannot_be_tried_is_not_where_the_next_test_is() -> None:
    line = History([Commit(f"{n:040x}", (n - 1,) if n else ()) for n in range(1000)])
    search = Search(line, Rate(10, 10))
    search.record_test(search.good_end, crashed=False, quiet=2)
    middle = search.next().commit
    assert middle in {499, 500}
    search.skip(middle or 0)
    following = search.next().commit or 0
    assert 10 < abs(following - 500) < 200


def block(rng: Random, size: int) -> range:
    """Commits in a row that do not build."""
    begin = rng.randrange(size - 20)
    return range(begin, begin + 15)


def nothing(_: Random, __: int) -> range:
    return range(0)


@pytest.mark.thorough
@pytest.mark.parametrize(("fix", "breaks"), [(False, nothing), (True, block)])
@pytest.mark.parametrize("crashes", [1, 0.5, 0.2])
def test_the_answer_is_right_as_often_as_it_says(
    crashes: float, fix: bool, breaks: Callable[[Random, int], range]
) -> None:
    size, count = 150, 100
    results = []
    for seed in range(count):
        rng = Random(seed)
        rate = calibrated(rng, crashes)
        truth = rng.randrange(size)
        search = Search(history(seed, size), rate, fix=fix)
        broken = breaks(rng, size)
        result = searched(rng, search, truth, crashes, runs_for(rate), broken)
        results.append((truth in result.choice.likely, result))
    # 89 of 100 or fewer come to an answer of 95 % with a chance of 1 %.
    assert sum(right for right, _ in results) >= 90
    mean = sum(result.tests for _, result in results) / count
    assert mean <= expected_steps(size) + (1 if crashes == 1 else 4)
    single = [result for _, result in results if len(result.choice.likely) == 1]
    assert len(single) >= (95 if breaks is nothing else 70)


A, B, C = ("a" * 40, "b" * 40, "c" * 40)


def text(written: History) -> str:
    lines = []
    for commit in written.commits:
        parents = [written.commits[parent].id for parent in commit.parents]
        lines.append(f"{' '.join([commit.id, *parents])}\t{commit.subject}\n")
    return "".join(lines)


@given(st.integers(0, 2**32), st.integers(1, 50))
def test_what_is_written_is_read(seed: int, size: int) -> None:
    written = history(seed, size)
    assert parse(text(written)) == written


def test_parents_that_are_not_listed_are_before_all() -> None:
    read = parse(f"{A} {C}\tfirst\tone\n{B} {A} {C}\tsecond\x1b[1m\n")
    assert [commit.parents for commit in read.commits] == [(), (0,)]
    assert read.commits[0].subject == "first\tone"
    assert list(read.before(1)) == [1, 1]
    assert list(read.before(0)) == [1, 0]


@pytest.mark.attack
@pytest.mark.parametrize(
    "bad",
    [
        "",
        "words\n",
        f"{A}\tone\n{A}\ttwice\n",
        f"{A}\tone\n{B}\tanother\n",  # the first does not lead to the last
        f"{A} {B}\tbefore its parent\n{B}\tparent\n",
        f"{A} 12\tshort\n",
    ],
)
def test_another_list_is_refused(bad: str) -> None:
    with refused("bad_history", match="cannot be read"):
        parse(bad)
