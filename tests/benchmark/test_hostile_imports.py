"""Attacks by the files that benchmarks are imported from: SQLite, Parquet, JSON."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgym.bench import dataset_files, karena
from tests.benchmark.test_dataset import bug, karena_file
from tests.cli.conftest import Kgym
from tests.refused import refused
from tests.tables import json_rows

pytestmark = pytest.mark.attack
DEEP = "[" * 100_000
# A value that SQLite stores once, for 200 rows.
DEFAULT = (
    "DROP TABLE patches; CREATE TABLE patches (patchId INTEGER); WITH RECURSIVE n(i) AS (SELECT 1"
    " UNION ALL SELECT i + 1 FROM n LIMIT 200) INSERT INTO patches SELECT i FROM n;"
    f" ALTER TABLE patches ADD COLUMN patchContent TEXT DEFAULT '{'x' * (30 << 20)}'"
)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS rowid"


@pytest.mark.parametrize(
    ("sql", "reason"),
    json_rows(__file__, "forged_databases.jsonl"),
    ids=lambda value: f"{value}"[:70],
)
def test_a_forged_database_is_refused_with_its_place(
    tmp_path: Path, sql: str, reason: str | None
) -> None:
    path = _forged(tmp_path, sql.replace("DEEP", DEEP).replace("ENDLESS", ENDLESS))
    if reason is None:
        assert karena.results(path).attempts
        return
    with refused(reason):
        karena.datasets(path)
        karena.results(path)


@pytest.mark.thorough
def test_a_small_database_of_huge_values_ends_at_a_limit(kgym: Kgym, tmp_path: Path) -> None:
    path = _forged(tmp_path, DEFAULT)
    attempts = tmp_path / "attempts.jsonl"
    done = kgym("bench", "import", "karena", path, "--into", tmp_path / "d", "--attempts", attempts)
    assert (done.status, "MiB of memory" in done.err) == (2, True), done.err
    assert not (tmp_path / "d").exists()


def _forged(folder: Path, sql: str) -> Path:
    path = karena_file(folder / "karena.db")
    connection = sqlite3.connect(path)
    connection.executescript(sql)
    connection.close()
    return path


@pytest.mark.parametrize(
    "changed",
    [
        {"syzbotCrashReport": 7},
        {"syzbotCrashReport": "x" * (9 << 20)},
        {"reportedTime": 7},
        {"subsystem": DEEP},
        {"subsystem": {"a": 1}},
        {"extid": {"a": 1}},
        {"bugId": "../../x"},
        {"bugId": "\ud800" * 40},
        {"syzbotData": json.dumps(bug(crashes=[{"title": 7}]))},
        {"syzbotData": 7},
        {"syzbotData": "1" * 5000},
    ],
    ids=lambda changed: f"{changed}"[:60],
)
def test_a_forged_row_is_refused_with_its_place(tmp_path: Path, changed: dict[str, Any]) -> None:
    row = {"bugId": "a" * 40, "syzbotData": json.dumps(bug())} | changed
    (tmp_path / "bugs.jsonl").write_text(json.dumps(row))
    with refused("bad_bug_data"):
        dataset_files.read_live_kbench(tmp_path)


def _zeroed(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: data[:-8] + (0x7FFFFFFF).to_bytes(4, "little") + data[-4:],
        lambda data: data[:-8] + bytes(4) + data[-4:],
        lambda data: _zeroed(data, 4, 60),
        lambda data: data[:4] + b"\xff" * 40 + data[44:],
        lambda data: b"PAR1" + data[-8:],
        lambda data: b"PARE" + data[4:-4] + b"PARE",
    ],
)
def test_a_damaged_parquet_file_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs the package pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "bugs.parquet"
    rows = [{"bugId": "a" * 40, "syzbotData": json.dumps(bug())}]
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    path.write_bytes(damage(path.read_bytes()))
    with refused("bad_bug_data"):
        dataset_files.read_live_kbench(tmp_path)


@pytest.mark.thorough
def test_a_small_parquet_file_of_huge_cells_ends_at_a_limit(kgym: Kgym, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs the package pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    cell = arrow.DictionaryArray.from_arrays(
        arrow.array([0] * 100, arrow.int32()), arrow.array(["x" * (100 << 20)])
    )
    table = arrow.table({"bugId": ["a" * 40] * 100, "syzbotData": cell})
    parquet.write_table(table, tmp_path / "bugs.parquet", compression="zstd")
    done = kgym("bench", "import", "live-kbench", tmp_path, "--into", tmp_path / "d")
    assert (done.status, "MiB of memory" in done.err) == (2, True), done.err
