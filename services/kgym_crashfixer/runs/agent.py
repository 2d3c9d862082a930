"""The agent: start, resume, stop and show runs, for the REST interface and for commands.

Commands use it directly if no agent service runs: a first run needs no service, which is for many
users of one key. Both share the classes and the store.
"""

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256

from kgym import tasks
from kgym.api.agent.nodes import Node
from kgym.api.agent.report import Report
from kgym.api.agent.runs import (
    CallView,
    Event,
    Limits,
    RunFilter,
    RunPage,
    RunRequest,
    RunState,
    RunView,
)
from kgym.api.agent.steps import CallExcerpt, CallPage, CallViewPage, RunStep
from kgym.api.agent.strategy import Strategy, traced
from kgym.bugs.bug import Bug
from kgym.errors import Conflict, Forbidden, KgymError, NotFound, UserError
from kgym_crashfixer import strategies
from kgym_crashfixer.models.model import Model
from kgym_crashfixer.platform_protocol import Platform, Submitted
from kgym_crashfixer.runs import bugs, result, views
from kgym_crashfixer.runs.run_store import Batch, Created, RunRecord, RunStore, RunWriter, Stored
from kgym_crashfixer.runs.runner import PAUSES, Runner, ends, whole

# Opens the platform that does the work of a run.
OpenPlatform = Callable[[Stored, Bug, Strategy, Submitted], AbstractAsyncContextManager[Platform]]
# Opens the model of this name; raises UserError `bad_model`.
OpenModel = Callable[[str], Model]
# Interval at which followers of a run look for events of another process.
LOOK_SECONDS = 0.5
# Questions that a search reads at a time: each may have a megabyte.
ROWS = 20
# Questions that one search request reads.
READ_AT_ONCE = 200
_FINAL = {RunState.RESOLVED, RunState.UNRESOLVED}


