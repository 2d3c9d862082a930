"""Carries out a run: asks the model and the platform what the search wants, and stores all of it.

What came back is stored before the search is told, and what is sent before it is sent. So a run
whose process was killed goes on with `Runner` anew: the search is told the same, in the same
order, and asks for what is still open. An answer that was stored is not paid for again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Tried
from kgym.api.agent.runs import FixView, NodeView, RunState
from kgym.api.agent.strategy import Strategy
from kgym.errors import InfrastructureError, KgymError
from kgym_crashfixer.models.model import Call, Model, ModelError
from kgym_crashfixer.platform_protocol import BEGIN, Begun, Platform
from kgym_crashfixer.runs.ledger import Ledger
from kgym_crashfixer.runs.questions import answer_of, call_of, clean, kept
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.engine import Asked
from kgym_crashfixer.search.search import Search
from kgym_crashfixer.search.work import Check, Checked, Question, Result, Source, Try, Unanswered
from kgym_crashfixer.store.run_store import (
    HELD_SECONDS,
    Answered,
    Batch,
    RunStore,
    Sent,
    Stored,
    StoredNode,
)

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
RENEW_SECONDS = 1.0
"""How often the run says that it lives, and looks whether it shall stop."""
PAUSES = (30.0, 120.0, 300.0)
"""Seconds between tries of a question while the model's provider does not answer at all."""
ABORT_SECONDS = 30.0
"""How long the run's end waits for the platform to abort jobs."""
SENT_AGAIN = 1
"""How often a question is sent again of which nothing was heard, as the agent was killed."""


