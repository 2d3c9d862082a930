"""Writes hundreds of thousands of jobs straight into a database, as years of use leave them.

What varies is chosen here, a row for each job; statements that SQLite and PostgreSQL both
understand make steps, attempts, facets and events of it. Indexes are made again afterwards.
"""

import asyncio
import json
import random
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from kgym.api.outcomes import Outcome
from kgym.api.steps import CheckSpec, InstanceOutcome, InstanceResult, Patch, Verdict
from tests.results import built, checked, ran
from tests.scheduler.parts import BUILD, reproduce

SUBMITTERS = ("nightly", "alice", "bob", "carol", "rarely")
BUGS = 400
DAYS = 60
# The newest jobs, some of which have not ended.
RECENT = 20_000
TABLES = ("jobs", "steps", "attempts", "facets", "events")
_REASONS = ("does_not_compile", "patch_failed", "vm_lost", "build_timeout")

_SHAPES = (
    *(("trial", number, kind) for number, kind in enumerate(("build", "reproduce") * 2)),
    *(("calibration", number, kind) for number, kind in enumerate(("build", "reproduce"))),
    ("build", 0, "build"),
    ("check", 0, "check"),
)
_LAST = "(CASE shape WHEN 'trial' THEN 3 WHEN 'calibration' THEN 1 ELSE 0 END)"
_SQL = Path(__file__).with_suffix(".sql").read_text()


def rows(jobs: int, now: datetime | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield what varies of so many jobs, oldest first; the same each time but for the dates."""
    dice, now = random.Random(15), now or datetime.now(UTC)
    bugs = ["watch-queue-filter", *(f"extid-{number:04x}" for number in range(1, BUGS))]
    often = [1 / (number + 1) for number in range(BUGS)]
    for n in range(1, jobs + 1):
        age = timedelta(days=DAYS) * ((jobs - n) / jobs) + timedelta(minutes=5)
        created = now - age
        [shape] = dice.choices(["trial", "calibration", "build", "check"], [60, 15, 15, 10])
        state = _state(dice, jobs - n)
        [submitter] = dice.choices(SUBMITTERS, [60, 25, 10, 4.9, 0.1])
        bug = dice.choices(bugs, often)[0]
        verdict = None
        if state == "succeeded" and shape in {"trial", "calibration"}:
            [verdict] = dice.choices([*Verdict], [40, 9, 50, 1])
        crash = verdict in {Verdict.SAME_CRASH, Verdict.OTHER_CRASH}
        began = created + timedelta(seconds=dice.expovariate(1 / 30))
        ended = began + timedelta(seconds=dice.expovariate(1 / 90))
        final = state in {"succeeded", "failed", "aborted"}
        reason = dice.choice(_REASONS)
        failure = {"cause": "user", "reason": reason, "message": f"it failed by {reason}"}
        outcome = _outcome(shape, state, verdict) if final else None
        yield (
            *(n, state, None if verdict is None else str(verdict), outcome and str(outcome)),
            f"KASAN: slab-out-of-bounds Write in part_{dice.randrange(900)}" if crash else None,
            *(bug, str(n * DAYS // (jobs + 1)), dice.choice("abcd"), submitter),
            f"sweep-{n // 5000}" if n % 2 else None,
            *(shape, created, began, ended if final else None),
            json.dumps(failure) if state == "failed" else None,
        )


def _outcome(shape: str, state: str, verdict: Verdict | None) -> Outcome:
    if state == "aborted":
        return Outcome.ABORTED
    if state == "failed":
        return Outcome.REFUSED
    if verdict is None:
        return Outcome.BUILT if shape == "build" else Outcome.COMPILES
    if verdict is Verdict.INCONCLUSIVE:
        return Outcome.INCONCLUSIVE
    if shape == "trial":
        return Outcome.RESOLVED if verdict is Verdict.NO_CRASH else Outcome.NOT_RESOLVED
    return Outcome.CALIBRATED if verdict is Verdict.SAME_CRASH else Outcome.NOT_REPRODUCED


def _state(dice: random.Random, age: int) -> str:
    if age < RECENT and age % 2:
        return "running" if age < 80 else "queued"
    [state] = dice.choices(["succeeded", "failed", "aborted"], [70, 22, 8])
    return state


def statements(time: str, uuid: str, later: str) -> list[str]:
    """Return what makes the table `seed`, then what makes rows of it, `shapes` and `results`."""
    given = {"{time}": time, "{uuid}": uuid, "{later}": later, "{last}": _LAST, "{needs}": LANE}
    sql = _SQL
    for name, text in given.items():
        sql = sql.replace(name, text)
    return sql.split(";\n")[:-1]


PATCH = Patch(name="fix", diff="--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-int a;\n+long a;\n")
# What all steps need; those that wait are in a pause of a day, so that no worker takes them.
LANE = '{"memory":1048576}'


def fill_sqlite(path: Path, jobs: int) -> None:
    """Fill the database in this file, whose tables are there and empty, and which nobody uses."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        for pragma in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "cache_size = -400000",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        named = ",".join(f"'{table}'" for table in TABLES)
        indexes = connection.execute(
            f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql <> ''"
            f" AND tbl_name IN ({named})"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        later = _text(datetime.now(UTC) + timedelta(days=1))
        seed, *others = statements("TEXT", "lower(hex(randomblob(16)))", f"'{later}'")
        connection.execute(seed)
        given = ([_text(value) for value in row] for row in rows(jobs))
        connection.executemany(f"INSERT INTO seed VALUES ({','.join('?' * 15)})", given)
        for table, width, content in _small():
            connection.execute(f"CREATE TEMP TABLE {table}")
            name = table.partition(" ")[0]
            connection.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * width)})", content)
        _lanes = [(kind, LANE) for kind in ("build", "reproduce", "check")]
        connection.executemany("INSERT INTO lanes (kind, needs) VALUES (?, ?)", _lanes)
        for statement in others:
            connection.execute(statement)
        for _, sql in indexes:
            connection.execute(sql)
        connection.execute("COMMIT")
    connection.close()


