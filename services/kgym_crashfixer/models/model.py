"""The interface of models: answer a question, and report tokens and price."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kgym.api.agent.conversation import Reply, ToolSpec, Turn
from kgym_crashfixer.prompts import Prompt


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
