"""Which objects of a compiled tree depend on a file: an index of kbuild's own dependency files.

It is a database, so that a check reads the rows that it needs and the size of the tree
does not matter.
"""

import posixpath
import re
import sqlite3
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kgym.errors import InfrastructureError, UserError
from kgym_builder.kbuild.path_rules import MAKEFILE
from kgym_builder.kbuild.saved_commands import CONDENSE, Reader, Recipe
from kgym_builder.kbuild.working_tree import PLACE, Tree

READ_SECONDS = 600.0
# Bytes that are read of `.cmd` files, condensed; of 4,761 objects it is 22 MB.
MOST_OUTPUT = 1 << 30
# Files that the index takes; a kernel's tree has 80,000.
MOST_PATHS = 1_000_000
# No pipes: each program's failure is the whole's. An index with gaps would make a wrong verdict.
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
    """An object file of the kernel, what it is compiled from, and kbuild's command."""

    path: str
    source: str
    command: str


@dataclass(frozen=True, slots=True)
class Dependents:
    """What depends on a file: objects, and whether anything that only make can follow does."""

    objects: tuple[Object, ...]
    made: bool


class Index:
    """The index in the file `path`, which `build` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def dependents(self, paths: Iterable[str]) -> dict[str, Dependents]:
        """Return the dependents of each of the files; a file that nothing read has none.

        On a makefile depends what is made in its folder and below.
        """
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            return {path: _dependents(database, path) for path in paths}

    def of_namesakes(self, paths: Iterable[str]) -> set[str]:
        """Return the objects that read other files with the names of these, in whatever folder."""
        names = {posixpath.basename(path) for path in paths}
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            known = (row[0] for row in database.execute("SELECT path FROM files") if names)
            alike = [path for path in known if posixpath.basename(path) in names]
            return {
                object_.path for path in alike for object_ in _dependents(database, path).objects
            }

    def number(self) -> int:
        """Return how many objects there are."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            (number,) = database.execute("SELECT count(*) FROM objects").fetchone()
            return int(number)

    def commands(self) -> dict[str, str]:
        """Return the command of every object."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            return dict(database.execute("SELECT path, command FROM objects"))

    def sources(self, paths: Iterable[str]) -> dict[str, str]:
        """Return what each of these objects is compiled from, as far as it is known."""
        find = "SELECT source FROM objects WHERE path = ?"
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            rows = ((path, database.execute(find, (path,)).fetchone()) for path in paths)
            return {path: row[0] for path, row in rows if row}


async def commands(tree: Tree) -> dict[str, str]:
    """Read with which command each object of the tree was made last."""
    commands_by_object: dict[str, str] = {}
    reader = Reader(
        PLACE, lambda recipe: commands_by_object.update({recipe.target: recipe.command})
    )
    await tree.run(
        ["sh", "-c", _COMMANDS],
        timeout=READ_SECONDS,
        most_output=MOST_OUTPUT,
        on_line=lambda line: reader.line(line.decode(errors="replace")),
    )
    reader.end()
    return commands_by_object


async def build(tree: Tree, path: Path) -> None:
    """Read the tree's `.cmd` files, in the sandbox, and write their index.

    Raises InfrastructureError where they cannot be read, or there are none.
    """
    recipes = Recipes()
    reader = Reader(PLACE, recipes.add)
    await tree.run(
        ["sh", "-c", _READ, "sh", CONDENSE],
        timeout=READ_SECONDS,
        most_output=MOST_OUTPUT,
        on_line=lambda line: reader.line(line.decode(errors="replace")),
    )
    reader.end()
    if not recipes:
        raise InfrastructureError("no_commands", "the built tree has none of kbuild's .cmd files")
    recipes.write(path)


class Recipes:
    """An index while it is made: objects have numbers, and each file knows who depends on it."""

    def __init__(self) -> None:
        self._objects: list[Object] = []
        self._files: dict[str, array[int]] = defaultdict(lambda: array("I"))
        self._made: set[str] = set()

    def __len__(self) -> int:
        return len(self._objects)

    def add(self, recipe: Recipe) -> None:
        """Take a recipe. Of host programs only the files count: they are made, not compiled."""
        source = PurePosixPath(recipe.source)
        if not recipe.source:  # no compiler's: a script, say, that reads a header
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
        """Write the index as an SQLite file: which objects each file goes into, and how."""
        rows = (
            (n, object_.path, object_.source, object_.command)
            for n, object_ in enumerate(self._objects)
        )
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
    """Sort a file's dependents: those that say most about a change of it first.

    What the patch touches as well, what has the file's name or lies in its folder; then
    one of every folder, a second of every folder, …, so that a limit cuts none of them off.
    """
    file = PurePosixPath(path)
    turns: Counter[str] = Counter()
    ranked = []
    for object_ in sorted(objects, key=lambda object_: object_.path):
        source = PurePosixPath(object_.source)
        if object_.source in touched:
            rank = 0
        elif source.stem == file.stem or source.parent == file.parent:
            rank = 1
        else:
            rank = 2
        folder = str(source.parent)
        turns[folder] += 1
        ranked.append((rank, turns[folder], object_))
    return [object_ for _, _, object_ in sorted(ranked, key=lambda entry: entry[:2])]
