"""Runs: stored as they go, resumed, limited, stopped; with models that misbehave."""

import asyncio
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kgym.api.agent.conversation import Reply, ToolCall
from kgym.api.agent.runs import Limits, RunState, RunView
from kgym.api.agent.strategy import Forest, Strategy, Tool
from kgym.errors import Conflict, NotFound
from kgym_crashfixer import event_file
from kgym_crashfixer.models.model import Call, Model
from kgym_crashfixer.models.provider import Provided
from kgym_crashfixer.runs.run_store import RunRecord
from tests.conftest import ROOT
from tests.crashfixer import agents
from tests.crashfixer.test_models import (
    KEY,
    Endpoint,
    Handle,
    Handler,
    answer,
    drop,
    endpoint,
    refuse,
)
from tests.crashfixer.world import FILE, FURTHER, edit
from tests.tables import json_rows

pytestmark = pytest.mark.anyio
__all__ = ["endpoint"]


async def ran(made: agents.Made, **how: Any) -> RunView:
    """Carry a run out; return it as it ended."""
    run = await made.agent.start(agents.request(**how))
    await made.agent.wait(run)
    return await made.agent.show(run)


async def test_a_run_finds_the_fix_and_keeps_all_that_happened(tmp_path: Path) -> None:
    model = agents.Guesser()
    async with agents.agent(tmp_path, model) as made:
        view = await ran(made)
        calls = await made.agent.calls(view.id)
        events = [event async for event in made.agent.follow(view.id)]
    assert (view.state, view.title) == (RunState.RESOLVED, "KASAN: out-of-bounds in f")
    assert [node.name for node in view.nodes] == ["t0", "t0.0", "t0.0.0"]
    assert [node.outcome for node in view.nodes] == ["crashed", "crashed", "resolved"]
    assert agents.new_limit(view.ranked[0].diff) == "16"
    assert view.notes == ["no trace: made up"]
    assert (view.spent.calls, view.spent.dollars) == (len(model.asked), len(model.asked) / 2)
    assert (view.spent.builds, view.spent.input_tokens) == (4, 100 * len(model.asked))
    assert [event.reply.text for event in calls if event.reply and event.purpose == "repair"]
    assert view.jobs["begin"] == [1]
    kinds = Counter(event.kind for event in events)
    assert kinds["result"] == kinds["asked"] == len(model.asked) + view.spent.checks + 4
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].data["state"] == "resolved"


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [1, 5, 9, 14, 20])
async def test_a_run_that_was_interrupted_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, cut: int
) -> None:
    whole, model = tmp_path / "whole", agents.Guesser()
    whole.mkdir()
    async with agents.agent(whole, agents.Guesser()) as made:
        uninterrupted = await ran(made)
        nodes = [await made.agent.node(1, node.name) for node in uninterrupted.nodes]
    async with agents.agent(tmp_path, model) as made:
        run = await made.agent.start(agents.request())
        results = 0
        async for event in made.agent.follow(run):
            results += event.kind == "result"
            if results == cut:
                break
    async with agents.agent(tmp_path, model) as made:
        assert (await made.agent.show(run)).state is not RunState.RUNNING
        if (await made.agent.show(run)).state is RunState.INTERRUPTED:
            await made.agent.resume(run)
            await made.agent.wait(run)
        view = await made.agent.show(run)
        again = [await made.agent.node(run, node.name) for node in view.nodes]
    assert view.ranked == uninterrupted.ranked
    assert again == nodes
    assert (view.spent.calls, view.spent.builds) == (len(model.asked), 4)


