"""Datasets: as others keep them, as ours never change, and which of their bugs are meant."""

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kgym.api.steps import Patch
from kgym.bench import dataset, dataset_files, karena, syzbot_data
from kgym.bench.attempt_record import Outcome
from kgym.bench.bug_choice import BugChoice, split
from kgym.bench.dataset import Dataset
from kgym.bench.patch_overlap import changed_parts, overlap
from kgym.errors import NotFound, UserError
from kgym.source.patching import files
from tests.conftest import ROOT
from tests.refused import refused
from tests.tables import json_rows

KBENCHSYZ = ROOT.parent / "shared" / "data" / "kbenchsyz"
needs_kbenchsyz = pytest.mark.skipif(
    not KBENCHSYZ.is_dir(), reason="the 279 bugs of kBenchSyz are not beside this checkout"
)

HERE = Path(__file__).parent
SYZBOT = json.loads((HERE / "syzbot_bug.json").read_text())


def bug(**changed: object) -> dict[str, object]:
    return {**SYZBOT, **changed}


def made(*bugs: dict[str, object], name: str = "some") -> Dataset:
    return Dataset.of(name, [syzbot_data.read(data, "here") for data in bugs])


@pytest.mark.thorough
@needs_kbenchsyz
def test_kbenchsyz_is_read_and_written_without_a_loss(tmp_path: Path) -> None:
    read = dataset_files.read_kbenchsyz(KBENCHSYZ)
    assert len(read) == 279
    dataset_files.write_kbenchsyz(read, tmp_path / "written")
    assert dataset_files.read_kbenchsyz(tmp_path / "written").bugs == read.bugs
    for path in sorted(KBENCHSYZ.glob("*.json"))[::20]:
        theirs = json.loads(path.read_text())
        ours = json.loads((tmp_path / "written" / path.name).read_text())
        lost = {name for name, value in theirs.items() if value and name not in ours}
        assert lost <= {"version"}
    # Five bugs have two fixes; the fix of another one copies a file.
    hashes = [[commit.id for commit in bug.patch.commits] for bug in read.bugs if bug.patch]
    assert sorted(map(len, hashes))[-6:] == [1, 2, 2, 2, 2, 2]
    copied = [bug.patch for bug in read.bugs if bug.patch and "copy from" in (bug.patch.diff or "")]
    assert [bool(files(Patch(diff=patch.diff))) for patch in copied] == [True]


def test_a_bug_is_read_with_what_is_known_of_it() -> None:
    read = syzbot_data.read(bug(), "here")
    assert (read.status, read.type, read.crash_class) == (
        "fixed",
        "KASAN-USE-AFTER-FREE-READ",
        "KASAN use-after-free",
    )
    (crash,) = read.crashes
    assert crash.repository == "https://k/linux.git"
    assert read.patch is not None
    assert (read.patch.lines, read.patch.message, read.cause, read.reported) == (
        2,
        None,
        None,
        None,
    )
    assert read.fixed == datetime(2022, 9, 20, 12, 20, 17, tzinfo=UTC)


def test_both_ways_to_name_the_fields_are_read_alike() -> None:
    theirs = json.loads((HERE / "live_kbench_bug.json").read_text())
    assert syzbot_data.read(theirs, "there") == syzbot_data.read(bug(), "here")


@pytest.mark.parametrize(("changed", "complaint"), json_rows(__file__, "bad_bugs.jsonl"))
def test_a_bug_that_is_none_is_refused_with_its_field(
    changed: dict[str, object], complaint: str
) -> None:
    with refused("bad_bug_data") as caught:
        syzbot_data.read(bug(**changed), "bugs.jsonl:3")
    assert caught.value.message.startswith(f"bugs.jsonl:3: {complaint}")


def test_a_dataset_is_kept_and_never_changes(tmp_path: Path) -> None:
    first = made(bug(), bug(id="e" * 40))
    about = first.save(tmp_path / "d")
    assert dataset.load(tmp_path / "d") == first
    assert first.save(tmp_path / "d") == about
    assert made(bug(id="e" * 40), bug()).about.sha256 == about.sha256
    with refused("dataset_exists"):
        made(bug()).save(tmp_path / "d")
    lines = (tmp_path / "d" / "bugs.jsonl").read_text()
    (tmp_path / "d" / "bugs.jsonl").write_text(lines.replace("in f", "in g"))
    with refused("dataset_changed"):
        dataset.load(tmp_path / "d")


