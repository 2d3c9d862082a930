"""The part of a thread's records around an anchor. Pure; works on numbers only."""

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
    """A run of the sequence; `frame` is set if it is a frame of the stack.

    `omitted` counts the records left out right before it.
    """

    run: Run
    part: TracePart
    frame: int | None = None
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class ThreadPart:
    """The kept pieces in order, and why the walks away from the anchor ended."""

    pieces: tuple[Piece, ...]
    before: Stop
    after: Stop

    @property
    def size(self) -> int:
        """The number of records, counting each pattern once."""
        return sum(piece.run.length for piece in self.pieces)

    def records(self) -> NDArray[np.int64]:
        """Return the indexes of all represented records, including repetitions."""
        runs = [np.arange(piece.run.start, piece.run.stop) for piece in self.pieces]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)


def thread_part(
    sequence: Sequence, anchor: Anchor, limit: int, *, past_repeats: bool = False
) -> ThreadPart:
    """Keep the anchor and the records between its frames, then walk away from it both ways.

    At most `limit` records are kept, counting each pattern once, but always the anchor's frames.
    Between two frames, repetitions are always folded; if there are still too many records, those
    nearest to the inner frame are kept. The two walks share the rest of the limit: each may use
    half of it, and what the other does not need.
    """
    match = _match(sequence, anchor, limit)
    left = max(0, limit - sum(piece.run.length for piece in match))
    earlier, later = sequence[: anchor.first][::-1], sequence[anchor.last + 1 :]
    half = left // 2
    # Walk backward first, to see whether it needs its half; then again with what is left over.
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
    """Return the frames and the records between them, the outermost frame first."""
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
    """Return the runs of a backward walk that started before `end`, in record order."""
    for run in reversed(back.runs):
        yield replace(run, start=end - run.stop)
