"""What a model has answered in an attempt, on the disk: a line for each answer."""

import os
from pathlib import Path

from pydantic import Field

from kgym.api.steps import Strict
from kgym_benchmark.campaign.token_use import Used

MOST = 1 << 30
"""Bytes of a tape."""


class Answered(Strict):
    """A question that was answered."""

    question: str = Field(description="SHA-256 of its path and body")
    status: int
    headers: dict[str, str]
    body: str = Field(description="Base64")
    used: Used | None = Field(description="null: the answer does not say")
    seconds: float


class ModelTape:
    """A tape in a file; what stood there when it was opened can be asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, list[int]] = {}
        self._size = 0

    def open(self) -> None:
        """Look where answers are; half a line, which a killed process has left, goes."""
        if not self._path.exists():
            return
        with self._path.open("rb+") as file:
            for line in file:
                if line.endswith(b"\n"):
                    one = Answered.model_validate_json(line)
                    self._places.setdefault(one.question, []).append(self._size)
                    self._size += len(line)
            file.truncate(self._size)

    @property
    def full(self) -> bool:
        """Whether no more may be written."""
        return self._size >= MOST

    def answer(self, question: str, number: int) -> Answered | None:
        """Return what a question was answered when it was asked for the so-many-th time, from 0."""
        places = self._places.get(question, [])
        if number >= len(places):
            return None
        with self._path.open("rb") as file:
            file.seek(places[number])
            return Answered.model_validate_json(file.readline())

    def append(self, one: Answered) -> None:
        """Write an answer; it is on the disk when this returns."""
        line = one.model_dump_json().encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line)
