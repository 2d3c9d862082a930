"""Stored runs. Each is a folder `NUMBER/` with an append-only file of its history.

    NUMBER/events.gz       entries of `event_file`: first a `Created`, then one for each `Batch`
    NUMBER/summary.json    the summary of an ended run, so that lists need not read its events
    NUMBER/stop            a request to stop the run
    keys/SHA-256           the number of the run with a submitter's idempotency key
    lock                   locked while a run is added; contains the last number assigned

The process that executes a run holds a lock (flock) on its events. The kernel releases the lock
when the process ends for any reason, so a run that is `running` without a lock is `interrupted`.
Several processes of a machine may share the folder.
"""

import asyncio
import contextlib
import fcntl
import functools
import json
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from kgym.api.agent.conversation import Reply, Turn
from kgym.api.agent.nodes import Node
from kgym.api.agent.runs import (
    CallView,
    Event,
    FixView,
    NodeView,
    RunFilter,
    RunRequest,
    RunState,
    RunSummary,
    Spent,
)
from kgym.api.steps import Strict
from kgym.atomic_files import replace_file
from kgym.errors import Conflict, InfrastructureError, NotFound
from kgym_crashfixer import event_file
from kgym_crashfixer.platform_protocol import Begun
from kgym_crashfixer.search.search import TRACE
from kgym_crashfixer.search.work import Answer, Result

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_RESULT: TypeAdapter[Result] = TypeAdapter(Result)
_EVENTS = "events.gz"
_SUMMARY = "summary.json"
_STOP = "stop"
# Runs in memory, without the texts of their questions and answers.
_LOADED = 8
_LOCK_ATTEMPTS = 20
# Kinds of events about the begin and end of work.
WORK = ("asked", "asked_again", "lost", "result", "dropped")


class Created(Strict):
    """The first entry of a run's file."""

    key: str
    """Key of the run, a part of its jobs' idempotency keys."""
    strategy: str
    submitter: str
    request: RunRequest
    created_at: datetime
    idempotency_key: str | None = None
    body_hash: str | None = None
    """Hash of the request."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A question about to be sent."""

    name: str
    node: str
    purpose: str
    system: str = ""
    prompt: str = ""
    turns: int = 0
    """Number of earlier turns; all but the last are stored with earlier questions."""
    last_turn: Turn | None = None
    again: bool = False
    """Whether it was sent before."""
    tape_key: str = ""
    occurrence: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of a question: a reply or an error."""

    name: str
    reply: Reply | None = None
    error: str | None = None
    dropped: bool = False
    """Whether the search dropped the question; `error` then says so."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node and its number, in the order in which the nodes began."""

    number: int
    node: dict[str, Any]
    """A JSON copy, since the search continues to change the node."""


@dataclass(frozen=True, slots=True)
class Used:
    """What a run has used so far, except its questions."""

    seconds: float = 0.0
    builds: int = 0
    checks: int = 0


@dataclass(slots=True)
class Batch:
    """Changes that are stored atomically, as one entry of the run's file."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    results: list[tuple[str, Result | None]] = field(default_factory=list)
    """By name of the work. None for a question, whose reply is in `answered`."""
    sent: list[Sent] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    nodes: list[StoredNode] = field(default_factory=list)
    jobs: list[tuple[str, int]] = field(default_factory=list)
    taken: RunRequest | None = None
    """The request with which execution of the run begins or continues."""
    begun: Begun | None = None
    fixes: list[FixView] | None = None
    used: Used | None = None
    ended: tuple[RunState, str] | None = None
    """The state and its reason."""

    def followed_by(self, later: "Batch") -> "Batch":
        """Return the two batches merged."""
        return Batch(
            events=self.events + later.events,
            results=self.results + later.results,
            sent=self.sent + later.sent,
            answered=self.answered + later.answered,
            nodes=self.nodes + later.nodes,
            jobs=self.jobs + later.jobs,
            taken=later.taken or self.taken,
            begun=later.begun or self.begun,
            fixes=self.fixes if later.fixes is None else later.fixes,
            used=later.used or self.used,
            ended=later.ended or self.ended,
        )


_BATCH = TypeAdapter(Batch)


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored state from which a run is executed."""

    id: int
    key: str
    submitter: str
    request: RunRequest
    begun: Begun | None
    fixes: list[FixView]
    used: Used


