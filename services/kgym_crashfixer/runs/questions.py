"""Questions of the search as calls of a model with its tools, and replies as answers.

The tools are carried out in `search/tool.py` and `search/looks.py`. Their texts are part of the
keys of tapes: a changed word makes recorded tapes useless.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from kgym.api.agent.conversation import Reply, ToolCall
from kgym_crashfixer.models.model import Call, ToolSpec
from kgym_crashfixer.platform_protocol import Platform
from kgym_crashfixer.prompts import render
from kgym_crashfixer.search.work import Answer, Purpose, Question

# Characters of an answer that are kept: a model that writes more has lost its way.
LONGEST = 1 << 20
_PATH = {"type": "string", "description": "path in the kernel's source tree"}
_WORDS = {"type": "string"}


def _tool(name: str, description: str, required: int = 0, /, **properties: Any) -> ToolSpec:
    """Return a tool; its first `required` properties are mandatory."""
    needed: list[JsonValue] = [*list(properties)[:required]]
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description=description, parameters=parameters)


_LOOK = (
    _tool(
        "read_file",
        "Read a file of the kernel's source, with your edits: lines `start` to `end`, or `whole`.",
        1,
        path=_PATH,
        start={"type": "integer", "minimum": 1},
        end={"type": "integer", "minimum": 1},
        whole={"type": "boolean"},
    ),
    _tool("list_folder", "List a folder of the kernel's source.", 1, path=_PATH),
    _tool(
        "search",
        "Search the kernel's source for a regular expression; `glob` limits the files, such as"
        " `kernel/*.c`.",
        1,
        pattern=_WORDS,
        glob=_WORDS,
    ),
    _tool(
        "symbol",
        "Find where a function, type or macro is defined, and its callers.",
        1,
        name=_WORDS,
    ),
)
_WRITE = (
    _tool(
        "edit",
        "Replace a piece of a file. `original` has to occur in it exactly once, byte for byte.",
        3,
        file=_PATH,
        original=_WORDS,
        replacement=_WORDS,
    ),
    _tool("reset", "Undo all edits."),
    _tool("check", "Compile what your edits touch; takes about a second."),
)
_RUN = _tool(
    "run_kernel",
    "Build the kernel with your edits, and run the program that crashed it. Answers `crash"
    " resolved`, `crash reproduced` with the new report, or `does not compile`.",
)
_DONE = _tool("done", "End the conversation: your edits are the fix.")


_NAME = _tool(
    "name_files",
    "End the search: name the further files that the fix may have to change, the most likely"
    " first; none, if those that you were told are enough.",
    1,
    files={"type": "array", "items": _PATH},
)


_DEFINITION = _tool(
    "definition",
    "Show the definition of a function, struct, union, enum, type or macro; call it several times"
    " in one turn for several.",
    1,
    name=_WORDS,
)
_ENOUGH = _tool(
    "enough",
    "End the exploration, and explain the cause of the crash as far as you understand it.",
    1,
    explanation=_WORDS,
)


def call_of(question: Question, platform: Platform) -> Call:
    """Return the call for a question."""
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
            run = [_RUN] if question.values.get("feedback") else []
            return [*_LOOK, *_WRITE, *run, _DONE]
        case Purpose.FILES:
            return [*_LOOK, _NAME]
        case Purpose.DEFINITIONS:
            return [_DEFINITION, _ENOUGH]
    return ()


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
