"""The tools that questions offer to a model."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import JsonValue

from kgym.api.agent.conversation import ToolCall, ToolSpec, refusal
from kgym.bugs.crash_tools import CrashTools
from kgym.bugs.debug_tools import DebugTools
from kgym.bugs.discussion_tools import DiscussionTools
from kgym.bugs.history_tools import HistoryTools
from kgym.bugs.source_tools import SourceTools
from kgym_crashfixer.search.work import Purpose, Question

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


_DEFINITION = ToolSpec.of(SourceTools.definition)
_LOOKS: tuple[Callable[..., Any], ...] = (
    *(SourceTools.read_file, SourceTools.list_folder, SourceTools.search),
    *(SourceTools.symbol, SourceTools.definition),
    *(CrashTools.reproducer, CrashTools.console, CrashTools.kernel_config),
    *(CrashTools.machine_code, CrashTools.layout),
    *(HistoryTools.git_log, HistoryTools.git_show, HistoryTools.git_blame),
)
_LOOK = tuple(map(ToolSpec.of, _LOOKS))
_DISCUSSION = ToolSpec.of(DiscussionTools.discussion)
_WRITE = (
    _tool(
        "edit",
        "Replace a piece of a file. `original` has to occur in it exactly once, byte for byte. What"
        " you read afterwards has the change.",
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
    " resolved`, `crash reproduced` with the new report, or `does not compile`. What"
    ' `pr_info("kgym: …")` prints comes back; such lines have to be gone before edits are a fix.',
)
# Tools that run a kernel, by name.
DEBUGGING = {
    tool.__name__: ToolSpec.of(tool) for tool in (DebugTools.trace, DebugTools.run_program)
}
_DONE = _tool("done", "End the conversation: your edits are the fix.")
_NAME = _tool(
    "name_files",
    "End the search: name all files that the fix may have to change, the most likely first, and"
    " explain what you have found out. The files take the place of those that you were told;"
    " whoever writes the patch reads the explanation.",
    2,
    files={"type": "array", "items": _PATH},
    explanation=_WORDS,
)
_ENOUGH = _tool(
    "enough",
    "End the exploration, and explain the cause of the crash as far as you understand it.",
    1,
    explanation=_WORDS,
)


def tools_of(question: Question) -> Sequence[ToolSpec]:
    """Return the tools of a question."""
    looks = [*_LOOK, *([_DISCUSSION] if question.values.get("discussion") else [])]
    match question.purpose:
        case Purpose.TOOL:
            run = [_RUN, *DEBUGGING.values()] if question.values.get("feedback") else []
            return [*looks, *_WRITE, *run, _DONE]
        case Purpose.FILES:
            return [*looks, _NAME]
        case Purpose.DEFINITIONS:
            return [_DEFINITION, _ENOUGH]
    return ()


def refused(question: Question, call: ToolCall) -> str | None:
    """Return the answer to a tool call that cannot be carried out; None if it can."""
    why = refusal(call.name, call.arguments, tools_of(question))
    return f"error: {why}" if why is not None else None
