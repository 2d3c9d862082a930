"""Static evidence: can a kernel that was built with a patch still report bugs?

It is compared with the entry's kernel, which has no patch. Objects are as hostile as the patch, so
binutils read them in the sandbox, which returns lines of text. It takes 0.5 to 2 s per trial.
"""

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kgym.api.steps import Finding, Severity
from kgym.errors import UserError
from kgym.host import proc, sandbox, separate_process
from kgym.worker.context import StepContext
from kgym_builder.evidence import changed_code, lost_detectors
from kgym_builder.evidence.changed_code import Pair, not_compared
from kgym_builder.kbuild import object_index
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import changed_functions
from kgym_builder.patches.patched_files import Applied
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import Entry
from kgym_builder.suitecache.tree_build import linked

# Objects to compare: the bug's first, then those of changed files, then dependents.
MOST_OBJECTS = 60
MOST_FINDINGS = 100
_DISASSEMBLE_SECONDS = 60.0
_COMPARE_SECONDS = 60.0
# Bytes of disassembly; the kernel's largest objects have 10 MB.
_MOST_BYTES = 64 << 20
# Reads names of objects; prints each with its disassembly and objdump's status.
_DISASSEMBLE = """
while read -r object; do
    [ -f "$object" ] || { echo "$1 absent $object"; continue; }
    echo "$1 object $object"
    objdump -drt --no-show-raw-insn "$object" 2>/dev/null
    echo "$1 end $?"
done
"""


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
    findings = await _by_make(entry, tree) if built.made else []
    ranked = await asyncio.to_thread(_ranked, entry, trial, built.objects, files)
    chosen = dict([*ranked.items()][:MOST_OBJECTS])
    why = f"more than {MOST_OBJECTS} objects have changed"
    for source in sorted(_changed(trial) & set(ranked.values()) - set(chosen.values())):
        findings.append(not_compared(source, why, Severity.BLOCKING))
    findings += await _compared(run, entry, tree, chosen, files, _changed(trial))
    # Blocking ones first: a patch could provoke many notes to push them beyond the limit.
    findings.sort(key=lambda finding: finding.severity is not Severity.BLOCKING)
    return findings[:MOST_FINDINGS]


async def _by_make(entry: Entry, tree: Tree) -> list[Finding]:
    config = (await tree.read([".config"])).get(".config", b"").decode(errors="replace")
    known = await asyncio.to_thread(Index(entry.index).commands)
    now = await object_index.commands(tree)
    there = compiled_trees.linked_paths(await linked(tree, entry.about.environment))
    return [
        *lost_detectors.configs(entry.about.config, config),
        *lost_detectors.commands(known, now),
        *lost_detectors.linked(entry.linked, there),
    ]


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


def _changed(trial: Sequence[Applied]) -> set[str]:
    return {change.path for result in trial for change in result.changes}


def changed_symbols(trial: Sequence[Applied]) -> set[str]:
    """Return the symbols that the compiler may give to the functions that patches change."""
    symbols: set[str] = set()
    for result in trial:
        for change in result.changes:
            before, after = (
                (content or b"").decode(errors="surrogateescape")
                for content in (result.before.get(change.path), change.content)
            )
            functions = changed_functions.changed(before, after)
            symbols.update(*(function.symbols for function in functions))
    return symbols


async def _compared(
    run: StepContext,
    entry: Entry,
    tree: Tree,
    paths: Mapping[str, str],
    files: Collection[str],
    changed: Collection[str],
) -> list[Finding]:
    """Compare the machine code of objects without and with the patch.

    In `files`, where the bug may lie, an access that no sanitizer checks any more is blocking. Code
    that could not be compared is blocking there and in `changed` files.
    """
    if not paths:
        return []
    unpatched = entry.tree(run.folder / "unpatched")
    before, after = await asyncio.gather(
        _disassembled(unpatched, paths), _disassembled(tree, paths)
    )
    await asyncio.to_thread(sandbox.remove, unpatched.overlay.folder)

    def severity(blocks: bool) -> Severity:
        return Severity.BLOCKING if blocks or not files else Severity.NOTE

    unread = {source: severity(source in {*files, *changed}) for source in paths.values()}
    findings: list[Finding] = []
    pairs: dict[str, Pair] = {}
    for path, source in paths.items():
        if path not in after:
            continue
        old, new = before.get(path), after[path]
        # The unpatched tree may not have the object; a limit may have cut its disassembly off.
        if new is None or (old is None and path in before):
            why = "its disassembly took too long, or is too large"
            findings.append(not_compared(source, why, unread[source]))
        elif old != new or not new:
            pairs[path] = Pair(source, old, new, severity(source in files), unread[source])
    try:
        findings += await separate_process.within(
            _COMPARE_SECONDS, separate_process.MEMORY, changed_code.differences, pairs
        )
    except UserError as error:
        sources = dict.fromkeys(pair.source for pair in pairs.values())
        findings += [not_compared(source, error.message, unread[source]) for source in sources]
    return findings


async def _disassembled(tree: Tree, paths: Collection[str]) -> dict[str, list[str] | None]:
    """Return the disassembly of the objects that exist.

    It is empty for objects that objdump cannot read, and None where a limit ended it.
    """
    whole: dict[str, list[str] | None] = dict.fromkeys(paths)
    lines: list[str] = []
    path, left = "", _MOST_BYTES
    # Random, so that no symbol of an object can imitate our lines.
    mark = secrets.token_hex(16).encode()

    def on_line(raw: bytes) -> None:
        nonlocal path, left
        left -= len(raw)
        if raw.startswith(mark):
            _, kind, rest = raw.decode(errors="surrogateescape").split(" ", 2)
            if kind == "absent":
                del whole[rest]
            elif kind == "object":
                path = rest
                lines.clear()
            elif left > 0:
                whole[path] = lines.copy() if rest == "0" else []
        elif left > 0:
            lines.append(raw.decode(errors="replace"))

    stdin = "".join(f"{path}\n" for path in paths).encode(errors="surrogateescape")
    # At a limit, the objects that were not printed in full keep None.
    with suppress(proc.ProgramTimedOut, UserError):
        await tree.run(
            ["sh", "-c", _DISASSEMBLE, "sh", mark.decode()],
            stdin=stdin,
            timeout=_DISASSEMBLE_SECONDS,
            check=False,
            on_line=on_line,
        )
    return whole
