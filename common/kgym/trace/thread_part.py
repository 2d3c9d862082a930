"""Cutting a thread's records down to what lies around an anchor. Pure; knows numbers only."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kgym.api.steps import TracePart
from kgym.trace.repetition import Run, Stop, Walk, walk
from kgym.trace.stack_anchor import Anchor

Sequence = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of the sequence; `frame` is set where it is a frame of the stack.

    `omitted` counts the records that were left out right before it.
    """

    run: Run
    part: TracePart
    frame: int | None = None
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class ThreadPart:
    """What is left, in order, and why the walks away from the anchor ended."""

    pieces: tuple[Piece, ...]
    before: Stop
    after: Stop

    @property
    def size(self) -> int:
        """Records, those of a pattern counted once."""
        return sum(piece.run.length for piece in self.pieces)

    def records(self) -> NDArray[np.int64]:
        """Return the places of all records it stands for, repetitions included."""
        runs = [np.arange(piece.run.start, piece.run.stop) for piece in self.pieces]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)


def thread_part(
    sequence: Sequence, anchor: Anchor, limit: int, *, past_repeats: bool = False
) -> ThreadPart:
    """Keep the anchor and what lies between its frames, then walk away from it both ways.

    At most `limit` records are left, those of a repeated pattern counted once,
    or as many as the anchor has frames. Between two frames repetitions are
    always counted and passed; if there is too much all the same, what is
    nearest to the inner frame stays. What the limit leaves is shared by the two
    walks: each may have half, and what the other does not need.
    """
    match = _match(sequence, anchor, limit)
    left = max(0, limit - sum(piece.run.length for piece in match))
    earlier, later = sequence[: anchor.first][::-1], sequence[anchor.last + 1 :]
    half = left // 2
    before = walk(earlier, left, past_repeats=past_repeats)
    after = walk(later, left - min(before.size, half), past_repeats=past_repeats)
    before = walk(earlier, left - after.size, past_repeats=past_repeats)
    pieces = [
        *(Piece(run, TracePart.BACKWARD) for run in _mirrored(before, anchor.first)),
        *match,
        *(
            Piece(replace(run, start=run.start + anchor.last + 1), TracePart.FORWARD)
            for run in after.runs
        ),
    ]
    return ThreadPart(tuple(pieces), before.stop, after.stop)


def _match(sequence: Sequence, anchor: Anchor, limit: int) -> list[Piece]:
    """Return the frames and what lies between them, the outermost first."""
    pieces: list[Piece] = []
    left = max(0, limit - len(anchor.places))
    inner = None
    for n, (place, frame) in enumerate(zip(anchor.places, anchor.frames, strict=True)):
        if inner is not None:
            share = left // (len(anchor.places) - n)
            between = walk(sequence[place + 1 : inner][::-1], share, past_repeats=True)
            left -= between.size
            omitted = inner - place - 1 - between.covered
            runs = [Piece(run, TracePart.MATCH) for run in _mirrored(between, inner)]
            first = runs[0] if runs else pieces.pop(0)
            pieces[:0] = [replace(first, omitted=omitted), *runs[1:]]
        pieces.insert(0, Piece(Run(place), TracePart.MATCH, frame))
        inner = place
    return pieces


def _mirrored(back: Walk, end: int) -> Iterable[Run]:
    """Return the runs of a walk backward from before `end`, in the order of the records."""
    for run in reversed(back.runs):
        yield replace(run, start=end - run.stop)
