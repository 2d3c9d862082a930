"""Other projects' dataset formats: kBenchSyz's folder of JSON, Live-kBench's two tables.

Live-kBench's dataset repository has two configurations, `bugs` and `datasets`, each a table of text
columns, some of which hold JSON (ARiSE-Lab/live-kbench, kArena/hf_sync.py, commit 8849209). A table
is a file `bugs.parquet`, `bugs.jsonl` or `bugs.json`, or a folder `bugs` of such files, as in a
downloaded repository. Parquet needs the package `pyarrow`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from kgym.api.faults import refused_at
from kgym.bench import syzbot_data
from kgym.bench.bug_record import BugRecord, FoundText
from kgym.bench.dataset import MOST, Dataset
from kgym.errors import NotFound, UserError, file_errors

# Maximum bytes of a file of rows.
FILE = 512 << 20
BUG_FILE = 64 << 20
# Maximum bytes of a program.
PROGRAM = 1 << 20
Row = Mapping[str, Any]
# syzbot's ids: a bug has 40 hex digits, its mails 20.
_SYZBOT_ID = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{40}|[0-9a-f]{20})(?![0-9a-f])")
_ENDS = (".parquet", ".jsonl", ".json")


def read_kbenchsyz(folder: Path, programs: Path | None = None) -> Dataset:
    """Read a folder with one JSON file per bug; raise NotFound, UserError `bad_bug_data`.

    `programs` is a folder with their C programs, as ID.c: the JSON files only contain links.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise NotFound("no_dataset", f"{folder} holds no JSON file of a bug")
    bugs: Iterable[BugRecord] = map(_kbenchsyz_bug, files)
    if programs is not None:
        bugs = [_with_program(bug, programs / f"{bug.id}.c") for bug in bugs]
    return Dataset.of("kbenchsyz", bugs, source=f"kBenchSyz: {len(files)} files")


def _kbenchsyz_bug(path: Path) -> BugRecord:
    return syzbot_data.read(
        _object(parsed_json(read_bounded(path, BUG_FILE), path), path), str(path)
    )


def _with_program(bug: BugRecord, path: Path) -> BugRecord:
    if not bug.crashes or bug.crashes[0].c_reproducer.text or not path.is_file():
        return bug
    try:
        text = read_bounded(path, PROGRAM).decode()
    except UnicodeDecodeError as error:
        raise UserError("bad_bug_data", f"{path}: {error}") from error
    first = bug.crashes[0]
    program = first.c_reproducer.model_copy(update={"text": text})
    first = first.model_copy(update={"c_reproducer": program})
    return bug.model_copy(update={"crashes": [first, *bug.crashes[1:]]})


def read_list(path: Path, known: Dataset) -> Dataset:
    """Return the bugs of a dataset that a file names: by id, or by link to syzbot's pages.

    RGym has published its 143 bugs in this form. The file is JSON (a list of names, a list of
    objects with `id`, `bug_id` or `extid`, or an object with names as keys), CSV, or a name per
    line. A name is an id or an `extid`. Raises NotFound `no_dataset`, `no_such_bug`, UserError
    `bad_bug_data`.
    """
    return chosen(_names(read_bounded(path, BUG_FILE), path), known, path)


def chosen(named: Iterable[str], known: Dataset, path: Path) -> Dataset:
    """Return the bugs of a dataset that `path` names, as `read_list` does."""
    names = list(dict.fromkeys(named))
    if not names:
        raise UserError("bad_bug_data", f"{path} names no bug of syzbot's")
    by_name = {name: bug for bug in known.bugs for name in (bug.id, bug.extid) if name}
    if missing := [name for name in names if name not in by_name]:
        raise NotFound(
            "no_such_bug",
            f"{path} names {len(missing)} bugs that {known.name} does not have, such as"
            f" {missing[0]}: import or fetch them first",
        )
    bugs = [by_name[name] for name in names]
    return Dataset.of(
        path.stem, bugs, source=f"{known.name} {known.about.sha256[:12]}: {path.name}"
    )


