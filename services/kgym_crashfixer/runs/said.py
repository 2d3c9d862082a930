"""What was said to a model and by it, as callers read it: whole, or where a text stands in it."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kgym.api.agent.conversation import Reply, ToolCall, Turn
from kgym.api.agent.runs import CallView
from kgym.api.agent.steps import CallExcerpt

if TYPE_CHECKING:
    from sqlalchemy import Row

ROWS = 20
"""Questions that are read together: each may have a megabyte."""
READ_AT_ONCE = 200
"""Questions that one search looks through."""
_ABOUT = 150
"""Characters of an excerpt on each side of what was searched for."""


def view(row: "Row[Any]") -> CallView:
    """Return a stored question whole."""
    sent = json.loads(row.prompt)
    last = sent["last_turn"]
    return CallView(
        name=row.name,
        node=row.node,
        purpose=row.purpose,
        asked=row.asked,
        asked_at=row.asked_at,
        answered_at=row.answered_at,
        error=row.error,
        system=sent["system"],
        prompt=sent["prompt"],
        turns=sent["turns"],
        last_turn=Turn.model_validate(last) if last else None,
        reply=Reply.model_validate_json(row.reply) if row.reply else None,
    )


def excerpt(row: "Row[Any]", text: str | None) -> CallExcerpt | None:
    """Return where the text stands in a stored question or its answer; None if it does not.

    Capital letters count as small ones. Without a text, it is the beginning of the answer.
    """
    call = view(row)
    if text:
        found = next((one for one in _parts(call) if text.casefold() in one[1].casefold()), None)
        if found is None:
            return None
        part, whole = found
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
    """Yield the texts of a question, by what they are; the answer first."""
    yield from _answer(call)
    if call.last_turn is not None:
        yield "turn", "\n".join([call.last_turn.text, *call.last_turn.results.values()])
    yield "prompt", call.prompt
    yield "system", call.system


def _answer(call: CallView) -> Iterator[tuple[str, str]]:
    if call.reply is not None:
        yield "answer", "\n".join([call.reply.text, *map(_words, call.reply.calls)])


def _words(call: ToolCall) -> str:
    said = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return f"{call.name} {said}"
