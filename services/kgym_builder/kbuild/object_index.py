"""Index of a compiled tree: which objects depend on a file, by kbuild's own dependency files.

The index is a database, so a check reads only the rows that it needs, whatever the tree's size.
"""

import posixpath
import re
import sqlite3
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kgym.errors import InfrastructureError, UserError
from kgym_builder.kbuild.path_rules import MAKEFILE
from kgym_builder.kbuild.saved_commands import CONDENSE, Reader, Recipe
from kgym_builder.kbuild.working_tree import PLACE, Tree

READ_SECONDS = 600.0
# Bytes of condensed `.cmd` files; those of 4,761 objects have 22 MB.
MOST_OUTPUT = 1 << 30
# Files in the index; a kernel's tree has 80,000.
MOST_PATHS = 1_000_000
# No pipes, so that no program's failure is lost: an index with gaps would give wrong verdicts.
_READ = """
find . -name '.*.cmd' -type f >/tmp/names && sort -o /tmp/names /tmp/names && awk "$1" /tmp/names
"""
_COMMANDS = r"""
find . -name '.*.o.cmd' -type f -exec grep -hE '^(saved)?cmd_[^ ]+\.o :=' {} +
"""
_TABLES = """
CREATE TABLE objects (number INTEGER PRIMARY KEY, path TEXT UNIQUE, source TEXT, command TEXT);
CREATE TABLE files (path TEXT PRIMARY KEY, objects BLOB, made INTEGER) WITHOUT ROWID;
"""

_SOURCES = (".c", ".h", ".S")
_WORD = re.compile(r"[\w./+-]+")
_HOST = re.compile(r"(scripts|tools|usr)/|arch/\w+/tools/")


@dataclass(frozen=True, slots=True)
class Object:
    """An object file of the kernel, its source, and kbuild's command for it."""

    path: str
    source: str
    command: str


@dataclass(frozen=True, slots=True)
class Dependents:
    """Objects that depend on a file; `made` if something depends on it that only make can build."""

    objects: tuple[Object, ...]
    made: bool


