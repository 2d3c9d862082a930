"""Strategies are files."""

from pathlib import Path

import pytest

from kgym.api.agent.strategy import Escalate, Forest, traced
from kgym.errors import UserError
from kgym_crashfixer import strategies
from tests.tables import rows

ROWS = {  # CrashFixer, Table 2: trees, depth, branching
    1: (10, 1, 1),
    **dict.fromkeys(range(2, 6), (1, 4, 2)),
    **dict.fromkeys(range(6, 13), (4, 4, 1)),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("trace", [False, True])
def test_each_row_of_table_2_is_there_by_its_numbers(row: int, trace: bool) -> None:
    (name,) = (name for name in strategies.names() if name.startswith(f"table2-{row:02}-"))
    forest = traced(strategies.load(name), trace)
    assert isinstance(forest, Forest)
    assert (forest.trees, forest.depth, forest.branching) == ROWS[row]
    assert f"row {row}" in forest.description
    assert forest.cycle.trace is trace
    assert (forest.cycle.answer == "diff") is (row == 1)
    assert (forest.cycle.hypotheses > 0) is (row >= 4)
    assert forest.cycle.reflection is (row >= 5)
    assert (forest.cycle.select == "consistency") is (row >= 7)
    assert forest.localisation == "fix"
    assert (forest.grow, forest.cycle.questions, forest.cycle.looks) == ("always", "apart", 0)
    assert (forest.cycle.mend, forest.cycle.summaries) == ("all", False)


def test_all_that_are_shipped_can_be_loaded() -> None:
    known = {"tool", "tool-blind", "best-first", "escalate", "forest"}
    known |= {"rgym-simple", "rgym-exploration", "rgym-feedback"}
    assert known <= set(strategies.names())
    for name in strategies.names():
        assert strategies.load(name).name == name


def test_phases_name_strategies() -> None:
    strategy = strategies.load("escalate")
    assert isinstance(strategy, Escalate)
    assert [phase.strategy.kind for phase in strategy.phases] == ["tool", "forest", "forest"]


def test_what_a_strategy_is_written_as_can_be_read_again() -> None:
    for name in strategies.names():
        strategy = strategies.load(name)
        assert type(strategy).model_validate_json(strategy.model_dump_json()) == strategy


@pytest.mark.parametrize(("text", "words"), rows(__file__, "bad_strategies.tsv"))
def test_what_is_no_strategy_says_where_and_what(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("{file}", str(file)))
    with pytest.raises(UserError, match=words):
        strategies.load(str(file))


def test_a_name_that_nobody_knows_names_those_that_there_are() -> None:
    with pytest.raises(UserError, match="best-first"):
        strategies.load("nothing")


def test_published_setups_have_no_review() -> None:
    reviewed = {name for name in strategies.names() if strategies.load(name).review}
    assert reviewed == {"best-first", "demo", "forest", "tool"}
