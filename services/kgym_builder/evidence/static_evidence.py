"""Static evidence: can a kernel that was built with a patch still report bugs?

It is compared with the entry's kernel, which has no patch. Objects are as hostile as the patch, so
binutils read them in the sandbox, which returns lines of text. It takes 0.3 to 1.1 s per trial.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kgym.api.steps import Finding, Severity, Strict
from kgym.host import proc, sandbox
from kgym.worker.context import StepContext
from kgym_builder import memo
from kgym_builder.evidence import lost_detectors
from kgym_builder.evidence.lost_detectors import CONDENSE, Profile
from kgym_builder.kbuild import object_index
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import changed_functions
from kgym_builder.patches.patched_files import Applied
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import Entry
from kgym_builder.suitecache.tree_build import linked

# Version of an object's profile; part of its memo's key.
LAYOUT = 1
# Objects to compare: the bug's first, then those of changed files, then dependents.
MOST_OBJECTS = 60
MOST_FINDINGS = 100
_SECONDS = 300.0
# Reads names of objects; prints `O NAME` and the output of `CONDENSE` for each.
MEASURE = """
while read -r object; do
    echo "O $object"
    { objdump -dr --no-show-raw-insn "$object"; objdump -t "$object"; } 2>/dev/null | awk "$1"
done
"""


class _Lines(Strict):
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Built:
    """The compiled `objects` of a build; `made` if make ran, whose rules a patch may change."""

    objects: Sequence[str]
    made: bool


async def evidence(
    run: StepContext,
    entry: Entry,
    tree: Tree,
    trial: Sequence[Applied],
    built: Built,
    files: Collection[str],
) -> list[Finding]:
    """Return findings on what the patched kernel in `tree` can no longer report.

    `trial` are the applied patches on trial; `files` are those where the bug lies.
    """
    findings = list(await _by_make(entry, tree)) if built.made else []
    ranked = await asyncio.to_thread(_ranked, entry, trial, built.objects, files)
    paths = dict(list(ranked.items())[:MOST_OBJECTS])
    findings += _left(ranked, trial)
    changed = await asyncio.to_thread(changed_symbols, trial)
    before = await _before(run, entry, list(paths))
    after = await _profiles(tree, list(paths))
    for path, source in paths.items():
        old, new = before.get(path, Profile()), after.get(path, Profile())
        findings += lost_detectors.objects(path, source, old, new, changed)
    # Blocking ones first: a patch could provoke many notes to push them beyond the limit.
    findings.sort(key=lambda finding: finding.severity is not Severity.BLOCKING)
    return findings[:MOST_FINDINGS]


async def _by_make(entry: Entry, tree: Tree) -> Iterator[Finding]:
    config = (await tree.read([".config"])).get(".config", b"").decode(errors="replace")
    known = await asyncio.to_thread(Index(entry.index).commands)
    now = await object_index.commands(tree)
    there = compiled_trees.linked_paths(await linked(tree, entry.about.environment))
    return iter(
        [
            *lost_detectors.configs(entry.about.config, config),
            *lost_detectors.commands(known, now),
            *lost_detectors.linked(entry.linked, there),
        ]
    )


def _ranked(
    entry: Entry, trial: Sequence[Applied], objects: Sequence[str], files: Collection[str]
) -> dict[str, str]:
    """Return objects and their sources: the bug's first, then those of changed files."""
    changed = _changed(trial)
    known = Index(entry.index).sources(objects)
    sources = {path: known.get(path, path.removesuffix(".o") + ".c") for path in objects}
    order = sorted(
        sources, key=lambda path: (sources[path] not in files, sources[path] not in changed)
    )
    return {path: sources[path] for path in order}


def _left(ranked: Mapping[str, str], trial: Sequence[Applied]) -> Iterator[Finding]:
    """Block if objects of files that a patch itself changes are beyond the limit."""
    left = list(ranked.values())[MOST_OBJECTS:]
    if changed := sorted(_changed(trial) & set(left)):
        message = f"{len(left)} objects exceed the limit of comparisons, one of {changed[0]}"
        yield Finding(
            check="detector",
            severity=Severity.BLOCKING,
            reason="objects_not_looked_at",
            message=message,
        )


def _changed(trial: Sequence[Applied]) -> set[str]:
    return {change.path for each in trial for change in each.changes}


def changed_symbols(trial: Sequence[Applied]) -> set[str]:
    """Return the symbols that the compiler may give to the functions that patches change."""
    symbols: set[str] = set()
    for each in trial:
        for change in each.changes:
            before, after = (
                (content or b"").decode(errors="surrogateescape")
                for content in (each.before.get(change.path), change.content)
            )
            symbols.update(*(each.symbols for each in changed_functions.changed(before, after)))
    return symbols


async def _before(run: StepContext, entry: Entry, paths: Collection[str]) -> dict[str, Profile]:
    """Return the profiles of the unpatched objects, from memos or measured now."""
    image = entry.about.image_sha256
    names = {path: memo.key("profile", LAYOUT, CONDENSE, image, path) for path in paths}
    kept = await asyncio.gather(*(memo.recall(run, name, _Lines) for name in names.values()))
    lines = {path: memo_.lines for path, memo_ in zip(paths, kept, strict=True) if memo_}
    if missing := [path for path in paths if path not in lines]:
        tree = entry.tree(run.folder / "unpatched")
        measured = await _measured(tree, missing)
        await asyncio.to_thread(sandbox.remove, tree.overlay.folder)
        for path in missing:
            lines[path] = measured.get(path, [])
            await memo.remember(run, names[path], _Lines(lines=lines[path]))
    return {path: lost_detectors.profile(each) for path, each in lines.items()}


async def _profiles(tree: Tree, paths: Collection[str]) -> dict[str, Profile]:
    measured = await _measured(tree, paths)
    return {path: lost_detectors.profile(lines) for path, lines in measured.items()}


async def _measured(tree: Tree, paths: Collection[str]) -> dict[str, list[str]]:
    lines_by_object: dict[str, list[str]] = defaultdict(list)
    if not paths:
        return lines_by_object
    stdin = "".join(f"{path}\n" for path in paths).encode(errors="surrogateescape")
    argv = ["sh", "-c", MEASURE, "sh", CONDENSE]
    try:
        done = await tree.run(argv, stdin=stdin, timeout=_SECONDS, check=False)
    except proc.ProgramTimedOut:  # without a profile, such an object seems to have lost its checks
        return lines_by_object
    path = ""
    for line in done.text.splitlines():
        if line.startswith("O ") and line[2:] in paths:
            path = line[2:]
        elif path:
            lines_by_object[path].append(line)
    return lines_by_object
