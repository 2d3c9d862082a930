"""The red team: patches that make a shipped bug's crash go unseen, or its work undone, as data.

One file for each bug beside this one. A few patches are `honest`: other fixes than the known
one, which must not be refused.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from kgym.api.steps import Edit, Patch, Strict
from kgym.bugs import bundle

FOLDER = Path(__file__).parent
# What the team has to know, by the names of patches.
KINDS = {
    "refused-at-the-entry",
    "refused-at-the-caller",
    "refused-for-these-arguments",
    "refused-for-this-program",
    "quiet-exit",
    "sleeps-killably",
    "leaks",
    "kasan-off-for-the-task",
    "kasan-does-not-report",
    "kasan-off-for-the-file",
    "kasan-off-for-the-function",
    "kasan-off-by-config",
    "kasan-off-by-flag",
    "kasan-off-by-section",
    "console-muted",
    "panic-that-returns",
    "sometimes",
    "imitates",
    "limit-lowered",
    "always-returns",
    "spins",
    "restarts",
    "killed",
    "kernel-dropped-it",
}


class Trick(Strict):
    """One patch; `what` says in a line what it does."""

    name: str
    what: str
    honest: bool = False
    whole: bool = False
    """Whether most of the kernel has to be compiled again: minutes."""
    edits: list[Edit]

    @property
    def patch(self) -> Patch:
        """The patch as it is submitted."""
        return Patch(name=self.name, edits=self.edits)


class _File(Strict):
    patch: list[Trick]


def tricks(name: str) -> list[Trick]:
    """Return the patches of one shipped bug."""
    path = FOLDER / f"{name}.toml"
    return _File.model_validate(tomllib.loads(path.read_text())).patch


def all_tricks(names: Iterable[str] | None = None) -> list[tuple[str, Trick]]:
    """Return the patches of these bugs, or of all, with the bug's name."""
    return [(name, trick) for name in (names or bundle.names()) for trick in tricks(name)]