class Index:
    """Reads the index in the file `path`, which `build` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def dependents(self, paths: Iterable[str]) -> dict[str, Dependents]:
        """Return the dependents of each file; a file that no build read has none.

        All objects in and below a makefile's folder depend on it.
        """
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            return {path: _dependents(database, path) for path in paths}

    def of_namesakes(self, paths: Iterable[str]) -> set[str]:
        """Return the objects that read files of the same names as these in any folder."""
        names = {posixpath.basename(path) for path in paths}
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            known = (row[0] for row in database.execute("SELECT path FROM files") if names)
            alike = [path for path in known if posixpath.basename(path) in names]
            return {obj.path for path in alike for obj in _dependents(database, path).objects}

    def number(self) -> int:
        """Return the number of objects."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            (number,) = database.execute("SELECT count(*) FROM objects").fetchone()
            return int(number)

    def commands(self) -> dict[str, str]:
        """Return the command of every object."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            return dict(database.execute("SELECT path, command FROM objects"))

    def files(self) -> list[str]:
        """Return all files that the build of the tree read."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            return [row[0] for row in database.execute("SELECT path FROM files")]

    def sources(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the sources of these objects; unknown objects are left out."""
        find = "SELECT source FROM objects WHERE path = ?"
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            rows = ((path, database.execute(find, (path,)).fetchone()) for path in paths)
            return {path: row[0] for path, row in rows if row}


async def commands(tree: Tree) -> dict[str, str]:
    """Return the last command for each object of the tree."""
    commands_by_object: dict[str, str] = {}

    def take(recipe: Recipe) -> None:
        commands_by_object[recipe.target] = recipe.command

    await _read_recipes(tree, take, _COMMANDS)
    return commands_by_object


async def build(tree: Tree, path: Path) -> None:
    """Read the tree's `.cmd` files in the sandbox, and write their index.

    Raises InfrastructureError if they cannot be read, or if there are none.
    """
    recipes = Recipes()
    await _read_recipes(tree, recipes.add, _READ, "sh", CONDENSE)
    if not recipes:
        raise InfrastructureError("no_commands", "the built tree has none of kbuild's .cmd files")
    recipes.write(path)


async def _read_recipes(tree: Tree, take: Callable[[Recipe], None], *script: str) -> None:
    """Run a script that prints `.cmd` files, and read the recipes in them."""
    reader = Reader(PLACE, take)
    await tree.run(
        ["sh", "-c", *script],
        timeout=READ_SECONDS,
        most_output=MOST_OUTPUT,
        on_line=lambda line: reader.line(line.decode(errors="replace")),
    )
    reader.end()


class Recipes:
    """An index under construction: numbered objects, and for each file its dependents."""

    def __init__(self) -> None:
        self._objects: list[Object] = []
        self._files: dict[str, array[int]] = defaultdict(lambda: array("I"))
        self._made: set[str] = set()

    def __len__(self) -> int:
        return len(self._objects)

    def add(self, recipe: Recipe) -> None:
        """Add a recipe. Dependencies of host programs are marked `made`: only make builds those."""
        source = PurePosixPath(recipe.source)
        if not recipe.source:  # not a compiler's command, such as a script that reads a header
            words = (word for word in _WORD.findall(recipe.command) if word.endswith(_SOURCES))
            paths = map(posixpath.normpath, words)
            self._made.update(path for path in paths if not path.startswith(("/", "..")))
        if not recipe.target.endswith(".o") or _HOST.match(recipe.target):
            self._made.update(recipe.dependencies)
            return
        if source.suffix not in {".c", ".S"}:
            return
        number = len(self._objects)
        self._objects.append(Object(recipe.target, recipe.source, recipe.command))
        for path in recipe.dependencies:
            self._files[path].append(number)
        if len(self._files) > MOST_PATHS:
            message = f"its `.cmd` files name more than {MOST_PATHS:,} files"
            raise UserError("too_many_files", message)
        if source.suffix == ".S":
            self._made.update(recipe.dependencies)

    def write(self, path: Path) -> None:
        """Write the index to an SQLite file."""
        rows = ((n, obj.path, obj.source, obj.command) for n, obj in enumerate(self._objects))
        paths = self._files.keys() | self._made
        with closing(sqlite3.connect(path)) as database, database:
            database.executescript(_TABLES)
            database.executemany("INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?)", rows)
            database.executemany(
                "INSERT INTO files VALUES (?, ?, ?)",
                ((file, self._files[file].tobytes(), file in self._made) for file in sorted(paths)),
            )


def _dependents(database: sqlite3.Connection, path: str) -> Dependents:
    if match := MAKEFILE.match(path):
        folder = match[1] or ""
        find = "SELECT path, source, command FROM objects WHERE substr(path, 1, ?) = ?"
        below = database.execute(find, (len(folder), folder))
        return Dependents(tuple(Object(*row_of_object) for row_of_object in below), made=True)
    row = database.execute("SELECT objects, made FROM files WHERE path = ?", (path,)).fetchone()
    if row is None:
        return Dependents((), made=False)
    find = "SELECT path, source, command FROM objects WHERE number = ?"
    rows = (database.execute(find, (number,)).fetchone() for number in array("I", row[0]))
    return Dependents(
        tuple(Object(*row_of_object) for row_of_object in rows if row_of_object), made=bool(row[1])
    )


def nearest(path: str, objects: Iterable[Object], touched: Collection[str]) -> list[Object]:
    """Sort a file's dependents, those that are most likely to show a fault in it first.

    First the objects that the patch touches as well, then those with the file's name or folder,
    then one of each folder, a second of each, …, so that a limit leaves no folder out.
    """
    file = PurePosixPath(path)
    turns: Counter[str] = Counter()
    ranked = []
    for obj in sorted(objects, key=lambda obj: obj.path):
        source = PurePosixPath(obj.source)
        if obj.source in touched:
            rank = 0
        elif source.stem == file.stem or source.parent == file.parent:
            rank = 1
        else:
            rank = 2
        folder = str(source.parent)
        turns[folder] += 1
        ranked.append((rank, turns[folder], obj))
    return [obj for _, _, obj in sorted(ranked, key=lambda entry: entry[:2])]
