"""Read kbuild's notes on the files that it made: commands and dependencies. Pure.

Beside `DIR/NAME` lies `DIR/.NAME.cmd`, a piece of makefile (scripts/Kbuild.include,
scripts/basic/fixdep.c): `cmd_DIR/NAME := …`, since Linux 6.3 `savedcmd_DIR/NAME := …`,
and for what was compiled `source_DIR/NAME := …` and `deps_DIR/NAME := \\`, with a
dependency in each of the lines that follow.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

_COMMAND = re.compile(r"(?:saved)?cmd_(\S+) :=(.*)")
_SOURCE = re.compile(r"source_(\S+) := (\S+)")
_DEPENDENCY = re.compile(r" {2}([^ $]\S*) \\")
_AGAIN = re.compile(r"=((?: [0-9]{1,9})+)")

# A program for awk that reads names of such files and prints their lines for `Reader`. Those of a
# large kernel have some gigabytes, nearly all of it repeated headers, which become numbers. It
# fails if a file cannot be read.
CONDENSE = Path(__file__).with_name("condense.awk").read_text()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How kbuild made `target`: the shell command, and the files of the tree that it read."""

    target: str
    command: str
    source: str
    dependencies: tuple[str, ...]


@dataclass(slots=True)
class Reader:
    """Parses the lines of many such files in sequence, and passes on each recipe.

    A line `= 4 0` repeats dependencies of earlier lines, counted from 0 (`CONDENSE`).

    `root` is the tree's path when it was built. Paths below it become relative; others, of the
    compiler's own headers, are left out.
    """

    root: str
    on_recipe: Callable[[Recipe], None]
    _target: str = ""
    _command: str = ""
    _source: str = ""
    _dependencies: list[str] = field(default_factory=list)
    _seen: list[str | None] = field(default_factory=list)

    def line(self, line: str) -> None:
        """Take one line, without its end."""
        if match := _AGAIN.fullmatch(line):
            known = range(len(self._seen))
            self._depend(self._seen[n] for n in map(int, match[1].split()) if n in known)
        elif match := _DEPENDENCY.fullmatch(line):
            self._seen.append(self._path(match[1]))
            self._depend(self._seen[-1:])
        elif match := _COMMAND.fullmatch(line):
            self.end()
            self._target, self._command = self._path(match[1]) or "", _unescape(match[2])
        elif match := _SOURCE.fullmatch(line):
            self._source = self._path(match[2]) or ""
            self._depend([self._source])

    def end(self) -> None:
        """Pass on the last recipe, whose end no further line shows."""
        if self._target:
            dependencies = tuple(dict.fromkeys(self._dependencies))
            self.on_recipe(Recipe(self._target, self._command, self._source, dependencies))
        self._target = self._source = ""
        self._dependencies.clear()

    def _depend(self, paths: Iterable[str | None]) -> None:
        self._dependencies.extend(path for path in paths if path)

    def _path(self, path: str) -> str | None:
        relative = posixpath.normpath(path.removeprefix(f"{self.root}/"))
        return None if relative.startswith(("/", "..")) else relative


def _unescape(value: str) -> str:
    """Undo `make-cmd` of scripts/Kbuild.include, which up to Linux 4.16 wrote `\\#`."""
    return re.sub(
        r"\$\$|\$\(pound\)|\\#", lambda match: "$" if match[0] == "$$" else "#", value
    ).strip()


def compile_words(command: str) -> tuple[str, ...] | None:
    """Return the compiler's own command; None if it is not a simple shell command.

    What kbuild does after its `;` is left out: objtool replaces instructions by others of the same
    length, a linker joins link-time code. Neither finds errors in C.
    """
    if "$" in command or "`" in command:
        return None
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word in {";", "&&"}:
                break
            if word[:1] in set("();<>|&"):
                return None
            words.append(word)
    except ValueError:  # a quote that is not closed
        return None
    return tuple(words) if {"-c", "-o"} <= set(words) else None


def depfile(words: tuple[str, ...]) -> str | None:
    """Return the path of the compiler's dependency file, if it writes one."""
    for word in words:
        if match := re.fullmatch(r"-Wp,-MM?D,(\S+)", word):
            return match[1]
    return None


def depfile_paths(text: str, root: str) -> list[str]:
    """Return the files in the tree that a depfile, `TARGET: FILE FILE \\`, names."""
    words = re.sub(r"\\\r?\n", " ", text.partition(":")[2]).split()
    paths = (posixpath.normpath(word.removeprefix(f"{root}/")) for word in words)
    return [path for path in paths if not path.startswith(("/", ".."))]