class Agent:
    """The runs of a folder."""

    def __init__(
        self,
        store: RunStore,
        open_model: OpenModel,
        open_platform: OpenPlatform,
        *,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        self._store, self._pauses = store, pauses
        # Called with each batch that this process stores.
        self.observers = store.observers
        self._open_model, self._open_platform = open_model, open_platform
        self._tasks: dict[int, asyncio.Task[RunState]] = {}
        self._runners: dict[int, Runner] = {}
        self._changes: dict[int, asyncio.Event] = {}
        self._loading: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(
        self, request: RunRequest, key: str | None = None, submitter: str = "local"
    ) -> int:
        """Begin a run; return its number. Raises UserError for an invalid request."""
        return (await self.begin(request, key, submitter))[0]

    async def begin(self, request: RunRequest, key: str | None, submitter: str) -> tuple[int, bool]:
        """Begin a run; return its number, and whether it is new.

        If the submitter has used the idempotency key before, it is the number of that run. Raises
        Conflict `key_reused` if the requests differ.
        """
        body_hash = sha256(request.model_dump_json().encode()).hexdigest()
        strategy = strategy_of(request)
        # One at a time for each submitter: they would take all threads.
        async with self._loading[submitter]:
            await asyncio.to_thread(bugs.load, request)
        # Opened once to reject a wrong model or a missing key before the run exists.
        await (await asyncio.to_thread(self._open_model, request.model)).close()
        if isinstance(request.strategy, str):
            # Stored by value: the strategy's file may have changed when the run is resumed.
            request = request.model_copy(update={"strategy": strategy})
        created = Created(
            key=secrets.token_hex(16),
            strategy=strategy.name or strategy.kind,
            submitter=submitter,
            request=request,
            created_at=datetime.now(UTC),
            idempotency_key=key,
            body_hash=body_hash,
        )
        run, new = await self._store.create(created)
        if new:
            await self._execute(run)
        return run, new

    async def resume(
        self, run: int, limits: Limits | None = None, owner: str | None = None
    ) -> None:
        """Continue a run that is not running, optionally with other limits.

        Raises NotFound, Forbidden for another submitter's run (unless `owner` is None), and
        Conflict for a run that is running or over.
        """
        state = await self._permitted(run, owner)
        if state in _FINAL:
            raise Conflict("run_over", f"run {run} is over: {state}", run=run)
        await self._execute(run, limits)

    async def stop(self, run: int, owner: str | None = None) -> None:
        """Stop a run; another process that executes it takes up to a second."""
        state = await self._permitted(run, owner)
        if state is not RunState.RUNNING:
            raise Conflict("run_not_under_way", f"run {run} is {state}", run=run)
        if run in self._runners:
            self._runners[run].stop()
        await self._store.want_stop(run)

    async def wait(self, run: int) -> RunState:
        """Wait for a run of this process; return its final state."""
        return await self._tasks[run]

    async def close(self) -> None:
        """Interrupt the runs of this process; they can be resumed."""
        await tasks.end(self._tasks.values())

    async def _permitted(self, run: int, owner: str | None) -> RunState:
        """Return the run's state; raise Forbidden if it is another submitter's."""
        submitter, state = await self._store.read(
            run, lambda record: (record.created.submitter, record.state)
        )
        if owner not in {None, submitter}:
            raise Forbidden(
                "not_your_run",
                f"run {run} is {submitter}'s: only that token, or one with the scope admin,"
                " may do this",
                run=run,
            )
        return state

    async def _execute(self, run: int, limits: Limits | None = None) -> None:
        """Take the run and execute it in a task."""
        request = await self._store.read(run, lambda record: record.request)
        if limits is not None:
            request = request.model_copy(update={"limits": limits})
        strategy = strategy_of(request)
        bug = await asyncio.to_thread(bugs.load, request)
        model = await asyncio.to_thread(self._open_model, request.model)
        try:
            writer = await self._store.take(run, request)
        except BaseException:
            await model.close()
            raise
        stored = await self._store.read(run, RunRecord.stored)
        self._tasks[run] = asyncio.create_task(self._run(stored, writer, bug, strategy, model))

    async def _run(
        self, stored: Stored, writer: RunWriter, bug: Bug, strategy: Strategy, model: Model
    ) -> RunState:
        changed = self._changes.setdefault(stored.id, asyncio.Event())
        runner: Runner | None = None

        async def submitted(name: str, job: int) -> None:
            if runner is not None:
                await runner.submitted(name, job)

        try:
            async with self._open_platform(stored, bug, strategy, submitted) as platform:
                runner = Runner(
                    self._store,
                    stored,
                    writer,
                    strategy,
                    model,
                    platform,
                    changed=changed.set,
                    pauses=self._pauses,
                )
                self._runners[stored.id] = runner
                return await runner.run()
        except KgymError as error:  # opening the platform or storing the run failed
            batch = Batch()
            ends(batch, RunState.FAILED, f"{error.reason}: {error.message}")
            await writer.write(batch)
            return RunState.FAILED
        finally:
            self._runners.pop(stored.id, None)
            await whole(self._store.release(stored.id, writer))
            changed.set()
            await model.close()

    # --- views of runs --------------------------------------------------------------------

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> RunPage:
        """Return a page of runs, newest first."""
        runs = await self._store.page(before, limit + 1, wanted)
        return RunPage(runs=runs[:limit], next=runs[limit - 1].id if len(runs) > limit else None)

    async def counts(self) -> tuple[dict[RunState, int], int]:
        """Count the runs in each state, and open questions."""
        return await self._store.counts()

    async def show(self, run: int) -> RunView:
        """Return the current view of a run."""
        return await self._store.read(run, views.run_view)

    async def node(self, run: int, name: str) -> Node:
        """Return a debug cycle with its hypotheses, candidates and results."""
        return await self._store.read(run, lambda record: record.node(name))

    async def calls(self, run: int, node: str | None = None) -> list[CallView]:
        """Return the questions and answers of a node, or of the whole run."""
        return await self._store.read(
            run, lambda record: [record.call(name) for name in record.call_names(node)]
        )

    async def call_page(self, run: int, node: str | None, cursor: int, limit: int) -> CallViewPage:
        """Return a page of `calls`."""
        page = partial(views.call_page, node=node, cursor=cursor, limit=limit)
        return await self._store.read(run, page)

    async def call(self, run: int, name: str) -> CallView:
        """Return a question and its answer."""
        return await self._store.read(run, lambda record: record.call(name))

    async def steps(self, run: int, node: str) -> list[RunStep]:
        """Return the steps of a debug cycle, in the order in which they began."""
        return await self._store.read(
            run, lambda record: views.steps(record.work(node), record.jobs)
        )

    async def search(
        self,
        run: int,
        text: str | None,
        node: str | None,
        purpose: str | None,
        cursor: int,
        limit: int,
    ) -> CallPage:
        """Return questions that contain a text, or whose answers do; without a text, all.

        A call reads at most 200 questions, so a page may be empty and still have a cursor.
        """
        names = await self._store.read(run, lambda record: record.call_names(node, purpose))
        excerpts: list[CallExcerpt] = []
        last = min(len(names), cursor + READ_AT_ONCE)
        # Read in parts, so that a search over long prompts neither blocks the store nor fills
        # memory.
        while cursor < last and len(excerpts) < limit:
            part = names[cursor : min(last, cursor + ROWS)]
            new = await self._store.read(run, partial(views.excerpts, names=part, text=text))
            for excerpt in new:
                cursor += 1
                if excerpt is not None:
                    excerpts.append(excerpt)
                if len(excerpts) == limit:
                    break
        return CallPage(calls=excerpts, next=cursor if cursor < len(names) else None)

    async def follow(self, run: int, after: int = 0) -> AsyncIterator[Event]:
        """Yield the run's events after number `after` until the run ends."""
        changed = self._changes.setdefault(run, asyncio.Event())
        while True:
            # The event wakes followers at once for a run of this process. Another process's run is
            # polled.
            changed.clear()
            state, new = await self._store.read(run, partial(_state_and_events, after=after))
            for event in new:
                yield event
                after = event.number
            if not new and state is not RunState.RUNNING:
                return
            if not new:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_SECONDS)

    async def patch(self, run: int, number: int = 1, author: str | None = None) -> str:
        """Return a fix as a mail for `git am`; the best one has number 1."""
        return result.kit(await self._fix(run, number), author).mail

    async def report(self, run: int, number: int = 1) -> Report:
        """Return the evidence for a fix; the best one has number 1."""
        return result.report(await self._fix(run, number))

    async def _fix(self, run: int, number: int) -> "result.RunFix":
        view = await self.show(run)
        fix = next((fix for fix in view.ranked if fix.number == number), None)
        if fix is None:
            count = len(view.ranked)
            message = f"run {run} ({view.state}) has {count} fixes, and no number {number}"
            raise NotFound("fix_not_found", message, run=run)
        stored = await self._store.read(run, RunRecord.stored)
        bug = await asyncio.to_thread(bugs.load, stored.request)
        node = await self.node(run, fix.node)
        assert stored.begun is not None
        return result.RunFix(view, fix, node, bug.file, stored.begun)


def _state_and_events(record: RunRecord, after: int) -> tuple[RunState, list[Event]]:
    return record.state, record.events(after)


def strategy_of(request: RunRequest) -> Strategy:
    """Return the request's strategy, with its other options applied."""
    given = request.strategy
    if isinstance(given, str):
        if given.endswith(".toml") or given not in strategies.names():
            known = ", ".join(strategies.names())
            raise UserError("bad_strategy", f"there is no strategy {given}; there are: {known}")
        given = strategies.load(given)
    if request.files:
        given = given.model_copy(update={"localisation": "given"})
    elif given.localisation == "given":
        raise UserError("bad_strategy", "localisation `given` needs `files`")
    return given if request.trace else traced(given, trace=False)
