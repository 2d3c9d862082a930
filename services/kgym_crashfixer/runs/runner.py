"""The execution of a run: pass requests of the search to model and platform, and store results.

A result is stored before the search gets it, and a question before it is sent. After a kill, a new
`Runner` replays the results in the same order, and the search asks for what is still open. A stored
answer is not paid for again.

Only results are replayed. Requests follow from them, so the file stays small, and prompts may
change between a kill and a resume without losing answers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kgym import tasks
from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Tried
from kgym.api.agent.runs import NodeView, RunState
from kgym.api.agent.strategy import Strategy
from kgym.errors import KgymError
from kgym_crashfixer.models import tape
from kgym_crashfixer.models.model import Call, Model, ModelError
from kgym_crashfixer.platform_protocol import BEGIN, Begun, Platform
from kgym_crashfixer.runs.ledger import Ledger
from kgym_crashfixer.runs.questions import answer_of, call_of, clean
from kgym_crashfixer.runs.run_store import (
    Answered,
    Batch,
    RunRecord,
    RunStore,
    RunWriter,
    Sent,
    Stored,
    StoredCall,
    StoredNode,
    Used,
)
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.engine import Asked
from kgym_crashfixer.search.search import Search
from kgym_crashfixer.search.work import Checked, PlatformWork, Question, Result, Unanswered

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
# Interval at which a run checks whether another process wants it to stop.
STOP_SECONDS = 1.0
# Seconds between tries of a question while the model's provider is unreachable.
PAUSES = (30.0, 120.0, 300.0)
# Time limit for aborting jobs at the end of a run.
ABORT_SECONDS = 30.0
# Repetitions of a question whose answer was lost with a killed agent. Each may have been paid for,
# and one answer rarely decides a search.
SENT_AGAIN = 1


class Ended(Exception):
    """The run ends: by a limit, a stop, or an error that affects all further work."""

    def __init__(self, state: RunState, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


@dataclass(slots=True)
class _Done:
    """A finished piece of work: its result and, for questions, the reply."""

    result: Result
    answered: Answered | None = None
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class Runner:
    """The execution of one run from its stored state. `changed` is called after each write."""

    def __init__(
        self,
        store: RunStore,
        run: Stored,
        writer: RunWriter,
        strategy: Strategy,
        model: Model,
        platform: Platform,
        *,
        changed: Callable[[], None] = lambda: None,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._store, self._run, self._writer = store, run, writer
        self._strategy, self._model, self._platform = strategy, model, platform
        self._changed, self._pauses = changed, pauses
        self._ledger = Ledger(run.request.limits)
        self._tasks: dict[asyncio.Task[_Done], Asked] = {}
        self._ready: list[Asked] = []
        self._search: Search | None = None
        self._ending: set[asyncio.Task[_Done]] = set()
        # Questions that an earlier process sent, by name, with their replies.
        self._sent: dict[str, tuple[StoredCall, Reply | None]] = {}
        # Stored with the next batch, since it follows from earlier results.
        self._noted = Batch()
        self._shown: dict[str, dict[str, Any]] = {}
        self._over: set[str] = set()
        self._fixes = list(run.fixes)
        self._stop = asyncio.Event()
        self._begun_at = time.monotonic()

    async def submitted(self, name: str, job: int) -> None:
        """Record the job of a piece of work."""
        event = ("job", {"name": name, "job": job})
        await self._write(Batch(events=[event], jobs=[(name, job)]))

    def stop(self) -> None:
        """Ask the run to stop."""
        self._stop.set()

    async def run(self) -> RunState:
        """Execute the run; return its final state."""
        watching = asyncio.create_task(self._watch_for_stop())
        cancelled: asyncio.CancelledError | None = None
        try:
            ended = await self._ended()
        except asyncio.CancelledError as error:
            await self._drop()
            ended, cancelled = Ended(RunState.INTERRUPTED, "the agent was stopped"), error
        finally:
            await tasks.end([watching])
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
            return Ended(RunState.FAILED, f"{error.reason}: {error.message}")
        except Exception as error:  # noqa: BLE001 - the run reports it; other runs continue
            _LOG.exception("run %d failed", self._run.id)
            return Ended(RunState.FAILED, f"internal_error: {type(error).__name__}: {error}")
        finally:
            await self._drop()
        if self._search is not None and self._search.fixes():
            return Ended(RunState.RESOLVED, "")
        return Ended(RunState.UNRESOLVED, "the search is over; no patch resolves the bug")

    # --- the beginning --------------------------------------------------------------------

    async def _begin(self) -> None:
        """Show the bug, or reuse the stored crash; replay stored results to the search."""
        spent = await self._store.read(self._run.id, RunRecord.spent)
        # Builds and checks are counted again below, from their results.
        self._ledger.spent = spent.model_copy(update={"builds": 0, "checks": 0})
        begun = self._run.begun
        if begun is None:
            await self._write(Batch(events=[("started", {"doing": "showing the bug"})]))
            begun = await self._unless_stopped(self._platform.begin())
            event: dict[str, Any] = {"title": begun.crash.title, "files": list(begun.files)}
            event |= {"notes": begun.notes, "job": begun.job}
            await self._write(Batch(events=[(BEGIN, event)], begun=begun))
        else:
            await self._platform.resume(begun)
            await self._write(Batch(events=[("resumed", {"title": begun.crash.title})]))
        state = State(
            Code(dict(begun.files)),
            begun.crash,
            cause=begun.cause,
            program=begun.program,
            discussion=begun.discussion,
        )
        self._search = search = Search(self._strategy, state, begun.trace)
        for name, result in await self._store.read(self._run.id, RunRecord.results):
            search.tell(name, result)
            self._ledger.count_result(result)
        search.dropped()
        self._ready = search.ask()
        self._sent = await self._store.read(self._run.id, RunRecord.unfinished_calls)

    async def _unless_stopped(self, work: Any) -> Begun:
        """Wait for the platform's begin; a stop or the time limit ends it."""
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
            await tasks.end([task, stop])

    # --- the search -----------------------------------------------------------------------

    async def _go(self) -> None:
        search = self._search
        assert search is not None
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not search.done:
                await self._start()
                # Nothing runs and nothing may begin, so a limit was reached.
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
        """Begin the work that the limits allow."""
        # A turn of the run makes two entries in its file: results, before the search gets them,
        # and here the search's changes and the next questions, before they are sent.
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
        if batch != Batch() or self._noted != Batch():
            await self._write(batch)
        for asked in begun:
            task = asyncio.create_task(self._do(asked, calls.get(asked.name)))
            self._tasks[task] = asked

    async def _prepared(self, begun: Sequence[Asked], batch: Batch) -> dict[str, Call | Reply]:
        """Return the calls for questions, or their stored replies; add them to the batch."""
        prepared: dict[str, Call | Reply] = {}
        new: list[tuple[str, Question]] = []
        again: set[str] = set()
        for asked in begun:
            before, reply = self._sent.pop(asked.name, (None, None))
            if reply is not None:
                prepared[asked.name] = reply
                continue
            lost = before is not None and before.answered_at is None
            given_up = before is not None and lost and before.lost >= SENT_AGAIN
            kind = "lost" if given_up else "asked_again" if lost else "asked"
            work = asked.work
            event = {"name": asked.name, "node": work.node, "work": work.word}
            batch.events.append((kind, event))
            if isinstance(work, Question) and not given_up:
                new.append((asked.name, work))
                again |= {asked.name} if before is not None else set()
        if new:
            for call, sent in await asyncio.to_thread(self._calls, new, again):
                prepared[sent.name] = call
                batch.sent.append(sent)
        return prepared

    def _calls(
        self, questions: Sequence[tuple[str, Question]], again: set[str]
    ) -> list[tuple[Call, Sent]]:
        """Return the calls for questions, and the entries that store them."""
        calls = []
        for name, question in questions:
            call = call_of(question, self._platform)
            sent = Sent(
                name,
                question.node,
                str(question.purpose),
                system=call.prompt.system,
                prompt=call.prompt.text,
                turns=len(call.turns),
                last_turn=call.turns[-1] if call.turns else None,
                again=name in again,
                tape_key=tape.key(call),
                occurrence=call.occurrence,
            )
            calls.append((call, sent))
        return calls

    async def _do(self, asked: Asked, call: Call | Reply | None) -> _Done:
        work = asked.work
        if isinstance(work, PlatformWork):
            return _Done(await self._platform.do(asked.name, work))
        if isinstance(call, Reply):
            return _Done(answer_of(call))
        if call is None:
            reason = "the answer was lost twice; the question is not paid for again"
            return _Done(Unanswered(reason=reason))
        return await self._answer(asked, call)

    async def _answer(self, asked: Asked, call: Call) -> _Done:
        # An unusable answer is asked for once more: a single one must not end a conversation.
        again = {"answer_unreadable": [0.0], "answer_has_key": [0.0]}
        again["model_unavailable"] = list(self._pauses)
        while True:
            try:
                reply = clean(await self._model.ask(call))
            except ModelError as error:
                event = {"name": asked.name, "reason": error.reason, "message": error.message}
                failed = Answered(asked.name, error=f"{error.reason}: {error.message}")
                if pauses := again.get(error.reason):
                    await self._write(Batch(events=[("waiting", event)]))
                    await asyncio.sleep(pauses.pop(0))
                    continue
                if error.fatal or error.reason == "model_unavailable":
                    await self._write(Batch(answered=[failed], events=[("unanswered", event)]))
                    reason = f"{error.reason}: {error.message}"
                    raise Ended(RunState.FAILED, reason) from error
                return _Done(Unanswered(reason=error.reason), failed, [("unanswered", event)])
            events = [("refused_setting", {"settings": reply.refused})] if reply.refused else []
            return _Done(answer_of(reply), Answered(asked.name, reply), events)

    async def _take(self, done: list[asyncio.Task[_Done]]) -> None:
        """Store results, then pass them to the search; cancel work that becomes unnecessary."""
        assert self._search is not None
        batch, results = Batch(), []
        failed: BaseException | None = None
        # Sorted: the order in the file decides the course of the search, and sets have none.
        for task in sorted(done, key=lambda task: self._tasks[task].name):
            asked = self._tasks.pop(task)
            error = task.exception()
            if error is not None:
                failed = failed or error
                continue
            came = task.result()
            if came.answered is not None:
                batch.answered.append(came.answered)
                self._ledger.paid(came.answered.reply)
            self._ledger.count_result(came.result)
            batch.results.append((asked.name, came.result))
            batch.events += [*came.events, ("result", _result_event(asked, came))]
            results.append((asked, came.result))
        if results:
            await self._write(batch)
        for asked, result in results:
            self._search.tell(asked.name, result)
            await self._forget(set(self._search.dropped()))
            self._ready += self._search.ask()
        if failed is not None:
            raise failed

    async def _forget(self, dropped: set[str]) -> None:
        """Cancel dropped work."""
        if not dropped:
            return
        self._ready = [asked for asked in self._ready if asked.name not in dropped]
        gone = {task: asked for task, asked in self._tasks.items() if asked.name in dropped}
        for task, asked in gone.items():
            task.cancel()
            del self._tasks[task]
            self._noted.events.append(("dropped", {"name": asked.name, "node": asked.work.node}))
        questions = {
            task: asked for task, asked in gone.items() if isinstance(asked.work, Question)
        }
        # Questions are awaited, since a reply may have come and be paid for; aborting a job takes
        # longer.
        self._ending |= gone.keys() - questions.keys()  # jobs are aborted meanwhile
        await asyncio.gather(*questions, return_exceptions=True)
        for task, asked in questions.items():
            self._noted.answered += self._unheard(task, asked)

    def _unheard(self, task: asyncio.Task[_Done], asked: Asked) -> list[Answered]:
        """Return the entry for a cancelled question: its reply, if it came meanwhile."""
        if not isinstance(asked.work, Question):
            return []
        if task.done() and not task.cancelled() and task.exception() is None:
            answered = task.result().answered
            if answered is not None:
                self._ledger.paid(answered.reply)
            return [answered] if answered else []
        return [Answered(asked.name, error="stopped: no longer needed by the search", dropped=True)]

    # --- the end --------------------------------------------------------------------------

    async def _drop(self) -> None:
        """Cancel all work, and store replies that came meanwhile."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        ending, self._ending = {*tasks, *self._ending}, set()
        if ending:
            await asyncio.wait(ending, timeout=ABORT_SECONDS)
        batch = Batch()
        for task, asked in tasks.items():
            batch.answered += self._unheard(task, asked)
        if batch.answered:
            await self._write(batch)

    async def _end(self, ended: Ended) -> None:
        batch = Batch()
        state = ended.state
        if self._search is not None:
            if state is not RunState.INTERRUPTED:
                self._search.stop()
            self._note_fixes()
            # A run with a fix is resolved, however it or the fix's review ended.
            if self._fixes and state in {RunState.LIMITED, RunState.STOPPED, RunState.FAILED}:
                state = RunState.RESOLVED
            self._note_nodes()
        ends(batch, state, ended.reason)
        await self._write(batch)

    def _check_end(self) -> None:
        if self._stop.is_set():
            raise Ended(RunState.STOPPED, "stopped")

    async def _watch_for_stop(self) -> None:
        """Stop the run once another process asks for it."""
        while True:
            await asyncio.sleep(STOP_SECONDS)
            if self._writer.stop_is_wanted():
                self._stop.set()
                return

    # --- helpers --------------------------------------------------------------------------

    async def _write(self, batch: Batch) -> None:
        """Store a batch, even if this task is cancelled meanwhile."""
        self._pass()
        noted, self._noted = self._noted, Batch()
        batch = noted.followed_by(batch)
        spent = self._ledger.spent
        batch.used = Used(spent.seconds, spent.builds, spent.checks)
        await whole(self._writer.write(batch))
        self._changed()

    def _pass(self) -> None:
        now = time.monotonic()
        self._ledger.passed(now - self._begun_at)
        self._begun_at = now

    def _left(self) -> float:
        self._pass()
        return max(0.0, self._run.request.limits.seconds - self._ledger.spent.seconds)

    def _note_nodes(self) -> None:
        """Add changed nodes to the next batch."""
        if self._search is None:
            return
        at_work = {asked.work.node for asked in [*self._tasks.values(), *self._ready]}
        for number, node in enumerate(self._search.nodes.values()):
            if node.name in self._over:
                continue
            dumped = node.model_dump(mode="json")
            if self._shown.get(node.name) != dumped:
                self._shown[node.name] = dumped
                self._noted.nodes.append(StoredNode(number, dumped))
                view = NodeView.of(node).model_dump(mode="json")
                self._noted.events.append(("node", view))
            if node.outcome is not None and node.name not in at_work:
                self._over.add(node.name)
                del self._shown[node.name]

    def _note_fixes(self) -> None:
        """Add changed fixes to the next batch."""
        assert self._search is not None
        fixes = self._search.fixes()
        if fixes != self._fixes:
            self._fixes = fixes
            self._noted.fixes = fixes
            self._noted.events.append(("fix", {"nodes": [fix.node for fix in fixes]}))


def ends(batch: Batch, state: RunState, reason: str) -> None:
    """Add the end of the run to a batch."""
    batch.events.append(("ended", {"state": str(state), "reason": reason}))
    batch.ended = state, reason


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work to complete even if this task is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # or asyncio would log that it was never retrieved
        raise


def _result_event(asked: Asked, came: _Done) -> dict[str, Any]:
    """Return the data of an event of kind `result`."""
    event: dict[str, Any] = {"name": asked.name, "node": asked.work.node, "work": asked.work.word}
    match came.result:
        case Checked(patches=patches):
            event["outcomes"] = [str(patch.outcome) for patch in patches]
        case Tried() as tried:
            event |= {"verdict": str(tried.verdict), "reason": tried.reason[:500], "job": tried.job}
            event |= {"crash": tried.crash.title if tried.crash else None}
            event |= {"obstacles": tried.obstacles}
        case Unanswered(reason=reason):
            event["unanswered"] = reason[:500]
    reply = came.answered.reply if came.answered else None
    if reply is not None:
        event |= {"price": reply.price, "seconds": reply.seconds}
        event |= {"tokens": reply.input_tokens + reply.output_tokens}
    return event
