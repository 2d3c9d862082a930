"""The labelled set: patches of shipped bugs that look plausible and are wrong, and right ones.

`labelled/BUG.toml` holds those of one bug. A wrong one names a program of `labelled/programs` that
proves it: with the patch the kernel crashes or hangs, or the program exits with `MISBEHAVES`; with
the developers' fix it exits with 0. Right patches pass all programs of their bug.

The programs were written before the variant generator was tuned, which never sees them.
"""

import tomllib
from typing import Literal

from pydantic import Field

from kgym.api.steps import Edit, Patch, Reproducer, Strict
from kgym.bugs import bundle
from tests.honesty.redteam import FOLDER

LABELLED = FOLDER / "labelled"
PROGRAMS = LABELLED / "programs"
# Exit status of a program if the kernel did something else than with the developers' fix.
MISBEHAVES = 3
Kind = Literal[
    "freed-twice",
    "leak",
    "lock-kept",
    "loop-of-one",
    "off-by-one",
    "one-caller",
    "one-sign",
    "one-type",
    "refuses-too-much",
    "success-without-work",
    "truncation",
    "work-left-out",
    "wrong-result",
    "wrong-unit",
]


class Right(Strict):
    """A patch that fixes the bug; `what` says in a sentence how."""

    name: str
    what: str
    edits: list[Edit]

    @property
    def patch(self) -> Patch:
        """The patch as it is submitted."""
        return Patch(name=self.name, edits=self.edits)


class Wrong(Right):
    """A patch that does not; `what` says in a sentence why."""

    kind: Kind
    program: str = Field(pattern=r"^[a-z0-9-]+\.c$")

    @property
    def proof(self) -> Reproducer:
        """The program that proves it."""
        return program(self.program)


class Labelled(Strict):
    """The patches of one bug."""

    wrong: list[Wrong]
    right: list[Right]

    @property
    def proofs(self) -> list[Reproducer]:
        """All programs of the bug's wrong patches."""
        return [program(name) for name in sorted({patch.program for patch in self.wrong})]


def program(name: str) -> Reproducer:
    """Return a proving program."""
    return Reproducer(kind="c", text=(PROGRAMS / name).read_text())


def labelled(bug: str) -> Labelled:
    """Return the labelled patches of a shipped bug."""
    return Labelled.model_validate(tomllib.loads((LABELLED / f"{bug}.toml").read_text()))


def all_labelled() -> list[tuple[str, Right]]:
    """Return the patches of all bugs, with the bug's name."""
    return [
        (bug, patch)
        for bug in bundle.names()
        for of_bug in [labelled(bug)]
        for patch in (*of_bug.wrong, *of_bug.right)
    ]
