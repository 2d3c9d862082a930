"""Conversations of agents as data for training: supervised examples and RL episodes. Pure.

`openai` is the JSONL that chat models are fine-tuned on; `sharegpt` is ShareGPT with Hermes' tags
for tool calls; `episodes` has each action of a conversation with the observation before it, and
the reward of the conversation's patch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kgym.api.agent.conversation import ToolCall, ToolSpec, Turn
from kgym.api.agent.nodes import Node, NodeOutcome
from kgym.api.agent.runs import CallView
from kgym.api.steps import Strict
from kgym.bench.atif import Trajectory
from kgym.bench.attempt_record import AttemptRecord, Outcome
from kgym.bugs.reward import Reward

Json = dict[str, Any]


class Conversation(Strict):
    """A conversation of an agent, with the reward of its patch and its costs."""

    bug: str
    name: str
    """Its name in the run or the campaign."""
    prompt: list[tuple[str, str]]
    """Role, `system` or `user`, and text of each message."""
    turns: list[Turn]
    tools: list[ToolSpec] = []
    reward: Reward | None = None
    """The reward of the conversation's patch; None if the patch has no verdict."""
    cost: dict[str, float | None]
    """Dollars, tokens and seconds; None: unknown."""


def of_calls(
    bug: str,
    calls: Iterable[CallView],
    nodes: Mapping[str, Node],
    tools: Callable[[CallView], Sequence[ToolSpec]],
) -> Iterator[Conversation]:
    """Yield the conversations of a run of CrashFixer; `tools` returns those of a question."""
    talks: list[list[CallView]] = []
    latest: dict[tuple[str, str], list[CallView]] = {}
    for call in calls:
        key = (call.node, call.purpose)
        if call.turns == 0:
            latest[key] = []
            talks.append(latest[key])
        # Each question repeats its conversation, whose last turn is new. After a question without
        # an answer, the rest is left out.
        if call.reply is not None and len(latest.get(key, ())) == call.turns:
            latest[key].append(call)
    for talk in filter(None, talks):
        last, replies = talk[-1], [call.reply for call in talk if call.reply is not None]
        turns = [call.last_turn for call in talk[1:] if call.last_turn is not None]
        prices = [reply.price for reply in replies]
        yield Conversation(
            bug=bug,
            name=talk[0].name,
            prompt=[("system", last.system), ("user", last.prompt)],
            turns=[*turns, Turn(text=replies[-1].text, calls=replies[-1].calls)],
            tools=list(tools(last)),
            reward=_of_node(nodes[last.node]) if last.node in nodes else None,
            cost={
                "dollars": None if None in prices else sum(price or 0 for price in prices),
                "tokens": sum(reply.input_tokens + reply.output_tokens for reply in replies),
                "seconds": sum(reply.seconds for reply in replies),
            },
        )


def of_attempt(record: AttemptRecord, trajectory: Trajectory) -> Conversation:
    """Return the conversation of a campaign's attempt."""
    prompt: list[tuple[str, str]] = []
    turns: list[Turn] = []
    for step in trajectory.steps:
        results = step.observation.results if step.observation else []
        seen = {result.source_call_id or "": result.content for result in results}
        if step.source == "agent":
            calls = [
                ToolCall(id=call.tool_call_id, name=call.function_name, arguments=call.arguments)
                for call in step.tool_calls or ()
            ]
            turns.append(Turn(text=step.message, calls=calls, results=seen))
        elif not turns:
            prompt.append((step.source, step.message))
        else:
            # Some agents print a command's output as a message of its own.
            more = "\n".join(
                filter(None, [turns[-1].results.get(""), step.message, *seen.values()])
            )
            turns[-1] = turns[-1].model_copy(update={"results": {**turns[-1].results, "": more}})
    return Conversation(
        bug=record.bug,
        name=f"{record.setup}, run {record.run}",
        prompt=prompt,
        turns=turns,
        reward=_of_record(record),
        cost=record.model_dump(include={"dollars", "tokens", "seconds"}),
    )


