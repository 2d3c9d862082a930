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

from kgym.api.steps import (
    BuildSpec,
    CheckResult,
    CheckSpec,
    GitSource,
    InstanceOutcome,
    InstanceResult,
    KernelConfig,
    Patch,
    Reproducer,
    ReproduceSpec,
    StepRef,
    Verdict,
)
from tests.results import built, ran

SUBMITTERS = ("nightly", "alice", "bob", "carol", "rarely")
BUGS = 400
DAYS = 60
# The newest jobs, some of which have not ended.
RECENT = 20_000
TABLES = ("jobs", "steps", "attempts", "facets", "events")
_REASONS = ("does_not_compile", "patch_failed", "vm_lost", "build_timeout")

_SEED = """
CREATE TEMP TABLE seed (
    n INTEGER PRIMARY KEY, state TEXT, verdict TEXT, resolved BOOLEAN, title TEXT, bug TEXT,
    night TEXT, model TEXT, submitter TEXT, group_name TEXT, shape TEXT,
    created_at {time}, started_at {time}, ended_at {time}, failure TEXT)
"""
_SHAPES = (
    *(("trial", number, kind) for number, kind in enumerate(("build", "reproduce") * 2)),
    *(("calibration", number, kind) for number, kind in enumerate(("build", "reproduce"))),
    ("build", 0, "build"),
    ("check", 0, "check"),
)
_LAST = "CASE shape WHEN 'trial' THEN 3 WHEN 'calibration' THEN 1 ELSE 0 END"
_JOBS = """
INSERT INTO jobs (id, state, priority, submitter, group_name, verdict, resolved, title, reason,
    created_at, updated_at, tags)
SELECT n, state, 0, submitter, group_name, verdict, resolved, title,
    CASE WHEN verdict IS NULL THEN NULL ELSE '2 of 2 completed instances said so' END, created_at,
    coalesce(ended_at, created_at),
    '["bug=' || bug || '", "night:' || night || '", "model:' || model || '"]'
FROM seed
"""
# Of a job that has not ended or failed, the last step is the one that has not succeeded.
_STEPS = """
INSERT INTO steps (job_id, number, kind, lane, rank, turn, state, attempt, tries, lease,
    lease_until, worker, not_before, queued_at, started_at, finished_at, failure, result, artifacts,
    spec)
SELECT n, shape.number, shape.kind, lanes.id, 0, n, CASE WHEN shape.number < {last} THEN 'succeeded'
        ELSE seed.state END,
    CASE WHEN shape.number = {last} AND seed.state IN ('queued', 'pending') THEN 0 ELSE 1 END, 0,
    CASE WHEN shape.number = {last} AND seed.state = 'running' THEN {uuid} END,
    CASE WHEN shape.number = {last} AND seed.state = 'running' THEN {later} END,
    CASE WHEN shape.number = {last} AND seed.state = 'queued' THEN NULL
        ELSE 'host-' || (n % 12) || '/' || shape.kind END,
    CASE WHEN seed.state = 'queued' THEN {later} ELSE created_at END, created_at,
    CASE WHEN shape.number = {last} AND seed.state = 'queued' THEN NULL ELSE started_at END,
    CASE WHEN shape.number < {last} THEN coalesce(ended_at, started_at) ELSE ended_at END,
    CASE WHEN shape.number = {last} THEN failure END,
    CASE WHEN shape.number < {last} OR seed.state = 'succeeded' THEN result.text END,
    CASE WHEN shape.number < {last} OR seed.state = 'succeeded' THEN result.artifacts ELSE '[]' END,
    result.spec
FROM seed JOIN shapes AS shape ON shape.name = seed.shape
    JOIN lanes ON lanes.kind = shape.kind AND lanes.needs = '{needs}'
    JOIN results AS result ON result.kind = shape.kind
        AND result.verdict = CASE WHEN shape.kind = 'reproduce' AND shape.number = {last}
            THEN coalesce(seed.verdict, 'same_crash') WHEN shape.kind = 'reproduce'
            THEN 'same_crash' ELSE '' END
ORDER BY n, shape.number
"""
_ATTEMPTS = """
INSERT INTO attempts (lease, step_id, number, kind, worker, started_at, ended_at, outcome, cause,
    reason, cached)
SELECT coalesce(steps.lease, {uuid}), steps.id, 1, steps.kind, steps.worker, steps.started_at,
    steps.finished_at, CASE steps.state WHEN 'running' THEN NULL ELSE steps.state END,
    CASE WHEN steps.state <> 'failed' THEN NULL WHEN steps.id % 5 = 0 THEN 'infrastructure'
        ELSE 'user' END,
    CASE WHEN steps.state <> 'failed' THEN NULL WHEN steps.id % 5 = 0 THEN 'vm_lost'
        WHEN steps.id % 2 = 0 THEN 'patch_failed' ELSE 'does_not_compile' END,
    CASE WHEN steps.kind = 'build' AND steps.state = 'succeeded' THEN steps.id % 10 <> 0 END
FROM steps WHERE steps.attempt = 1
"""
_FACETS = """
INSERT INTO facets (job_id, facet, state, created_at, verdict, resolved, moved_at)
SELECT n, facet, state, created_at, verdict, resolved, coalesce(ended_at, created_at) FROM (
    SELECT DISTINCT n, 'kind:' || shapes.kind AS facet
        FROM seed JOIN shapes ON shapes.name = seed.shape
    UNION ALL SELECT n, 'tag:bug=' || bug FROM seed
    UNION ALL SELECT n, 'tag:night:' || night FROM seed
    UNION ALL SELECT n, 'tag:model:' || model FROM seed
    UNION ALL SELECT n, 'group:' || group_name FROM seed WHERE group_name IS NOT NULL
    UNION ALL SELECT n, 'entry:tree-' || (n % 50) FROM seed WHERE verdict IS NOT NULL
) AS facets_of JOIN seed USING (n)
"""
_GROUPS = """
INSERT INTO groups (submitter, name, created_at)
SELECT submitter, group_name, min(created_at) FROM seed WHERE group_name IS NOT NULL
GROUP BY submitter, group_name ORDER BY 3
"""
_EVENTS = """
INSERT INTO events (job_id, step, attempt, kind, at, data)
SELECT job_id, number, 1, 'state', coalesce(finished_at, started_at),
    '{"attempt": 1, "state": "' || state || '", "job_state": "' || state || '"}'
FROM steps WHERE attempt = 1 ORDER BY steps.id
"""


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
        yield (
            *(n, state, None if verdict is None else str(verdict)),
            verdict is Verdict.NO_CRASH if verdict is not None and shape == "trial" else None,
            f"KASAN: slab-out-of-bounds Write in part_{dice.randrange(900)}" if crash else None,
            *(bug, str(n * DAYS // (jobs + 1)), dice.choice("abcd"), submitter),
            f"sweep-{n // 5000}" if n % 2 else None,
            *(shape, created, began, ended if final else None),
            json.dumps(failure) if state == "failed" else None,
        )


def _state(dice: random.Random, age: int) -> str:
    if age < RECENT and age % 2:
        return "running" if age < 80 else "queued"
    [state] = dice.choices(["succeeded", "failed", "aborted"], [70, 22, 8])
    return state


def statements(uuid: str, later: str, lane: str) -> list[str]:
    """Return what makes rows of all tables from `seed`, `shapes` and `results`."""
    steps = _STEPS.format(last=f"({_LAST})", uuid=uuid, later=later, needs=lane)
    return [_JOBS, steps, _ATTEMPTS.format(uuid=uuid), _FACETS, _GROUPS, _EVENTS]


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
        rows = connection.execute(
            f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql <> ''"
            f" AND tbl_name IN ({named})"
        ).fetchall()
        for name, _ in rows:
            connection.execute(f"DROP INDEX {name}")
        connection.execute(_SEED.format(time="TEXT"))
        given = ([_text(value) for value in row] for row in rows(jobs))
        connection.executemany(f"INSERT INTO seed VALUES ({','.join('?' * 15)})", given)
        for table, width, content in _small():
            connection.execute(f"CREATE TEMP TABLE {table}")
            name = table.partition(" ")[0]
            connection.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * width)})", content)
        _lanes = [(kind, LANE) for kind in ("build", "reproduce", "check")]
        connection.executemany("INSERT INTO lanes (kind, needs) VALUES (?, ?)", _lanes)
        later = _text(datetime.now(UTC) + timedelta(days=1))
        for statement in statements("lower(hex(randomblob(16)))", f"'{later}'", LANE):
            connection.execute(statement)
        for _, sql in rows:
            connection.execute(sql)
        connection.execute("COMMIT")
    connection.close()


