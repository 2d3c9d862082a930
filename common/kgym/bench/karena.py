"""Import of Live-kBench's kArena database, an SQLite file: its bugs, datasets and results.

Source: ARiSE-Lab/live-kbench, kArena/db/schema.py (commit 8849209). The file is untrusted: it is
opened read-only, and only tables are read, since a view's query could run for ever. Callers have to
limit memory and time: a small file can yield gigabytes of values.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic import Field

from kgym.api.faults import refused_at
from kgym.api.steps import Strict
from kgym.bench.attempt_record import AttemptRecord, FailedAttempt, Outcome, Overlap, Setup, Votes
from kgym.bench.bug_record import BugRecord, DeveloperPatch
from kgym.bench.dataset import MOST, Dataset
from kgym.bench.dataset_files import live_kbench_bug, time_of
from kgym.errors import NotFound, UserError

# Maximum rows of a table.
ATTEMPTS = 10_000_000
# Maximum bytes of one value.
VALUE = 64 << 20
# The columns that are read: `#` marks whole numbers, `?` what may be null, and all others are text.
# SQLite itself stores any value in any column.
_COLUMNS = {
    "syzbot_bugs": "bugId extid reportedTime subsystem syzbotCrashReport? syzbotReproducer?"
    " syzbotData",
    "bug_datasets": "#datasetId datasetName description",
    "bug_dataset_members": "#datasetId bugId",
    "developer_patches": "bugId fixedTime patchMessage",
    "patches": "#patchId patchContent",
    "agent_configurations": "#agentConfigId agent agentConfigName model #statefulEdit #oracleMode",
    "agent_patches": "#agentPatchId #patchId bugId #agentConfigId #unionId status systemMessage"
    " attrs",
    "patch_crash_resolution_evaluations": "#evalId #agentPatchId status kGymEvaluation?",
    "patch_localization_evaluations": "#evalId #agentPatchId status #fileIntersectionSize"
    " #fileUnionSize #functionIntersectionSize #functionUnionSize",
    "llm_judge_configurations": "#judgeId judgeName",
    "patch_llm_judge_evaluations": "#judgeId #agentPatchId status #yesCount? #noCount?"
    " #errorCount?",
}
# Number of the first columns that together are a table's key.
_KEYS = dict.fromkeys(_COLUMNS, 1) | {"bug_dataset_members": 2, "patch_llm_judge_evaluations": 2}
# Other evaluations (an image that does not build, an internal error) say nothing about a patch.
_OUTCOMES = {
    "notReproduced": Outcome.PASS,
    "reproduced": Outcome.TRIGGER,
    "compilationError": Outcome.COMPILE,
}


class Imported(Strict):
    """The attempts of a database; those that have no verdict on a patch have `failed`."""

    attempts: list[AttemptRecord]
    failed: list[FailedAttempt] = Field(description="with the words of the database")


def datasets(path: Path) -> dict[str, Dataset]:
    """Return the datasets that the database defines, and `all`, which contains all its bugs.

    Raises NotFound `no_dataset`, UserError `bad_karena`.
    """
    with closing(_Database(path)) as database:
        fixes = {row["bugId"]: row for row in database.rows("developer_patches", ATTEMPTS)}
        bugs = {
            row["bugId"]: _fixed(
                live_kbench_bug(row, f"{path}, syzbot_bugs, {row['bugId']}"),
                fixes.get(row["bugId"]),
            )
            for row in database.rows("syzbot_bugs", MOST)
        }
        members: dict[int, list[str]] = defaultdict(list)
        for row in database.rows("bug_dataset_members", ATTEMPTS):
            members[row["datasetId"]].append(row["bugId"])
        defined = {
            str(row["datasetName"]): Dataset.of(
                str(row["datasetName"]),
                [bugs[bug] for bug in members[row["datasetId"]] if bug in bugs],
                description=str(row["description"]),
                source=f"kArena: {path.name}" + _missing(members[row["datasetId"]], bugs),
            )
            for row in database.rows("bug_datasets", MOST)
        }
    return {"all": Dataset.of("all", bugs.values(), source=f"kArena: {path.name}")} | defined


def _missing(members: Iterable[str], bugs: Container[str]) -> str:
    """Return the members of a dataset that the database has no bug for, in words."""
    missing = sorted(bug[:40] for bug in members if bug not in bugs)
    some = ", ".join(missing[:20]) + (", …" if len(missing) > 20 else "")
    return f"; without {len(missing)} members that it does not hold: {some}" if missing else ""


def results(path: Path, judge: str | None = None) -> Imported:
    """Return all attempts of the database, with the votes of the named judge.

    The name may be omitted if only one judge has voted. Raises NotFound `no_dataset`,
    `no_such_judge`, UserError `bad_karena`.
    """
    with closing(_Database(path)) as database:
        return _Results(database, judge).read()


class _Database:
    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFound("no_dataset", f"{path} is not a file")
        self._path = path
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        self._connection.row_factory = sqlite3.Row
        # Bounds the size of a forged value, and keeps functions in the schema from running.
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE)
        self._connection.execute("PRAGMA trusted_schema = OFF")

    def close(self) -> None:
        self._connection.close()

    def rows(self, table: str, most: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table; raise UserError `bad_karena`, also beyond `most` rows."""
        columns = _columns(_COLUMNS[table])
        seen = set[tuple[Any, ...]]()
        try:
            # A virtual table may be a view in disguise (FTS5's `content=`): no plain table.
            kind = self._connection.execute(
                "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ?", (table,)
            ).fetchone()
            if kind is None or kind[0] != "table":
                raise UserError("bad_karena", f"{self._path} has no table {table}")
            names = ", ".join(f"{table}.{name}" for name in columns)
            rows = self._connection.execute(f"SELECT {names} FROM {table}")  # noqa: S608 - our words
            for number, row in enumerate(rows, start=1):
                if number > most:
                    raise UserError("bad_karena", f"{self._path}: {table} has over {most:,} rows")
                for name, kinds in columns.items():
                    if not isinstance(row[name], kinds):
                        where = f"{self._path}, {table}, row {number}, {name}"
                        raise UserError(
                            "bad_karena", f"{where}: unexpected value {row[name]!r:.60}"
                        )
                # Of two rows with the same key, one would be lost, or both would count.
                if (key := row[: _KEYS[table]]) in seen:
                    where = f"{self._path}, {table}, row {number}"
                    raise UserError("bad_karena", f"{where}: {key!r:.200} occurs twice")
                seen.add(key)
                yield dict(row)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise UserError("bad_karena", f"{self._path}, {table}: {error}") from error


