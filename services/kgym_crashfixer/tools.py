"""The tools that a model may call in a conversation: what they do is in `search/tool.py`, and of a
search for further files in `search/looks.py`, of an exploration in `search/definitions.py`."""

from typing import Any

from pydantic import JsonValue

from kgym_crashfixer.models.model import ToolSpec

_PATH = {"type": "string", "description": "path in the kernel's source tree"}
_WORDS = {"type": "string"}


def _tool(name: str, description: str, required: int = 0, /, **properties: Any) -> ToolSpec:
    """Return a tool; the first `required` of its arguments have to be given."""
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


def exploring_tools() -> list[ToolSpec]:
    """Return the tools by which definitions are asked for."""
    return [_DEFINITION, _ENOUGH]


def looking_tools() -> list[ToolSpec]:
    """Return the tools of a search for further files."""
    return [*_LOOK, _NAME]


def tools(*, feedback: bool) -> list[ToolSpec]:
    """Return the tools; without `feedback`, kernels cannot be run."""
    return [*_LOOK, *_WRITE, *([_RUN] if feedback else []), _DONE]