@dataclass(slots=True)
class StoredCall:
    """A question without its texts, which are read from the file on demand."""

    name: str
    node: str
    purpose: str
    asked_at: datetime
    sent_at: int
    """Offset of the entry with the prompt."""
    asked: int = 1
    lost: int = 0
    answered_at: datetime | None = None
    error: str | None = None
    reply_at: int | None = None
    """Offset of the entry with the reply."""
    counts: dict[str, Any] = field(default_factory=dict)
    """Tokens, price and seconds of the reply."""


class RunRecord:
    """A run as read from its file: the latest state, without long texts."""

    def __init__(self, number: int, folder: Path) -> None:
        self.id, self.path = number, folder / _EVENTS
        self.lock = threading.Lock()
        # Bytes of the file that were read.
        self.size = 0
        self.state, self.reason = RunState.INTERRUPTED, "not begun"
        self.ended_at: datetime | None = None
        self.used = Used()
        self.begun: Begun | None = None
        self.fixes: list[FixView] = []
        self.jobs: dict[str, list[int]] = {}
        self.calls: dict[str, StoredCall] = {}
        self._events: list[tuple[datetime, str, dict[str, Any]]] = []
        self._results: list[tuple[str, Any]] = []
        # Number of each node, and offset of its latest entry.
        self._nodes: dict[str, tuple[int, int]] = {}
        self._views: dict[str, tuple[int, NodeView]] = {}
        self._entry = functools.lru_cache(2)(functools.partial(event_file.entry_at, self.path))
        try:
            _, self.size, first = next(event_file.entries(self.path))
            self.created = Created.model_validate(first)
        except (OSError, StopIteration, ValidationError) as error:
            message = f"run {number} cannot be read: {self.path} does not begin as a run"
            raise InfrastructureError("run_unreadable", message) from error
        self.request = self.created.request

    def catch_up(self) -> None:
        """Read new entries of the file."""
        for begin, end, entry in event_file.entries(self.path, self.size):
            self._add(begin, entry)
            self.size = end

    def _add(self, begin: int, entry: dict[str, Any]) -> None:
        at = datetime.fromisoformat(entry["at"])
        self._events += [(at, kind, data) for kind, data in entry.get("events", [])]
        self._results += entry.get("results", [])
        for sent in entry.get("sent", []):
            self._add_sent(at, begin, sent)
        for answered in entry.get("answered", []):
            self._add_answer(at, begin, answered)
        for stored in entry.get("nodes", []):
            self._nodes[stored["node"]["name"]] = stored["number"], begin
        for name, job in entry.get("jobs", []):
            if job not in (jobs := self.jobs.setdefault(name, [])):
                jobs.append(job)
        self._set_state(at, entry)

    def _set_state(self, at: datetime, entry: dict[str, Any]) -> None:
        if "taken" in entry:
            self.request = RunRequest.model_validate(entry["taken"])
            self.state, self.reason, self.ended_at = RunState.RUNNING, "", None
        if "begun" in entry:
            self.begun = Begun.model_validate(entry["begun"])
        if "fixes" in entry:
            self.fixes = [FixView.model_validate(fix) for fix in entry["fixes"]]
        if "used" in entry:
            self.used = Used(**entry["used"])
        if "ended" in entry:
            state, self.reason = entry["ended"]
            self.state, self.ended_at = RunState(state), at

    def _add_sent(self, at: datetime, begin: int, sent: dict[str, Any]) -> None:
        name = sent["name"]
        call = StoredCall(name, sent["node"], sent["purpose"], at, begin)
        if sent["again"] and (before := self.calls.get(name)) is not None:
            call.asked = before.asked + 1
            call.lost = before.lost + (before.answered_at is None)
        self.calls[name] = call

    def _add_answer(self, at: datetime, begin: int, answered: dict[str, Any]) -> None:
        call = self.calls[answered["name"]]
        call.answered_at, call.error = at, answered["error"]
        if (reply := answered["reply"]) is not None:
            call.reply_at = begin
            call.counts = {
                name: reply[name]
                for name in ("input_tokens", "cached_tokens", "output_tokens", "price", "seconds")
            }

    # --- views ----------------------------------------------------------------------------

    def stored(self) -> Stored:
        """Return the state from which the run is executed."""
        created = self.created
        return Stored(
            self.id, created.key, created.submitter, self.request, self.begun, self.fixes, self.used
        )

    def summary(self) -> RunSummary:
        """Return the run's entry in a list."""
        return RunSummary(
            id=self.id,
            bug=self.request.bug,
            strategy=self.created.strategy,
            model=self.request.model,
            submitter=self.created.submitter,
            state=self.state,
            reason=self.reason,
            created_at=self.created.created_at,
            ended_at=self.ended_at,
            fixes=len(self.fixes),
            spent=self.spent(),
        )

    def spent(self) -> Spent:
        """Return what the run has used."""
        calls = list(self.calls.values())
        counts = [call.counts for call in calls if call.reply_at is not None]

        def total(name: str) -> Any:
            return sum(count[name] or 0 for count in counts)

        return Spent(
            known_dollars=total("price"),
            unpriced_calls=sum(count["price"] is None for count in counts),
            calls=len(counts),
            failed_calls=sum(call.error is not None for call in calls),
            lost_calls=sum(call.lost for call in calls),
            input_tokens=total("input_tokens"),
            cached_tokens=total("cached_tokens"),
            output_tokens=total("output_tokens"),
            seconds_of_model=total("seconds"),
            seconds=self.used.seconds,
            builds=self.used.builds,
            checks=self.used.checks,
        )

    def open_questions(self) -> int:
        """Count the questions without an answer."""
        return sum(call.answered_at is None for call in self.calls.values())

    @property
    def last_event(self) -> int:
        """The number of the last event; 0 without events."""
        return len(self._events)

    def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events after number `after`."""
        part = self._events[after : after + limit]
        return [_event(number, *event) for number, event in enumerate(part, after + 1)]

    def work(self, node: str | None = None) -> list[Event]:
        """Return the events of a node's work, or of all work since the run was last resumed."""
        numbered = list(enumerate(self._events, 1))
        if node is None:
            resumed = [number for number, (_, kind, _) in numbered if kind == "resumed"]
            numbered = numbered[resumed[-1] :] if resumed else numbered
        return [
            _event(number, *event)
            for number, event in numbered
            if event[1] in WORK and node in {None, event[2].get("node")}
        ]

    def results(self) -> list[tuple[str, Result]]:
        """Return all results that the search has received, in order."""
        return [
            (name, self._answer(name) if result is None else _RESULT.validate_python(result))
            for name, result in self._results
        ]

    @property
    def notes(self) -> list[str]:
        """Remarks for the user, such as why the crash could not be traced."""
        reasons = (result.get("reason") for name, result in self._results if name == TRACE)
        untraced = [f"the crash could not be traced: {reason}" for reason in reasons if reason]
        return [*(self.begun.notes if self.begun else ()), *untraced]

    def unfinished_calls(self) -> dict[str, tuple[StoredCall, Reply | None]]:
        """Return the questions whose results the search lacks, with their replies."""
        finished = {name for name, _ in self._results}
        calls = (call for call in self.calls.values() if call.name not in finished)
        return {call.name: (call, self.reply(call)) for call in calls}

    def _answer(self, name: str) -> Answer:
        reply = self.reply(self.calls[name])
        assert reply is not None
        return Answer(text=reply.text, calls=reply.calls)

    def reply(self, call: StoredCall) -> Reply | None:
        """Return the reply to a question."""
        if call.reply_at is None:
            return None
        answers = self._entry(call.reply_at)["answered"]
        answer = next(answer for answer in answers if answer["name"] == call.name)
        return Reply.model_validate(answer["reply"])

    def call(self, name: str) -> CallView:
        """Return a question and its answer; raise NotFound if there is none."""
        if (call := self.calls.get(name)) is None:
            message = f"run {self.id} has no call {name}"
            raise NotFound("call_not_found", message, run=self.id, call=name)
        sent = next(sent for sent in self._entry(call.sent_at)["sent"] if sent["name"] == name)
        texts = {part: sent[part] for part in ("system", "prompt", "turns", "last_turn")}
        return CallView(
            name=name,
            node=call.node,
            purpose=call.purpose,
            asked=call.asked,
            asked_at=call.asked_at,
            answered_at=call.answered_at,
            error=call.error,
            reply=self.reply(call),
            **texts,
        )

    def call_names(self, node: str | None = None, purpose: str | None = None) -> list[str]:
        """Return the names of questions, optionally of a node or purpose, in the order sent."""
        calls = (
            call
            for call in self.calls.values()
            if node in {None, call.node} and purpose in {None, call.purpose}
        )
        return [call.name for call in sorted(calls, key=lambda call: (call.asked_at, call.name))]

    def node(self, name: str) -> Node:
        """Return a node; raise NotFound if there is none."""
        if name not in self._nodes:
            message = f"run {self.id} has no node {name}"
            raise NotFound("node_not_found", message, run=self.id, node=name)
        nodes = [stored["node"] for stored in self._entry(self._nodes[name][1])["nodes"]]
        # An entry may contain two states of a node; the later one counts.
        return Node.model_validate([node for node in nodes if node["name"] == name][-1])

    def node_views(self) -> list[NodeView]:
        """Return short views of the nodes, in the order in which they began."""
        views = []
        prices = defaultdict[str, list[float | None]](list)
        for call in self.calls.values():
            if call.reply_at is not None:
                prices[call.node].append(call.counts["price"])
        for name, (_, begin) in sorted(self._nodes.items(), key=lambda item: item[1][0]):
            known = self._views.get(name)
            if known is None or known[0] != begin:
                known = self._views[name] = begin, NodeView.of(self.node(name))
            priced = [price for price in prices[name] if price is not None]
            dollars = sum(priced) if len(priced) == len(prices[name]) else None
            views.append(known[1].model_copy(update={"dollars": dollars}))
        return views


