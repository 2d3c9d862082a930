"""The commits of a history between two of them, as a graph: a commit may have many parents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.api.steps import MOST_COMMITS
from kgym.errors import InfrastructureError

_LINE = re.compile(r"([0-9a-f]{40})((?: [0-9a-f]{40})*)(?:\t(.*))?")
# Of the text of a history.
MOST_BYTES = 64 << 20
_SUBJECT = 200


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: `parents` are the numbers of those that the history holds, all before its own."""

    id: str
    parents: tuple[int, ...] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The commits that one commit has and an older one has not; parents first, so it is the last.

    All lead to the last one. The older one itself is not part of it.
    """

    commits: Sequence[Commit]

    def __len__(self) -> int:
        return len(self.commits)

    def before(self, number: int) -> bytearray:
        """Return, by number, which commits are this one or lie before it: 1, or else 0."""
        earlier = bytearray(len(self.commits))
        earlier[number] = 1
        for at in range(number, -1, -1):
            if earlier[at]:
                for parent in self.commits[at].parents:
                    earlier[parent] = 1
        return earlier


def parse(text: str) -> History:
    """Read a history: on each line `ID PARENT… TAB SUBJECT`, parents first.

    Parents that are not listed are left out. Raises InfrastructureError `bad_history`.
    """
    numbers: dict[str, int] = {}
    commits: list[Commit] = []
    for line in text.split("\n"):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or len(commits) == MOST_COMMITS:
            raise _bad(f"line {len(commits) + 1}")
        name, before, subject = match[1], match[2].split(), match[3] or ""
        if name in numbers:
            raise _bad(f"{name} twice")
        parents = dict.fromkeys(numbers[parent] for parent in before if parent in numbers)
        numbers[name] = len(commits)
        commits.append(Commit(name, tuple(parents), subject[:_SUBJECT]))
    history = History(commits)
    if not commits or not all(history.before(len(commits) - 1)):
        raise _bad("commits that do not lead to the last one")
    return history


def _bad(what: str) -> InfrastructureError:
    return InfrastructureError("bad_history", f"the list of commits cannot be read: {what}")