async def fill_postgresql(url: str, jobs: int) -> None:
    """Fill the database at this URL, whose tables are there and empty."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""), command_timeout=900)
    async with connection.transaction():
        await connection.execute("SET LOCAL synchronous_commit = off")
        await connection.execute("SET LOCAL maintenance_work_mem = '512MB'")
        indexes = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY($1)"
            " AND indexname LIKE 'ix_%'",
            TABLES,
        )
        for index in indexes:
            await connection.execute(f"DROP INDEX {index['indexname']}")
        later = "now() + interval '1 day'"
        seed, *others = statements("TIMESTAMPTZ", "gen_random_uuid()", later)
        await connection.execute(seed)
        await connection.copy_records_to_table("seed", records=rows(jobs))
        for table, _, content in _small():
            await connection.execute(f"CREATE TEMP TABLE {table}")
            name = table.partition(" ")[0]
            await connection.copy_records_to_table(name, records=content)
        for kind in ("build", "reproduce", "check"):
            await connection.execute("INSERT INTO lanes (kind, needs) VALUES ($1, $2)", kind, LANE)
        for statement in others:
            await connection.execute(statement)
        await connection.execute("SELECT setval('jobs_id_seq', $1)", jobs)
        for index in indexes:
            await connection.execute(index["indexdef"])
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def _small() -> list[tuple[str, int, list[tuple[Any, ...]]]]:
    """Return tables that are joined to each job: what steps it has, and what these came to."""
    files = json.dumps(
        [
            {"name": name, "size": 10_000, "sha256": "0" * 64, "key": f"steps/{number}/{name}"}
            for number, name in enumerate(("console-0.log", "console-1.log", "report-0.json"))
        ]
    )
    results = [("build", "", built().model_dump_json(), files, BUILD.model_dump_json())]
    check = CheckSpec(source=BUILD.source, config=BUILD.config, patches=[PATCH])
    results.append(("check", "", checked([]).model_dump_json(), "[]", check.model_dump_json()))
    for verdict in Verdict:
        crash = verdict in {Verdict.SAME_CRASH, Verdict.OTHER_CRASH}
        title = "KASAN: slab-out-of-bounds Write in watch_queue_set_filter" if crash else None
        instances = [
            InstanceResult(
                number=number,
                outcome=InstanceOutcome.CRASH if crash else InstanceOutcome.SURVIVED,
                boot_seconds=4.2,
                run_seconds=9.5,
                runs=3,
                title=title,
            )
            for number in range(2)
        ]
        result = ran(verdict, title, instances=instances).model_dump_json()
        results.append(("reproduce", str(verdict), result, files, reproduce().model_dump_json()))
    return [
        ("shapes (name TEXT, number INTEGER, kind TEXT)", 3, list(_SHAPES)),
        ("results (kind TEXT, verdict TEXT, text TEXT, artifacts TEXT, spec TEXT)", 5, results),
    ]


def _text(value: Any) -> Any:
    """Return a value as SQLite keeps it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return value


def fill(url: str, jobs: int) -> None:
    """Fill the database at this URL."""
    if url.startswith("sqlite"):
        fill_sqlite(Path(url.partition("///")[2]), jobs)
    else:
        asyncio.run(fill_postgresql(url, jobs))
