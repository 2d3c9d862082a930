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
KINDS = set((FOLDER / "kinds.txt").read_text().split())


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