def test_what_is_no_dataset_is_told(tmp_path: Path) -> None:
    with refused("no_dataset"):
        dataset.load(tmp_path)
    with refused("bug_twice"):
        made(bug(), bug(title="another"))
    with refused("bad_dataset"):
        made(bug(), name="../x")
    pair = made(bug(), bug(id="ab" * 20))
    assert pair.get("aaa").id == "a" * 40
    with pytest.raises(NotFound):
        pair.get("a")


@pytest.mark.parametrize(("choice", "count"), json_rows(__file__, "choices.jsonl"))
def test_bugs_are_chosen_by_what_is_known_of_them(choice: dict[str, object], count: int) -> None:
    there = made(
        bug(),
        bug(id="e" * 40, subsystems=["mm"], patch_commit_date="2024-01-01T00:00:00+00:00"),
        bug(id="f" * 40, title="WARNING in w", status="open", **{"fix-commits": [], "patch": None}),
    )
    chosen = BugChoice.model_validate(choice).of(there, "chosen")
    assert len(chosen) == count
    assert (chosen.source or "").startswith(f"some {there.about.sha256[:12]}")


def test_a_dataset_is_split_at_a_models_cutoff() -> None:
    there = made(
        bug(),
        bug(id="e" * 40, patch_commit_date="2024-01-01T00:00:00+00:00"),
        bug(id="f" * 40, patch_commit_date=None),
    )
    before, after = split(there, datetime(2023, 1, 31, tzinfo=UTC))
    assert [bug.id[0] for bug in before.bugs] == ["a"]
    assert [bug.id[0] for bug in after.bugs] == ["e"]


# --- Live-kBench ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_live_kbenchs_tables_are_written_and_read(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs the package pyarrow")
    there = made(bug(), bug(id="e" * 40))
    dataset_files.write_live_kbench(there, tmp_path / "hub", form)  # type: ignore[arg-type]
    assert dataset_files.read_live_kbench(tmp_path / "hub", "some").bugs == there.bugs
    assert len(dataset_files.read_live_kbench(tmp_path / "hub")) == 2
    with pytest.raises(NotFound) as missing:
        dataset_files.read_live_kbench(tmp_path / "hub", "none")
    assert "some" in missing.value.message
    with refused("folder_in_use"):
        dataset_files.write_live_kbench(there, tmp_path / "hub")


def test_a_row_says_what_was_fetched_later() -> None:
    row = {
        "bugId": "a" * 40,
        "extid": "0123",
        "reportedTime": "2022-08-01T00:00:00",
        "subsystem": '["net", "mm"]',
        "syzbotCrashReport": "BUG: KASAN: …",
        "syzbotReproducer": "r0 = socket()",
        "syzbotData": json.dumps(bug()),
    }
    read = dataset_files.live_kbench_bug(row, "row 1")
    assert (read.extid, read.subsystems) == ("0123", ["net", "mm"])
    assert read.reported == datetime(2022, 8, 1, tzinfo=UTC)
    assert read.crashes[0].report.text == "BUG: KASAN: …"
    assert read.crashes[0].c_reproducer.text == "int main() { return 0; }"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bugs.jsonl", "no json\n"),
        ("bugs.jsonl", "[1]\n"),
        ("bugs.json", "{}"),
        ("bugs.jsonl", '{"syzbotData": "{}"}\n'),
        ("bugs.jsonl", '{"syzbotData": "[[[["}\n'),
        ("bugs.jsonl", "[" * 100_000),
    ],
)
@pytest.mark.attack
def test_a_table_that_is_none_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with refused("bad_bug_data"):
        dataset_files.read_live_kbench(tmp_path)


