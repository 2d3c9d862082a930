"""A look at a patch beyond whether it applies and compiles.

What it cuts off, what it touches, what it says, and, where asked, its style.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from kgym.api.steps import Finding, Patch, Severity
from kgym.host import proc, separate_process
from kgym_builder.evidence.removed_code import amputations
from kgym_builder.evidence.suspicious_changes import new_words, touched
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches.patched_files import Applied, applied, read, weight

_SCRIPT = "scripts/checkpatch.pl"
# A patch that is being tried has no author and no description yet.
_OPTIONS = (
    *("--terse", "--show-types", "--showfile", "--color=never", "--no-summary"),
    *("--no-signoff", "--ignore", "COMMIT_MESSAGE,FILE_PATH_CHANGES"),
)
_SECONDS = 120.0
_MOST = 100
_MESSAGE = re.compile(r"(?P<file>[^:]+):(?P<line>[0-9]{1,9}): \w+:(?P<type>\w+): (?P<text>.*)")


async def on_trial(tree: Tree, patches: Sequence[Patch], names: Collection[str]) -> list[Applied]:
    """Return those of the patches that are named, as they apply after those before them."""
    if not names:
        return []
    files = await read(tree, patches)
    each = await applied(patches, files, lambda note: None)
    return [applied_patch for applied_patch in each if applied_patch.patch.name in names]


async def review(
    tree: Tree, trial: Sequence[Applied], files: Collection[str], *, checkpatch: bool
) -> list[Finding]:
    """Return what is to be said about patches on trial; `files` are where they may have to go.

    `tree` is the kernel without them: checkpatch.pl is the tree's own, as the
    kernel's style changes with its versions, but not one that a patch wrote.
    """
    return [
        finding
        for applied_patch in trial
        for finding in await _review(tree, applied_patch, files, checkpatch=checkpatch)
    ]


async def _review(
    tree: Tree, applied_patch: Applied, files: Collection[str], *, checkpatch: bool
) -> list[Finding]:
    before = applied_patch.before
    after = {
        change.path: change.content
        for change in applied_patch.changes
        if change.content is not None
    }
    paths = [change.path for change in applied_patch.changes]
    # One that is too large to be looked at is refused: it must not pass unseen.
    much = 4 * weight([applied_patch.patch], before)
    findings = [
        *touched(paths, files),
        *await separate_process.call(much, new_words, before, after),
        *await separate_process.call(much, amputations, before, after),
    ]
    if checkpatch:
        if (diff := applied_patch.patch.diff) is None:
            diff = await separate_process.call(much, _diff, before, after)
        findings += await _checkpatch(tree, diff)
    # A patch that is made to give many findings must not push out the blocking ones.
    findings.sort(key=lambda finding: finding.severity is not Severity.BLOCKING)
    return findings[:_MOST]


async def _checkpatch(tree: Tree, diff: str) -> list[Finding]:
    if not await tree.read([_SCRIPT]):
        return []
    try:
        done = await tree.run(
            ["perl", _SCRIPT, *_OPTIONS, "-"], stdin=diff.encode(), timeout=_SECONDS, check=False
        )
    except proc.ProgramTimedOut as error:
        return [Finding(check="checkpatch", reason="timed_out", message=error.message)]
    return list(_parse(done.text))


def _parse(text: str) -> Iterator[Finding]:
    for line in text.splitlines():
        if match := _MESSAGE.fullmatch(line):
            yield Finding(
                check="checkpatch",
                reason=match["type"],
                message=match["text"],
                file=match["file"],
                line=int(match["line"]),
            )


def _diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    lines: list[str] = []
    for path in sorted({*before, *after}):
        old, new = (
            side.get(path, b"").decode(errors="replace").splitlines(keepends=True)
            for side in (before, after)
        )
        lines += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(lines)
