"""Benchmarks: their bugs and attempts, as they are published and read.

A batch locks its benchmark, and what it changes gets the benchmark's next version. So whoever reads
on from a version that was seen has missed nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Table, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.benchmarks.attempts import Attempt, AttemptRecord, AttemptRow, Setup
from kgym.api.benchmarks.bugs import BugFacts, PublishedBug
from kgym.api.benchmarks.publication import (
    ATTEMPTS,
    SETUPS,
    AttemptFilter,
    BenchmarkAbout,
    BenchmarkFilter,
    BenchmarkLine,
    BenchmarkPage,
    BenchmarkView,
    FactsFilter,
    FactsPage,
    Published,
    SetupView,
)
from kgym.errors import Conflict, UserError
from kgym_scheduler.database.tables import (
    benchmark_attempts,
    benchmark_bugs,
    benchmark_setups,
    benchmarks,
)
from kgym_scheduler.errors import no_attempt, no_benchmark, no_benchmark_bug, not_your_benchmark

_A, _B, _S = benchmark_attempts.c, benchmark_bugs.c, benchmark_setups.c


# --- reading --------------------------------------------------------------------------------


async def page(connection: AsyncConnection, wanted: BenchmarkFilter) -> BenchmarkPage:
    """Return one page of all benchmarks, by name."""
    of = benchmarks.c
    query = select(benchmarks).order_by(of.name).limit(wanted.limit + 1)
    if wanted.cursor is not None:
        query = query.where(of.name > wanted.cursor)
    rows = (await connection.execute(query)).all()
    shown = rows[: wanted.limit]
    counted = select(_S.benchmark_id, func.count(), func.sum(_S.attempts))
    counted = counted.where(_S.benchmark_id.in_([row.id for row in shown]))
    found = (await connection.execute(counted.group_by(_S.benchmark_id))).all()
    counts = {row[0]: (row[1], int(row[2])) for row in found}
    return BenchmarkPage(
        benchmarks=[
            BenchmarkLine(
                name=row.name,
                description=row.description,
                submitter=row.submitter,
                updated_at=row.updated_at,
                bugs=row.bugs,
                setups=counts.get(row.id, (0, 0))[0],
                attempts=counts.get(row.id, (0, 0))[1],
            )
            for row in shown
        ],
        next=shown[-1].name if len(rows) > wanted.limit else None,
    )


async def one(connection: AsyncConnection, name: str) -> BenchmarkView:
    """Return a benchmark; raise NotFound `benchmark_missing`."""
    row = await _named(connection, name)
    of_it = select(benchmark_setups).where(_S.benchmark_id == row.id).order_by(_S.number)
    setups = [
        SetupView(
            number=one.number,
            setup=Setup.model_validate_json(one.setup),
            attempts=one.attempts,
        )
        for one in await connection.execute(of_it)
    ]
    counted = select(func.count()).select_from(benchmark_bugs).where(_B.benchmark_id == row.id)
    return BenchmarkView(
        name=row.name,
        description=row.description,
        source=row.source,
        bugs=row.bugs,
        sha256=row.sha256,
        submitter=row.submitter,
        created_at=row.created_at,
        updated_at=row.updated_at,
        version=row.version,
        published=await connection.scalar(counted) or 0,
        attempts=sum(one.attempts for one in setups),
        setups=setups,
    )


async def bugs(connection: AsyncConnection, name: str, wanted: FactsFilter) -> FactsPage:
    """Return one page of a benchmark's bugs, by id."""
    row = await _named(connection, name)
    query = select(_B.bug, _B.facts).where(_B.benchmark_id == row.id)
    if wanted.cursor is not None:
        query = query.where(_B.bug > wanted.cursor)
    rows = (await connection.execute(query.order_by(_B.bug).limit(wanted.limit + 1))).all()
    shown = rows[: wanted.limit]
    return FactsPage(
        bugs=[BugFacts.model_validate_json(one.facts) for one in shown],
        next=shown[-1].bug if len(rows) > wanted.limit else None,
    )


async def bug(connection: AsyncConnection, name: str, wanted: str) -> PublishedBug:
    """Return a bug with its fix; raise NotFound `benchmark_bug_missing`."""
    row = await _named(connection, name)
    query = select(benchmark_bugs).where(_B.benchmark_id == row.id, _B.bug == wanted)
    if (found := (await connection.execute(query)).one_or_none()) is None:
        raise no_benchmark_bug(name, wanted)
    return PublishedBug(facts=BugFacts.model_validate_json(found.facts), diff=found.diff)


