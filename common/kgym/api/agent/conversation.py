"""Messages between the agent and a model."""

from pydantic import Field, JsonValue

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
