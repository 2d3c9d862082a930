"""Plan what a check compiles for the files that a patch changes. Pure.

kbuild's saved command for an object is all that it takes, unless the patch changes files that make
reads. Then `make prepare` first builds generated files again, or make does everything.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePosixPath

from kgym.source.patching import Change
from kgym_builder.kbuild import control
from kgym_builder.kbuild.object_index import Dependents, Object, nearest
from kgym_builder.kbuild.path_rules import MAKEFILE, NO_CODE, ONLY_MAKE, OWN_MAKES
from kgym_builder.kbuild.saved_commands import compile_words

EVERYTHING = "bzImage"


class Way(IntEnum):
    """How a patch is compiled; the highest value that any of its files needs applies to all."""

    COMMANDS = 0
    PREPARE = 1
    """Saved commands after `make prepare`: kernel/bounds.c or asm-offsets.c may depend on it."""
    MAKE = 2


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after a patch; None if it does not exist."""

    path: str
    before: bytes | None
    after: bytes | None


def file_changes(changes: Iterable[Change], before: Mapping[str, bytes]) -> list[FileChange]:
    """Return the changed files, with their contents `before`."""
    return [FileChange(change.path, before.get(change.path), change.content) for change in changes]


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The plan for one changed file: compile `objects`, out of `dependents` in all."""

    path: str
    objects: tuple[Object, ...] = ()
    dependents: int = 0
    way: Way = Way.COMMANDS
    target: str | None = None
    """Make's target for it, instead of its objects."""
    removed: bool = False

    @property
    def is_code(self) -> bool:
        """Whether some config compiles it, or make reads it."""
        return not NO_CODE.match(self.path)

    @property
    def steers_make(self) -> bool:
        """Whether it has no object of its own, like a makefile, a Kconfig or a generator."""
        return self.target is not None and not _COMPILED.search(self.path)


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """The plan of a patch's check."""

    files: tuple[FilePlan, ...]
    way: Way
    modules: bool = False
    """Whether the kernel has modules."""

    @property
    def objects(self) -> tuple[Object, ...]:
        """All objects to compile, each once."""
        return tuple({obj.path: obj for file in self.files for obj in file.objects}.values())

    @property
    def targets(self) -> list[str]:
        """Make's targets."""
        named = {file.target for file in self.files if file.target is not None}
        if EVERYTHING in named:
            return [EVERYTHING, *["modules"] * self.modules]
        return sorted(named | {obj.path for obj in self.objects if not OWN_MAKES.match(obj.path)})

    @property
    def configures(self) -> bool:
        """Whether kconfig has to run again."""
        return any(PurePosixPath(file.path).name.startswith("Kconfig") for file in self.files)


_COMPILED = re.compile(r"(?<!\.lds)\.[cS]$")


def plan(
    changes: Iterable[FileChange], known: Mapping[str, Dependents], limit: int, *, modules: bool
) -> CompilePlan:
    """Plan the check of a patch, with at most `limit` objects for a file that others include.

    `modules` says whether the kernel has modules.
    """
    changes = list(changes)
    touched = {change.path for change in changes}
    files = tuple(_file(change, known[change.path], touched, limit) for change in changes)
    return CompilePlan(files, max((file.way for file in files), default=Way.COMMANDS), modules)


def _file(change: FileChange, known: Dependents, touched: set[str], limit: int) -> FilePlan:
    way, target = _way(change, known)
    removed = change.after is None
    if MAKEFILE.match(change.path):
        return FilePlan(change.path, (), len(known.objects), way, target, removed)
    # Our own object need not compile with a patch: a build leaves out its parts that do not.
    objects = (obj for obj in known.objects if obj.path != control.OBJECT)
    ranked = nearest(change.path, objects, touched)
    own = [obj for obj in ranked if obj.source == change.path]
    others = [obj for obj in ranked if obj.source != change.path]
    chosen = (*own, *others[: max(0, limit - len(own))])
    if any(compile_words(obj.command) is None for obj in chosen):
        way = Way.MAKE
    return FilePlan(change.path, chosen, len(ranked), way, target, removed)


def _way(change: FileChange, known: Dependents) -> tuple[Way, str | None]:
    path = change.path
    if NO_CODE.match(path):
        return Way.COMMANDS, None
    if ONLY_MAKE.match(path):
        return Way.MAKE, EVERYTHING
    if MAKEFILE.match(path) or (_COMPILED.search(path) and None in (change.before, change.after)):
        return Way.MAKE, _folder_target(path)
    if known.objects:
        made = known.made or path.endswith(".S")
        return (Way.PREPARE if made else Way.COMMANDS), None
    if known.made or not path.endswith((".c", ".h", ".S")):
        return Way.MAKE, EVERYTHING
    return Way.COMMANDS, None


def _folder_target(path: str) -> str:
    """Return the folder as a target; a makefile of a folder without objects affects everything."""
    folder = str(PurePosixPath(path).parent)
    whole = re.fullmatch(r"\.|arch(/\w+)?|include(/.*)?", folder)
    return EVERYTHING if whole and not path.endswith("Kconfig") else f"{folder}/"