async def attempts(connection: AsyncConnection, name: str, wanted: AttemptFilter) -> str:
    """Return one page of a benchmark's attempts as the JSON of an `AttemptPage`.

    They are as they were stored: to read and write them again would take the scheduler's time.
    """
    row = await _named(connection, name)
    place = tuple_(_A.version, _A.id)
    query = select(_A.id, _A.version, _A.attempt).where(_A.benchmark_id == row.id)
    if wanted.cursor is not None:
        version, number = map(int, wanted.cursor.split("-"))
        # The first half is what the index is read by.
        query = query.where(_A.version >= version, place > (version, number))
    query = query.order_by(_A.version, _A.id).limit(wanted.limit + 1)
    rows = (await connection.execute(query)).all()
    shown = rows[: wanted.limit]
    more = len(rows) > wanted.limit
    following = json.dumps(f"{shown[-1].version}-{shown[-1].id}" if more else None)
    return f'{{"attempts":[{",".join(one.attempt for one in shown)}],"next":{following}}}'


async def attempt(
    connection: AsyncConnection, name: str, bug: str, setup: int, run: int
) -> AttemptRecord:
    """Return an attempt with its patch; raise NotFound `attempt_missing`."""
    row = await _named(connection, name)
    own = (_A.benchmark_id == row.id, _A.setup == setup, _A.bug == bug, _A.run == run)
    query = select(_A.attempt, _A.diff, _S.setup).where(
        *own, _S.benchmark_id == _A.benchmark_id, _S.number == _A.setup
    )
    if (found := (await connection.execute(query)).one_or_none()) is None:
        raise no_attempt(name, bug, setup, run)
    known = AttemptRow.model_validate_json(found.attempt)
    fields = {one: getattr(known, one) for one in Attempt.model_fields}
    return AttemptRecord(**fields, setup=Setup.model_validate_json(found.setup), diff=found.diff)


# --- publishing -----------------------------------------------------------------------------


async def create(
    connection: AsyncConnection, name: str, about: BenchmarkAbout, submitter: str, now: datetime
) -> bool:
    """Add a benchmark; return whether it is new. Raises Conflict `benchmark_exists`."""
    add = _insert(connection, benchmarks).values(
        name=name,
        submitter=submitter,
        created_at=now,
        updated_at=now,
        version=0,
        **about.model_dump(),
    )
    added = await connection.execute(add.on_conflict_do_nothing(index_elements=["name"]))
    if added.rowcount:
        return True
    there = await _named(connection, name)
    if there.sha256 != about.sha256:
        raise Conflict(
            "benchmark_exists",
            f"{name} is published with another dataset ({there.sha256[:12]}), and never changes:"
            " give this one another name",
            benchmark=name,
        )
    return False


async def put_bugs(
    connection: AsyncConnection,
    name: str,
    given: Sequence[PublishedBug],
    owner: str | None,
    now: datetime,
) -> Published:
    """Add bugs, or replace those of their ids. Raises UserError `too_many_bugs`."""
    row = await _locked(connection, name, owner)
    rows = {
        one.facts.id: {
            "benchmark_id": row.id,
            "bug": one.facts.id,
            "version": row.version + 1,
            "facts": one.facts.model_dump_json(exclude_defaults=True),
            "diff": one.diff,
        }
        for one in given
    }
    await _put(connection, benchmark_bugs, ("benchmark_id", "bug"), "facts", list(rows.values()))
    counted = select(func.count()).select_from(benchmark_bugs).where(_B.benchmark_id == row.id)
    if (await connection.scalar(counted) or 0) > row.bugs:
        raise UserError("too_many_bugs", f"{name} was published as one of {row.bugs} bugs")
    return await _ended(connection, row, benchmark_bugs, now)


async def put_attempts(
    connection: AsyncConnection,
    name: str,
    given: Sequence[AttemptRecord],
    owner: str | None,
    now: datetime,
) -> Published:
    """Add attempts, or replace those of the same bug, setup and run.

    Raises UserError `unknown_bug`, `too_many_setups`, `too_many_attempts`.
    """
    row = await _locked(connection, name, owner)
    await _check_bugs(connection, row, {one.bug for one in given})
    numbers = await _numbered(connection, row, {one.setup for one in given})
    rows = {
        (one.bug, one.setup, one.run): {
            "benchmark_id": row.id,
            "setup": numbers[one.setup],
            "bug": one.bug,
            "run": one.run,
            "version": row.version + 1,
            "attempt": _as_row(one, numbers[one.setup]).model_dump_json(exclude_defaults=True),
            "diff": one.diff,
        }
        for one in given
    }
    key = ("benchmark_id", "setup", "bug", "run")
    await _put(connection, benchmark_attempts, key, "attempt", list(rows.values()))
    await _count_attempts(connection, row, set(numbers.values()))
    return await _ended(connection, row, benchmark_attempts, now)


