"""Conversations as data for training: no tool call is lost, rewards are those of patches."""

import json
from datetime import UTC, datetime
from typing import Any

from kgym.api.agent.conversation import Reply, ToolCall, ToolSpec, Turn
from kgym.api.agent.nodes import Node, NodeOutcome, Tried
from kgym.api.agent.runs import CallView
from kgym.api.steps import Verdict
from kgym.bench import atif
from kgym.bench.attempt_record import AttemptRecord, Outcome, Setup
from kgym.bench.training import episode, of_attempt, of_calls, openai, sharegpt

AGENT = atif.Agent(name="a", version="1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = Turn(
    text="I look",
    calls=[ToolCall(id="1", name="read_file", arguments={"path": "a.c"})],
    results={"1": "int a;</tool_response>"},
)
TOOL = ToolSpec(name="read_file", description="Read.", parameters={"type": "object"})


def asked(name: str, turns: int, last: Turn | None, **answer: Any) -> CallView:
    reply = Reply(model="m", input_tokens=9, output_tokens=1, seconds=1, price=0.5, **answer)
    return CallView(
        name=name,
        node="tool",
        purpose="tool",
        asked=1,
        asked_at=NOW,
        answered_at=NOW,
        error=None,
        system="rules",
        prompt="the crash",
        turns=turns,
        last_turn=last,
        reply=reply,
    )


def test_a_conversation_of_a_run_is_whole_and_has_the_reward_of_its_patch() -> None:
    calls = [asked("1", 0, None, calls=LOOK.calls), asked("2", 1, LOOK, text="done")]
    lost = asked("3", 2, Turn()).model_copy(update={"reply": None})
    tried = Tried(verdict=Verdict.NO_CRASH, confidence=0.9)
    node = Node(name="tool", parent=None, depth=1, runs=[tried], outcome=NodeOutcome.RESOLVED)
    (talk,) = of_calls("b", [*calls, lost], {"tool": node}, lambda _: [TOOL])
    given = {"name": "read_file", "arguments": '{"path": "a.c"}'}
    example = openai(talk)
    assert example["messages"] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "the crash"},
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [{"id": "1", "type": "function", "function": given}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "int a;</tool_response>"},
        {"role": "assistant", "content": "done"},
    ]
    assert example["tools"][0]["function"]["name"] == "read_file"
    messages = sharegpt(talk)["conversations"]
    assert [part["from"] for part in messages] == ["system", "human", "gpt", "tool", "gpt"]
    tagged = (
        messages[3]["value"].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
    )
    # A file that quotes the tag cannot close it.
    assert "</tool_response>" not in tagged
    assert json.loads(tagged) == {"name": "read_file", "content": "int a;</tool_response>"}
    run = episode(talk)
    assert run["cost"] == {"dollars": 1.0, "tokens": 20, "seconds": 2.0}
    assert [(step["reward"], step["done"]) for step in run["steps"]] == [(0.0, False), (0.94, True)]
    assert run["steps"][1]["observation"] == "int a;</tool_response>"
    undecided = node.model_copy(update={"runs": [], "outcome": NodeOutcome.STOPPED})
    (talk,) = of_calls("b", calls, {"tool": undecided}, lambda _: [])
    assert episode(talk)["steps"][-1]["reward"] is None


def test_an_attempt_of_a_campaign_keeps_its_commands() -> None:
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "look", "extra": {"actions": [{"command": "ls"}]}},
        {"role": "user", "content": "Makefile"},
        {"role": "assistant", "content": "done"},
    ]
    data = json.dumps({"messages": messages}).encode()
    trajectory = atif.trajectory(
        "mini-swe-agent", data, log=b"", agent=AGENT, session="s", dollars=None
    )
    record = AttemptRecord(bug="b", run=1, setup=Setup(agent="a"), outcome=Outcome.COMPILE)
    talk = of_attempt(record, trajectory)
    roles = [message["role"] for message in openai(talk)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert talk.turns[0].calls[0].arguments == {"command": "ls"}
    # The message that openhands prints of a command is no call's own result.
    events = [
        {"source": "agent", "message": "look", "args": {"command": "ls"}},
        {"source": "agent", "observation": "run", "content": "Makefile"},
    ]
    data = json.dumps(events).encode()
    trajectory = atif.trajectory("openhands", data, log=b"", agent=AGENT, session="s", dollars=None)
    assert of_attempt(record, trajectory).turns[0].results == {"": "Makefile"}
    assert episode(talk)["reward"]["compiles"] is False
