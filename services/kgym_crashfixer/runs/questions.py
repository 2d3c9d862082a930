"""Questions of the search as calls of a model with its tools, and replies as answers.

Prompts and tools are part of the keys of tapes: a changed word makes recorded tapes useless.
"""

import json

from kgym.api.agent.conversation import Reply, ToolCall
from kgym_crashfixer.models.model import Call
from kgym_crashfixer.platform_protocol import Platform
from kgym_crashfixer.prompts import render
from kgym_crashfixer.search.tools import tools_of
from kgym_crashfixer.search.work import Answer, Question

# Characters of an answer that are kept: a model that writes more has lost its way.
LONGEST = 1 << 20


def call_of(question: Question, platform: Platform) -> Call:
    """Return the call for a question."""
    fitted = platform.fitted(question)
    return Call(
        prompt=render(fitted),
        turns=question.turns,
        tools=tools_of(question),
        temperature=question.temperature,
        occurrence=question.occurrence,
    )


def clean(reply: Reply) -> Reply:
    """Shorten a reply, and replace lone surrogates, which no file can hold."""
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
    """Return the answer for the search."""
    return Answer(text=reply.text, calls=reply.calls)
