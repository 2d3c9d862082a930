"""Views of a stored run: its state, its steps, excerpts of its questions."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kgym.api.agent.conversation import ToolCall
from kgym.api.agent.runs import CallView, Event, RunState, RunView
from kgym.api.agent.steps import CallExcerpt, CallViewPage, RunStep
from kgym_crashfixer.runs.run_store import RunRecord

# Characters of an excerpt on each side of the searched text.
_ABOUT = 150
# Bytes of questions and answers after which a page ends; one alone may have more.
_PAGE_BYTES = 1 << 20


def run_view(record: RunRecord) -> RunView:
    """Return the current view of a run."""
    doing: dict[str, list[str]] = {}
    if record.state is RunState.RUNNING:
        for step in steps(record.work(), {}):
            if step.ended_at is None:
                doing.setdefault(step.node, []).append(step.work)
    begun = record.begun
    return RunView(
        **dict(record.summary()),
        title=begun.crash.title if begun else None,
        files=list(begun.files) if begun else [],
        notes=record.notes,
        limits=record.request.limits,
        nodes=[
            view.model_copy(update={"doing": doing.get(view.name, [])})
            for view in record.node_views()
        ],
        ranked=record.fixes,
        jobs=record.jobs,
        position=record.last_event,
    )


def steps(events: Iterable[Event], jobs: Mapping[str, Sequence[int]]) -> list[RunStep]:
    """Return the steps of a run in the order in which they began.

    `events` are of the kinds `run_store.WORK`; `jobs` are the scheduler's jobs by name of the work.
    Dropped work has ended without an outcome.
    """
    begun: dict[str, RunStep] = {}
    for event in events:
        data: dict[str, Any] = dict(event.data)
        step = begun.get(data["name"])
        if step is None:
            step = RunStep(
                name=data["name"],
                node=data["node"],
                work=data.get("work", ""),
                asked=0,
                begun_at=event.at,
                jobs=list(jobs.get(data["name"], ())),
            )
        match event.kind:
            # After a kill, the same work is begun again and has not ended.
            case "asked" | "asked_again":
                changed: dict[str, Any] = {"asked": step.asked + 1, "ended_at": None}
            case "lost":
                changed = {"ended_at": event.at, "unanswered": "sent twice, and never answered"}
            case "dropped":
                changed = {"ended_at": event.at, "unanswered": "no longer needed by the search"}
            case _:
                changed = {"ended_at": event.at, **_result(data)}
        begun[step.name] = step.model_copy(update=changed)
    return list(begun.values())


def _result(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a step from an event of kind `result`."""
    outcome = data.get("verdict") or ", ".join(data.get("outcomes") or [])
    if data.get("crash"):
        outcome = f"{outcome}: {data['crash']}"
    if data.get("obstacles"):
        outcome = f"{outcome}, but {', '.join(data['obstacles'])}"
    numbers = {name: data.get(name) for name in ("tokens", "price", "seconds")}
    return {"outcome": outcome, "unanswered": data.get("unanswered"), **numbers}


def call_page(record: RunRecord, node: str | None, cursor: int, limit: int) -> CallViewPage:
    """Return questions and answers from the one with the number `cursor` on, which is from 0."""
    names = record.call_names(node)
    calls: list[CallView] = []
    size = 0
    for name in names[cursor : cursor + limit]:
        calls.append(record.call(name))
        size += len(calls[-1].model_dump_json())
        if size > _PAGE_BYTES:
            break
    end = cursor + len(calls)
    return CallViewPage(calls=calls, next=end if end < len(names) else None)


def excerpts(record: RunRecord, names: Sequence[str], text: str | None) -> list[CallExcerpt | None]:
    """Return an excerpt of each question around the text; None for questions without it."""
    return [excerpt(record.call(name), text) for name in names]


def excerpt(call: CallView, text: str | None) -> CallExcerpt | None:
    """Return the excerpt around the text in a question or its answer; None if both lack it.

    Case is ignored. Without a text, the excerpt is the beginning of the answer.
    """
    if text:
        places = (place for place in _parts(call) if text.casefold() in place[1].casefold())
        if (place := next(places, None)) is None:
            return None
        part, whole = place
    else:
        part, whole = next(iter(_answer(call)), ("prompt", call.prompt))
    at = whole.casefold().find(text.casefold()) if text else 0
    begin = max(0, at - _ABOUT)
    reply = call.reply
    return CallExcerpt(
        name=call.name,
        node=call.node,
        purpose=call.purpose,
        asked_at=call.asked_at,
        answered_at=call.answered_at,
        error=call.error,
        tokens=reply.input_tokens + reply.output_tokens if reply else None,
        price=reply.price if reply else None,
        seconds=reply.seconds if reply else None,
        part=part,
        excerpt=("…" if begin else "") + whole[begin : at + len(text or "") + _ABOUT],
    )


def _parts(call: CallView) -> Iterator[tuple[str, str]]:
    """Yield the parts of a question with their kinds, the answer first."""
    yield from _answer(call)
    if call.last_turn is not None:
        yield "turn", "\n".join([call.last_turn.text, *call.last_turn.results.values()])
    yield "prompt", call.prompt
    yield "system", call.system


def _answer(call: CallView) -> Iterator[tuple[str, str]]:
    if call.reply is not None:
        yield "answer", "\n".join([call.reply.text, *map(_tool_call, call.reply.calls)])


def _tool_call(call: ToolCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return f"{call.name} {arguments}"
