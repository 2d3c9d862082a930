"""The agent: starts, resumes, stops and shows runs. The REST interface and the commands use it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import sha256

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
from kgym.api.agent.steps import CallExcerpt, CallPage, RunStep
from kgym.api.agent.strategy import Strategy, traced
from kgym.bugs.bug import Bug
from kgym.errors import Conflict, Forbidden, KgymError, NotFound, UserError
from kgym_crashfixer import strategies
from kgym_crashfixer.models.model import Model
from kgym_crashfixer.platform_protocol import Platform, Submitted
from kgym_crashfixer.runs import bugs, result, views
from kgym_crashfixer.runs.run_store import Batch, Once, RunRecord, RunStore, RunWriter, Stored
from kgym_crashfixer.runs.runner import PAUSES, Runner, ends, whole

# Opens the platform that does the work of a run.
OpenPlatform = Callable[[Stored, Bug, Strategy, Submitted], AbstractAsyncContextManager[Platform]]
# Opens the model of this name; raises UserError `bad_model`.
OpenModel = Callable[[str], Model]
# How often those who follow a run look for what another process has stored.
LOOK_SECONDS = 0.5
# Questions that a search reads together: each may have a megabyte.
ROWS = 20
# Questions that one search looks through.
READ_AT_ONCE = 200
_FINAL = {RunState.RESOLVED, RunState.UNRESOLVED}


class Agent:
    """The runs of a folder; `close` stops those of this process, which can be resumed."""

    def __init__(
        self,
        store: RunStore,
        open_model: OpenModel,
        open_platform: OpenPlatform,
        *,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        self._store, self._pauses = store, pauses
        # Called with all that this process stores of its runs.
        self.observers = store.observers
        self._open_model, self._open_platform = open_model, open_platform
        self._tasks: dict[int, asyncio.Task[RunState]] = {}
        self._runners: dict[int, Runner] = {}
        self._changes: dict[int, asyncio.Event] = {}

    async def start(
        self, request: RunRequest, key: str | None = None, submitter: str = "local"
    ) -> int:
        """Begin a run; return its number. Raises UserError for what cannot be begun."""
        return (await self.begin(request, key, submitter))[0]

    async def begin(self, request: RunRequest, key: str | None, submitter: str) -> tuple[int, bool]:
        """Begin a run; return its number, and whether it is new.

        A submitter who has used the idempotency key before gets that run, as it stands. Raises
        Conflict `key_reused` if its request differs.
        """
        once = Once(key, sha256(request.model_dump_json().encode()).hexdigest()) if key else None
        strategy = strategy_of(request)
        await asyncio.to_thread(bugs.load, request)
        await (await asyncio.to_thread(self._open_model, request.model)).close()
        if isinstance(request.strategy, str):
            # As it is now, whatever the file says when the run is resumed.
            request = request.model_copy(update={"strategy": strategy})
        name, own = strategy.name or strategy.kind, secrets.token_hex(16)
        run, new = await self._store.create(request, own, name, submitter, once)
        if new:
            await self._execute(run)
        return run, new

    async def resume(
        self, run: int, limits: Limits | None = None, owner: str | None = None
    ) -> None:
        """Go on with a run that is not under way, perhaps with other limits.

        Raises NotFound, Forbidden for another's (`owner`; None: anybody's), and Conflict for one
        that is under way or has come to its end.
        """
        state = await self._permitted(run, owner)
        if state in _FINAL:
            raise Conflict("run_over", f"run {run} is over: {state}", run=run)
        await self._execute(run, limits)

    async def stop(self, run: int, owner: str | None = None) -> None:
        """End a run as it is; another process that executes it does so within a second."""
        state = await self._permitted(run, owner)
        if state is not RunState.RUNNING:
            raise Conflict("run_not_under_way", f"run {run} is {state}", run=run)
        if run in self._runners:
            self._runners[run].stop()
        await self._store.want_stop(run)

    async def wait(self, run: int) -> RunState:
        """Return how a run of this process ended."""
        return await self._tasks[run]

    async def close(self) -> None:
        """Stop the runs of this process; they can be resumed."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

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
        """Take the run, and execute it in a task of its own."""
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
        except KgymError as error:  # the platform cannot be opened, or the run cannot be stored
            batch = Batch()
            ends(batch, RunState.FAILED, f"{error.reason}: {error.message}")
            await writer.write(batch)
            return RunState.FAILED
        finally:
            self._runners.pop(stored.id, None)
            await whole(self._store.release(stored.id, writer))
            changed.set()
            await model.close()

    # --- what others see ------------------------------------------------------------------

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> RunPage:
        """Return runs, the newest first."""
        runs = await self._store.page(before, limit + 1, wanted)
        return RunPage(runs=runs[:limit], next=runs[limit - 1].id if len(runs) > limit else None)

    async def counts(self) -> tuple[dict[RunState, int], int]:
        """Count the runs in each state, and the questions that have no answer yet."""
        return await self._store.counts()

    async def show(self, run: int) -> RunView:
        """Return the run as it stands."""
        return await self._store.read(run, views.run_view)

    async def node(self, run: int, name: str) -> Node:
        """Return a debug cycle whole: hypotheses, candidates, what became of them."""
        return await self._store.read(run, lambda record: record.node(name))

    async def calls(self, run: int, node: str | None = None) -> list[CallView]:
        """Return the questions of a node, or of the whole run, and their answers."""
        return await self._store.read(
            run, lambda record: [record.call(name) for name in record.call_names(node)]
        )

    async def call(self, run: int, name: str) -> CallView:
        """Return a question, and its answer."""
        return await self._store.read(run, lambda record: record.call(name))

    async def steps(self, run: int, node: str) -> list[RunStep]:
        """Return what a debug cycle did, in the order in which it began."""
        return await self._store.read(
            run, lambda record: views.steps(record.work(node), record.jobs)
        )

    async def search(
        self,
        run: int,
        text: str | None = None,
        node: str | None = None,
        purpose: str | None = None,
        cursor: int = 0,
        limit: int = 50,
    ) -> CallPage:
        """Return the questions that contain a text, or whose answers do; all without one.

        A call looks through 200 questions at most: the page may be empty, and have a cursor.
        """
        names = await self._store.read(run, lambda record: record.call_names(node, purpose))
        excerpts: list[CallExcerpt] = []
        last = min(len(names), cursor + READ_AT_ONCE)
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
        """Yield the run's events, from the first after number `after`, until the run ends."""
        changed = self._changes.setdefault(run, asyncio.Event())
        while True:
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
        """Return a fix as `git am` takes it; the best one has number 1."""
        return result.patch(await self._fix(run, number), author)

    async def report(self, run: int, number: int = 1) -> Report:
        """Return the evidence for a fix."""
        return result.report(await self._fix(run, number))

    async def _fix(self, run: int, number: int) -> "result.RunFix":
        view = await self.show(run)
        fix = next((fix for fix in view.ranked if fix.number == number), None)
        if fix is None:
            count = len(view.ranked)
            message = f"run {run} ({view.state}) has {count} fixes; there is no number {number}"
            raise NotFound("fix_not_found", message, run=run)
        stored = await self._store.read(run, RunRecord.stored)
        bug = await asyncio.to_thread(bugs.load, stored.request)
        node = await self.node(run, fix.node)
        assert stored.begun is not None
        return result.RunFix(view, fix, node, bug.file, stored.begun)


def _state_and_events(record: RunRecord, after: int) -> tuple[RunState, list[Event]]:
    return record.state, record.events(after)


def strategy_of(request: RunRequest) -> Strategy:
    """Return the strategy that a request names or gives, with what else it says of it."""
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