def _columns(words: str) -> dict[str, tuple[type, ...]]:
    return {
        word.strip("#?"): (int if word[0] == "#" else str, *[NoneType] * word.endswith("?"))
        for word in words.split()
    }


class _Results:
    """Reader of the results. It joins the tables in memory: they have at most some 100,000 rows."""

    def __init__(self, database: _Database, judge: str | None) -> None:
        self._database = database
        self._patches = {row["patchId"]: row for row in self._all("patches")}
        self._setups = {
            row["agentConfigId"]: _setup(row) for row in self._all("agent_configurations")
        }
        self._crash = self._latest("patch_crash_resolution_evaluations")
        self._places = self._latest("patch_localization_evaluations")
        self._votes = {row["agentPatchId"]: row for row in self._judged(judge)}

    def read(self) -> Imported:
        attempts: list[AttemptRecord] = []
        failed: list[FailedAttempt] = []
        runs: dict[tuple[int, str], int] = defaultdict(int)
        rows = sorted(
            self._all("agent_patches"), key=lambda row: (row["unionId"], row["agentPatchId"])
        )
        for row in rows:
            # Runs are numbered by unionId, which increases across all bugs.
            runs[row["agentConfigId"], row["bugId"]] += 1
            run = runs[row["agentConfigId"], row["bugId"]]
            outcome = self._outcome(row)
            if outcome is None:
                failed.append(self._failed(row, run))
            else:
                attempts.append(self._attempt(row, outcome, run))
        return Imported(attempts=attempts, failed=failed)

    def _failed(self, row: Mapping[str, Any], run: int) -> FailedAttempt:
        evaluated = self._crash.get(row["agentPatchId"], {})
        evaluation = evaluated.get("kGymEvaluation") or evaluated.get("status") or "none"
        with refused_at(f"agent_patches, row {row['agentPatchId']}", "bad_karena"):
            return FailedAttempt(
                bug=row["bugId"],
                setup=self._setups.get(row["agentConfigId"]),
                run=run,
                reason=f"attempt: {row['status']}, evaluation: {evaluation}",
            )

    def _attempt(self, row: Mapping[str, Any], outcome: Outcome, run: int) -> AttemptRecord:
        place = self._places.get(row["agentPatchId"])
        vote = self._votes.get(row["agentPatchId"])
        known = _object(row["attrs"])
        with refused_at(f"agent_patches, row {row['agentPatchId']}", "bad_karena"):
            return AttemptRecord(
                bug=row["bugId"],
                setup=self._setups.get(row["agentConfigId"]),
                run=run,
                outcome=outcome,
                diff=self._patches.get(row["patchId"], {}).get("patchContent"),
                votes=None if vote is None else _votes(vote),
                files=_overlap(place, "file"),
                functions=_overlap(place, "function"),
                dollars=_number(known.get("dollarCost")),
                seconds=_number(known.get("timeCost")),
                error=row["systemMessage"] or None if row["status"] == "error" else None,
            )

    def _outcome(self, row: Mapping[str, Any]) -> Outcome | None:
        patch = self._patches.get(row["patchId"])
        # An unfinished attempt has no patch yet; it does not count as `bad`.
        if row["status"] not in {"success", "error"}:
            return None
        if row["status"] == "error" or patch is None or not patch["patchContent"].strip():
            return Outcome.BAD
        evaluated = self._crash.get(row["agentPatchId"])
        if evaluated is None or evaluated["status"] != "success":
            return None
        return _OUTCOMES.get(evaluated["kGymEvaluation"])

    def _judged(self, judge: str | None) -> list[dict[str, Any]]:
        names = {row["judgeId"]: row["judgeName"] for row in self._all("llm_judge_configurations")}
        votes = [
            row for row in self._all("patch_llm_judge_evaluations") if row["status"] == "success"
        ]
        used = {names.get(row["judgeId"], "") for row in votes}
        wanted = judge if judge is not None else next(iter(used)) if len(used) == 1 else None
        if (wanted is None and used) or (judge is not None and judge not in used):
            there = ", ".join(sorted(used)) or "none"
            raise NotFound("no_such_judge", f"name one of the judges that have voted: {there}")
        return [row for row in votes if names.get(row["judgeId"], "") == wanted]

    def _latest(self, table: str) -> dict[int, dict[str, Any]]:
        """Return the last evaluation of each patch."""
        rows = sorted(self._all(table), key=lambda row: row["evalId"])
        return {row["agentPatchId"]: row for row in rows}

    def _all(self, table: str) -> list[dict[str, Any]]:
        return list(self._database.rows(table, ATTEMPTS))


