"""Looks at the source before the first hypothesis: for further files that a fix may need."""

import posixpath
from collections.abc import Callable

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Node
from kgym.api.agent.strategy import Cycle
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.engine import Plan
from kgym_crashfixer.search.work import Answer, Purpose, Question, Seen, Source

BLIND = "error: the source cannot be read now"
# Answers in a row without a call of a tool, after which a conversation ends.
SILENT = 3
# Characters of an answer, and of what a tool returns, that later turns pay for again.
SAID = 64_000
# Calls of tools in one answer that are done.
CALLS = 16
# Characters of the source that a tool returns.
_LOOK = 60_000
# Further files: each question of the search pays for them.
_FILES = 3
# Paths that are looked for.
_NAMED = 10
_ONE_LEFT = "\n\n[one turn is left: call `name_files`]"
# Characters of one.
LONGEST_FILE = 400_000
# Makes a question of a debug cycle, of a purpose and with further values.
Asking = Callable[..., Question]


def look(node: str, call: ToolCall, code: Code) -> Plan[str]:
    """Do what a tool that looks at the source is asked for; return what the model is told."""
    assert isinstance(call.arguments, dict)
    seen = yield Source(
        node=node,
        tool=call.name,
        arguments=call.arguments,
        edits=list(code.edits),
    )
    return shown(seen.text) if isinstance(seen, Seen) else BLIND


def whole(node: str, path: str) -> Plan[Seen | None]:
    """Read a file of the tree that has the bug; return None where that cannot be done now."""
    seen = yield Source(node=node, tool="read_file", arguments={"path": path, "whole": True})
    return seen if isinstance(seen, Seen) else None


def shown(text: str) -> str:
    """Return what was seen, no longer than the conversation can bear."""
    if len(text) <= _LOOK:
        return text
    return f"{text[:_LOOK]}\n[{len(text) - _LOOK} characters more: ask for less at a time]"


def further_files(options: Cycle, code: Code, question: Asking, node: Node) -> Plan[dict[str, str]]:
    """Let the model search, and name files; return their texts by path, none if it names none.

    `question` makes one of the debug cycle, of a purpose. The model is told before its last turn.
    """
    turns: list[Turn] = []
    silent = 0
    for number in range(options.looks):
        asked = question(Purpose.FILES, files=list(code.files), most=_FILES, looks=options.looks)
        answer = yield asked.model_copy(update={"turns": list(turns)})
        if not isinstance(answer, Answer):
            break
        turn = Turn(text=answer.text[:SAID], calls=answer.calls[:CALLS])
        silent = 0 if turn.calls else silent + 1
        named = [call.arguments for call in turn.calls if call.name == "name_files"]
        if named:
            return (yield from _texts(node, named[0], code))
        if silent == SILENT:
            break
        last = _ONE_LEFT if number == options.looks - 2 else ""
        results = {}
        for call in turn.calls:
            results[call.id] = (yield from _called(node, call, code))[:SAID] + last
        turns.append(turn.model_copy(update={"results": results}))
    return {}


def _called(node: Node, call: ToolCall, code: Code) -> Plan[str]:
    if not isinstance(call.arguments, dict):
        return "error: the arguments are no JSON object"
    if call.name not in {"read_file", "list_folder", "search", "symbol"}:
        return f"error: there is no tool {call.name!r}"
    return (yield from look(node.name, call, code))


def _texts(node: Node, named: object, code: Code) -> Plan[dict[str, str]]:
    """Read the files that the model has named; what is no file, or too long, is left out."""
    paths = named.get("files") if isinstance(named, dict) else None
    texts: dict[str, str] = {}
    for path in paths[:_NAMED] if isinstance(paths, list) else []:
        if not isinstance(path, str) or len(texts) == _FILES:
            continue
        path = posixpath.normpath(path)  # noqa: PLW2901
        if path in code.files or path in texts:
            continue
        seen = yield from whole(node.name, path)
        if seen is not None and seen.succeeded and len(seen.text) <= LONGEST_FILE:
            texts[path] = seen.text
    node.further_files = list(texts)
    return texts