async def fill_postgresql(url: str, jobs: int) -> None:
    """Fill the database at this URL, whose tables are there and empty."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""), command_timeout=900)
    async with connection.transaction():
        await connection.execute("SET LOCAL synchronous_commit = off")
        await connection.execute("SET LOCAL maintenance_work_mem = '512MB'")
        rows = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY($1)"
            " AND indexname LIKE 'ix_%'",
            TABLES,
        )
        for index in rows:
            await connection.execute(f"DROP INDEX {index['indexname']}")
        await connection.execute(_SEED.format(time="TIMESTAMPTZ"))
        await connection.copy_records_to_table("seed", records=rows(jobs))
        for table, _, content in _small():
            await connection.execute(f"CREATE TEMP TABLE {table}")
            name = table.partition(" ")[0]
            await connection.copy_records_to_table(name, records=content)
        for kind in ("build", "reproduce", "check"):
            await connection.execute("INSERT INTO lanes (kind, needs) VALUES ($1, $2)", kind, LANE)
        for statement in statements("gen_random_uuid()", "now() + interval '1 day'", LANE):
            await connection.execute(statement)
        await connection.execute("SELECT setval('jobs_id_seq', $1)", jobs)
        for index in rows:
            await connection.execute(index["indexdef"])
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def _small() -> list[tuple[str, int, list[tuple[Any, ...]]]]:
    """Return tables that are joined to each job: what steps it has, and what these came to."""
    build = BuildSpec(
        source=GitSource(url="https://example.org/linux.git", commit="v6.1"),
        config=KernelConfig(base="tinyconfig"),
    )
    reproduce = ReproduceSpec(
        build=StepRef(step=0), reproducer=Reproducer(text="int main(void) { return 0; }\n")
    )
    files = json.dumps(
        [
            {"name": name, "size": 10_000, "sha256": "0" * 64, "key": f"steps/{number}/{name}"}
            for number, name in enumerate(("console-0.log", "console-1.log", "report-0.json"))
        ]
    )
    results = [("build", "", built().model_dump_json(), files, build.model_dump_json())]
    check = CheckSpec(source=build.source, config=build.config, patches=[PATCH])
    checked = CheckResult(
        source_identity="git:v6.1",
        kernel_release="6.1.0",
        compiler_version="gcc 12",
        tree="t",
        tree_cached=True,
        patches=[],
        seconds={},
    )
    results.append(("check", "", checked.model_dump_json(), "[]", check.model_dump_json()))
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
        results.append(("reproduce", str(verdict), result, files, reproduce.model_dump_json()))
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
