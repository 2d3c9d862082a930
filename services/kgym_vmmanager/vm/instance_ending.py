"""How an instance ends."""

from dataclasses import dataclass

from kgym.api.steps import InstanceOutcome


@dataclass(frozen=True, slots=True)
class InstanceEnding:
    """How an instance ended; with `retry`, another attempt may end better."""

    outcome: InstanceOutcome
    detail: str = ""
    retry: bool = False


class InstanceEnded(Exception):
    """Raised to end an instance; caught where the instance is run."""

    def __init__(self, outcome: InstanceOutcome, detail: str, *, retry: bool = False) -> None:
        super().__init__(detail)
        self.ending = InstanceEnding(outcome, detail, retry)
