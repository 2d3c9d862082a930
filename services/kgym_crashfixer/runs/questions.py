"""A question of the search as a call of the model, and a reply as an answer for the search."""

import json
from collections.abc import Sequence

from kgym.api.agent.conversation import Reply, ToolCall
from kgym_crashfixer.models.model import Call, ToolSpec
from kgym_crashfixer.platform_protocol import Platform
from kgym_crashfixer.prompts import render
from kgym_crashfixer.search.work import Answer, Purpose, Question
from kgym_crashfixer.tools import exploring_tools, looking_tools, tools

# Characters of an answer that are read; a model that says more has lost its way.
LONGEST = 1 << 20


def call_of(question: Question, platform: Platform) -> Call:
    """Return the question as it is sent."""
    fitted = platform.fitted(question)
    return Call(
        prompt=render(fitted),
        turns=question.turns,
        tools=_tools(question),
        temperature=question.temperature,
        occurrence=question.occurrence,
    )


def _tools(question: Question) -> Sequence[ToolSpec]:
    match question.purpose:
        case Purpose.TOOL:
            return tools(feedback=bool(question.values.get("feedback")))
        case Purpose.FILES:
            return looking_tools()
        case Purpose.DEFINITIONS:
            return exploring_tools()
    return ()


def clean(reply: Reply) -> Reply:
    """Return the reply without what no text can hold, and not longer than any answer has to be."""
    text = reply.text[:LONGEST].encode(errors="replace").decode()
    calls = [
        ToolCall.model_validate_json(
            json.dumps(dumped, ensure_ascii=False).encode(errors="replace")
        )
        for dumped in (call.model_dump() for call in reply.calls[:100])
        if len(str(dumped)) <= LONGEST
    ]
    return reply.model_copy(update={"text": text, "calls": calls})


def answer_of(reply: Reply) -> Answer:
    """Return what the search is told."""
    return Answer(text=reply.text, calls=reply.calls)