@pytest.mark.thorough
@pytest.mark.parametrize("at", [2, 7])
async def test_an_agent_that_was_killed_goes_on_and_pays_for_nothing_twice(
    tmp_path: Path, endpoint: Endpoint, at: int
) -> None:
    """The questions that were on their way are asked once more, and the run says so."""
    held: list[Handler] = []
    release = threading.Event()

    def answering(handler: Handler) -> None:
        if len(endpoint.asked) >= at and not release.is_set():
            held.append(handler)
            release.wait(60)
        text = handler.body["messages"][-1]["content"]
        answer(agents.guess(agents.purpose_of(text), text))(handler)

    endpoint.script = [answering]
    models = f"http://127.0.0.1:{endpoint.server_port}/v1"
    async with agents.agent(tmp_path, agents.Guesser()) as made:
        process = started(tmp_path, models, "start")
        # Of equal questions, which go out together, one may still be within the process.
        while not held or len(held) < await open_questions(made):
            assert process.poll() is None
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        release.set()
        resumed = started(tmp_path, models, "resume")
        state, _ = await asyncio.to_thread(resumed.communicate, None, 60)
        assert state.split() == [b"resolved"]
        view = await made.agent.show(1)
        calls = await made.agent.calls(1)
        events = [event async for event in made.agent.follow(1)]
    assert agents.new_limit(view.ranked[0].diff) == "16"
    sent_again = [call.name for call in calls if call.asked > 1]
    assert view.spent.lost_calls == len(sent_again) == len(held)
    assert len(endpoint.asked) == len(calls) + len(sent_again)
    again = [event.data["name"] for event in events if event.kind == "asked_again"]
    assert again == sent_again


async def open_questions(made: agents.Made) -> int:
    """Return how many questions are stored, and have no answer yet."""
    try:
        return await made.store.read(1, RunRecord.open_questions)
    except NotFound:
        return 1


def started(folder: Path, models: str, how: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crashfixer.agent_process", folder, models, how]
    path = f"{ROOT}:{ROOT / 'common'}:{ROOT / 'services'}"
    return subprocess.Popen(
        command, cwd=ROOT, env={"PYTHONPATH": path, "PATH": "/usr/bin"}, stdout=subprocess.PIPE
    )


async def test_a_question_of_which_nothing_was_heard_twice_is_not_sent_a_third_time(
    tmp_path: Path,
) -> None:
    async with agents.agent(tmp_path, agents.Guesser(pause=60)) as made:
        await made.agent.start(agents.request())
        await until_asked(made)
    for lost in (0, 1):
        forget_the_end(tmp_path)
        async with agents.agent(tmp_path, agents.Guesser(pause=60)) as made:
            await made.agent.resume(1)
            if lost == 0:
                await until_asked(made, times=2)
                continue
            async for event in made.agent.follow(1):
                if event.kind == "lost":
                    lost_call = event.data["name"]
                    break
            # The search goes on without the reply: it may have asked something else by now.
            calls = {call.name: call for call in await made.agent.calls(1)}
            assert calls[lost_call].asked == 2


def forget_the_end(folder: Path) -> None:
    """Remove what a run stored after its last questions, as if the process had been killed."""
    path = folder / "runs" / "1" / "events.gz"
    last = max(end for _, end, entry in event_file.entries(path) if entry.get("sent"))
    os.truncate(path, last)


async def until_asked(made: agents.Made, times: int = 1) -> None:
    while [call.asked for call in await made.agent.calls(1)] != [times, times]:
        await asyncio.sleep(0.02)


async def test_who_resumes_a_run_that_is_under_way_is_told(tmp_path: Path) -> None:
    async with (
        agents.agent(tmp_path, agents.Guesser(pause=60)) as made,
        agents.agent(tmp_path, agents.Guesser()) as other,
    ):
        run = await made.agent.start(agents.request())
        with pytest.raises(Conflict, match="running in another"):
            await other.agent.resume(run)
        await made.agent.stop(run)
        assert await made.agent.wait(run) is RunState.STOPPED


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("limits", "reason", "most_calls"), json_rows(__file__, "run_limits.jsonl")
)
async def test_a_limit_ends_a_run_with_what_it_has_and_more_lets_it_go_on(
    tmp_path: Path, limits: dict[str, float], reason: str, most_calls: int
) -> None:
    model = agents.Guesser(pause=0.05)
    async with agents.agent(tmp_path, model, slow=0.05) as made:
        run = await made.agent.start(agents.request(**limits))
        assert await made.agent.wait(run) is RunState.LIMITED
        view = await made.agent.show(run)
        assert reason in view.reason
        assert len(model.asked) <= most_calls
        assert view.spent.dollars <= limits.get("dollars", 1000)
        assert view.spent.builds <= limits.get("builds", 1000)
        assert all(node.outcome for node in view.nodes)
        await made.agent.resume(run, Limits())
        assert await made.agent.wait(run) is RunState.RESOLVED
        view = await made.agent.show(run)
        assert view.spent.calls == len({call.name for call in await made.agent.calls(run)})
        assert view.spent.builds == 4


