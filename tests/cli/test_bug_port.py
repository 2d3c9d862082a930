"""`kgym bug port` as its users call it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgym_cli.program import cli


@pytest.mark.attack
def test_a_file_that_cannot_be_used_is_a_row_and_ends_no_campaign(tmp_path: Path) -> None:
    about = {"id": "other", "title": "BUG: a", "patch": "b"}
    texts = {"broken": "{", "named": json.dumps(about), "hostile": '{"id": "\\u001b[2J"}'}
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text)
        (tmp_path / f"{name}.c").write_text("int main(void) { return 0; }\n")
    table = tmp_path / "table.csv"
    words = ["bug", "port", tmp_path, "--kernel", "campaign-6.1", "--csv", table, "--json"]
    done = CliRunner().invoke(cli, [*map(str, words)])
    *rows, summary = map(json.loads, done.stdout.splitlines())
    assert {(row["bug"], row["kernel"], row["outcome"]) for row in rows} == {
        (name, "campaign-6.1", "refused") for name in texts
    }
    assert "not its id, other" in next(row["reason"] for row in rows if row["bug"] == "named")
    assert "\x1b" not in done.output
    assert (summary["outcomes"], done.exit_code) == ({"refused": 3}, 0)
    assert len(table.read_text().splitlines()) == 4
