"""Definitions that the model asks for before it patches (RGym, section 2, Function Exploration)."""

from dataclasses import dataclass, field

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Node
from kgym.api.agent.strategy import Cycle
from kgym_crashfixer.search.answers import LONGEST_WORDS
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.engine import Plan
from kgym_crashfixer.search.looks import BLIND, CALLS, LONGEST_FILE, SAID, Asking, shown, whole
from kgym_crashfixer.search.work import Answer, Purpose, Seen, Source

# Definitions that prompts show from then on.
_NAMES = 40
# Files that they may add to the candidates.
_FILES = 8
_ONE_LEFT = "\n\n[one turn is left: call `enough`]"


@dataclass(slots=True)
class Explored:
    """What an exploration came to."""

    names: list[str] = field(default_factory=list)
    """Of the definitions that were seen."""
    paths: list[str] = field(default_factory=list)
    """Of the files that hold them."""
    texts: dict[str, str] = field(default_factory=dict)
    """Of those files that were no candidates before, by path."""
    explanation: str = ""
    """The cause of the crash, in the model's words."""


def explored(options: Cycle, code: Code, question: Asking, node: Node) -> Plan[Explored]:
    """Let the model ask for definitions until it has seen enough, or its turns are over.

    `question` makes one of the debug cycle, of a purpose. The model is told before its last turn.
    An answer without a call of a tool ends it; its words then are the explanation.
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
            explanation = (
                ends[0].get("explanation") if ends and isinstance(ends[0], dict) else turn.text
            )
            seen.explanation = (
                explanation.strip()[:LONGEST_WORDS] if isinstance(explanation, str) else ""
            )
            break
        last = _ONE_LEFT if number == options.explore - 2 else ""
        results = {}
        for call in turn.calls:
            results[call.id] = (yield from _called(node, call, code, seen))[:SAID] + last
        turns.append(turn.model_copy(update={"results": results}))
    yield from _read(node, code, seen)
    return seen


def _called(node: Node, call: ToolCall, code: Code, seen: Explored) -> Plan[str]:
    """Do what a call of a tool asks for; return what the model is told."""
    if not isinstance(call.arguments, dict):
        return "error: the arguments are no JSON object"
    if call.name != "definition":
        return f"error: there is no tool {call.name!r}"
    look = yield Source(
        node=node.name, tool="definition", arguments=call.arguments, edits=list(code.edits)
    )
    if not isinstance(look, Seen):
        return BLIND
    name = call.arguments.get("name")
    if look.succeeded and isinstance(name, str) and name not in seen.names:
        if len(seen.names) == _NAMES:
            return f"error: {_NAMES} definitions were shown, which is all: call `enough`"
        seen.names.append(name)
        seen.paths += [path for path in look.paths if path not in seen.paths]
    return shown(look.text)


def _read(node: Node, code: Code, seen: Explored) -> Plan[None]:
    """Read the files of what was seen, so that a fix may change them; long ones are left out."""
    for path in seen.paths:
        if path in code.files or len(seen.texts) == _FILES:
            continue
        look = yield from whole(node.name, path)
        if look is not None and look.succeeded and len(look.text) <= LONGEST_FILE:
            seen.texts[path] = look.text
    node.further_files += list(seen.texts)
