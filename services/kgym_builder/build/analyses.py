"""Artifacts about a built kernel's code, on request: cscope's database, and counts of instructions.

Live-kBench's kbuilder and kprebuilder keep the same (live-kbench, commit 8849209). The code is as
hostile as a patch, so all programs read it in the sandbox.
"""

import asyncio
import re
import tarfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from kgym.api.steps import BuildArtifact, Patch
from kgym.api.steps.build import Analysis
from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.worker.context import StepContext
from kgym_builder.evidence.machine_code import base_name
from kgym_builder.kbuild.object_index import Index
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.patches import patched_files
from kgym_builder.suitecache.compiled_trees import Entry

_SECONDS = 1800.0
# In cscope's list of names, other paths could be options.
_SOURCE = re.compile(r"[\w+,@=][\w.+,@=/-]*\.[chS]", re.ASCII)
# The default names of cscope's files, by what cscope appends to the name after `-f`.
_DATABASE = {"": "cscope.out", ".in": "cscope.in.out", ".po": "cscope.po.out"}
# Maximum bytes of each; that of a whole kernel has less than 1 GB.
_MOST = 2 << 30
# Prints each symbol with its number of instructions. Disassembly takes gigabytes as text, and
# symbols may have any names.
_COUNT = r"""
{ objdump -d --no-show-raw-insn vmlinux 2>/dev/null || echo failed; } | awk '
/^[0-9a-f]+ <.*>:$/ { gsub(/^[^<]*<|>:$/, ""); name = /^[A-Za-z0-9_.$]+$/ ? $0 : "(other)"; next }
/^ *[0-9a-f]+:\t/ { count[name]++ }
$0 == "failed" { exit failed = 1 }
END { if (failed) exit 1; for (name in count) print name, count[name] }'
"""
_ROW = re.compile(rb"([\w.$]+|\(other\)) (\d+)")


def require(analyses: Collection[Analysis]) -> None:
    """Raise InfrastructureError `missing_tool` if this host lacks a program for them."""
    if "cscope" in analyses:
        proc.require("cscope")


async def keep(
    run: StepContext, analysis: Analysis, entry: Entry, tree: Tree, patches: Sequence[Patch]
) -> None:
    """Make an analysis of the kernel in `tree`, built with patches, an artifact of the step.

    Raises UserError `analysis_failed`, `sandbox_limit`.
    """
    try:
        if analysis == "cscope":
            _, changed = await patched_files.named(patches)
            read = await asyncio.to_thread(Index(entry.index).files)
            path = await _cscope(run, tree, {*read, *changed})
        else:
            path = await _instructions(run, entry, tree)
    except (proc.ProgramFailed, proc.ProgramTimedOut) as error:
        # The programs read what patches made.
        raise UserError("analysis_failed", f"{analysis}: {error.message}") from error
    await run.keep(path, move=True)


async def _cscope(run: StepContext, tree: Tree, paths: Collection[str]) -> Path:
    """Return an archive with the database of these files, as `cscope -d` looks for it."""
    out, archive = sandbox.prepare(run.folder / "cscope"), run.folder / BuildArtifact.CSCOPE
    # Files that are not in the tree are skipped.
    stdin = "".join(f"{path}\n" for path in sorted(paths) if _SOURCE.fullmatch(path)).encode()
    argv = ["cscope", "-b", "-q", "-k", "-i", "-", "-f", "/out/cscope.out"]
    # A toolchain's image has no cscope.
    hosts, env = tree.with_hosts_programs(), {"TMPDIR": "/out"}
    await hosts.run(argv, stdin=stdin, timeout=_SECONDS, out=out, env=env)

    def pack() -> None:
        with tarfile.open(archive, "w") as tar:
            for end, name in _DATABASE.items():
                path = out / f"cscope.out{end}"
                # The sandbox counts blocks, of which a sparse file has few.
                if not path.is_file() or path.lstat().st_size > _MOST:
                    why = f"cscope left no {name}, or one of more than {_MOST >> 30} GiB"
                    raise UserError("analysis_failed", why)
                # Hostile files may have made cscope leave a link: it is skipped.
                tar.add(path, name, filter=lambda m: m if m.isreg() else None)

    await asyncio.to_thread(pack)
    return archive


async def _instructions(run: StepContext, entry: Entry, tree: Tree) -> Path:
    """Return a table of functions, with all parts that the compiler made of each."""
    unpatched = entry.tree(run.folder / "uncounted")
    before, after = [await _counted(each) for each in (unpatched, tree)]
    await asyncio.to_thread(sandbox.remove, unpatched.overlay.folder)
    counts = ((name, before[name], after[name]) for name in sorted(before | after))
    rows = [("function", "before", "after"), *counts]
    path = run.folder / BuildArtifact.INSTRUCTIONS
    path.write_text("".join(f"{name}\t{old}\t{new}\n" for name, old, new in rows))
    return path


async def _counted(tree: Tree) -> Counter[str]:
    counts: Counter[str] = Counter()

    # Of longer output, only the end is kept.
    def count(line: bytes) -> None:
        if row := _ROW.fullmatch(line):
            counts[base_name(row[1].decode())] += int(row[2])

    await tree.run(["sh", "-c", _COUNT], timeout=_SECONDS, on_line=count)
    return counts
