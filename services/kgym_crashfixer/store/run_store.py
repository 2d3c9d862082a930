"""The one class that talks to the agent's database."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    case,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Node
from kgym.api.agent.runs import (
    Event,
    FixView,
    RunFilter,
    RunRequest,
    RunState,
    RunSummary,
    Spent,
)
from kgym.errors import Conflict
from kgym_crashfixer.errors import LostRun, no_run
from kgym_crashfixer.platform_protocol import Begun
from kgym_crashfixer.search.work import Result
from kgym_crashfixer.store.database import Database
from kgym_crashfixer.store.tables import calls, events, jobs, nodes, results, runs

HELD_SECONDS = 30.0
"""How long a run belongs to a process that is not heard of; one that is known dead, not at all."""
_RESULT: TypeAdapter[Result] = TypeAdapter(Result)
_FIXES = TypeAdapter(list[FixView])
_MOST_EVENTS = 1000
WORK = ("asked", "asked_again", "lost", "told", "dropped")
"""Kinds of events that say which work was begun, and what it came to."""


@dataclass(frozen=True, slots=True)
class Once:
    """What tells a run that is begun again from a new one."""

    key: str
    """The idempotency key, the submitter's own."""
    hash: str
    """Of the request as it came."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A question that is about to be sent."""

    name: str
    node: str
    purpose: str
    prompt: str
    """All that is sent, as JSON."""
    again: bool = False
    """Whether it was sent before."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a question: a reply, or an error."""

    name: str
    reply: Reply | None = None
    error: str | None = None
    dropped: bool = False
    """Whether nobody waits for the answer any more, which is then the error."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node as it is kept."""

    number: int
    """Of the nodes of the run, in the order in which they began."""
    name: str
    text: str
    """The node as JSON."""


