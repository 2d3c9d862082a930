"""`kgym bench publish`: what lies in a folder is on the scheduler after it, once."""

from pathlib import Path

import pytest

from kgym.bench import attempt_files
from kgym.bench.attempt_record import AttemptRecord, Outcome, Setup, Votes
from kgym.client import Client
from kgym.errors import UserError
from kgym_cli.platforms.embedded_platform import Platform
from tests.benchmark.test_dataset import bug, made
from tests.cli.conftest import Kgym

ONE = Setup(agent="one", model="m", dollars=5.6)


def attempts(count: int) -> list[AttemptRecord]:
    return [
        AttemptRecord(
            bug="a" * 40,
            setup=ONE,
            run=run,
            outcome=Outcome.PASS,
            votes=Votes(yes=run % 10, no=9 - run % 10),
            diff=f"+{run}\n",
        )
        for run in range(1, count + 1)
    ]


@pytest.mark.thorough
def test_a_folder_is_published_once(kgym: Kgym, idle: Platform, tmp_path: Path) -> None:
    made(bug(), bug(id="e" * 40)).save(tmp_path / "bugs")
    attempt_files.write(tmp_path / "bugs" / "attempts.jsonl", attempts(700))
    first = kgym("bench", "publish", tmp_path / "bugs", "--name", "mine", "--json")
    assert first.json == {"benchmark": "mine", "bugs": 2, "attempts": 700, "changed": 702}
    again = kgym("bench", "publish", tmp_path / "bugs", "--name", "mine", "--json")
    assert again.json["changed"] == 0
    with Client(idle.url) as client:
        view = client.benchmark("mine")
        assert (view.attempts, view.published) == (700, 2)
        assert client.benchmark_bug("mine", "a" * 40) == made(bug()).bugs[0].published
        assert len(list(client.benchmark_attempts("mine"))) == 700
        assert client.benchmark_attempt("mine", "a" * 40, 0, 7) == attempts(7)[-1]


def test_attempts_are_read_as_they_were_written(tmp_path: Path) -> None:
    attempt_files.write(tmp_path / "a", attempts(3))
    assert list(attempt_files.read(tmp_path / "a")) == attempts(3)
    with (tmp_path / "a").open("a") as file:
        file.write('{"bug": "a", "ru')  # its writer was killed
    assert list(attempt_files.read(tmp_path / "a")) == attempts(3)


@pytest.mark.parametrize("line", ["{}", "x", '{"bug": "a", "run": 0}', '{"what": 1}'])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    attempt_files.write(tmp_path / "a", attempts(1))
    with (tmp_path / "a").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match="a:2: ") as error:
        list(attempt_files.read(tmp_path / "a"))
    assert error.value.reason == "bad_attempts"
