"""Who wrote the lines that a diff changes: `git log` and `git blame` of a repository at hand.

The lines of a commit count only if they read as in the diff: a tree with backports, or with a bug
put back, has others at the same numbers.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kgym.api.steps.check import Blamed
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
    """Subjects of the newest commits to a file, and the commits that wrote a diff's old lines."""

    subjects: Sequence[str]
    blame: Sequence[Blamed]


async def read(git: Git, commit: str, diff: str, path: str) -> LineHistory:
    """Return the history of a file and of a diff's lines; the diff has true line numbers."""
    how = ["log", "--no-merges", f"-n{_SUBJECTS}", "--format=%s", commit, "--", path]
    subjects = await git(how)
    titles: dict[str, str] = {}
    # By writer, then by whether the patch removes the line.
    counts: dict[str, Counter[bool]] = {}
    for file in unified_diff.parse(diff, "the patch")[:_FILES]:
        old = dict[int, str]()
        ranges = list[str]()
        for hunk in file.hunks[:_HUNKS]:
            lines = [line for line in hunk.readings[0] if line[0] in "- "]
            old |= dict(enumerate(lines, hunk.old or 0))
            ranges += [f"-L{hunk.old},+{len(lines)}"] * bool(lines)
        how = ["blame", "--porcelain", *ranges, commit, "--", file.paths[0]]
        for writer, number, text in _records(await git(how), titles) if ranges else ():
            line = old.get(number, "")
            if line and line[1:].rstrip("\n") == text:
                counts.setdefault(writer, Counter())[line[0] == "-"] += 1
    blame = list[Blamed]()
    for writer in sorted(counts, key=lambda each: -counts[each][True])[:_COMMITS]:
        how = ["describe", "--contains", "--match=v[0-9]*", writer]
        tag = "".join(await git(how)) if len(blame) < _TAGGED else ""
        removed, kept = counts[writer][True], counts[writer][False]
        title = titles.get(writer, "")
        blame.append(Blamed(commit=writer, title=title, removed=removed, kept=kept, tag=tag))
    return LineHistory(subjects, blame)


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