class RunWriter:
    """A run that this process owns, until `close`."""

    def __init__(self, folder: Path, file: int, observers: Sequence[Callable[[Batch], None]]):
        self._folder, self._file, self._observers = folder, file, observers
        self._turn = asyncio.Lock()
        self._closed = False

    async def write(self, batch: Batch) -> None:
        """Store a batch; raise InfrastructureError `run_not_written` and store nothing."""
        async with self._turn:  # keeps the order of batches
            await asyncio.to_thread(self._write, batch)
        for observer in self._observers:
            observer(batch)

    def _write(self, batch: Batch) -> None:
        # The answer to a question is stored as its reply.
        results: list[tuple[str, Result | None]] = [
            (name, None if isinstance(result, Answer) else result) for name, result in batch.results
        ]
        fields = _BATCH.dump_python(replace(batch, results=results), mode="json")
        entry = {name: value for name, value in fields.items() if value not in ([], None)}
        now = datetime.now(UTC).isoformat()
        try:
            event_file.append(self._file, event_file.pack({"at": now, **entry}))
        except OSError as error:
            message = f"{self._folder / _EVENTS} cannot be written: {error}"
            raise InfrastructureError("run_not_written", message) from error

    def stop_is_wanted(self) -> bool:
        """Return whether any process asked the run to stop."""
        return (self._folder / _STOP).exists()

    def close(self) -> None:
        """Release the run."""
        if not self._closed:
            self._closed = True
            (self._folder / _STOP).unlink(missing_ok=True)
            os.close(self._file)