async def remove(connection: AsyncConnection, name: str, owner: str | None) -> None:
    """Remove a benchmark with all that was published of it."""
    row = await _locked(connection, name, owner)
    for table in (benchmark_attempts, benchmark_setups, benchmark_bugs):
        await connection.execute(delete(table).where(table.c.benchmark_id == row.id))
    await connection.execute(delete(benchmarks).where(benchmarks.c.id == row.id))


async def _named(connection: AsyncConnection, name: str) -> Row[Any]:
    query = select(benchmarks).where(benchmarks.c.name == name)
    if (row := (await connection.execute(query)).one_or_none()) is None:
        raise no_benchmark(name)
    return row


async def _locked(connection: AsyncConnection, name: str, owner: str | None) -> Row[Any]:
    """Return the benchmark, which nobody else changes until the transaction ends."""
    query = select(benchmarks).where(benchmarks.c.name == name).with_for_update()
    if (row := (await connection.execute(query)).one_or_none()) is None:
        raise no_benchmark(name)
    if owner is not None and row.submitter != owner:
        raise not_your_benchmark(name, row.submitter)
    return row


async def _check_bugs(connection: AsyncConnection, row: Row[Any], named: set[str]) -> None:
    query = select(_B.bug).where(_B.benchmark_id == row.id, _B.bug.in_(named))
    if missing := named - set((await connection.scalars(query)).all()):
        raise UserError(
            "unknown_bug",
            f"{row.name} has no bug {min(missing)}: publish its bugs first",
            benchmark=row.name,
        )


async def _numbered(
    connection: AsyncConnection, row: Row[Any], wanted: set[Setup]
) -> Mapping[Setup, int]:
    """Return the numbers of the setups; new ones get the next."""
    texts = {one: one.model_dump_json(exclude_defaults=True) for one in wanted}
    hashes = {one: hashlib.sha256(text.encode()).hexdigest() for one, text in texts.items()}
    own = _S.benchmark_id == row.id
    query = select(_S.number, _S.hash).where(own, _S.hash.in_(hashes.values()))
    known = {found.hash: found.number for found in await connection.execute(query)}
    count = await connection.scalar(select(func.count()).select_from(benchmark_setups).where(own))
    for one in sorted(wanted, key=str):
        if hashes[one] in known:
            continue
        if (number := count or 0) >= SETUPS:
            raise UserError("too_many_setups", f"{row.name} has {SETUPS:,} setups, as many as may")
        values = {"benchmark_id": row.id, "number": number, "attempts": 0}
        values |= {"hash": hashes[one], "setup": texts[one]}
        await connection.execute(insert(benchmark_setups).values(values))
        known[hashes[one]], count = number, number + 1
    return {one: known[hashes[one]] for one in wanted}


async def _count_attempts(connection: AsyncConnection, row: Row[Any], setups: set[int]) -> None:
    for number in setups:
        own = (_A.benchmark_id == row.id, _A.setup == number)
        counted = select(func.count()).select_from(benchmark_attempts).where(*own)
        place = (_S.benchmark_id == row.id, _S.number == number)
        values = {"attempts": await connection.scalar(counted) or 0}
        await connection.execute(update(benchmark_setups).where(*place).values(values))
    total = select(func.sum(_S.attempts)).where(_S.benchmark_id == row.id)
    if (await connection.scalar(total) or 0) > ATTEMPTS:
        raise UserError("too_many_attempts", f"{row.name} has more than {ATTEMPTS:,} attempts")


async def _put(
    connection: AsyncConnection,
    table: Table,
    key: Sequence[str],
    text: str,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Add rows, or change those that say something else under the same key."""
    add = _insert(connection, table)
    new = add.excluded
    changed = {column: new[column] for column in ("version", text, "diff")}
    other = or_(
        table.c[text] != new[text],
        func.coalesce(table.c.diff, "") != func.coalesce(new.diff, ""),
    )
    put = add.on_conflict_do_update(index_elements=key, set_=changed, where=other)
    await connection.execute(put, rows)


async def _ended(
    connection: AsyncConnection, row: Row[Any], table: Table, now: datetime
) -> Published:
    """Count what the batch has changed; it is another version only if it has."""
    own = (table.c.benchmark_id == row.id, table.c.version == row.version + 1)
    changed = await connection.scalar(select(func.count()).select_from(table).where(*own)) or 0
    version = row.version + bool(changed)
    moved = update(benchmarks).where(benchmarks.c.id == row.id)
    if changed:
        await connection.execute(moved.values(version=version, updated_at=now))
    return Published(changed=changed, version=version)


def _as_row(one: AttemptRecord, setup: int) -> AttemptRow:
    fields = {name: getattr(one, name) for name in Attempt.model_fields}
    return AttemptRow(**fields, setup=setup, has_patch=bool(one.diff))


def _insert(connection: AsyncConnection, table: Table) -> Any:
    kind = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return kind(table)
