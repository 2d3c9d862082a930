"""What is said between the agent and a model."""

from pydantic import Field, JsonValue

from kgym.api.steps import Count, Strict


class ToolCall(Strict):
    """A tool that the model wants called."""

    id: str
    name: str
    arguments: dict[str, JsonValue] | str
    """As text where it is no JSON object."""


class Turn(Strict):
    """One turn of a conversation: the model's, or what its calls of tools returned."""

    text: str = ""
    calls: list[ToolCall] = []
    results: dict[str, str] = Field({}, description="by the id of the call")


class Reply(Strict):
    """An answer, and what it took."""

    text: str = ""
    calls: list[ToolCall] = []
    model: str = Field(description="as its provider names it")
    finish: str = Field("", description="why it ended: `stop`, `length`, `content_filter` …")
    input_tokens: Count = 0
    cached_tokens: Count = Field(0, description="of the input tokens")
    output_tokens: Count = 0
    price: float | None = Field(None, description="in US dollars; null where it is not known")
    seconds: float = 0.0
    refused: list[str] = Field([], description="settings that the model does not take")