def karena_file(path: Path) -> Path:
    """Make a database with two bugs, two runs of an agent, and a judge."""
    base = sqlite3.connect(path)
    base.executescript((HERE / "karena.sql").read_text())
    for bug_id in ("a" * 40, "e" * 40):
        data = json.dumps(bug(id=bug_id, patch_commit_date=None))
        base.execute(
            "INSERT INTO syzbot_bugs VALUES (?, 'x', '2022-08-01', '[]', '', '', ?)", (bug_id, data)
        )
        base.execute("INSERT INTO developer_patches VALUES (?, '2023-05-01', 'why')", (bug_id,))
    base.execute("INSERT INTO bug_dataset_members VALUES (1, ?)", ("e" * 40,))
    attrs = '{"dollarCost": "1.5", "timeCost": "60"}'
    rows = [
        (11, 1, "a" * 40, 2, "success", "", attrs),
        (12, 2, "a" * 40, 1, "success", "", "{}"),
        (13, 3, "e" * 40, 1, "success", "", "no json"),
        (14, 3, "e" * 40, 2, "success", "", "[]"),
    ]
    for number, patch, of, run, status, message, more in rows:
        base.execute(
            "INSERT INTO agent_patches VALUES (?, ?, ?, 1, ?, ?, ?, ?)",
            (number, patch, of, run, status, message, more),
        )
    base.commit()
    base.close()
    return path


def test_a_karena_database_is_read_with_all_results(tmp_path: Path) -> None:
    path = karena_file(tmp_path / "karena.db")
    there = karena.datasets(path)
    assert [len(bugs) for bugs in there.values()] == [2, 1]
    (lk_bug,) = there["lk"].bugs
    assert lk_bug.patch is not None
    assert (lk_bug.patch.message, lk_bug.fixed) == ("why", datetime(2023, 5, 1, tzinfo=UTC))
    read = karena.results(path)
    by_bug = {(attempt.bug[0], attempt.run): attempt for attempt in read.attempts}
    assert {place: attempt.outcome for place, attempt in by_bug.items()} == {
        ("a", 1): Outcome.BAD,
        ("a", 2): Outcome.PASS,
        ("e", 2): Outcome.COMPILE,
    }
    best = by_bug["a", 2]
    assert (best.equivalent, best.dollars, best.seconds) == (True, 1.5, 60)
    assert best.setup.feedback
    assert best.files is not None
    assert best.files.ratio == 0.5
    (failed,) = read.failed
    assert (failed.bug, failed.run) == ("e" * 40, 1)
    assert failed.reason == "attempt: success, evaluation: error"
    with pytest.raises(NotFound) as caught:
        karena.results(path, judge="opus")
    assert "flash" in caught.value.message


@pytest.mark.attack
def test_a_karena_database_whose_tables_are_views_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "karena.db"
    base = sqlite3.connect(path)
    base.execute(
        "CREATE VIEW developer_patches AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1"
        " FROM n) SELECT i AS bugId FROM n"
    )
    base.commit()
    base.close()
    with refused("bad_karena"):
        karena.datasets(path)
    (tmp_path / "text").write_text("no database, but long enough to be read as one" * 100)
    with refused("bad_karena"):
        karena.results(tmp_path / "text")
    with pytest.raises(NotFound):
        karena.results(tmp_path / "absent")


# --- what patches change --------------------------------------------------------------------

TREE = {
    "net/f.c": b"int one(void)\n{\n\treturn 1;\n}\n\nint two(void)\n{\n\treturn 2;\n}\n",
    "Makefile": b"obj-y := f.o\n",
}

FIRST, BOTH = ((HERE / name).read_text() for name in ("one_function.diff", "two_functions.diff"))


def test_functions_are_found_by_the_files_not_by_the_hunks() -> None:
    first, both = (changed_parts(patch, TREE) for patch in (FIRST, BOTH))
    assert first.functions == {("net/f.c", "one")}
    assert both.functions == {("net/f.c", name) for name in ("one", "two", "three")}
    assert both.files == {"net/f.c"}
    files, functions = overlap(first, both)
    assert (files.ratio, functions.ratio) == (1, pytest.approx(1 / 3))
    with pytest.raises(UserError):
        changed_parts(FIRST.replace("return 1;", "return 7;"), TREE)
