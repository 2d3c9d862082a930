"""Who wrote the lines that a diff changes: `git log` and `git blame` of a repository at hand.

The lines of a commit count only if they read as in the diff: a tree with backports, or with a bug
put back, has others at the same numbers.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kgym.api.steps import Blamed
from kgym.source import unified_diff

# Runs Git on a repository; returns the lines that it prints, none if it fails.
Git = Callable[[Sequence[str]], Awaitable[list[str]]]
_SUBJECTS = 50
# Files and hunks that are looked up: a fix has few, a hostile patch could have thousands.
_FILES, _HUNKS = 10, 50
# Commits with their first tag: each takes Git seconds.
_TAGGED = 3
_COMMITS = 100
# Begins the record of a line in the output of `git blame --porcelain` (git-blame(1)).
_RECORD = re.compile(r"([0-9a-f]{40}) \d+ (\d+)(?: \d+)?")


@dataclass(frozen=True, slots=True)
class LineHistory:
    """Subjects of the newest commits to the file with most changes; commits of changed lines."""

    subjects: Sequence[str]
    blame: Sequence[Blamed]


@dataclass(frozen=True, slots=True)
class _OldLine:
    text: str
    removed: bool


async def read(git: Git, commit: str, diff: str) -> LineHistory:
    """Return the history of a diff's lines up to a commit, from a diff with true line numbers."""
    hunks = {file.paths[0]: file.hunks[:_HUNKS] for file in unified_diff.parse(diff, "the patch")}
    most = max(hunks, key=lambda path: sum(len(hunk.side("-+")) for hunk in hunks[path]))
    how = ["log", "--no-merges", f"-n{_SUBJECTS}", "--format=%s", commit, "--", most]
    subjects = await git(how)
    removed, kept = Counter[str](), Counter[str]()
    titles: dict[str, str] = {}
    for path, own in list(hunks.items())[:_FILES]:
        lines = {number: line for hunk in own for number, line in _old_lines(hunk)}
        ranges = [f"-L{hunk.old},+{len(hunk.side('- '))}" for hunk in own if hunk.side("- ")]
        if not ranges:
            continue
        porcelain = await git(["blame", "--porcelain", *ranges, commit, "--", path])
        for writer, number, text in _records(porcelain, titles):
            line = lines.get(number)
            if line is not None and line.text == text:
                (removed if line.removed else kept)[writer] += 1
    writers = sorted(removed.keys() | kept.keys(), key=lambda each: (-removed[each], -kept[each]))
    blame = []
    for number, writer in enumerate(each for each in writers[:_COMMITS] if each in titles):
        how = ["describe", "--contains", "--match=v[0-9]*", writer]
        tags = await git(how) if number < _TAGGED else []
        counts = {"removed": removed[writer], "kept": kept[writer]}
        about = {"commit": writer, "title": titles[writer], "tag": "".join(tags[:1])}
        blame.append(Blamed.model_validate({**about, **counts}))
    return LineHistory(subjects, blame)


def _old_lines(hunk: unified_diff.Hunk) -> list[tuple[int, _OldLine]]:
    """Return the lines of the old side by their numbers."""
    old = [line for line in hunk.readings[0] if line[0] in "- "]
    numbered = enumerate(old, hunk.old or 0)
    return [(number, _OldLine(line[1:].rstrip("\n"), line[0] == "-")) for number, line in numbered]


def _records(porcelain: Sequence[str], titles: dict[str, str]) -> list[tuple[str, int, str]]:
    """Return commit, number and text of each line; add the commits' titles to `titles`."""
    records, ends = [], set()
    commit, number = "", 0
    for line in porcelain:
        if line.startswith("\t"):
            records.append((commit, number, line[1:]))
        elif match := _RECORD.fullmatch(line):
            commit, number = match[1], int(match[2])
        elif line.startswith("summary "):
            titles.setdefault(commit, line.removeprefix("summary "))
        elif line == "boundary":
            ends.add(commit)
    # Where a shallow history ends, its last commit seems to have written everything.
    return [record for record in records if record[0] not in ends]
