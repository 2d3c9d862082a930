"""The agent: starts, resumes, stops and shows runs. The REST interface and the commands use it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256

from kgym.api.agent.nodes import Node
from kgym.api.agent.report import Report
from kgym.api.agent.runs import (
    CallView,
    Event,
    Limits,
    NodeView,
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
from kgym_crashfixer.errors import LostRun
from kgym_crashfixer.models.model import Model
from kgym_crashfixer.platform_protocol import Platform, Submitted
from kgym_crashfixer.runs import bugs, process, result, said, steps
from kgym_crashfixer.runs.runner import PAUSES, Runner, ends
from kgym_crashfixer.store.run_store import Batch, Once, RunStore, Stored

OpenPlatform = Callable[[Stored, Bug, Strategy, Submitted], AbstractAsyncContextManager[Platform]]
"""Gives what does the work of a run, while the context lasts."""
OpenModel = Callable[[str], Model]
"""Gives the model of this name; raises UserError `bad_model`."""
LOOK_SECONDS = 0.5
"""How often those who follow a run look for what another process has stored."""
_FINAL = {RunState.RESOLVED, RunState.UNRESOLVED}


class Agent:
    """Runs of one database; `close` stops those of this process, which can be resumed."""

    def __init__(
        self,
        store: RunStore,
        open_model: OpenModel,
        open_platform: OpenPlatform,
        *,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        self._store, self._pauses = store, pauses
        self.observers = store.observers
        """Told of all that this process stores of its runs."""
        self._open_model, self._open_platform = open_model, open_platform
        self._holder = process.own()
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

        Where the submitter has begun one by this idempotency key, it is that one, as it stands.
        Raises Conflict `key_reused` if its request was another.
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
            await self._carry_out(run)
        return run, new

    async def resume(
        self, run: int, limits: Limits | None = None, owner: str | None = None
    ) -> None:
        """Go on with a run that is not under way, perhaps with other limits.

        Raises NotFound, Forbidden for another's (`owner`; None: anybody's), and Conflict for one
        that is under way or has come to its end.
        """
        stored = await self._owned(run, owner)
        if stored.state in _FINAL:
            raise Conflict("run_over", f"run {run} is over: {stored.state}", run=run)
        await self._carry_out(run, limits)

    async def stop(self, run: int, owner: str | None = None) -> None:
        """End a run as it is; whoever carries it out hears of it within a second."""
        stored = await self._owned(run, owner)
        if stored.state is not RunState.RUNNING:
            raise Conflict("run_not_under_way", f"run {run} is {stored.state}", run=run)
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

    async def _owned(self, run: int, owner: str | None) -> Stored:
        stored = await self._store.get(run)
        if owner not in {None, stored.submitter}:
            raise Forbidden(
                "not_your_run",
                f"run {run} is {stored.submitter}'s: only that token, or one with the scope admin,"
                " may do this",
                run=run,
            )
        return stored

    async def _carry_out(self, run: int, limits: Limits | None = None) -> None:
        """Take the run, and let it go on beside."""
        stored = await self._store.get(run)
        request = stored.request
        if limits is not None:
            request = request.model_copy(update={"limits": limits})
        strategy = strategy_of(request)
        bug = await asyncio.to_thread(bugs.load, request)
        model = await asyncio.to_thread(self._open_model, request.model)
        dead = stored.holder if stored.holder and process.dead(stored.holder) else None
        try:
            await self._store.take(run, self._holder, dead, request)
        except BaseException:
            await model.close()
            raise
        stored = await self._store.get(run)
        self._tasks[run] = asyncio.create_task(self._run(stored, bug, strategy, model))

    async def _run(self, stored: Stored, bug: Bug, strategy: Strategy, model: Model) -> RunState:
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
                    self._holder,
                    strategy,
                    model,
                    platform,
                    changed=changed.set,
                    pauses=self._pauses,
                )
                self._runners[stored.id] = runner
                return await runner.run()
        except LostRun:
            return RunState.INTERRUPTED
        except KgymError as error:  # there is no platform for it
            batch = Batch()
            ends(batch, RunState.FAILED, f"{error.reason}: {error.message}")
            await self._store.write(stored.id, self._holder, batch)
            return RunState.FAILED
        finally:
            self._runners.pop(stored.id, None)
            await model.close()
            changed.set()

    # --- what others see ------------------------------------------------------------------

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> RunPage:
        """Return runs, the newest first."""
        found = [await self._seen(one) for one in await self._store.page(before, limit + 1, wanted)]
        more = len(found) > limit
        kept = found[:limit]
        spent = await self._store.spent_by([one.id for one in kept])
        shown = [one.summary(spent[one.id]) for one in kept]
        return RunPage(runs=shown, next=kept[-1].id if more else None)

    async def counts(self) -> tuple[dict[RunState, int], int]:
        """Return how many runs are in each state, and how many questions are on their way."""
        return await self._store.counts()

    async def show(self, run: int) -> RunView:
        """Return the run as it stands."""
        position = await self._store.last_event(run)  # before the rest, which is newer then
        stored = await self._seen(await self._store.get(run))
        spent = await self._store.spent(run)
        doing = await self._doing(run) if stored.state is RunState.RUNNING else {}
        begun = stored.begun
        return RunView(
            **dict(stored.summary(spent)),
            title=begun.crash.title if begun else None,
            files=list(begun.files) if begun else [],
            notes=begun.notes if begun else [],
            limits=stored.request.limits,
            nodes=[NodeView.of(one, doing.get(one.name)) for one in await self._store.nodes(run)],
            ranked=stored.fixes,
            jobs=await self._store.jobs(run),
            position=position,
        )

    async def _doing(self, run: int) -> dict[str, list[str]]:
        """Return what each node waits for."""
        found: dict[str, list[str]] = {}
        for step in steps.steps(await self._store.work(run), {}):
            if step.ended_at is None:
                found.setdefault(step.node, []).append(step.work)
        return found

    async def node(self, run: int, name: str) -> Node:
        """Return a debug cycle whole: hypotheses, candidates, what became of them."""
        await self._store.get(run)
        for node in await self._store.nodes(run):
            if node.name == name:
                return node
        raise NotFound("node_not_found", f"run {run} has no node {name}", run=run, node=name)

    async def calls(self, run: int, node: str | None = None) -> list[CallView]:
        """Return the questions of a node, or of the whole run, and their answers."""
        await self._store.get(run)
        return [said.view(row) for row in await self._store.calls(run, node)]

    async def call(self, run: int, name: str) -> CallView:
        """Return a question, and its answer."""
        await self._store.get(run)
        row = await self._store.call(run, name)
        if row is None:
            raise NotFound("call_not_found", f"run {run} has no call {name}", run=run, call=name)
        return said.view(row)

    async def steps(self, run: int, node: str) -> list[RunStep]:
        """Return what a debug cycle did, in the order in which it began."""
        await self._store.get(run)
        jobs = await self._store.jobs(run)
        return steps.steps(await self._store.work(run, node), jobs)

    async def search(
        self,
        run: int,
        text: str | None = None,
        node: str | None = None,
        purpose: str | None = None,
        cursor: int = 0,
        limit: int = 50,
    ) -> CallPage:
        """Return the questions in which, or in whose answers, a text stands; without one, all.

        So many are read at a time; the page may have none, and a cursor from which to look further.
        """
        await self._store.get(run)
        found: list[CallExcerpt] = []
        most = cursor + said.READ_AT_ONCE
        while cursor < most and len(found) < limit:
            rows = await self._store.calls(run, node, purpose, (cursor, said.ROWS))
            for row in rows:
                cursor += 1
                excerpt = await asyncio.to_thread(said.excerpt, row, text)
                if excerpt is not None:
                    found.append(excerpt)
                if len(found) == limit:
                    break
            if len(rows) < said.ROWS and len(found) < limit:
                return CallPage(calls=found, next=None)
        return CallPage(calls=found, next=cursor)

    async def follow(self, run: int, after: int = 0) -> AsyncIterator[Event]:
        """Yield what happened, and what happens, until the run ends."""
        await self._store.get(run)
        changed = self._changes.setdefault(run, asyncio.Event())
        while True:
            changed.clear()
            stored = await self._seen(await self._store.get(run))
            new = await self._store.events(run, after)
            for event in new:
                yield event
                after = event.number
            if not new and stored.state is not RunState.RUNNING:
                return
            if not new:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_SECONDS)

    async def patch(self, run: int, number: int = 1, author: str | None = None) -> str:
        """Return a fix as `git am` takes it; the best one has number 1."""
        return result.patch(await self._found(run, number), author)

    async def report(self, run: int, number: int = 1) -> Report:
        """Return the evidence for a fix."""
        return result.report(await self._found(run, number))

    async def _found(self, run: int, number: int) -> "result.Found":
        view = await self.show(run)
        fix = next((one for one in view.ranked if one.number == number), None)
        if fix is None:
            count = len(view.ranked)
            message = f"run {run} ({view.state}) has {count} fixes; there is no number {number}"
            raise NotFound("fix_not_found", message, run=run)
        stored = await self._store.get(run)
        bug = await asyncio.to_thread(bugs.load, stored.request)
        node = await self.node(run, fix.node)
        assert stored.begun is not None
        return result.Found(view, fix, node, bug.file, stored.begun)

    async def _seen(self, stored: Stored) -> Stored:
        """Return the run; one whose process has ended is interrupted, whatever it says."""
        if stored.state is RunState.RUNNING and (
            stored.holder is None or process.dead(stored.holder) or stored.lapsed
        ):
            return stored.interrupted
        return stored


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