class RunStore:
    """The runs of a folder. The process that executes a run owns it; others only read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Called with each batch that this process stores.
        self.observers: list[Callable[[Batch], None]] = []
        # The runs that are fully loaded, the last used ones last.
        self.records: OrderedDict[int, RunRecord] = OrderedDict()
        # Size of each listed run's file, and its summary at that size.
        self._summaries: dict[int, tuple[int, RunSummary]] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "keys").mkdir(exist_ok=True)

    async def create(self, created: Created) -> tuple[int, bool]:
        """Add a run without executing it; return its number, and whether it is new.

        It is not new if the submitter used the idempotency key before. Raises Conflict `key_reused`
        if the requests differ.
        """
        return await asyncio.to_thread(self._create, created)

    def _create(self, created: Created) -> tuple[int, bool]:
        # One lock for the whole folder: numbers must not repeat, not even after a run was removed.
        with (self.folder / "lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            last = max([int(lock.read() or 0), *self._numbers()])
            # The key is stored before its run. A kill in between leaves the key of a missing run,
            # or of one with another key; the next call replaces it.
            known = self._begun_by_key(created)
            if known is not None:
                return known, False
            if created.idempotency_key is not None:
                replace_file(self._key_file(created), str(last + 1))
            scratch = self.folder / ".new"
            shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
            scratch.mkdir()
            data = event_file.pack(created.model_dump(mode="json"))
            (scratch / _EVENTS).write_bytes(data)
            # Renamed as a whole: a run without its first entry would be unreadable.
            scratch.rename(self.folder / str(last + 1))
            lock.truncate(0)
            lock.write(str(last + 1))
            return last + 1, True

    def _key_file(self, created: Created) -> Path:
        name = json.dumps([created.submitter, created.idempotency_key])
        return self.folder / "keys" / sha256(name.encode()).hexdigest()

    def _begun_by_key(self, created: Created) -> int | None:
        key = created.idempotency_key
        try:
            number = int(self._key_file(created).read_text())
            before = RunRecord(number, self.folder / str(number)).created
        except (OSError, ValueError, InfrastructureError):
            return None
        if key is None or (before.submitter, before.idempotency_key) != (created.submitter, key):
            return None
        if before.body_hash != created.body_hash:
            message = (
                f"the idempotency key {key!r} was used for run {number} with another request; use a"
                " new key for a new run"
            )
            raise Conflict("key_reused", message, run=number)
        return number

    async def take(self, run: int, request: RunRequest) -> RunWriter:
        """Take ownership of a run, to execute this request; raise Conflict `run_under_way`."""
        file = await asyncio.to_thread(self._locked, run)
        writer = RunWriter(self.folder / str(run), file, self.observers)
        try:
            await asyncio.to_thread(self._cut_torn_end, run, file)
            await writer.write(Batch(taken=request))
        except BaseException:
            writer.close()
            raise
        return writer

    def _locked(self, run: int) -> int:
        try:
            file = os.open(self.folder / str(run) / _EVENTS, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            raise no_run(run) from None
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # `_is_owned` of another process holds the lock for a moment, too.
                time.sleep(0.001 * attempt)
            else:
                (self.folder / str(run) / _STOP).unlink(missing_ok=True)
                return file
        os.close(file)
        raise Conflict("run_under_way", f"run {run} is running in another process", run=run)

    def _cut_torn_end(self, run: int, file: int) -> None:
        end = self._read(run, lambda record: record.size)
        if end < (size := os.fstat(file).st_size):
            _LOG.warning("run %d: removed %d bytes of a partial last entry", run, size - end)
            os.ftruncate(file, end)

    async def release(self, run: int, writer: RunWriter) -> None:
        """Release the run, and store its summary for lists."""
        writer.close()
        await asyncio.to_thread(self._store_summary, run)

    def _store_summary(self, run: int) -> None:
        with contextlib.suppress(OSError, InfrastructureError):  # lists work without it
            size, summary = self._read(run, lambda record: (record.size, record.summary()))
            text = json.dumps({"size": size, "summary": summary.model_dump(mode="json")})
            replace_file(self.folder / str(run) / _SUMMARY, text)

    async def want_stop(self, run: int) -> None:
        """Ask the owner of the run to stop it."""
        await asyncio.to_thread((self.folder / str(run) / _STOP).touch)

    async def read(self, run: int, work: Callable[[RunRecord], T]) -> T:
        """Apply `work` to the up-to-date run in a thread; raise NotFound if there is none."""
        return await asyncio.to_thread(self._read, run, work)

    def _read(self, run: int, work: Callable[[RunRecord], T]) -> T:
        record = self._record(run)
        with record.lock:
            record.catch_up()
            while record.state is RunState.RUNNING and not _is_owned(record.path):
                # It may have ended between the two reads; its file then has new entries.
                if record.path.stat().st_size > record.size:
                    before = record.size
                    record.catch_up()
                    if record.size > before:
                        continue
                record.state = RunState.INTERRUPTED
                record.reason = "the process that executed it has ended"
            return work(record)

    def _record(self, run: int) -> RunRecord:
        with self._lock:
            if run in self.records:
                self.records.move_to_end(run)
                return self.records[run]
        if not (self.folder / str(run)).is_dir():
            raise no_run(run)
        record = RunRecord(run, self.folder / str(run))
        with self._lock:
            record = self.records.setdefault(run, record)
            while len(self.records) > _LOADED:
                self.records.popitem(last=False)
        return record

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> list[RunSummary]:
        """Return summaries of runs, newest first."""
        return await asyncio.to_thread(self._page, before, limit, wanted or RunFilter())

    def _page(self, before: int | None, limit: int, wanted: RunFilter) -> list[RunSummary]:
        conditions = wanted.model_dump(exclude_none=True).items()
        page = []
        for summary in self._all_summaries(before):
            if all(getattr(summary, name) == value for name, value in conditions):
                page.append(summary)
                if len(page) == limit:
                    break
        return page

    async def counts(self) -> tuple[dict[RunState, int], int]:
        """Count the runs in each state, and the open questions of running runs."""
        return await asyncio.to_thread(self._counts)

    def _counts(self) -> tuple[dict[RunState, int], int]:
        states: dict[RunState, int] = {}
        questions = 0
        for summary in self._all_summaries(None):
            states[summary.state] = states.get(summary.state, 0) + 1
            if summary.state is RunState.RUNNING:
                questions += self._read(summary.id, lambda record: record.open_questions())
        return states, questions

    def _numbers(self) -> list[int]:
        with os.scandir(self.folder) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdecimal()]

    def _all_summaries(self, before: int | None) -> Iterator[RunSummary]:
        for number in sorted(self._numbers(), reverse=True):
            if before is None or number < before:
                try:
                    yield self._summary(number)
                except (OSError, KeyError, ValueError, InfrastructureError, NotFound) as error:
                    # One unreadable run must not break the list.
                    _LOG.warning("run %d is missing from the list: %s", number, error)

    def _summary(self, run: int) -> RunSummary:
        folder = self.folder / str(run)
        size = (folder / _EVENTS).stat().st_size
        known_size, summary = self._summaries.get(run) or _stored_summary(folder)
        if summary is None or known_size != size or summary.state is RunState.RUNNING:
            size, summary = self._read(run, lambda record: (record.size, record.summary()))
        self._summaries[run] = size, summary
        return summary


def no_run(run: int) -> NotFound:
    """Return the error for a run that does not exist."""
    return NotFound("run_not_found", f"there is no run {run}", run=run)


def _stored_summary(folder: Path) -> tuple[int, RunSummary | None]:
    try:
        stored = json.loads((folder / _SUMMARY).read_text())
        return int(stored["size"]), RunSummary.model_validate(stored["summary"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, None


def _is_owned(path: Path) -> bool:
    """Return whether a process holds the lock on a run's events."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _event(number: int, at: datetime, kind: str, data: dict[str, Any]) -> Event:
    return Event(number=number, at=at, kind=kind, data=data)