async def test_a_price_that_is_not_known_is_not_zero(tmp_path: Path) -> None:
    async with agents.agent(tmp_path, agents.Guesser(price=None)) as made:
        limited = await ran(made, dollars=5)
        free = await ran(made)
    assert limited.reason.startswith("price_unknown")
    assert limited.spent.calls <= 8
    assert (free.state, free.spent.unpriced_calls) == (RunState.RESOLVED, free.spent.calls)


@pytest.mark.thorough
async def test_concurrency_bounds_the_questions_at_a_time(tmp_path: Path) -> None:
    open_now, most = 0, 0

    class Counting(agents.Guesser):
        async def ask(self, call: Call) -> Reply:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0.01)
            open_now -= 1
            return await super().ask(call)

    async with agents.agent(tmp_path, Counting()) as made:
        view = await ran(made, strategy=Forest(trees=4, depth=1), concurrency=3)
    assert view.spent.calls > 3
    assert most == 3


async def test_a_stopped_run_leaves_nothing_running_and_can_go_on(tmp_path: Path) -> None:
    async with agents.agent(tmp_path, agents.Guesser(), slow=60) as made:
        run = await made.agent.start(agents.request())
        (platform,) = await opened(made)
        while not any(name.endswith("-try") for name in platform.running):
            await asyncio.sleep(0.01)
        await made.agent.stop(run)
        assert await made.agent.wait(run) is RunState.STOPPED
        assert (len(platform.aborted), platform.running) == (1, set())
        assert (await made.agent.show(run)).nodes[0].outcome == "stopped"
        with pytest.raises(Conflict, match="stopped"):
            await made.agent.stop(run)
    async with agents.agent(tmp_path, agents.Guesser()) as made:
        await made.agent.resume(run)
        assert await made.agent.wait(run) is RunState.RESOLVED


async def opened(made: agents.Made) -> list[Any]:
    while not made.platforms:
        await asyncio.sleep(0.01)
    return made.platforms


async def test_a_crash_that_does_not_reproduce_is_said_before_money_is_spent(
    tmp_path: Path,
) -> None:
    model = agents.Guesser()
    async with agents.agent(tmp_path, model, crashes=False) as made:
        view = await ran(made)
    assert view.state is RunState.FAILED
    assert view.reason.startswith("does_not_reproduce")
    assert (model.asked, view.spent.calls) == ([], 0)


# --- models that misbehave ----------------------------------------------------------------

SMALL = Forest(trees=1, depth=1, cycle=agents.ONE_TREE.cycle.model_copy(update={"hypotheses": 1}))


async def answered(
    tmp_path: Path, endpoint: Endpoint, *script: Handle, strategy: Strategy = SMALL, **limits: float
) -> RunView:
    endpoint.script = list(script)
    url = f"http://127.0.0.1:{endpoint.server_port}/v1"

    def model() -> Model:
        return Provided(f"openai-chat:gpt-4o@{url}", KEY, first_pause=0.001)

    async with agents.agent(tmp_path, model, pauses=(0.01,)) as made:
        view = await ran(made, strategy=strategy, **limits)
        shown = [view.model_dump_json()]
        shown += [item.model_dump_json() for item in await made.agent.calls(view.id)]
        shown += [item.model_dump_json() async for item in made.agent.follow(view.id)]
    assert KEY not in "".join(shown)
    assert KEY not in contents(tmp_path / "runs")
    return view


def contents(folder: Path) -> str:
    """Return all that the files of stored runs hold."""
    texts = [
        gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert texts
    return "\n".join(texts)


@pytest.mark.parametrize(
    "text",
    ["", "no idea", "<solution>", "x" * 10_000_000, "\ud800\x00 <file>a</file>", None],
    ids=["nothing", "nonsense", "half-a-tag", "10-MB", "no-text", "null"],
)
@pytest.mark.thorough
async def test_whatever_a_model_answers_the_run_comes_to_its_end(
    tmp_path: Path, endpoint: Endpoint, text: str | None
) -> None:
    view = await answered(tmp_path, endpoint, answer(text))
    assert view.state is RunState.UNRESOLVED
    assert view.nodes[0].outcome == "no_patch"
    assert (tmp_path / "runs" / "1" / "events.gz").stat().st_size < 1_000_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "state", "reason"),
    [
        (refuse(400, "nonsense"), RunState.UNRESOLVED, "no patch"),
        (refuse(401, f"bad key {KEY}"), RunState.FAILED, "model_key_refused"),
        (refuse(429), RunState.FAILED, "model_unavailable"),
        (refuse(429, Retry_After="0"), RunState.FAILED, "model_unavailable"),
        (refuse(500), RunState.FAILED, "model_unavailable"),
        (drop, RunState.FAILED, "model_unavailable"),
    ],
)
async def test_a_model_that_refuses_ends_the_run_with_a_reason(
    tmp_path: Path, endpoint: Endpoint, fault: Handle, state: RunState, reason: str
) -> None:
    view = await answered(tmp_path, endpoint, fault)
    assert view.state is state
    assert reason in view.reason
    assert view.spent.calls == 0


