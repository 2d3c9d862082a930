"""Agents' trajectories in the Agent Trajectory Interchange Format. Pure.

Source: Harbor's RFC 0001 (docs/rfcs/0001-trajectory-format.md), version 1.4. The formats of
mini-swe-agent, SWE-agent and OpenHands are converted; for any other, the agent's output is kept.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import Words

# Bytes of the log that replaces unknown steps.
MOST_LOG = 1 << 20
MOST_STEPS = 20_000
MOST_TEXT = 1 << 20
# Commas and brackets of an agent's JSON: a bound for the values that parsing creates.
_VALUES = 2_000_000
Text = Annotated[str, Field(max_length=2 * MOST_TEXT)]


class Agent(Strict):
    """The agent."""

    name: Words
    version: Words
    model_name: Words | None = None


class ToolCall(Strict):
    """An action of the agent."""

    tool_call_id: Words
    function_name: Words
    arguments: dict[str, Any]


class Result(Strict):
    """The result of an action."""

    source_call_id: Words | None = None
    content: Text


class Observation(Strict):
    """What the agent saw."""

    results: list[Result]


class Step(Strict):
    """A turn; `step_id` counts from 1."""

    step_id: int = Field(ge=1)
    source: Literal["system", "user", "agent"]
    message: Text
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None


class FinalMetrics(Strict):
    """Totals of a trajectory."""

    total_cost_usd: float | None = None
    total_steps: int


class Trajectory(Strict):
    """A whole trajectory."""

    schema_version: Literal["ATIF-v1.4"] = "ATIF-v1.4"
    session_id: Words
    agent: Agent
    steps: list[Step] = Field(min_length=1, max_length=MOST_STEPS + 1)
    notes: Words | None = None
    final_metrics: FinalMetrics


# The speaker, the message, the command that was given, and its output.
Turn = tuple[Literal["system", "user", "agent"], str, str | None, str | None]


def trajectory(
    form: str, data: bytes | None, *, log: bytes, agent: Agent, session: str, dollars: float | None
) -> Trajectory:
    """Convert a trajectory of the given format to ATIF; unreadable parts are left out."""
    turns = list(_turns(form, data))
    notes = None
    if not turns:
        notes = "the agent's own steps are unknown: this is its output"
        turns = [("agent", "", None, log.decode(errors="replace"))]
    return _made(turns, agent=agent, session=session, dollars=dollars, notes=notes)


def parse_json(data: bytes | None) -> Any:
    """Parse JSON written by an agent; None if it is invalid or has too many values."""
    # A few bytes of JSON make objects of hundreds: count before parsing.
    if not data or sum(data.count(mark) for mark in (b",", b"[", b"{")) > _VALUES:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def conversation(
    questions: Iterable[tuple[str, str, str]], *, agent: Agent, session: str, dollars: float | None
) -> Trajectory:
    """Return questions to a model (purpose, prompt, answer) as a trajectory."""
    turns: list[Turn] = []
    for purpose, prompt, answer in questions:
        turns += [("user", f"[{purpose}]\n{prompt}", None, None), ("agent", answer, None, None)]
    turns = turns or [("agent", "", None, None)]
    return _made(turns, agent=agent, session=session, dollars=dollars, notes=None)


def _made(
    turns: list[Turn], *, agent: Agent, session: str, dollars: float | None, notes: str | None
) -> Trajectory:
    steps = [_step(number, turn) for number, turn in enumerate(turns[:MOST_STEPS], start=1)]

    if len(turns) > MOST_STEPS:
        notes = f"the first {MOST_STEPS} of {len(turns)} steps"
    return Trajectory(
        session_id=session,
        agent=agent,
        steps=steps,
        notes=notes,
        final_metrics=FinalMetrics(total_cost_usd=dollars, total_steps=len(steps)),
    )


def _step(number: int, turn: Turn) -> Step:
    source, message, command, printed = turn
    step = Step(step_id=number, source=source, message=_cut(message))
    call = f"call_{number}"
    more: dict[str, Any] = {}
    if command is not None:
        arguments = {"command": _cut(command)}
        tool_call = ToolCall(tool_call_id=call, function_name="bash", arguments=arguments)
        more["tool_calls"] = [tool_call]
    if printed is not None:
        result = Result(source_call_id=call if command is not None else None, content=_cut(printed))
        more["observation"] = Observation(results=[result])
    return step.model_copy(update=more)


def _turns(form: str, data: bytes | None) -> Iterator[Turn]:
    read = {"mini-swe-agent": _mini, "swe-agent": _swe, "openhands": _openhands}.get(form)
    if read is not None:
        yield from read(parse_json(data))


def _cut(text: str) -> str:
    """Return text that can be encoded: JSON may contain lone surrogates (`\\ud800`)."""
    return text[:MOST_TEXT].encode(errors="replace").decode()


def _mini(data: Any) -> Iterator[Turn]:
    """Read a list of messages: a command's output is the next message of the user."""
    waiting: Turn | None = None
    for message in _objects(_of(data, "messages")):
        role, text = message.get("role"), _text(message.get("content"))
        if waiting is not None:
            if role in {"user", "tool"}:
                yield (*waiting[:3], text)
                waiting = None
                continue
            yield waiting
            waiting = None
        if role == "assistant":
            actions = _objects(_of(message.get("extra"), "actions"))
            commands = [_text(action.get("command")) for action in actions]
            waiting = ("agent", text, "\n".join(commands) if commands else None, None)
        else:
            yield ("system" if role == "system" else "user", text, None, None)
    if waiting is not None:
        yield waiting


def _swe(data: Any) -> Iterator[Turn]:
    for step in _objects(_of(data, "trajectory")):
        thought, action = _text(step.get("thought")), _text(step.get("action"))
        yield (
            "agent",
            thought or _text(step.get("response")),
            action,
            _text(step.get("observation")),
        )


def _openhands(data: Any) -> Iterator[Turn]:
    """Read a list of events: an action, then the observation it caused."""
    for event in _objects(data if isinstance(data, list) else _of(data, "history")):
        words = _text(event.get("message"))
        if "observation" in event:
            yield "user", "", None, _text(event.get("content"))
        elif event.get("source") == "agent":
            command = _of(event.get("args"), "command")
            yield "agent", words, command if isinstance(command, str) else None, None
        else:
            yield "user", words, None, None


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)