@dataclass(slots=True)
class Batch:
    """What is stored together, in one transaction."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    results: list[tuple[str, Result]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    nodes: list[StoredNode] = field(default_factory=list)
    jobs: list[tuple[str, int]] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)
    """Of the run itself."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to store."""
        return not any(getattr(self, one.name) for one in fields(self))

    def followed_by(self, other: "Batch") -> "Batch":
        """Return both as one."""
        return Batch(
            events=self.events + other.events,
            results=self.results + other.results,
            sent=self.sent + other.sent,
            answered=self.answered + other.answered,
            nodes=self.nodes + other.nodes,
            jobs=self.jobs + other.jobs,
            columns=self.columns | other.columns,
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """A run's own row."""

    id: int
    key: str
    submitter: str
    state: RunState
    reason: str
    created_at: datetime
    ended_at: datetime | None
    seconds: float
    stop: bool
    builds: int
    checks: int
    holder: str | None
    held_until: datetime | None
    bug: str
    strategy: str
    model: str
    request: RunRequest
    begun: Begun | None
    fixes: list[FixView]

    @property
    def lapsed(self) -> bool:
        """Whether nothing was heard of its process for too long."""
        return self.held_until is None or self.held_until < _now()

    @property
    def interrupted(self) -> "Stored":
        """The run of a process that has ended."""
        return replace(
            self, state=RunState.INTERRUPTED, reason="the process that carried it out has ended"
        )

    def summary(self, asked: Spent) -> RunSummary:
        """Return what lists show of it; `asked` is what its questions took."""
        more = {"seconds": self.seconds, "builds": self.builds, "checks": self.checks}
        return RunSummary(
            id=self.id,
            bug=self.bug,
            strategy=self.strategy,
            model=self.model,
            submitter=self.submitter,
            state=self.state,
            reason=self.reason,
            created_at=self.created_at,
            ended_at=self.ended_at,
            fixes=len(self.fixes),
            spent=asked.model_copy(update=more),
        )


class RunStore:
    """Runs and what belongs to them. Who carries a run out holds it; others only read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.observers: list[Callable[[Batch], None]] = []
        """Told of what was stored."""

    async def create(
        self,
        request: RunRequest,
        key: str,
        strategy: str,
        submitter: str,
        once: Once | None = None,
    ) -> tuple[int, bool]:
        """Add a run that nobody carries out yet; return its number, and whether it is new.

        It is not where the submitter has begun one by the same idempotency key. Raises Conflict
        `key_reused` if that one's request was another.
        """
        row = {
            "key": key,
            "bug": request.bug,
            "strategy": strategy,
            "model": request.model,
            "submitter": submitter,
            "state": RunState.INTERRUPTED,
            "reason": "not begun",
            "created_at": _now(),
            "seconds": 0.0,
            "builds": 0,
            "checks": 0,
            "stop": False,
            "request": request.model_dump_json(),
            "idempotency_key": once.key if once else None,
            "body_hash": once.hash if once else None,
        }
        own = runs.c.submitter == submitter, runs.c.idempotency_key == row["idempotency_key"]

        def added(connection: Connection) -> tuple[int, bool]:
            adding = _upsert(connection, runs, ["submitter", "idempotency_key"], [])
            new = connection.execute(adding.values(row).returning(runs.c.id)).scalar()
            if new is not None:
                return int(new), True
            known = connection.execute(select(runs.c.id, runs.c.body_hash).where(*own)).one()
            if known.body_hash != row["body_hash"]:
                message = (
                    f"the idempotency key {row['idempotency_key']!r} was used for run {known.id}, "
                    "which is another request; use a new key for a new run"
                )
                raise Conflict("key_reused", message, run=known.id)
            return int(known.id), False

        return await self._database.write(added)

    async def take(self, run: int, holder: str, dead: str | None, request: RunRequest) -> None:
        """Make the run this process's; raise Conflict `run_under_way` if another has it.

        `dead` is a holder that is known to have ended; `request` what the run goes by from now.
        """
        free = or_(
            runs.c.holder.is_(None),
            runs.c.held_until < _now(),
            *([runs.c.holder == dead] if dead else []),
        )
        values = {
            "holder": holder,
            "held_until": _until(),
            "state": RunState.RUNNING,
            "stop": False,
        }
        values |= {"reason": "", "ended_at": None, "request": request.model_dump_json()}
        take = update(runs).where(runs.c.id == run, free).values(values)
        if not await self._database.write(lambda one: one.execute(take).rowcount):
            await self.get(run)
            message = f"run {run} is under way; another process carries it out"
            raise Conflict("run_under_way", message, run=run)

    async def renew(self, run: int, holder: str) -> bool:
        """Keep the run; return whether somebody wants it stopped. Raise LostRun if it is lost."""
        return await self._database.write(lambda one: _held(one, run, holder, {}))

    async def want_stop(self, run: int) -> None:
        """Ask whoever carries the run out to stop it."""
        stop = update(runs).where(runs.c.id == run).values(stop=True)
        await self._database.write(lambda one: one.execute(stop))

    async def write(self, run: int, holder: str, batch: Batch) -> None:
        """Store what happened; raise LostRun, and store nothing, if another has the run."""
        await self._database.write(lambda one: _write(one, run, holder, batch))
        for observer in self.observers:
            observer(batch)

    async def counts(self) -> tuple[dict[RunState, int], int]:
        """Return how many runs are in each state, and how many questions are on their way."""
        state = _state_now().label("state")
        by_state = select(state, func.count().label("number")).group_by(state)
        under_way = (runs.c.state == RunState.RUNNING) & (runs.c.held_until >= _now())
        of_run = select(runs.c.id).where(under_way)
        on_their_way = (
            select(func.count())
            .select_from(calls)
            .where(calls.c.run.in_(of_run), calls.c.answered_at.is_(None))
        )

        def counted(connection: Connection) -> tuple[dict[RunState, int], int]:
            states = {RunState(row.state): row.number for row in connection.execute(by_state)}
            return states, connection.execute(on_their_way).scalar_one()

        return await self._database.read(counted)

    async def get(self, run: int) -> Stored:
        """Return the run; raise NotFound."""
        wanted = select(runs).where(runs.c.id == run)
        row = await self._database.read(lambda one: one.execute(wanted).first())
        if row is None:
            raise no_run(run)
        return _stored(row)

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> list[Stored]:
        """Return runs, the newest first."""
        query = select(runs).order_by(runs.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(runs.c.id < before)
        for name, value in (wanted or RunFilter()).model_dump(exclude_none=True).items():
            column = _state_now() if name == "state" else runs.c[name]
            query = query.where(column == str(value))
        return [_stored(row) for row in await self._rows(query)]

    async def events(self, run: int, after: int = 0) -> list[Event]:
        """Return what happened after event number `after`, a thousand events at most."""
        wanted = (
            select(events)
            .where(events.c.run == run, events.c.number > after)
            .order_by(events.c.number)
            .limit(_MOST_EVENTS)
        )
        return [_event(row) for row in await self._rows(wanted)]

    async def last_event(self, run: int) -> int:
        """Return the number of the run's last event; 0 without any."""
        (row,) = await self._rows(select(func.max(events.c.number)).where(events.c.run == run))
        return int(row[0] or 0)

    async def work(self, run: int, node: str | None = None) -> list[Event]:
        """Return when pieces of work were begun and what they came to: of a node, or all that was
        begun since the run was last taken up."""
        c = events.c
        wanted = select(events).where(c.run == run, c.kind.in_(WORK)).order_by(c.number)
        if node is None:
            resumed = select(func.max(c.number)).where(c.run == run, c.kind == "resumed")
            wanted = wanted.where(c.number > func.coalesce(resumed.scalar_subquery(), 0))
        else:  # as `_events` has written it; it spares reading what others did
            about = f'"node": {json.dumps(node)}'
            wanted = wanted.where(c.data.contains(about, autoescape=True))
        return [_event(row) for row in await self._rows(wanted)]

    async def results(self, run: int) -> list[tuple[str, Result]]:
        """Return all that the search was told, in order."""
        wanted = select(results).where(results.c.run == run).order_by(results.c.number)
        return [(row.name, _RESULT.validate_json(row.result)) for row in await self._rows(wanted)]

    async def nodes(self, run: int) -> list[Node]:
        """Return the nodes, in the order in which they began."""
        wanted = select(nodes.c.node).where(nodes.c.run == run).order_by(nodes.c.number)
        return [Node.model_validate_json(row.node) for row in await self._rows(wanted)]

    async def jobs(self, run: int) -> dict[str, list[int]]:
        """Return the numbers of the scheduler's jobs, by the work they do."""
        wanted = select(jobs).where(jobs.c.run == run).order_by(jobs.c.job)
        found: dict[str, list[int]] = {}
        for row in await self._rows(wanted):
            found.setdefault(row.name, []).append(row.job)
        return found

    async def sent(self, run: int) -> "Sequence[Row[Any]]":
        """Return the questions that were sent, as rows without the prompts."""
        c = calls.c
        return await self._rows(select(c.name, c.lost, c.answered_at, c.reply).where(c.run == run))

    async def calls(
        self,
        run: int,
        node: str | None = None,
        purpose: str | None = None,
        part: tuple[int, int] | None = None,
    ) -> "Sequence[Row[*tuple[Any, ...]]]":
        """Return the questions of a node, or all, in the order in which they were sent.

        `part` is how many of them to leave out, and how many to return then.
        """
        wanted = select(calls).where(calls.c.run == run).order_by(calls.c.asked_at, calls.c.name)
        if node is not None:
            wanted = wanted.where(calls.c.node == node)
        if purpose is not None:
            wanted = wanted.where(calls.c.purpose == purpose)
        if part is not None:
            wanted = wanted.offset(part[0]).limit(part[1])
        return await self._rows(wanted)

    async def call(self, run: int, name: str) -> "Row[*tuple[Any, ...]] | None":
        """Return a question, or None."""
        found = await self._rows(select(calls).where(calls.c.run == run, calls.c.name == name))
        return found[0] if found else None

    async def spent(self, run: int) -> Spent:
        """Return what the questions of a run took; builds and checks are counted by the results."""
        return (await self.spent_by([run]))[run]

    async def spent_by(self, numbers: Sequence[int]) -> dict[int, Spent]:
        """Return what the questions of each of these runs took."""
        c, total = calls.c, func.sum
        answered = c.reply.is_not(None)
        wanted = select(
            c.run,
            total(c.price).label("known_dollars"),
            total(case((answered & c.price.is_(None), 1), else_=0)).label("unpriced_calls"),
            total(case((answered, 1), else_=0)).label("calls"),
            total(case((c.error.is_not(None), 1), else_=0)).label("failed_calls"),
            total(c.lost).label("lost_calls"),
            total(c.input_tokens).label("input_tokens"),
            total(c.cached_tokens).label("cached_tokens"),
            total(c.output_tokens).label("output_tokens"),
            total(c.seconds).label("seconds_of_model"),
        )
        rows = await self._rows(wanted.where(c.run.in_(numbers)).group_by(c.run))
        found = {row.run: Spent(**_told(row)) for row in rows}
        return {number: found.get(number, Spent()) for number in numbers}

    async def _rows(self, wanted: "Select[Any]") -> "Sequence[Row[Any]]":
        return await self._database.read(lambda one: one.execute(wanted).all())


def _write(connection: Connection, run: int, holder: str, batch: Batch) -> None:
    now = _now()
    _held(connection, run, holder, batch.columns)
    if batch.events:
        _events(connection, run, now, batch.events)
    if batch.results:
        _results(connection, run, batch.results)
    if batch.sent:
        _sent(connection, run, now, batch.sent)
    if batch.answered:
        _answered(connection, run, now, batch.answered)
    if batch.nodes:
        _nodes(connection, run, batch.nodes)
    if batch.jobs:
        rows = [{"run": run, "name": name, "job": job} for name, job in batch.jobs]
        connection.execute(_upsert(connection, jobs, ["run", "job"], []), rows)


def _held(connection: Connection, run: int, holder: str, columns: dict[str, Any]) -> bool:
    """Keep the run, change its columns, and return whether somebody wants it stopped."""
    values = {"held_until": _until(), **columns}
    held = connection.execute(
        update(runs)
        .where(runs.c.id == run, runs.c.holder == holder)
        .values(values)
        .returning(runs.c.stop)
    )
    row = held.first()
    if row is None:
        raise LostRun("run_lost", f"another process has taken run {run} over", run=run)
    return bool(row.stop)


def _events(
    connection: Connection, run: int, now: datetime, new: list[tuple[str, dict[str, Any]]]
) -> None:
    last = connection.scalar(select(func.max(events.c.number)).where(events.c.run == run))
    rows = [
        {"run": run, "number": number, "at": now, "kind": kind, "data": json.dumps(data)}
        for number, (kind, data) in enumerate(new, (last or 0) + 1)
    ]
    connection.execute(insert(events), rows)


def _results(connection: Connection, run: int, new: list[tuple[str, Result]]) -> None:
    last = connection.scalar(select(func.max(results.c.number)).where(results.c.run == run))
    rows = [
        {"run": run, "number": number, "name": name, "result": result.model_dump_json()}
        for number, (name, result) in enumerate(new, (last or 0) + 1)
    ]
    connection.execute(insert(results), rows)


def _sent(connection: Connection, run: int, now: datetime, new: list[Sent]) -> None:
    again = [one.name for one in new if one.again]
    if again:
        connection.execute(
            update(calls)
            .where(calls.c.run == run, calls.c.name.in_(again))
            .values(
                asked=calls.c.asked + 1,
                lost=calls.c.lost + case((calls.c.answered_at.is_(None), 1), else_=0),
                asked_at=now,
                answered_at=None,
                error=None,
            )
        )
    rows = [
        {
            "run": run,
            "name": one.name,
            "node": one.node,
            "purpose": one.purpose,
            "asked": 1,
            "lost": 0,
            "asked_at": now,
            "prompt": one.prompt,
        }
        for one in new
        if not one.again
    ]
    if rows:
        connection.execute(insert(calls), rows)


def _answered(connection: Connection, run: int, now: datetime, new: list[Answered]) -> None:
    rows = []
    for told in new:
        row: dict[str, Any] = {"of_run": run, "of_name": told.name}
        row |= {"answered_at": now, "error": told.error}
        if (reply := told.reply) is not None:
            row |= {
                "reply": reply.model_dump_json(),
                "input_tokens": reply.input_tokens,
                "cached_tokens": reply.cached_tokens,
                "output_tokens": reply.output_tokens,
                "price": reply.price,
                "seconds": reply.seconds,
            }
        rows.append(row)
    same = (calls.c.run == bindparam("of_run")) & (calls.c.name == bindparam("of_name"))
    for columns in {frozenset(row) for row in rows}:  # those with a reply, and those without
        connection.execute(
            update(calls).where(same), [row for row in rows if frozenset(row) == columns]
        )


def _nodes(connection: Connection, run: int, new: list[StoredNode]) -> None:
    rows = [{"run": run, "name": one.name, "number": one.number, "node": one.text} for one in new]
    connection.execute(_upsert(connection, nodes, ["run", "name"], ["node"]), rows)


def _upsert(connection: Connection, table: Any, key: list[str], changed: list[str]) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    if not changed:
        return statement.on_conflict_do_nothing(index_elements=key)
    new = {name: statement.excluded[name] for name in changed}
    return statement.on_conflict_do_update(index_elements=key, set_=new)


def _told(row: "Row[Any]") -> dict[str, Any]:
    return {name: value or 0 for name, value in row._mapping.items() if name != "run"}


def _event(row: "Row[Any]") -> Event:
    return Event(number=row.number, at=row.at, kind=row.kind, data=json.loads(row.data))


def _state_now() -> ColumnElement[str]:
    """Return the state of a run: one that nobody carries out any more is interrupted."""
    lapsed = (runs.c.state == RunState.RUNNING) & (runs.c.held_until < _now())
    return case((lapsed, str(RunState.INTERRUPTED)), else_=runs.c.state)


def _stored(row: "Row[*tuple[Any, ...]]") -> Stored:
    return Stored(
        id=row.id,
        key=row.key,
        submitter=row.submitter,
        state=RunState(row.state),
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
        seconds=row.seconds,
        stop=row.stop,
        builds=row.builds,
        checks=row.checks,
        holder=row.holder,
        held_until=row.held_until,
        bug=row.bug,
        strategy=row.strategy,
        model=row.model,
        request=RunRequest.model_validate_json(row.request),
        begun=Begun.model_validate_json(row.begun) if row.begun else None,
        fixes=_FIXES.validate_json(row.fixes) if row.fixes else [],
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _until() -> datetime:
    return _now() + timedelta(seconds=HELD_SECONDS)
