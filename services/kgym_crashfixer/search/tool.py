"""The plain agent: one conversation in which the model calls tools until it is done."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Candidate, Node, NodeOutcome, Tried
from kgym.api.agent.strategy import Tool
from kgym.api.steps import Patch, PatchCheck, Verdict
from kgym.bugs.kernel_run_text import check_text, quoted
from kgym.source.whole_functions import MisfitError
from kgym_crashfixer.search import written_patch
from kgym_crashfixer.search.answers import UnreadableError
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import BUILT, Lesson, Memory, State, missing, try_patch
from kgym_crashfixer.search.engine import Plan
from kgym_crashfixer.search.looks import CALLS, SAID, SILENT, look, whole
from kgym_crashfixer.search.tools import DEBUGGING, refused
from kgym_crashfixer.search.work import Answer, Check, Checked, Purpose, Question
from kgym_crashfixer.search.written_patch import Change, clean

# Characters of a crash report in a tool's result.
_REPORT = 20_000
# Characters of the model's own explanation of a failed patch.
_LESSON = 1000
_NO_KERNEL = "error: no further kernel can be run; edit, check, and call `done`"


@dataclass(slots=True)
class _Talk:
    """A running conversation."""

    strategy: Tool
    memory: Memory
    node: Node
    code: Code
    turns: list[Turn] = field(default_factory=list)
    kernels: int = 0
    done: bool = False
    fixed: bool = False


def tool(strategy: Tool, memory: Memory, state: State, name: str) -> Plan[bool]:
    """Hold a conversation; return whether it has a fix."""
    node = memory.node(name, None, "hypothesis")
    talk = _Talk(strategy, memory, node, Code({}))
    try:
        yield from _conversation(talk, state)
        yield from _last(talk)
    finally:  # also if the conversation is dropped
        node.outcome = node.outcome or NodeOutcome.STOPPED
    return talk.fixed


def _conversation(talk: _Talk, state: State) -> Plan[None]:
    """Let the model call tools until it is done, or its turns are used up."""
    silent = 0
    for _ in range(talk.strategy.turns):
        asked = Question(
            node=talk.node.name,
            purpose=Purpose.TOOL,
            values=_values(talk, state),
            turns=list(talk.turns),
            temperature=talk.strategy.temperature,
        )
        answer = yield asked
        if not isinstance(answer, Answer):
            talk.node.unreadable.append(missing(answer))
            return
        turn = Turn(text=answer.text[:SAID], calls=answer.calls[:CALLS])
        talk.turns.append(turn)
        silent = 0 if turn.calls else silent + 1
        results = {}
        if not turn.calls and (written := (yield from _written(talk, answer.text))):
            silent, results = 0, {"": written[:SAID]}
        for call in turn.calls:
            result = refused(asked, call) or (yield from _called(talk, call))
            results[call.id] = result[:SAID]
        talk.turns[-1] = turn.model_copy(update={"results": results})
        if talk.done or talk.fixed or silent == SILENT:
            return


def _values(talk: _Talk, state: State) -> dict[str, Any]:
    strategy = talk.strategy
    return {
        "title": state.crash.title,
        "report": state.crash.report,
        "program": state.program,
        "trace": talk.memory.trace_of(state.crash) if strategy.trace else None,
        "files": list(state.code.files),
        "lessons": [asdict(lesson) for lesson in state.lessons],
        "feedback": strategy.feedback,
        "kernels": strategy.kernels,
        "discussion": state.discussion,
    }


def _called(talk: _Talk, call: ToolCall) -> Plan[str]:
    """Carry out a tool call; return its result for the model."""
    assert isinstance(call.arguments, dict)
    match call.name:
        case "edit":
            result = yield from _edit(talk, call.arguments)
        case "check" | "run_kernel" | "done" if talk.code.unchanged:
            result = "error: nothing has been edited yet"
        case "check":
            result = _checked_words((yield from _checked(talk)))
        case "run_kernel":
            result = yield from _run(talk)
        case "reset":
            talk.code, result = Code(talk.code.files), "all edits are undone"
        case "done":
            talk.done, result = True, "the conversation ends"
        case name if name in DEBUGGING and talk.kernels == talk.strategy.kernels:
            result = _NO_KERNEL
        case name:
            # These tools run a kernel, which takes as long as a verdict.
            talk.kernels += name in DEBUGGING
            result = (yield from look(talk.node.name, call, talk.code)).text
    return result


def _edit(talk: _Talk, arguments: Mapping[str, JsonValue]) -> Plan[str]:
    match arguments:
        case {"file": str(file), "original": str(original), "replacement": str(replacement)}:
            return (yield from _changed(talk, [Change(clean(file), original, replacement)]))
        case _:
            return "error: give `file`, `original` and `replacement`, each a text"


def _changed(talk: _Talk, changes: Sequence[Change]) -> Plan[str]:
    """Make changes to the code, all or none; return the result for the model."""
    code = talk.code
    for change in changes:
        file = posixpath.normpath(change.file)
        try:
            if change.file and not code.means(file):
                seen = yield from whole(talk.node.name, file)
                if not seen.succeeded:
                    return seen.text
                code = replace(code, files={**code.files, file: seen.text})
            code = code.changed(change)
        except (MisfitError, ValueError) as error:
            return f"error: {error}"
    talk.code = code
    return "edited"


def _written(talk: _Talk, text: str) -> Plan[str]:
    """Make the changes of a patch in an answer without a tool call; return the result, if any."""
    try:
        changes, _ = written_patch.read(text, talk.code.files)
        # A whole function in prose may be quoted from the source, without the edits so far.
        changes = [change for change in changes if change.original]
        return (yield from _changed(talk, changes)) if changes else ""
    except (UnreadableError, ValueError) as error:
        talk.node.unreadable.append(f"an answer without a tool call: {error}")
        return ""


def _checked(talk: _Talk) -> Plan[PatchCheck | None]:
    patch = Patch(name="the patch", diff=talk.code.diff)
    checked = yield Check(node=talk.node.name, patches=[patch])
    return checked.patches[0] if isinstance(checked, Checked) else None


def _checked_words(check: PatchCheck | None) -> str:
    return (
        "error: the platform gave no answer; try again later"
        if check is None
        else check_text(check)
    )


def _run(talk: _Talk) -> Plan[str]:
    """Try the edits on a kernel; return the answer of `run_kernel`.

    Only a kernel with a verdict counts against the limit.
    """
    code, node, memory = talk.code, talk.node, talk.memory
    # Other phases and trees share the digests: no kernel is built twice in a search.
    if code.digest in memory.digests:
        known = memory.lessons.get(code.digest)
        return f"the same edits were tried before: {known.outcome if known else 'no fix'}"
    if talk.kernels == talk.strategy.kernels:
        return _NO_KERNEL
    # A check takes a second, a kernel minutes.
    checked = yield from _checked(talk)
    if checked is None or checked.outcome not in BUILT:
        return _checked_words(checked)
    candidate = Candidate(
        text=talk.turns[-1].text if talk.turns else "",
        edits=list(code.edits),
        diff=code.diff,
        digest=code.digest,
        outcome=checked.outcome,
    )
    node.candidates.append(candidate)
    node.chosen = len(node.candidates) - 1
    tried = yield from try_patch(memory, node, candidate)
    if tried is None:
        return "error: the platform came to no verdict; try again later"
    talk.kernels += 1
    talk.fixed = tried.resolved
    if not talk.fixed:
        candidate.problem = verdict_words(tried, trace=talk.strategy.trace)
        lesson = Lesson(code.diff, tried.outcome, candidate.text[:_LESSON])
        memory.lessons[code.digest] = lesson
    return candidate.problem or verdict_words(tried)


def verdict_words(tried: Tried, *, trace: bool = False) -> str:
    """Return the answer of `run_kernel` for a kernel that was tried."""
    words = _verdict_words(tried, trace=trace)
    return f"{words}\n\n{quoted('console', tried.printed, _REPORT)}" if tried.printed else words


def _verdict_words(tried: Tried, *, trace: bool) -> str:
    if tried.verdict == "does_not_build":
        return f"does not compile: {tried.reason[:_REPORT]}"
    if tried.crash is not None:
        words = f"crash reproduced: {tried.crash.title}\n\n{tried.crash.report[:_REPORT]}"
        if trace and tried.crash.trace:
            words += (
                f"\n\ncalls before the crash, from earliest to most recent:\n{tried.crash.trace}"
            )
        return words
    if tried.resolved:
        return "crash resolved"
    findings = "".join(f"\n- {message}" for message in tried.messages)
    ran = "the kernel does not crash, but " if tried.verdict is Verdict.NO_CRASH else ""
    return f"{ran}this is no fix: {', '.join(tried.obstacles)}{findings}"


def _last(talk: _Talk) -> Plan[None]:
    """Try the final edits if no kernel had them, and record the outcome of the node."""
    node = talk.node
    if not talk.code.unchanged and talk.code.digest not in talk.memory.digests:
        talk.kernels = min(talk.kernels, talk.strategy.kernels - 1)
        yield from _run(talk)
    tried = node.tried
    if talk.fixed:
        node.outcome = NodeOutcome.RESOLVED
    elif tried is None or tried.verdict == "does_not_build":
        node.outcome = NodeOutcome.NO_PATCH
    elif tried.undecided:
        node.outcome = NodeOutcome.INCONCLUSIVE
    else:
        node.outcome = NodeOutcome.CRASHED if tried.crash else NodeOutcome.REJECTED
