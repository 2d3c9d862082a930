"""`kgym report` over many files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgym_cli.commands.report import report

CASE = "TITLE: {0}\nTYPE: DoS\nCORRUPTED: Y\n\n[    3.0] divide error: 0000 [#1] SMP\n"


@pytest.mark.thorough
def test_the_answers_to_many_logs_come_in_their_order(tmp_path: Path) -> None:
    logs = []
    for number in range(100):
        log = tmp_path / f"{number}.log"
        log.write_text(f"BUG: something number_{number}\n" if number % 10 else "all is well\n")
        logs.append(str(log))
    ran = CliRunner().invoke(report, ["parse", *logs, "--json"])
    assert ran.exit_code == 0
    assert [crash["title"] for crash in json.loads(ran.stdout)] == [
        f"BUG: something number_{number}" if number % 10 else None for number in range(100)
    ]


def test_a_corpus_is_counted_by_field_with_the_names_of_what_failed(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "guilty").mkdir()
    (tmp_path / "report" / "1").write_text(CASE.format("divide error in corrupted"))
    (tmp_path / "report" / "2").write_text(CASE.format("divide error in my_fn"))
    (tmp_path / "guilty" / "1").write_text("FILE: fs/my.c\n\nBUG: x\n my_fn+0x1/0x2 fs/my.c:12\n")
    ran = CliRunner().invoke(report, ["corpus", str(tmp_path), "--json"])
    crash = json.loads(ran.stdout)
    assert crash["cases"] == 3
    assert crash["fields"]["title"] == {"right": 1, "wrong": 1, "failing": ["report/2"]}
    assert crash["fields"]["type"] == {"right": 2, "wrong": 0, "failing": []}
    assert crash["fields"]["guilty_file"]["right"] == 1


def test_a_log_that_only_begins_like_a_compressed_one_is_read_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(b"\x1f\x8bBUG: something\n")
    ran = CliRunner().invoke(report, ["parse", str(log), "--json"])
    assert json.loads(ran.stdout)["title"] == "BUG: something"