@pytest.mark.thorough
async def test_a_provider_that_was_away_is_asked_again(tmp_path: Path, endpoint: Endpoint) -> None:
    def answering(handler: Handler) -> None:
        text = handler.body["messages"][-1]["content"]
        answer(agents.guess(agents.purpose_of(text), text))(handler)

    view = await answered(tmp_path, endpoint, *[refuse(500)] * 7, answering)
    assert view.nodes[0].outcome == "crashed"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "reason"),
    [(lambda handler: handler.say(200, {}), "unreadable"), (answer(KEY), "has_key")],
)
async def test_a_single_unreadable_answer_ends_no_conversation(
    tmp_path: Path, endpoint: Endpoint, first: Handle, reason: str
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "check", "arguments": "{}"}}
    last = answer("", [call])
    view = await answered(tmp_path, endpoint, first, last, strategy=Tool(turns=3))
    assert (view.spent.calls, view.state) == (3, RunState.UNRESOLVED)
    assert f'"answer_{reason}"' in contents(tmp_path / "runs")


@pytest.mark.thorough
async def test_a_model_that_never_answers_is_ended_by_the_limit_of_time(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    release = threading.Event()
    try:
        view = await answered(tmp_path, endpoint, lambda _: release.wait(30) and None, seconds=0.5)
    finally:
        release.set()
    assert (view.state, view.spent.calls) == (RunState.LIMITED, 0)
    assert "0.5 seconds" in view.reason


async def test_the_shipped_forest_looks_lists_and_tries_in_turn(tmp_path: Path) -> None:
    class Lister(agents.Guesser):
        """Names a further file on its second turn; of its hypotheses the third is right."""

        async def ask(self, call: Call) -> Reply:
            reply = await super().ask(call)
            if call.prompt.purpose != "files":
                return reply
            named: dict[str, Any] = {"files": [FILE, FURTHER], "explanation": "it is there"}
            name, given = ("name_files", named) if call.turns else ("search", {"pattern": "a"})
            return reply.model_copy(
                update={"calls": [ToolCall(id="1", name=name, arguments=given)]}
            )

    def listed(purpose: str, text: str) -> str:
        if purpose == "hypotheses":
            solutions = "".join(f"<solution>{n}</solution>" for n in ("8", "7", "16"))
            return f"{solutions}<ranking>2, 1, 3</ranking>"
        if purpose == "patches":
            new = re.findall(r"<solution>\n(\d+)\n</solution>", text)[-1]
            return f"<attempt>{edit('99', new)}</attempt><attempt>{edit('99', 'word')}</attempt>"
        return agents.guess(purpose, text)

    model = Lister(listed)
    async with agents.agent(tmp_path, model) as made:
        view = await ran(made, strategy="forest")
        (platform,) = made.platforms
    assert view.state is RunState.RESOLVED
    assert [node.name for node in view.nodes] == ["t0", "t1", "t2", "review"]
    assert [node.hypothesis for node in view.nodes[:3]] == ["7", "8", "16"]
    assert [(fix.node, fix.number) for fix in view.ranked] == [("review", 1)]
    assert [tool.name for tool in model.asked[0].tools][-1] == "name_files"
    assert not model.asked[-1].tools
    assert all(f"[start of {FURTHER}]" in call.prompt.text for call in model.asked[2:6])
    purposes = Counter(call.prompt.purpose for call in model.asked)
    assert purposes == {"files": 2, "hypotheses": 1, "patches": 3, "review": 1, "message": 1}
    assert sum(name.endswith("-source") for name in platform.done) == 2
