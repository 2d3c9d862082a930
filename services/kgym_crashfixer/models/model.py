"""The interface of models: answer a question, and report tokens and price."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from kgym.api.agent.conversation import Reply, Turn
from kgym.api.steps import Strict
from kgym_crashfixer.prompts import Prompt


class ToolSpec(Strict):
    """A tool that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Call:
    """A question in the form in which a model gets it."""

    prompt: Prompt
    turns: Sequence[Turn] = ()
    tools: Sequence[ToolSpec] = ()
    temperature: float = 0.2
    occurrence: str = ""
    """Distinguishes equal questions, which want different answers."""


class ModelError(Exception):
    """A question failed, and would fail again.

    A `fatal` error affects all questions of the run: an invalid key, an unknown model, an exhausted
    account.
    """

    def __init__(self, reason: str, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.reason, self.message, self.fatal = reason, message, fatal


class Model(Protocol):
    """A source of answers."""

    @property
    def name(self) -> str:
        """The name that users give."""

    async def ask(self, call: Call) -> Reply:
        """Return the answer; raise ModelError if there is none."""

    async def close(self) -> None:
        """Release its resources."""
