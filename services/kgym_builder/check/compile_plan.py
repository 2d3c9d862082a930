"""What a check has to compile for the files that a patch changes. Pure.

The command that kbuild saved for an object says all about it as long as the patch
leaves alone what make reads. Where it does not, `make prepare` first makes again
what is generated, or make does it all.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePosixPath

from kgym_builder.kbuild import control
from kgym_builder.kbuild.object_index import Dependents, Object, nearest
from kgym_builder.kbuild.path_rules import MAKEFILE, NO_CODE, ONLY_MAKE, OWN_MAKES
from kgym_builder.kbuild.saved_commands import compile_words

EVERYTHING = "bzImage"


class Way(IntEnum):
    """How a patch is compiled; the last one that a file asks for counts for all."""

    COMMANDS = 0
    PREPARE = 1
    """Saved commands too, after `make prepare`: kernel/bounds.c and asm-offsets.c may see it."""
    MAKE = 2


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after a patch; None where there is none."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What one changed file means: `objects` are to be compiled, of `dependents` in all."""

    path: str
    objects: tuple[Object, ...] = ()
    dependents: int = 0
    way: Way = Way.COMMANDS
    target: str | None = None
    """What make has to make for it, if not its objects."""
    removed: bool = False

    @property
    def is_code(self) -> bool:
        """Whether a config could compile it, or make reads it."""
        return not NO_CODE.match(self.path)

    @property
    def steers_make(self) -> bool:
        """Whether it has no object of its own: a makefile, a Kconfig, a generator."""
        return self.target is not None and not _COMPILED.search(self.path)


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """What a patch's check compiles, and how."""

    files: tuple[FilePlan, ...]
    way: Way
    modules: bool = False
    """Whether the kernel has any."""

    @property
    def objects(self) -> tuple[Object, ...]:
        """All objects to compile, each once."""
        return tuple(
            {object_.path: object_ for file in self.files for object_ in file.objects}.values()
        )

    @property
    def targets(self) -> list[str]:
        """What make is called for."""
        named = {file.target for file in self.files if file.target is not None}
        if EVERYTHING in named:
            return [EVERYTHING, *["modules"] * self.modules]
        objects = {object_.path for object_ in self.objects if not OWN_MAKES.match(object_.path)}
        return sorted(named | objects)

    @property
    def configures(self) -> bool:
        """Whether kconfig has to look at the config again."""
        return any(PurePosixPath(file.path).name.startswith("Kconfig") for file in self.files)


_COMPILED = re.compile(r"(?<!\.lds)\.[cS]$")


def plan(
    changes: Iterable[FileChange],
    known: Mapping[str, Dependents],
    limit: int,
    *,
    modules: bool = False,
) -> CompilePlan:
    """Plan the check of a patch; at most `limit` objects for a file that others include.

    `modules` says whether the kernel has any.
    """
    changes = list(changes)
    touched = {change.path for change in changes}
    files = tuple(_file(change, known[change.path], touched, limit) for change in changes)
    way = max((file.way for file in files), default=Way.COMMANDS)
    return CompilePlan(files, way, modules)


def _file(change: FileChange, known: Dependents, touched: set[str], limit: int) -> FilePlan:
    way, target = _way(change, known)
    removed = change.after is None
    if MAKEFILE.match(change.path):
        return FilePlan(change.path, (), len(known.objects), way, target, removed)
    # Our own object need not compile with a patch: a build leaves out of it what does not.
    objects = (object_ for object_ in known.objects if object_.path != control.OBJECT)
    ranked = nearest(change.path, objects, touched)
    own = [object_ for object_ in ranked if object_.source == change.path]
    others = [object_ for object_ in ranked if object_.source != change.path]
    chosen = (*own, *others[: max(0, limit - len(own))])
    if any(compile_words(object_.command) is None for object_ in chosen):
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
    """Return the folder as a target; one that holds no objects steers the whole kernel."""
    folder = str(PurePosixPath(path).parent)
    whole = re.fullmatch(r"\.|arch(/\w+)?|include(/.*)?", folder)
    return EVERYTHING if whole and not path.endswith("Kconfig") else f"{folder}/"
