"""The commits between two commits, as a graph: a commit may have many parents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.api.steps import MOST_COMMITS
from kgym.errors import InfrastructureError

_LINE = re.compile(r"([0-9a-f]{40})((?: [0-9a-f]{40})*)(?:\t(.*))?")
# Maximum size of the text of a history.
MOST_BYTES = 64 << 20
_SUBJECT = 200


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; `parents` are the numbers of its parents in the history, all below its own."""

    id: str
    parents: tuple[int, ...] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The ancestors of one commit that are not ancestors of an older one; parents come first.

    The last commit is the newer end, and a descendant of all others. The older end is not included.
    """

    commits: Sequence[Commit]

    def __len__(self) -> int:
        return len(self.commits)

    def before(self, number: int) -> bytearray:
        """Return, by number, 1 for this commit and its ancestors, and 0 for the others."""
        earlier = bytearray(len(self.commits))
        earlier[number] = 1
        for at in range(number, -1, -1):
            if earlier[at]:
                for parent in self.commits[at].parents:
                    earlier[parent] = 1
        return earlier


def parse(text: str) -> History:
    """Parse a history: `ID PARENT… TAB SUBJECT` on each line, parents first.

    Parents outside the list are dropped. Raises InfrastructureError `bad_history`.
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
    # Commits off the path to the last one cannot be told apart by any test.
    if not commits or not all(history.before(len(commits) - 1)):
        raise _bad("commits that do not lead to the last one")
    return history


def _bad(what: str) -> InfrastructureError:
    return InfrastructureError("bad_history", f"the list of commits cannot be read: {what}")