def _fixed(bug: BugRecord, fix: Mapping[str, Any] | None) -> BugRecord:
    """Return the bug, completed by the database's own data of its fix."""
    if fix is None or bug.patch is None:
        return bug
    where = f"developer_patches, {bug.id}"
    known = dict(bug.patch)
    if bug.patch.date is None:
        known["date"] = time_of(fix["fixedTime"], f"{where}, fixedTime")
    if bug.patch.message is None:
        known["message"] = fix["patchMessage"]
    with refused_at(where, "bad_karena"):
        return bug.model_copy(update={"patch": DeveloperPatch(**known)})


def _setup(row: Mapping[str, Any]) -> Setup:
    with refused_at(f"agent_configurations, row {row['agentConfigId']}", "bad_karena"):
        return Setup(
            agent=row["agent"],
            settings=row["agentConfigName"],
            model=row["model"],
            feedback=bool(row["statefulEdit"]),
            oracle=bool(row["oracleMode"]),
        )


def _votes(row: Mapping[str, Any]) -> Votes:
    return Votes(yes=row["yesCount"] or 0, no=row["noCount"] or 0, failed=row["errorCount"] or 0)


def _overlap(row: Mapping[str, Any] | None, part: str) -> Overlap | None:
    if row is None or row["status"] != "success":
        return None
    return Overlap(common=row[f"{part}IntersectionSize"], all=row[f"{part}UnionSize"])


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    """Parse a cost, which is stored as text; None if it is invalid."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
