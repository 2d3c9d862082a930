"""Find the stored entries that a new kernel can be made from, the nearest first.

An entry is near if it has the same compiler, and few source files and config symbols differ. Make
knows what follows from a changed source, header, makefile or symbol, but not from a changed script
that it runs. So no entry with other scripts or host programs is near.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kgym.api.suitecache import ENTRY, EntryMaking
from kgym.worker.context import StepContext
from kgym_builder.kbuild import kconfig
from kgym_builder.kbuild.path_rules import NO_CODE
from kgym_builder.suitecache import compiled_trees
from kgym_builder.suitecache.compiled_trees import About
from kgym_builder.suitecache.manifest import LINKS, Difference, Manifest

# Which entries may serve as a base: all, those of distributions' sources only, or none.
Bases = Literal["any", "packages", "none"]
# Source files that may differ, not counting documentation and the like.
MOST_FILES = 2000
MOST_SYMBOLS = 400
# Entries that are considered, the most recently used ones.
_CONSIDERED = 200
# Manifests that are read from storage for one search; a kernel's has 5 MB.
_MANIFESTS = 20
# Candidates that are returned.
_TRIED = 3

# Programs that a build runs, and their sources: make does not track all of their output.
_UNTRACKED = re.compile(r"(scripts|tools|usr)/|arch/\w+/tools/|.*\.(sh|awk|pl|py|bc|sed)$")
# A program that a build runs, though `NO_CODE` takes its folder for unused.
_RUN = re.compile(r"tools/bpf/resolve_btfids/")
_IDLE = re.compile(r"scripts/(checkpatch\.pl|get_maintainer\.pl|spelling\.txt|coccinelle/)")
# Code that is linked into vmlinux or bzImage by special rules.
_OF_THE_LINK = re.compile(r"(arch/\w+/boot|init|usr)/")
# Config lines without anything that make or the shell would run.
_PLAIN = re.compile(
    r"#.*|CONFIG_\w+=([ymn]|-?[0-9]+|0x[0-9A-Fa-f]+|\"[\w ./:,=+%@()-]*\")|", re.ASCII
)


@dataclass(frozen=True, slots=True)
class NearRules:
    """The operator's rules: which entries may be a base, and the share of builds to rehearse."""

    bases: Bases = "any"
    rehearsals: float = 0.05


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kernel that is to be built."""

    identity: str
    config: str
    toolchain: str
    """Identity of the compiler, as in `EntryMaking`."""
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry, and how its source and config differ from those wanted."""

    identity: str
    about: About
    files: Difference
    symbols: int

    @property
    def code(self) -> int:
        """Number of files that differ and can affect the build."""
        return sum(not NO_CODE.match(path) for path in self.files.paths)

    @property
    def distance(self) -> int:
        """Distance from the kernel that is wanted; a file and a symbol weigh the same."""
        return self.code + self.symbols

    @property
    def linked_alike(self) -> bool:
        """Whether both kernels are linked by the same rules: only C code differs."""
        code = (path for path in self.files.paths if not NO_CODE.match(path))
        return not self.symbols and all(
            path.endswith((".c", ".h")) and not _OF_THE_LINK.match(path) for path in code
        )

    def refusal(self) -> str:
        """Return why the entry cannot serve as a base; empty if it can."""
        if LINKS in self.files.changed:
            return "its symbolic links differ"
        if path := untracked(self.files.paths):
            return f"{path}, which builds run, differs"
        if self.code > MOST_FILES:
            return f"{self.code} files differ, and at most {MOST_FILES} may"
        if self.symbols > MOST_SYMBOLS:
            return f"{self.symbols} symbols of the config differ, and at most {MOST_SYMBOLS} may"
        return ""


@dataclass(frozen=True, slots=True)
class Found:
    """The entries that can serve as a base, the nearest first; or why there is none."""

    candidates: list[Candidate]
    reason: str
    doubted: bool
    """Whether the last rehearsal with this compiler found a difference."""


async def nearest(run: StepContext, wanted: Wanted, rules: NearRules) -> Found:
    """Search the stored entries for bases of the kernel that is wanted."""
    if rules.bases == "none":
        return Found([], "this worker makes all entries from scratch", doubted=False)
    near: list[Candidate] = []
    makings: list[EntryMaking] = []
    manifests = {wanted.manifest.digest: wanted.manifest}
    symbols = kconfig.symbols(wanted.config)
    for identity in await _names(run):
        about = await compiled_trees.find(run, identity)
        if about is None:
            continue
        making = await compiled_trees.making(run, identity, about)
        if making is None or making.toolchain != wanted.toolchain:
            continue
        makings.append(making)
        if identity == wanted.identity or not (making.files and _trusted(about, rules)):
            continue
        if making.files not in manifests and len(manifests) <= _MANIFESTS:
            files = await compiled_trees.manifest(run, identity, about)
            if files is not None and files.digest == making.files:
                manifests[making.files] = files
        if (before := manifests.get(making.files)) is not None:
            others = kconfig.symbols(about.config)
            differ = sum(symbols.get(symbol) != others.get(symbol) for symbol in symbols | others)
            near.append(Candidate(identity, about, wanted.manifest.since(before), differ))
    near.sort(key=lambda candidate: candidate.distance)
    good = [candidate for candidate in near if not candidate.refusal()]
    reason = f"the nearest is {near[0].identity}: {near[0].refusal()}" if near else ""
    return Found(good[:_TRIED], reason or "there is no other of this compiler", _doubted(makings))


def untracked(paths: Iterable[str]) -> str | None:
    """Return the first path of a program that builds run, or of its source; else None."""
    return next(
        (
            path
            for path in paths
            if _RUN.match(path)
            or (_UNTRACKED.match(path) and not _IDLE.match(path) and not NO_CODE.match(path))
        ),
        None,
    )


def _trusted(about: About, rules: NearRules) -> bool:
    """Return whether only a distribution's code ran when the entry was built.

    A submitter's makefile or config could leave any object behind for other users' kernels.
    """
    if rules.bases == "any":
        return True
    return (
        about.source_identity.startswith("package:")
        and not any("@" in name for name in about.backports)  # a job's own
        and all(_PLAIN.fullmatch(line) for line in about.config.splitlines())
    )


def _doubted(makings: list[EntryMaking]) -> bool:
    rehearsed = [making for making in makings if making.rehearsal != "none"]
    last = max(rehearsed, key=lambda making: making.made_at, default=None)
    return last is not None and last.rehearsal == "unequal"


async def _names(run: StepContext) -> list[str]:
    """Return the names of the stored entries, the most recently used first."""
    ages = await run.storage.ages("suitecache", 1)
    names = [prefix.rpartition("/")[2] for prefix in sorted(ages, key=lambda prefix: ages[prefix])]
    return [name for name in names if ENTRY.fullmatch(name)][:_CONSIDERED]