class Ended(Exception):
    """The run ends: by a limit, a stop, or an error that further work would not be spared."""

    def __init__(self, state: RunState, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


@dataclass(slots=True)
class _Done:
    """What came of a piece of work: the result, and for questions the reply that was paid for."""

    result: Result
    answered: Answered | None = None
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class Runner:
    """One run, from where it stands to its end. `changed` is called when something was stored."""

    def __init__(
        self,
        store: RunStore,
        run: Stored,
        holder: str,
        strategy: Strategy,
        model: Model,
        platform: Platform,
        *,
        changed: Callable[[], None] = lambda: None,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._store, self._run, self._holder = store, run, holder
        self._strategy, self._model, self._platform = strategy, model, platform
        self._changed, self._pauses = changed, pauses
        self._ledger = Ledger(run.request.limits)
        self._tasks: dict[asyncio.Task[_Done], Asked] = {}
        self._ready: list[Asked] = []
        self._search: Search | None = None
        self._ending: set[asyncio.Task[_Done]] = set()
        self._sent: dict[str, Any] = {}
        """The questions that an earlier process has sent, by name, as rows."""
        self._noted = Batch()
        """What is stored with whatever is stored next: it can be found out again."""
        self._shown: dict[str, str] = {}
        self._over: set[str] = set()
        self._fixes = list(run.fixes)
        self._stop = asyncio.Event()
        self._lost: InfrastructureError | None = None
        self._begun_at = time.monotonic()

    async def submitted(self, name: str, job: int) -> None:
        """Note which job does a piece of work."""
        event = ("job", {"name": name, "job": job})
        await self._write(Batch(events=[event], jobs=[(name, job)]))

    def stop(self) -> None:
        """End the run as it is, soon."""
        self._stop.set()

    async def run(self) -> RunState:
        """Carry it out; return how it ended. Raises LostRun if another process has it now."""
        keeping = asyncio.create_task(self._keep())
        cancelled: asyncio.CancelledError | None = None
        try:
            ended = await self._ended()
        except asyncio.CancelledError as error:
            await self._drop()
            ended, cancelled = Ended(RunState.INTERRUPTED, "the agent was stopped"), error
        finally:  # it would find the run lost once that has ended
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await self._end(ended)
        if cancelled is not None:
            raise cancelled
        return ended.state

    async def _ended(self) -> Ended:
        try:
            await self._begin()
            await self._go()
        except Ended as ended:
            return ended
        except KgymError as error:
            if self._lost is not None:
                raise self._lost from error
            return Ended(RunState.FAILED, f"{error.reason}: {error.message}")
        except Exception as error:  # noqa: BLE001 - the run says so; others go on
            _LOG.exception("run %d failed", self._run.id)
            return Ended(RunState.FAILED, f"internal_error: {type(error).__name__}: {error}")
        finally:
            await self._drop()
        found = self._search is not None and self._search.fixes()
        if found:
            return Ended(RunState.RESOLVED, "")
        return Ended(RunState.UNRESOLVED, "the search is over; no patch resolves the bug")

    # --- the beginning --------------------------------------------------------------------

    async def _begin(self) -> None:
        """Show the bug, or go on with what it showed before; tell the search what it was told."""
        await self._spent_before()
        begun = self._run.begun
        if begun is None:
            await self._write(Batch(events=[("started", {"doing": "showing the bug"})]))
            begun = await self._unless_stopped(self._platform.begin())
            told: dict[str, Any] = {"title": begun.crash.title, "files": list(begun.files)}
            told |= {"notes": begun.notes, "job": begun.job}
            told |= {"trace": begun.crash.trace is not None}
            columns = {"begun": begun.model_dump_json()}
            await self._write(Batch(events=[(BEGIN, told)], columns=columns))
        else:
            await self._platform.resume(begun)
            await self._write(Batch(events=[("resumed", {"title": begun.crash.title})]))
        self._search = search = Search(self._strategy, _state(begun))
        for name, result in await self._store.results(self._run.id):
            search.tell(name, result)
            self._ledger.told(result)
        search.dropped()
        self._ready = search.ask()
        self._sent = {row.name: row for row in await self._store.sent(self._run.id)}

    async def _spent_before(self) -> None:
        spent = await self._store.spent(self._run.id)
        self._ledger.spent = spent.model_copy(update={"seconds": self._run.seconds})

    async def _unless_stopped(self, work: Any) -> Begun:
        """Do what precedes the search; let a stop, or the limit of time, end it."""
        task, stop = asyncio.ensure_future(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                {task, stop}, timeout=self._left(), return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done():
                self._check_end()
                raise Ended(RunState.LIMITED, self._ledger.over_time)
            begun: Begun = task.result()
            return begun
        finally:
            for one in (task, stop):
                one.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    # --- the search -----------------------------------------------------------------------

    async def _go(self) -> None:
        search = self._search
        assert search is not None
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not search.done:
                await self._start()
                if not self._tasks:
                    raise Ended(RunState.LIMITED, self._ledger.reached)
                await asyncio.wait(
                    {*self._tasks, stopping},
                    timeout=self._left(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                await self._take([task for task in self._tasks if task.done()])
                self._check_end()
                if self._left() <= 0:
                    raise Ended(RunState.LIMITED, self._ledger.over_time)
        finally:
            stopping.cancel()

    async def _start(self) -> None:
        """Begin what may be begun; what the limits forbid waits, and perhaps for ever."""
        self._note_fixes()
        self._note_nodes()
        batch = Batch()
        begun: list[Asked] = []
        left: list[Asked] = []
        running = [asked.work for asked in self._tasks.values()]
        for asked in self._ready:
            if self._ledger.allows(asked.work, running):
                running.append(asked.work)
                begun.append(asked)
            else:
                left.append(asked)
        calls = await self._prepared(begun, batch)
        self._ready = left
        if not (batch.empty and self._noted.empty):
            await self._write(batch)
        for asked in begun:
            task = asyncio.create_task(self._do(asked, calls.get(asked.name)))
            self._tasks[task] = asked

    async def _prepared(self, begun: Sequence[Asked], batch: Batch) -> dict[str, Call | Reply]:
        """Return questions as they are sent, or their replies if they are there; note both."""
        found: dict[str, Call | Reply] = {}
        new: list[tuple[str, Question]] = []
        again: set[str] = set()
        for asked in begun:
            before = self._sent.pop(asked.name, None)
            if before is not None and before.reply is not None:
                found[asked.name] = Reply.model_validate_json(before.reply)
                continue
            lost = before is not None and before.answered_at is None
            given_up = lost and before.lost >= SENT_AGAIN
            word = "lost" if given_up else "asked_again" if lost else "asked"
            work = asked.work
            told = {"name": asked.name, "node": work.node, "work": work.word}
            batch.events.append((word, told))
            if isinstance(work, Question) and not given_up:
                new.append((asked.name, work))
                again |= {asked.name} if before is not None else set()
        if new:
            for (name, work), (call, text) in zip(
                new, await asyncio.to_thread(self._calls, [one for _, one in new]), strict=True
            ):
                found[name] = call
                sent = Sent(name, work.node, str(work.purpose), text, again=name in again)
                batch.sent.append(sent)
        return found

    def _calls(self, questions: Sequence[Question]) -> list[tuple[Call, str]]:
        """Return questions as they are sent, and as they are stored."""
        calls = [call_of(one, self._platform) for one in questions]
        return [(call, kept(call)) for call in calls]

    async def _do(self, asked: Asked, call: Call | Reply | None) -> _Done:
        work = asked.work
        if isinstance(work, Check | Try | Source):
            return _Done(await self._platform.do(asked.name, work))
        if isinstance(call, Reply):
            return _Done(answer_of(call))
        if call is None:
            reason = "nothing was heard of this question, twice; it is not paid for again"
            return _Done(Unanswered(reason=reason))
        return await self._answer(asked, call)

    async def _answer(self, asked: Asked, call: Call) -> _Done:
        pauses = list(self._pauses)
        while True:
            try:
                reply = clean(await self._model.ask(call))
            except ModelError as error:
                told = {"name": asked.name, "reason": error.reason, "message": error.message}
                failed = Answered(asked.name, error=f"{error.reason}: {error.message}")
                if error.reason == "model_unavailable" and pauses:
                    await self._write(Batch(events=[("waiting", told)]))
                    await asyncio.sleep(pauses.pop(0))
                    continue
                if error.fatal or error.reason == "model_unavailable":
                    await self._write(Batch(answered=[failed], events=[("unanswered", told)]))
                    said = f"{error.reason}: {error.message}"
                    raise Ended(RunState.FAILED, said) from error
                return _Done(Unanswered(reason=error.reason), failed, [("unanswered", told)])
            events = [("refused_setting", {"settings": reply.refused})] if reply.refused else []
            return _Done(answer_of(reply), Answered(asked.name, reply), events)

    async def _take(self, done: list[asyncio.Task[_Done]]) -> None:
        """Store what came back, then tell the search; end what it no longer waits for."""
        assert self._search is not None
        batch, told = Batch(), []
        failed: BaseException | None = None
        for task in sorted(done, key=lambda one: self._tasks[one].name):
            asked = self._tasks.pop(task)
            error = task.exception()
            if error is not None:
                failed = failed or error
                continue
            came = task.result()
            if came.answered is not None:
                batch.answered.append(came.answered)
                self._ledger.paid(came.answered.reply)
            self._ledger.told(came.result)
            batch.results.append((asked.name, came.result))
            batch.events += [*came.events, ("told", _told(asked, came))]
            told.append((asked, came.result))
        if told:
            await self._write(batch)
        for asked, result in told:
            self._search.tell(asked.name, result)
            await self._forget(set(self._search.dropped()))
            self._ready += self._search.ask()
        if failed is not None:
            raise failed

    async def _forget(self, dropped: set[str]) -> None:
        """Cancel work that nobody waits for any more."""
        if not dropped:
            return
        self._ready = [one for one in self._ready if one.name not in dropped]
        gone = {task: one for task, one in self._tasks.items() if one.name in dropped}
        for task, one in gone.items():
            task.cancel()
            del self._tasks[task]
            self._noted.events.append(("dropped", {"name": one.name, "node": one.work.node}))
        questions = {task: one for task, one in gone.items() if isinstance(one.work, Question)}
        self._ending |= gone.keys() - questions.keys()  # jobs are aborted meanwhile
        await asyncio.gather(*questions, return_exceptions=True)
        for task, one in questions.items():
            self._noted.answered += self._unheard(task, one)

    def _unheard(self, task: asyncio.Task[_Done], asked: Asked) -> list[Answered]:
        """Return what is stored of a cancelled question: its reply, if it came meanwhile."""
        if not isinstance(asked.work, Question):
            return []
        if task.done() and not task.cancelled() and task.exception() is None:
            answered = task.result().answered
            if answered is not None:
                self._ledger.paid(answered.reply)
            return [answered] if answered else []
        return [
            Answered(
                asked.name, error="stopped: nobody waits for the answer any more", dropped=True
            )
        ]

    # --- the end --------------------------------------------------------------------------

    async def _drop(self) -> None:
        """Cancel all work, and store what came back nevertheless."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        ending, self._ending = {*tasks, *self._ending}, set()
        if ending:
            await asyncio.wait(ending, timeout=ABORT_SECONDS)
        batch = Batch()
        for task, asked in tasks.items():
            batch.answered += self._unheard(task, asked)
        if batch.answered and self._lost is None:
            await self._write(batch)

    async def _end(self, ended: Ended) -> None:
        batch = Batch()
        state = ended.state
        if self._search is not None:
            if state is not RunState.INTERRUPTED:
                self._search.stop()
            self._note_fixes()
            if self._fixes and state in {RunState.LIMITED, RunState.STOPPED}:
                state = RunState.RESOLVED
            self._note_nodes()
        ends(batch, state, ended.reason)
        await self._write(batch)

    def _check_end(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._stop.is_set():
            raise Ended(RunState.STOPPED, "stopped")

    async def _keep(self) -> None:
        """Keep the run this process's; end it where another has it, or somebody stops it."""
        heard = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if await whole(self._store.renew(self._run.id, self._holder)):
                    self._stop.set()
                heard = time.monotonic()
            except InfrastructureError as error:
                if error.reason == "run_lost" or time.monotonic() > heard + HELD_SECONDS:
                    self._lost = error
                    self._stop.set()
                    return

    # --- helpers --------------------------------------------------------------------------

    async def _write(self, batch: Batch) -> None:
        """Store it, even if this task is cancelled meanwhile: half a transaction is none."""
        self._pass()
        noted, self._noted = self._noted, Batch()
        batch = noted.followed_by(batch)
        spent = self._ledger.spent
        batch.columns |= {"seconds": spent.seconds, "builds": spent.builds, "checks": spent.checks}
        await whole(self._store.write(self._run.id, self._holder, batch))
        self._changed()

    def _pass(self) -> None:
        now = time.monotonic()
        self._ledger.passed(now - self._begun_at)
        self._begun_at = now

    def _left(self) -> float:
        self._pass()
        return max(0.0, self._ledger.seconds_left)

    def _note_nodes(self) -> None:
        """Note the nodes that have changed."""
        if self._search is None:
            return
        at_work = {one.work.node for one in [*self._tasks.values(), *self._ready]}
        for number, node in enumerate(self._search.nodes.values()):
            if node.name in self._over:
                continue
            text = node.model_dump_json()
            if self._shown.get(node.name) != text:
                self._shown[node.name] = text
                self._noted.nodes.append(StoredNode(number, node.name, text))
                view = NodeView.of(node).model_dump(mode="json")
                self._noted.events.append(("node", view))
            if node.outcome is not None and node.name not in at_work:
                self._over.add(node.name)
                del self._shown[node.name]

    def _note_fixes(self) -> None:
        """Note the fixes, if they have changed."""
        assert self._search is not None
        fixes = [_fix(number, one) for number, one in enumerate(self._search.fixes(), 1)]
        if fixes != self._fixes:
            self._fixes = fixes
            self._noted.columns["fixes"] = _json(fixes)
            self._noted.events.append(("fix", {"nodes": [one.node for one in fixes]}))


def ends(batch: Batch, state: RunState, reason: str) -> None:
    """Note that the run ends; nobody has it then."""
    batch.events.append(("ended", {"state": str(state), "reason": reason}))
    batch.columns |= {"state": state, "reason": reason, "ended_at": datetime.now(UTC)}
    batch.columns |= {"holder": None, "stop": False}


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that is not cut short if this task is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # or asyncio would log that nobody has heard of it
        raise


def _state(begun: Begun) -> State:
    return State(Code(dict(begun.files)), begun.crash, cause=begun.cause)


def _told(asked: Asked, came: _Done) -> dict[str, Any]:
    """Return what an event says of a result."""
    told: dict[str, Any] = {"name": asked.name, "node": asked.work.node, "work": asked.work.word}
    match came.result:
        case Checked(patches=patches):
            told["outcomes"] = [str(one.outcome) for one in patches]
        case Tried() as tried:
            told |= {"verdict": str(tried.verdict), "reason": tried.reason[:500], "job": tried.job}
            told |= {"crash": tried.crash.title if tried.crash else None}
            told |= {"obstacles": tried.obstacles}
        case Unanswered(reason=reason):
            told["unanswered"] = reason[:500]
    reply = came.answered.reply if came.answered else None
    if reply is not None:
        told |= {"price": reply.price, "seconds": reply.seconds}
        told |= {"tokens": reply.input_tokens + reply.output_tokens}
    return told


def _fix(number: int, one: Any) -> FixView:
    return FixView(
        number=number,
        node=one.node,
        diff=one.diff,
        confidence=one.confidence,
        notes=one.notes,
        lines=one.lines,
        agreement=one.agreement,
    )


def _json(fixes: list[FixView]) -> str:
    return "[" + ",".join(one.model_dump_json() for one in fixes) + "]"
