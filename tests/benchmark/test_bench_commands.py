"""`kgym bench`: datasets are made, listed, shown and written, as a person or a script does it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import jsonschema_rs
import pytest

from kgym.bench import dataset, dataset_files
from kgym.bench.bug_bundles import read_bundles
from kgym.bench.bug_record import BugRecord, FoundText
from kgym.bench.dataset import Dataset
from kgym.bugs import bundle
from tests.benchmark.test_bug_bundles import whole
from tests.benchmark.test_dataset import bug, karena_file, made
from tests.cli.conftest import Kgym
from tests.conftest import ROOT

OLD, NEW = "a" * 40, "e" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of two bugs."""
    late = bug(
        id=NEW,
        title="WARNING in g",
        patch_commit_date="2025-06-01T00:00:00+00:00",
        patch_modified_files=["fs/g.c"],
    )
    made(bug(), late).save(tmp_path / "bugs")
    return tmp_path / "bugs"


def test_kbenchsyz_is_imported_once_and_for_all(kgym: Kgym, tmp_path: Path) -> None:
    dataset_files.write_kbenchsyz(made(bug(), bug(id=NEW)), tmp_path / "theirs")
    words = ("bench", "import", "kbenchsyz", tmp_path / "theirs", "--into", tmp_path / "d")
    first = kgym(*words, "--name", "mine", "--json")
    assert (first.status, first.json["dataset"]["bugs"]) == (0, 2), first.err
    assert dataset.load(tmp_path / "d").name == "mine"
    again = kgym(*words, "--json")
    assert (again.status, again.json["reason"]) == (2, "dataset_exists")


def test_a_choice_is_listed_and_written(kgym: Kgym, folder: Path, tmp_path: Path) -> None:
    listed = kgym("bench", "list", folder, "--touches", "fs", "--json")
    schema = json.loads(kgym("bench", "list", "--json-schema").out)
    jsonschema_rs.validate(schema, listed.json)
    assert [bug["id"] for bug in listed.json] == [NEW]
    written = kgym("bench", "export", folder, tmp_path / "new", "--cutoff", "2025-01-01")
    assert written.status == 0, written.err
    assert [bug.id for bug in dataset.load(tmp_path / "new").bugs] == [NEW]


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("bundles", {"whole", "watch-queue-filter"}),
        # A task's image gets its tree from a repository; shipped kernels are packages.
        ("harbor", {"whole"}),
    ],
)
def test_what_has_no_such_form_is_left_out_by_name_and_the_others_are_written(
    kgym: Kgym, tmp_path: Path, form: str, written: set[str]
) -> None:
    known = whole(id="whole")
    crash = known.crashes[0].model_copy(update={"config": FoundText()})
    shipped = read_bundles(ROOT / "configs" / "bugs").get("watch-queue-filter")
    bugs = [known.model_copy(update={"id": "no-config", "crashes": [crash]}), shipped, known]
    bugs.append(known.model_copy(update={"id": "own", "bundle": str(tmp_path)}))
    Dataset.of("some", bugs, source="").save(tmp_path / "d")
    words = ("bench", "export", tmp_path / "d", tmp_path / "new", "--form", form, "--json")
    done = kgym(*words)
    assert done.status == 1, done.err
    assert {path.name for path in (tmp_path / "new").iterdir()} == written
    assert done.json["left_out"].keys() == {bug.id for bug in bugs} - written
    assert "config is unknown" in done.json["left_out"]["no-config"]
    assert "left out: no-config: " in done.err
    for name in written:
        inside = "" if form == "bundles" else "tests/bundle"
        assert bundle.load(str(tmp_path / "new" / name / inside)).reproducers


def test_a_dataset_and_its_bugs_are_shown(kgym: Kgym, folder: Path) -> None:
    shown = kgym("bench", "show", folder, "--json").json
    assert (shown["dataset"]["bugs"], shown["fixed"]) == (2, {"2022": 1, "2025": 1})
    record = kgym("bench", "show", folder, "aaaa", "--json").json
    assert BugRecord.model_validate(record).id == OLD
    assert kgym("bench", "show", folder, "aaaa", "--part", "c").out == "int main() { return 0; }"


def test_an_import_of_karena_omits_nothing_silently(kgym: Kgym, tmp_path: Path) -> None:
    path, into = karena_file(tmp_path / "karena.db"), tmp_path / "lk"
    with closing(sqlite3.connect(path)) as base:
        base.execute("INSERT INTO bug_dataset_members VALUES (1, 'fedcba')")
        setup = "INSERT INTO agent_configurations VALUES (2, 'slow', 'c', 'gemini', 1, 0)"
        base.execute(setup)
        for number, status in ((21, "error"), (22, "pending"), (23, "running")):
            row = (number, 99, "e" * 40, 2, number, status, "", "{}")
            base.execute("INSERT INTO agent_patches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        base.commit()
    words = ("bench", "import", "karena", path, "--dataset", "lk", "--into", into)
    words += ("--attempts", into / "attempts.jsonl")
    first = kgym(*words)
    assert first.status == 0, first.err
    assert "without 1 members that it does not hold: fedcba" in first.err
    assert "1 attempts without a verdict: attempt: pending, evaluation: none" in first.err
    again = kgym(*words, "--json").json
    # All seven rows of the database: an error is a bad attempt, others wait for their evaluation.
    assert (again["attempts"], again["failed"]) == (4, 3)
    assert "fedcba" in again["dataset"]["source"]
    report = kgym("bench", "report", into, "--json").json
    assert [(setup["setup"]["agent"], setup["attempts"]) for setup in report["failed"]] == [
        ("mini", 1),
        ("slow", 2),
    ]


def test_types_and_classes_match_by_prefix(kgym: Kgym, folder: Path) -> None:
    kasan = dataset.load(folder).get(OLD)
    assert "-" in kasan.type
    for option, value in (("--type", kasan.type), ("--class", kasan.crash_class)):
        prefix = value.replace("-", " ").split()[0]
        listed = kgym("bench", "list", folder, option, prefix, "--json").json
        assert [record["id"] for record in listed] == [OLD], option


def test_bugs_without_a_date_are_reported_by_the_cutoff(kgym: Kgym, tmp_path: Path) -> None:
    undated = [bug(id=digit * 40, patch_commit_date=None) for digit in "bcd"]
    made(bug(), *undated).save(tmp_path / "bugs")
    for side in ("before", "after"):
        done = kgym("bench", "list", tmp_path / "bugs", "--cutoff", "2025-01-01", "--side", side)
        assert (done.status, "3 of 4 bugs are left out: the date" in done.err) == (0, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("show", "{}", "bbbb"), "no_such_bug"),
        (("show", "{}", "aaaa", "--part", "report"), "no_such_part"),
        (("list", "{}", "--text", "x" * 20_000), "bad_choice"),
        (("import", "kbenchsyz", "{}", "--into", "{}/d", "--attempts", "a"), "no_attempts"),
    ],
)
def test_what_cannot_be_is_refused(
    kgym: Kgym, folder: Path, words: tuple[str, ...], reason: str
) -> None:
    done = kgym("bench", *(word.format(folder) for word in words), "--json")
    assert (done.status, done.json["reason"]) == (2, reason), done.err
