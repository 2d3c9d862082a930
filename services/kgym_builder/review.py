"""A look at a patch beyond whether it applies and compiles.

What it cuts off, what it touches, what it says, and, where asked, its style.
"""

import asyncio
import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from kgym import proc
from kgym.amputation import amputations
from kgym.scrutiny import said, touched
from kgym.steps import Finding, Patch, Severity
from kgym_builder.patches import Applied, apply_each, read
from kgym_builder.tree import Tree

_SCRIPT = "scripts/checkpatch.pl"
# A patch that is being tried has no author and no description yet.
_OPTIONS = (
    *("--terse", "--show-types", "--showfile", "--color=never", "--no-summary"),
    *("--no-signoff", "--ignore", "COMMIT_MESSAGE,FILE_PATH_CHANGES"),
)
_SECONDS = 120.0
_MOST = 100
_MESSAGE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): \w+:(?P<type>\w+): (?P<text>.*)")


async def on_trial(tree: Tree, patches: Sequence[Patch], names: Collection[str]) -> list[Applied]:
    """Return those of the patches that are named, as they apply after those before them."""
    if not names:
        return []
    files = await read(tree, patches)
    each = apply_each(patches, files, lambda note: None)
    return [one for one in each if one.patch.name in names]


async def review(
    tree: Tree, trial: Sequence[Applied], files: Collection[str], *, checkpatch: bool
) -> list[Finding]:
    """Return what is to be said about patches on trial; `files` are where they may have to go.

    `tree` is the kernel without them: checkpatch.pl is the tree's own, as the
    kernel's style changes with its versions, but not one that a patch wrote.
    """
    return [
        finding
        for applied in trial
        for finding in await _review(tree, applied, files, checkpatch=checkpatch)
    ]


async def _review(
    tree: Tree, applied: Applied, files: Collection[str], *, checkpatch: bool
) -> list[Finding]:
    before = applied.before
    after = {one.path: one.content for one in applied.changes if one.content is not None}
    paths = [one.path for one in applied.changes]
    found = [
        *touched(paths, files),
        *await asyncio.to_thread(said, before, after),
        *await asyncio.to_thread(amputations, before, after),
    ]
    if checkpatch:
        found += await _checkpatch(tree, applied.patch.diff or "".join(_diff(before, after)))
    # A patch that is made to give many must not push the grave ones out.
    found.sort(key=lambda one: one.severity is not Severity.BLOCKING)
    return found[:_MOST]


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


def _diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    for path in sorted({*before, *after}):
        old, new = (
            side.get(path, b"").decode(errors="replace").splitlines(keepends=True)
            for side in (before, after)
        )
        yield from difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
