"""Review a patch's source: the code it removes, the files and words in it, optionally its style."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from kgym.api.steps import Finding, Patch, Severity
from kgym.host import proc, separate_process
from kgym.source import patching, unified_diff
from kgym_builder.evidence.removed_code import amputations
from kgym_builder.evidence.suspicious_changes import new_words, touched
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches.patched_files import Applied, applied, read, weight

CHECKPATCH = "scripts/checkpatch.pl"
# A patch that is being tried has no author and no description yet.
_OPTIONS = (
    *("--terse", "--show-types", "--showfile", "--color=never", "--no-summary"),
    *("--no-signoff", "--ignore", "COMMIT_MESSAGE,FILE_PATH_CHANGES"),
)
_SECONDS = 120.0
_MOST = 100
_MESSAGE = re.compile(r"(?P<file>[^:]+):(?P<line>[0-9]{1,9}): \w+:(?P<type>\w+): (?P<text>.*)")


async def on_trial(tree: Tree, patches: Sequence[Patch], names: Collection[str]) -> list[Applied]:
    """Apply the patches in order; return the results of those that are named."""
    if not names:
        return []
    files = await read(tree, patches)
    results = await applied(tree, patches, files, lambda note: None)
    return [result for result in results if result.patch.name in names]


async def review(
    tree: Tree, trial: Sequence[Applied], files: Collection[str], *, checkpatch: bool
) -> list[Finding]:
    """Return the findings on patches on trial; `files` are those where the bug lies.

    `tree` is the kernel without the patches. Its checkpatch.pl is used, as the kernel's style
    changes with its versions; a patch cannot replace it.
    """
    return [
        finding
        for result in trial
        for finding in await _review(tree, result, files, checkpatch=checkpatch)
    ]


async def _review(
    tree: Tree, result: Applied, files: Collection[str], *, checkpatch: bool
) -> list[Finding]:
    before = result.before
    after = {change.path: change.content for change in result.changes if change.content is not None}
    paths = [change.path for change in result.changes]
    # A patch that is too large to review is refused (`too_much_work`), so that none goes unseen.
    much = 4 * weight([result.patch], before)
    findings = [
        *touched(paths, files),
        *await separate_process.call(much, new_words, before, after),
        *await separate_process.call(much, amputations, before, after),
    ]
    if checkpatch:
        if result.patch.diff is None:
            diff = await separate_process.call(much, _diff, before, after)
        else:
            diff = await separate_process.call(much, patching.as_diff, result.patch)
        findings += await style(tree, diff)
    # Blocking ones first: a patch could provoke many notes to push them beyond the limit.
    findings.sort(key=lambda finding: finding.severity is not Severity.BLOCKING)
    return findings[:_MOST]


async def style(tree: Tree, diff: str, *options: str) -> list[Finding]:
    """Return what the tree's checkpatch.pl finds in a diff, with further options."""
    # Some sources, such as a distribution's packages, may lack it.
    if not await tree.read([CHECKPATCH]):
        return []
    try:
        done = await tree.run(
            ["perl", CHECKPATCH, *_OPTIONS, *options, "-"],
            stdin=diff.encode(),
            timeout=_SECONDS,
            check=False,
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
    sides = (
        (path, *(side.get(path, b"").decode(errors="replace") for side in (before, after)))
        for path in sorted({*before, *after})
    )
    return "".join(unified_diff.between(path, old, new) for path, old, new in sides)
