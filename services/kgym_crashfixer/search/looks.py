"""Looks at the source before a model writes a patch: further files, and definitions."""

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Node
from kgym.api.agent.strategy import Cycle
from kgym_crashfixer.search.answers import LONGEST_WORDS
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.engine import Plan
from kgym_crashfixer.search.tools import refused
from kgym_crashfixer.search.work import Answer, Purpose, Question, Seen, Source

_BLIND = Seen(text="error: the source cannot be read now", succeeded=False)
# Consecutive answers without a tool call that end a conversation.
SILENT = 3
# Characters kept of an answer and of a tool's result: every later turn pays for them again.
SAID = 64_000
# Tool calls of one answer that are carried out.
CALLS = 16
# Files that a search may add: every question contains them, and pays for them.
_FILES = 3
# Paths of a `name_files` call that are tried.
_NAMED = 20
# Definitions that later prompts show.
_DEFINITIONS = 40
# Files that definitions may add to the candidate files.
_DEFINITION_FILES = 8
# Characters of a further file.
_LONGEST_FILE = 400_000
# Makes a question of a debug cycle, with a purpose and additional template values.
Asking = Callable[..., Question]


def look(node: str, call: ToolCall, code: Code) -> Plan[Seen]:
    """Carry out a tool call that reads the source."""
    assert isinstance(call.arguments, dict)
    seen = yield Source(node=node, tool=call.name, arguments=call.arguments, edits=list(code.edits))
    return seen if isinstance(seen, Seen) else _BLIND


def whole(node: str, path: str) -> Plan[Seen]:
    """Read a whole file of the unpatched tree."""
    seen = yield Source(node=node, tool="whole", arguments={"path": path})
    return seen if isinstance(seen, Seen) else _BLIND


def _one_left(turns: int, number: int, tool: str) -> str:
    """Return the note that goes with the results before the last turn."""
    return f"\n\n[one turn is left: call `{tool}`]" if number == turns - 2 else ""


# --- further files ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Named:
    """The files that the model named, and what it found out about the crash."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By path; empty if it named none that can be read: the files stay as they were."""
    explanation: str = ""


def named_files(options: Cycle, code: Code, question: Asking, node: Node) -> Plan[Named]:
    """Let the model search the source and name the candidate files.

    `question` makes a question of the debug cycle.
    """
    most = len(code.files) + _FILES
    turns: list[Turn] = []
    silent = 0
    for number in range(options.looks):
        asked = question(Purpose.FILES, files=list(code.files), most=most, looks=options.looks)
        answer = yield asked.model_copy(update={"turns": list(turns)})
        if not isinstance(answer, Answer):
            break
        turn = Turn(text=answer.text[:SAID], calls=answer.calls[:CALLS])
        silent = 0 if turn.calls else silent + 1
        for call in turn.calls:
            if call.name == "name_files" and not refused(asked, call):
                assert isinstance(call.arguments, dict)  # `refused` has checked that
                return (yield from _named(node, call.arguments, code, most))
        if silent == SILENT:
            break
        last = _one_left(options.looks, number, "name_files")
        results = {}
        for call in turn.calls:
            result = refused(asked, call) or (yield from look(node.name, call, code)).text
            results[call.id] = result[:SAID] + last
        turns.append(turn.model_copy(update={"results": results}))
    return Named()


def _named(node: Node, arguments: Mapping[str, JsonValue], code: Code, most: int) -> Plan[Named]:
    """Read the files that the model named; skip missing and very long ones."""
    paths, words = arguments.get("files"), arguments.get("explanation")
    texts: dict[str, str] = {}
    for path in paths[:_NAMED] if isinstance(paths, list) else []:
        if not isinstance(path, str) or len(texts) == most:
            continue
        path = posixpath.normpath(path)  # noqa: PLW2901
        if path in code.files:
            texts[path] = code.files[path]
        elif path not in texts:
            yield from _add_text(node, path, texts)
    node.further_files = [path for path in texts if path not in code.files]
    return Named(texts, words.strip()[:LONGEST_WORDS] if isinstance(words, str) else "")


def _add_text(node: Node, path: str, texts: dict[str, str]) -> Plan[None]:
    seen = yield from whole(node.name, path)
    if seen.succeeded and len(seen.text) <= _LONGEST_FILE:
        texts[path] = seen.text


# --- definitions (RGym, section 2, Function Exploration) ----------------------------------


@dataclass(slots=True)
class Explored:
    """The result of an exploration."""

    names: list[str] = field(default_factory=list)
    """Definitions that the model has seen."""
    paths: list[str] = field(default_factory=list)
    """Files of these definitions."""
    texts: dict[str, str] = field(default_factory=dict)
    """Texts, by path, of those files that were no candidate files before."""
    explanation: str = ""
    """The cause of the crash, in the model's words."""


def explored(options: Cycle, code: Code, question: Asking, node: Node) -> Plan[Explored]:
    """Let the model read definitions until it has seen enough, or its turns are used up.

    `question` makes a question of the debug cycle. An answer without a tool call ends the
    exploration, and is the explanation.
    """
    seen = Explored()
    turns: list[Turn] = []
    for number in range(options.explore):
        asked = question(Purpose.DEFINITIONS, turns_at_most=options.explore)
        answer = yield asked.model_copy(update={"turns": list(turns)})
        if not isinstance(answer, Answer):
            break
        turn = Turn(text=answer.text[:SAID], calls=answer.calls[:CALLS])
        ends = [call.arguments for call in turn.calls if call.name == "enough"]
        if ends or not turn.calls:
            words = ends[0].get("explanation") if ends and isinstance(ends[0], dict) else turn.text
            seen.explanation = words.strip()[:LONGEST_WORDS] if isinstance(words, str) else ""
            break
        last = _one_left(options.explore, number, "enough")
        results = {}
        for call in turn.calls:
            result = refused(asked, call) or (yield from _defined(node, call, code, seen))
            results[call.id] = result[:SAID] + last
        turns.append(turn.model_copy(update={"results": results}))
    # A fix may change the files of definitions, too.
    for path in seen.paths:
        if path not in code.files and len(seen.texts) < _DEFINITION_FILES:
            yield from _add_text(node, path, seen.texts)
    node.further_files += list(seen.texts)
    return seen


def _defined(node: Node, call: ToolCall, code: Code, seen: Explored) -> Plan[str]:
    """Carry out a call of `definition`; return its result for the model."""
    assert isinstance(call.arguments, dict)
    definition = yield from look(node.name, call, code)
    name = call.arguments.get("name")
    if definition.paths and isinstance(name, str) and name not in seen.names:
        if len(seen.names) == _DEFINITIONS:
            return f"error: {_DEFINITIONS} definitions were shown, which is all: call `enough`"
        seen.names.append(name)
        seen.paths += [path for path in definition.paths if path not in seen.paths]
    return definition.text
