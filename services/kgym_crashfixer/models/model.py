"""What every model can do: answer a question, and say what that took."""

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
    """A question as it is sent."""

    prompt: Prompt
    turns: Sequence[Turn] = ()
    tools: Sequence[ToolSpec] = ()
    temperature: float = 0.2
    occurrence: str = ""
    """Tells equal questions apart: several different answers are wanted."""


class ModelError(Exception):
    """A question that has no answer; asking it again gives none either.

    `fatal` is what no further question of the run would be spared: a key that is not valid, a
    model that there is not, an account without money.
    """

    def __init__(self, reason: str, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.reason, self.message, self.fatal = reason, message, fatal


class Model(Protocol):
    """Answers questions."""

    @property
    def name(self) -> str:
        """As a user names it."""
        ...

    async def ask(self, call: Call) -> Reply:
        """Return the answer; raise ModelError if there is none."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...
