"""Research queries say what the leaderboard says, of any group of attempts."""

import csv
import io

import numpy as np
import pytest
from pydantic import ValidationError

from kgym.bench import query
from kgym.bench.attempt_table import AttemptTable
from kgym.bench.figures import Figure, Results
from kgym.bench.query import Query
from kgym.errors import UserError
from tests.demo import demo_benchmark
from tests.tables import json_rows

BUGS, SETUPS = demo_benchmark.bugs(40), demo_benchmark.setups(4)
ATTEMPTS = list(demo_benchmark.attempts(BUGS, SETUPS, 3))
TABLE = AttemptTable.of(ATTEMPTS)
FACTS = {bug.facts.id: bug.facts for bug in BUGS}


def asked(**parts: object) -> query.QueryAnswer:
    return query.answer(TABLE, FACTS, Query.model_validate(parts))


def test_groups_of_setups_have_the_figures_of_the_leaderboard() -> None:
    metrics = ["crr@3", "pass:crr@2", "pass:file_iou@3", "epr@4"]
    results = Results(TABLE, list(FACTS))
    three, two = (
        {str(each.setup): each for each in results.all_figures(list(TABLE.setups), k) if each}
        for k in (3, 2)
    )
    whole, *groups = asked(by=["setup"], metrics=metrics).groups
    assert (whole.values, whole.bugs, whole.setups, whole.attempts) == ([], 40, 4, 480)
    assert [group.values[0] for group in groups] == sorted(three)
    for group in groups:
        (name,) = group.values
        *measured, fourth = group.figures
        same = (
            three[name].mean[Figure.CRR],
            two[name].passed[Figure.CRR],
            three[name].passed[Figure.FILE_IOU],
        )
        for ours, leaderboard in zip(measured, same, strict=True):
            assert ours is not None
            assert leaderboard is not None
            assert ours.model_dump() == pytest.approx(leaderboard.model_dump(), abs=1e-6)
        assert fourth is None  # nobody has a fourth run


def test_levels_are_nested_and_ranges_are_in_order() -> None:
    answer = asked(by=["lines:5,20", "class", "feedback"], metrics=["crr@3"])
    ends = ["below 5", "5 to below 20", "20 and more", "unknown"]
    first = [group.values[0] for group in answer.groups if len(group.values) == 1]
    assert first == [end for end in ends if end in first]
    for place, group in enumerate(answer.groups):
        within = [
            other
            for other in answer.groups[place + 1 :]
            if other.values[:-1] == group.values and len(other.values) == len(group.values) + 1
        ]
        if within and answer.query.by[len(group.values)].by != "subsystem":
            assert sum(other.attempts for other in within) == group.attempts
    facts = [bug for bug in FACTS.values() if bug.lines is not None and bug.lines < 5]
    (below,) = [group for group in answer.groups if group.values == ["below 5"]]
    rows = [row for row in ATTEMPTS if row.bug in {bug.id for bug in facts}]
    assert (below.bugs, below.attempts) == (len(facts), len(rows))
    assert below.figures[0] is not None
    assert below.figures[0].value == pytest.approx(np.mean([bool(row.resolved) for row in rows]))
    assert below.figures[0].low < below.figures[0].value < below.figures[0].high


def test_attributes_of_attempts_only_narrow_what_is_counted() -> None:
    answer = asked(by=["outcome"], metrics=["crr@3"])
    by_outcome = {group.values[0]: group for group in answer.groups[1:]}
    assert sum(group.attempts for group in by_outcome.values()) == len(ATTEMPTS)
    passed, triggered = by_outcome["pass"].figures[0], by_outcome["trigger"].figures[0]
    assert passed is not None
    assert triggered is not None
    assert (passed.value, triggered.value) == (1, 0)
    assert [group.values for group in asked(by=["run"]).groups[1:]] == [["1"], ["2"], ["3"]]


def test_a_bug_that_was_not_tried_leaves_no_figure() -> None:
    table = AttemptTable.of(row for row in ATTEMPTS if row.bug != ATTEMPTS[0].bug)
    answer = query.answer(table, FACTS, Query.model_validate({"by": ["setup"]}))
    assert {group.figures[0] for group in answer.groups} == {None}
    choice = {"ids": [bug for bug in FACTS if bug != ATTEMPTS[0].bug]}
    chosen = query.answer(table, FACTS, Query.model_validate({"choice": choice}))
    assert chosen.groups[0].figures[0] is not None


def test_the_table_is_safe_for_spreadsheets() -> None:
    evil = SETUPS[0].model_copy(update={"agent": "=cmd()"})
    table = AttemptTable.of(
        row.model_copy(update={"setup": evil}) for row in ATTEMPTS if row.setup == SETUPS[0]
    )
    answer = query.answer(table, FACTS, Query.model_validate({"by": ["agent", "class"]}))
    rows = list(csv.reader(io.StringIO(answer.csv)))
    assert rows[0][:5] == ["agent", "class", "bugs", "setups", "attempts"]
    assert rows[0][5:] == ["mean:crr@1", "mean:crr@1 low", "mean:crr@1 high"]
    assert len(rows) == len(answer.groups) + 1
    assert "=cmd()" not in [row[0] for row in rows]


@pytest.mark.parametrize(("parts", "words"), json_rows(__file__, "bad_queries.jsonl"))
def test_a_wrong_query_is_refused_by_name(parts: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        asked(**parts)


def test_a_query_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MOST_DRAWN", 100)
    with pytest.raises(UserError, match="fewer levels"):
        asked(metrics=["crr@1", "crr@2", "crr@3"])
    monkeypatch.undo()
    monkeypatch.setattr(query, "MOST_GROUPS", 10)
    with pytest.raises(UserError, match="use ranges"):
        asked(by=["class", "setup"])


def test_each_range_has_a_name_of_its_own() -> None:
    (level,) = Query.model_validate({"by": ["days:1000000,1000001"]}).by
    assert level.ranges()[1] == "1000000 to below 1000001"
