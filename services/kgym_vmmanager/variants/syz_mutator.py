"""Variants of a syzkaller program: made on this host by syzkaller's own mutator, in the sandbox.

A seed gives the same variant with the same mutator, program and dictionary. Its changes are made in
rounds, each of which changes one call if it can (kgym_builder/syzkaller/mutator/mutate.go).
"""

import asyncio
import difflib
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kgym.api import syz_program
from kgym.api.steps import SYZ_ENGINE, Dictionary, SyzkallerArtifact
from kgym.errors import UserError
from kgym.host.quoted_words import quoted
from kgym.host.sandbox import Sandbox, prepare
from kgym.host.sandbox_limits import MIB, LimitExceeded, SandboxLimits
from kgym_vmmanager.variants import dictionary

_SECONDS = 100.0
_MEMORY = 3 << 30
_OUTPUT = 64 * MIB
_MOST_CALLS = 64
_MOST_CHARACTERS = 10_000
_MOST_ROUNDS = 10
# Stands for the program itself among seeds and masks.
_BASE = (-1, 0)
# Characters of a call around its first difference that a message shows.
_SHOWN = 120

# A line for each call.
Program = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SyzVariant:
    """A variant: the program before its changes, and after each round of them, by bit."""

    base: Program
    rounds: tuple[tuple[int, Program], ...]

    @property
    def program(self) -> Program:
        """The program with all changes."""
        return self.rounds[-1][1]

    def changes(self) -> dict[int, str]:
        """Return the changes in words, by bit."""
        before, words = self.base, {}
        for bit, after in self.rounds:
            words[bit] = "; ".join(_differences(before, after))
            before = after
        return words


@dataclass(slots=True)
class Made:
    """What a mutator has made: the program as it understands it, and variants by seed and mask."""

    base: Program = ()
    variants: dict[tuple[int, int], SyzVariant] = field(default_factory=dict)
    lacks: str = ""
    """Why there are fewer variants than were ordered."""


@dataclass(frozen=True, slots=True)
class Mutator:
    """The mutator in `folder`, with the program and the dictionary that it works with."""

    folder: Path

    @classmethod
    async def prepared(
        cls, binary: Path, program: Path, words: Dictionary, folder: Path
    ) -> "Mutator":
        """Copy the files to the new `folder`, as the sandbox's user may lack access to them."""
        prepare(folder)
        await asyncio.to_thread(shutil.copyfile, binary, folder / SyzkallerArtifact.MUTATOR)
        (folder / SyzkallerArtifact.MUTATOR).chmod(0o755)
        await asyncio.to_thread(shutil.copyfile, program, folder / "program")
        (folder / "words").write_text(dictionary.lines(words))
        return cls(folder)

    async def make(self, orders: Sequence[tuple[int, int, int]], seconds: float = _SECONDS) -> Made:
        """Make variants; an order is the first seed, the number of seeds, and a mask of rounds.

        Raises UserError `cannot_mutate` if there is no program or no variant at all, and
        InfrastructureError if the sandbox fails. If only some variants are missing, `Made.lacks`
        says why.
        """
        reader = _Reader(
            {(seed, mask) for first, count, mask in orders for seed in range(first, first + count)}
        )
        usual = SandboxLimits.of_host()
        limits = replace(usual, memory=min(_MEMORY, usual.memory), output=_OUTPUT, seconds=seconds)
        box = Sandbox(readonly={"/in": self.folder}, limits=limits)
        argv = [f"/in/{SyzkallerArtifact.MUTATOR}", "/in/program", "/in/words"]
        stdin = "".join(f"{first} {count} {mask}\n" for first, count, mask in orders).encode()
        try:
            done = await box.run(argv, stdin=stdin, on_line=reader.take, check=False)
            failed = done.returncode != 0 or not reader.is_over
            why = f"it ended with status {done.returncode}: {quoted(done.text[-300:], 300)}"
        except LimitExceeded as error:
            failed, why = True, error.message
        made = reader.made
        if not made.base or (orders and not made.variants):
            raise UserError("cannot_mutate", f"syzkaller's mutator makes no variants: {why}")
        if failed:
            made.lacks = f"the mutator made {len(made.variants)} variants only: {why}"
        return made


def version(binary: Path) -> str:
    """Return the id of a mutator, which stands for syzkaller's revision, too."""
    with binary.open("rb") as file:
        return f"{SYZ_ENGINE}{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


class _Reader:
    """Parser of the mutator's output. Pure."""

    # A submitter's syzkaller can print anything: only variants that were ordered count, each
    # once, and programs are bounded.

    def __init__(self, ordered: set[tuple[int, int]]) -> None:
        self.made = Made()
        self.is_over = False
        self._ordered = ordered
        # What is being read, and whether all lines of it were calls.
        self._key: tuple[int, int] | None = None
        self._rounds: list[tuple[int, list[str]]] = []
        self._is_good = True

    def take(self, line: bytes) -> None:
        """Add a line; malformed ones spoil their variant."""
        text = line.decode("ascii", "replace")
        match text.split():
            case ["#program"] if not self.made.base:
                self._begin(_BASE)
                self._rounds.append((0, []))
            case ["#variant", seed, mask] if seed.isdecimal() and mask.isdecimal():
                self._begin((int(seed[:20]), int(mask[:20])))
            case ["#round", bit] if bit.isdecimal() and len(self._rounds) < _MOST_ROUNDS:
                self._rounds.append((int(bit[:2]), []))
            case ["#end"]:
                self._begin(None)
                self.is_over = True
            case words if words and not text.startswith("#") and self._rounds:
                calls = self._rounds[-1][1]
                calls.append(text[:_MOST_CHARACTERS])
                is_call = text.isprintable() and syz_program.call_names(text) not in ([], ["?"])
                self._is_good &= is_call and len(text) <= _MOST_CHARACTERS
                if len(calls) > _MOST_CALLS:
                    calls.pop()
                    self._is_good = False

    def _begin(self, key: tuple[int, int] | None) -> None:
        """Store the program or variant that was read so far, and start the next."""
        rounds = tuple((bit, tuple(calls)) for bit, calls in self._rounds)
        if self._is_good and rounds and all(calls for _, calls in rounds):
            if self._key == _BASE:
                self.made.base = rounds[0][1]
            elif self._key in self._ordered:
                self.made.variants[self._key] = SyzVariant(self.made.base, rounds)
                self._ordered.discard(self._key)
        self._key, self._rounds, self._is_good = key, [], True


def _differences(before: Sequence[str], after: Sequence[str]) -> Iterable[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for what, i, i_end, j, j_end in matcher.get_opcodes():
        old, new = before[i:i_end], after[j:j_end]
        if what == "equal":
            continue
        for number, (call, other) in enumerate(zip(old, new, strict=False), i + 1):
            yield f"{_name(call)} (call {number}) is {_around(other, call)}"
        for number, line in enumerate(old[len(new) :], i + len(new) + 1):
            yield f"{_name(line)} (call {number}) is left out"
        for line in new[len(old) :]:
            yield f"{_around(line, '')} is added after call {i_end}"


def _name(call: str) -> str:
    return (syz_program.call_names(call) or ["?"])[0]


def _around(call: str, other: str) -> str:
    """Return the differing part of a call, and the same part of the other call."""
    pairs = enumerate(zip(call, other, strict=False))
    first = next((at for at, (a, b) in pairs if a != b), min(len(call), len(other)))
    begin = max(0, first - _SHOWN // 2)
    parts = [text[begin : begin + _SHOWN] for text in (call, other)]
    return " instead of ".join(f"{'…' * bool(begin)}{part}" for part in parts if part)
