"""Messages between the agent and a model, and tools that it may call."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field, JsonValue, create_model

from kgym.api.steps import Count, Number, Strict


class ToolCall(Strict):
    """A tool call of the model."""

    id: str
    name: str
    arguments: dict[str, JsonValue] | str
    """As text if they are no JSON object."""


class Turn(Strict):
    """One turn of a conversation: the model's answer, and the results of its tool calls."""

    text: str = ""
    calls: list[ToolCall] = []
    results: dict[str, str] = Field({}, description="by id of the call")


class Reply(Strict):
    """An answer with its cost."""

    text: str = ""
    calls: list[ToolCall] = []
    model: str = Field(description="the provider's name for it")
    finish: str = Field("", description="why it ended: `stop`, `length`, `content_filter` …")
    input_tokens: Count = 0
    cached_tokens: Count = Field(0, description="of the input tokens")
    output_tokens: Count = 0
    price: Number | None = Field(None, description="in US dollars; null if unknown")
    seconds: Number = 0.0
    refused: list[str] = Field([], description="settings that the model does not accept")


class ToolSpec(Strict):
    """A tool that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, JsonValue]

    @classmethod
    def of(cls, tool: Callable[..., Any]) -> "ToolSpec":
        """Return a function as a tool: its name, its docstring and its parameters."""
        fields: dict[str, Any] = {
            given.name: (given.annotation, ... if given.default is given.empty else given.default)
            for given in inspect.signature(tool, eval_str=True).parameters.values()
            if given.name != "self"
        }
        model = create_model(tool.__name__, __config__=ConfigDict(extra="forbid"), **fields)
        words = inspect.getdoc(tool) or ""
        return cls(name=tool.__name__, description=words, parameters=model.model_json_schema())


def refusal(
    name: str, arguments: Mapping[str, JsonValue] | str, tools: Sequence[ToolSpec]
) -> str | None:
    """Return why a call cannot be carried out: no such tool or argument; None if it can."""
    known = {tool.name: tool.parameters.get("properties") or {} for tool in tools}
    if name not in known:
        return f"there is no tool {name[:100]!r}; the tools are {', '.join(known)}"
    if isinstance(arguments, str):
        return f"the arguments of {name} are no JSON object"
    properties = known[name]
    assert isinstance(properties, dict)
    unknown = ", ".join(repr(word[:100]) for word in arguments if word not in properties)
    its = ", ".join(properties) or "none"
    return f"{name} has no argument {unknown}; its arguments: {its}" if unknown else None
