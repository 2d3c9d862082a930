"""What came of one attempt of an agent on a bug, as records and REST have it."""

from kgym.api.benchmarks.attempts import (
    Attempt,
    AttemptRecord,
    AttemptRow,
    Outcome,
    Overlap,
    Setup,
    Votes,
)

__all__ = ["Attempt", "AttemptRecord", "AttemptRow", "Outcome", "Overlap", "Setup", "Votes"]
