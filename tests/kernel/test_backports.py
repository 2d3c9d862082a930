"""Which of the shipped backports the kernels of three suites lack: none, on their real sources."""

import asyncio
from pathlib import Path

import pytest

from kgym.api.steps import PackageSource
from kgym.configs import CONFIGS
from kgym.source import patching
from kgym_builder.kernel_source.kernel_sources import KernelSources
from kgym_builder.suitecache import backports
from tests.conftest import DATA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.anyio]

SHIPPED = {backport.name: backport for backport in backports.load(CONFIGS / "backports")}

# What shows that a source has a backport whose text became another: a file, and words in it.
OTHERWISE = {
    "cad-pid": ("init/main.c", "(cad_pid, get_pid(task_pid(current)))"),
    "stpcpy": ("lib/string.c", "EXPORT_SYMBOL(stpcpy);"),
    "kbuild-pound": ("scripts/Kbuild.include", "$(subst $(pound),$$(pound),"),
    "tools-pound": ("tools/build/Build.include", "$(subst $(pound),$$(pound),"),
    "objtool-symtab": ("tools/objtool/elf.c", "missing symbol table is actually possible"),
}
# What a source that never had the fault lacks.
NOT_NEEDED = {
    "batman-meshif": ("net/batman-adv/hard-interface.c", "netdev_hold(mesh_iface"),
    "objtool-pvname": ("tools/objtool/check.c", "pvname"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("suite", "package"),
    [
        ("bullseye", "linux-source-5.10"),
        ("bookworm", "linux-source-6.1"),
        ("trixie", "linux-source-6.12"),
    ],
)
async def test_a_release_needs_no_shipped_backport(suite: str, package: str) -> None:
    sources = KernelSources(DATA / "cache" / "sources")
    source = PackageSource(names=[package], suite=suite)
    tree = (await sources.get(source, lambda *_: None)).tree
    for name, backport in SHIPPED.items():
        files = await asyncio.to_thread(read, tree, patching.files(backport))
        done = backports.apply([backport], dict(files))
        assert done.left_out == [name], name
        assert await why(name, files), name


async def why(name: str, files: dict[str, bytes]) -> str:
    """Say why the files do not need a backport; nothing if that cannot be seen."""
    backport = SHIPPED[name]
    undone = dict(files)
    for edit in backport.edits:
        if edit.replacement and files[edit.file].count(edit.replacement.encode()) == 1:
            text = files[edit.file].decode()
            undone[edit.file] = text.replace(edit.replacement, edit.original).encode()
    if undone != files:  # as before the upstream commit: the backport makes the source of it
        done = backports.apply([backport], dict(undone))
        made = {change.path: change.content for of in done.applied for change in of.changes}
        if done.names and all(files[path] == content for path, content in made.items()):
            return "has it"
    if name in OTHERWISE:
        path, words = OTHERWISE[name]
        return "has it in other words" if words in files[path].decode() else ""
    if name in NOT_NEEDED:
        path, words = NOT_NEEDED[name]
        return "never had the fault" if words not in files[path].decode() else ""
    texts = [
        (edit.original, edit.replacement, files[edit.file].decode()) for edit in backport.edits
    ]
    has = all(new in text and (old in new or old not in text) for old, new, text in texts)
    return "has it" if has else ""


def read(tree: Path, paths: list[str]) -> dict[str, bytes]:
    return {path: (tree / path).read_bytes() for path in paths}