def _of_node(node: Node) -> Reward | None:
    """Return the reward of a debug cycle's patch; None without a verdict."""
    tried = node.tried
    if node.outcome is NodeOutcome.NO_PATCH or (tried and tried.verdict == "does_not_build"):
        return Reward(compiles=False)
    if tried is None or tried.undecided:
        return None
    clean = node.outcome is NodeOutcome.RESOLVED
    return Reward.of(tried.verdict, tried.findings, clean=clean, confidence=tried.confidence)


def _of_record(record: AttemptRecord) -> Reward | None:
    if record.outcome is Outcome.UNKNOWN:
        return None
    compiles = record.outcome not in {Outcome.BAD, Outcome.COMPILE}
    passed, clean = bool(record.resolved), bool(record.resolved and record.clean)
    return Reward(compiles=compiles, no_crash=passed, variants=clean, clean=clean)


def openai(talk: Conversation) -> Json:
    """Return a supervised example as chat messages."""
    messages: list[Json] = [{"role": role, "content": text} for role, text in talk.prompt]
    for turn in talk.turns:
        calls = [
            {"id": call.id, "type": "function", "function": _function(call)} for call in turn.calls
        ]
        answer: Json = {"role": "assistant", "content": turn.text}
        messages.append({**answer, "tool_calls": calls} if calls else answer)
        messages += (
            {"role": "tool", "tool_call_id": name, "content": text}
            if name
            else {"role": "user", "content": text}
            for name, text in turn.results.items()
        )
    tools = [{"type": "function", "function": tool.model_dump()} for tool in talk.tools]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def sharegpt(talk: Conversation) -> Json:
    """Return a supervised example in ShareGPT's form, with Hermes' tags for tool calls."""
    names = {"system": "system", "user": "human"}
    messages = [{"from": names[role], "value": text} for role, text in talk.prompt]
    for turn in talk.turns:
        calls = (_tagged("tool_call", call.model_dump(exclude={"id"})) for call in turn.calls)
        messages.append({"from": "gpt", "value": "\n".join(filter(None, [turn.text, *calls]))})
        called = {call.id: call.name for call in turn.calls}
        answers = [
            _tagged("tool_response", {"name": called.get(name, name), "content": text})
            for name, text in turn.results.items()
            if name
        ]
        messages += [{"from": "tool", "value": "\n".join(answers)}] if answers else []
        messages += [{"from": "human", "value": turn.results[""]}] if "" in turn.results else []
    tools = json.dumps([tool.model_dump() for tool in talk.tools])
    return {"conversations": messages, **({"tools": tools} if talk.tools else {})}


def episode(talk: Conversation) -> Json:
    """Return an episode: each action with the observation before it; the last has the reward."""
    seen = "\n\n".join(text for _, text in talk.prompt)
    steps: list[Json] = []
    for turn in talk.turns:
        action = {"text": turn.text, "calls": [call.model_dump() for call in turn.calls]}
        steps.append({"observation": seen, "action": action, "reward": 0.0, "done": False})
        seen = "\n\n".join(turn.results.values())
    if steps:
        steps[-1] |= {"reward": talk.reward.total if talk.reward else None, "done": True}
    parts = talk.model_dump(mode="json", include={"bug", "name", "reward", "cost"})
    return {**parts, "steps": steps}


FORMS: dict[str, Callable[[Conversation], Json]] = {
    "openai": openai,
    "sharegpt": sharegpt,
    "episodes": episode,
}


def _function(call: ToolCall) -> dict[str, str]:
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return {"name": call.name, "arguments": text}


def _tagged(tag: str, content: Json) -> str:
    # JSON may escape `/`, so that no text of a tool can close the tag.
    text = json.dumps(content).replace("</", "<\\/")
    return f"<{tag}>\n{text}\n</{tag}>"