def _names(data: bytes, path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        rows = parsed_json(data, path)
        for row in rows if isinstance(rows, list | dict) else ():
            yield from syzbot_ids(row if isinstance(row, str) else next(_named(row), ""))
        return
    for line in data.decode(errors="replace").splitlines():
        yield from syzbot_ids(line)[:1]


def syzbot_ids(text: str) -> list[str]:
    """Return the ids of syzbot's in a text, such as a link to a bug."""
    return _SYZBOT_ID.findall(text)


def _named(row: object) -> Iterator[str]:
    if isinstance(row, dict):
        names = (row.get(name) for name in ("id", "bug_id", "bugId", "extid"))
        yield from (name for name in names if isinstance(name, str))


def write_kbenchsyz(dataset: Dataset, folder: Path) -> None:
    """Write one JSON file per bug into a new folder; raise UserError `folder_in_use`."""
    refuse_used(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for bug in dataset.bugs:
        text = json.dumps(syzbot_data.write(bug), indent=2)
        (folder / f"{bug.id}.json").write_text(text + "\n")


# --- Live-kBench ----------------------------------------------------------------------------


def read_live_kbench(folder: Path, wanted: str | None = None) -> Dataset:
    """Read a folder in Live-kBench's format: the dataset `wanted`, or all bugs if it is None.

    Raises NotFound `no_dataset`, `no_such_dataset`, UserError `bad_bug_data`, `no_pyarrow`.
    """
    bugs = [
        live_kbench_bug(row, f"{folder}, table bugs, row {number}")
        for number, row in enumerate(_table(folder, "bugs"), start=1)
    ]
    if wanted is None:
        return Dataset.of("live-kbench", bugs, source="Live-kBench: all bugs")
    definitions = list(_table(folder, "datasets"))
    chosen = [row for row in definitions if row.get("datasetName") == wanted]
    if not chosen:
        there = ", ".join(sorted(str(row.get("datasetName")) for row in definitions)) or "none"
        raise NotFound("no_such_dataset", f"{folder} defines no dataset {wanted!r}, but: {there}")
    ids = set(_strings(chosen[0].get("bugIds"), f"{folder}, dataset {wanted}, bugIds") or ())
    if missing := ids - {bug.id for bug in bugs}:
        raise UserError(
            "bad_bug_data",
            f"{folder}: the dataset {wanted} names {len(missing)} bugs that the table bugs does"
            f" not have, such as {min(missing)}",
        )
    return Dataset.of(
        wanted,
        [bug for bug in bugs if bug.id in ids],
        description=str(chosen[0].get("description") or ""),
        source=f"Live-kBench: {wanted}",
    )


def live_kbench_bug(row: Row, where: str) -> BugRecord:
    """Return the bug of a row of the table `bugs`, or of kArena's table `syzbot_bugs`."""
    data = _object(_parsed(row.get("syzbotData"), f"{where}, syzbotData"), where)
    bug = syzbot_data.read(
        data,
        where,
        **{
            name: value
            for name, value in {
                "id": row.get("bugId"),
                "extid": row.get("extid"),
                "reported": time_of(row.get("reportedTime"), f"{where}, reportedTime"),
                "subsystems": _strings(row.get("subsystem"), f"{where}, subsystem"),
            }.items()
            if value
        },
    )
    # Texts fetched later are stored beside syzbot's data, and belong to the first crash.
    report, program = row.get("syzbotCrashReport"), row.get("syzbotReproducer")
    if not bug.crashes or not (report or program):
        return bug
    first = bug.crashes[0]
    known: dict[str, Any] = {}
    with refused_at(where):
        if report and first.report.text is None:
            known["report"] = FoundText(text=report, link=first.report.link)
        if program and first.c_reproducer.text is None and first.syz_reproducer.text is None:
            syz = first.syz_reproducer
            known["syz_reproducer"] = FoundText(text=program, link=syz.link)
    crashes = [first.model_copy(update=known), *bug.crashes[1:]]
    return bug.model_copy(update={"crashes": crashes})


def write_live_kbench(
    dataset: Dataset, folder: Path, form: Literal["parquet", "jsonl"] = "jsonl"
) -> None:
    """Write both tables into a new folder; raise UserError `folder_in_use`, `no_pyarrow`."""
    refuse_used(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat()
    bugs = [_live_kbench_row(bug, now) for bug in dataset.bugs]
    about = dataset.about
    definition = {
        "datasetName": dataset.name,
        "description": dataset.description,
        "addedTime": now,
        "bugIds": json.dumps([bug.id for bug in dataset.bugs]),
        "attrs": json.dumps({"sha256": about.sha256, "source": about.source}),
    }
    for table, rows in (("bugs", bugs), ("datasets", [definition])):
        path = folder / table / f"train.{form}"
        path.parent.mkdir()
        if form == "parquet":
            arrow, parquet = _pyarrow()
            parquet.write_table(arrow.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _live_kbench_row(bug: BugRecord, now: str) -> dict[str, str | None]:
    first = bug.crashes[0] if bug.crashes else None
    program = first and (first.c_reproducer.text or first.syz_reproducer.text)
    return {
        "bugId": bug.id,
        "extid": bug.extid or "",
        "title": bug.title,
        "addedTime": now,
        "reportedTime": bug.reported.isoformat() if bug.reported else "",
        "status": bug.status,
        "subsystem": json.dumps(bug.subsystems or []),
        "syzbotCrashReport": first.report.text if first else None,
        "syzbotReproducer": program or None,
        "syzkallerCommitId": first.syzkaller_commit if first else None,
        "syzkallerRollbackTag": None,
        "syzbotData": json.dumps(syzbot_data.write(bug)),
    }


# --- tables ---------------------------------------------------------------------------------


def _table(folder: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a table: a file, or all files of the folder with its name."""
    beside = [folder / f"{name}{end}" for end in _ENDS if (folder / f"{name}{end}").is_file()]
    files = beside[:1] or sorted(
        path for path in (folder / name).glob("*") if path.suffix in _ENDS and path.is_file()
    )
    if not files:
        raise NotFound(
            "no_dataset",
            f"{folder} has no table {name}: neither {name}.parquet, {name}.jsonl or {name}.json,"
            f" nor a folder {name} with such files",
        )
    count = 0
    for path in files:
        for row in rows_of(path):
            count += 1
            if count > MOST:
                raise UserError("too_many_bugs", f"{path}: a table has at most {MOST:,} rows")
            yield _object(row, path)


def rows_of(path: Path) -> Iterable[object]:
    """Yield the rows of a file of JSON lines, JSON or Parquet; raise UserError `bad_bug_data`."""
    if path.suffix == ".parquet":
        arrow, parquet = _pyarrow()
        try:
            with parquet.ParquetFile(path) as file:
                if file.metadata.num_rows > MOST:
                    raise UserError("too_many_bugs", f"{path}: a table has at most {MOST:,} rows")
                # In batches: a row can hold a whole report, and a table 100,000 rows.
                for batch in file.iter_batches(batch_size=100):
                    yield from batch.to_pylist()
        except (arrow.lib.ArrowException, OSError, ValueError) as error:
            raise UserError("bad_bug_data", f"{path} is not a Parquet file: {error}") from error
        return
    data = read_bounded(path, FILE)
    if path.suffix == ".jsonl":
        for number, line in enumerate(data.splitlines(), start=1):
            if line.strip():
                yield parsed_json(line, f"{path}:{number}")
        return
    rows = parsed_json(data, path)
    if not isinstance(rows, list):
        raise UserError("bad_bug_data", f"{path}: expected a list of rows")
    yield from rows


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            "no_pyarrow", "Parquet needs the package pyarrow: install it, or use .jsonl files"
        ) from error


def refuse_used(folder: Path) -> None:
    """Raise UserError `folder_in_use` if a folder exists and is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError("folder_in_use", f"{folder} is not empty: name a new folder")


def read_bounded(path: Path, most: int) -> bytes:
    """Return a file of at most `most` bytes; raise NotFound `no_dataset`, UserError."""
    with file_errors(path, "no_dataset", NotFound), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UserError("bad_bug_data", f"{path} is larger than {most >> 20} MiB")
    return data


def parsed_json(data: bytes | str, where: object) -> object:
    """Return parsed JSON; raise UserError `bad_bug_data`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError("bad_bug_data", f"{where} is not JSON: {error}") from error


def _parsed(text: object, where: str) -> object:
    return parsed_json(text, where) if isinstance(text, str) else text


def _object(value: object, where: object) -> Row:
    if not isinstance(value, dict):
        raise UserError("bad_bug_data", f"{where}: expected an object")
    return value


def _strings(value: object, where: str) -> Sequence[str] | None:
    values = _parsed(value, where) if value else None
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError("bad_bug_data", f"{where}: expected a list of strings")
    return values


def time_of(value: object, where: str) -> datetime | None:
    """Parse a time, in UTC unless it has a zone; raise UserError `bad_bug_data`."""
    if not value:
        return None
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise UserError("bad_bug_data", f"{where}: {value!r} is not a time") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
