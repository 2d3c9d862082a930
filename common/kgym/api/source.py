"""Kernel source over REST: requests and answers about the tree that a step's build sees.

Every answer has a maximum size, and says whether it was cut.
"""

from typing import Annotated, Literal

from pydantic import Field

from kgym.api.steps import Count, Line, Patch, Strict, TreePath
from kgym.api.steps.base import StepNumber

# Maximum part of a file in one answer.
LINES, CHARACTERS = 100_000, 1 << 20
# Maximum entries of a folder in one answer.
ENTRIES = 5000
# Characters of a line that a search shows.
LONGEST_LINE = 1000

# May be empty, unlike TreePath: that is the tree's top.
_Path = Annotated[str, Field(max_length=1000, description="path in the tree; `` is its top")]
_LineNumber = Annotated[int, Field(ge=1, lt=1 << 31)]


class Look(Strict):
    """Selection of a tree: that of a job's step, with patches on top of it."""

    step: StepNumber | None = Field(
        None,
        description="a step of kind source, build or check: its tree, with its own patches (of a"
        " check: its base); left out: the first such step",
    )
    patches: list[Patch] = Field(
        [], max_length=100, description="further patches, in order, for this request only"
    )


class FileLook(Look):
    """Read a file: whole, or a range of its lines."""

    path: TreePath
    first: _LineNumber = Field(1, description="the first line, from 1")
    last: _LineNumber | None = Field(None, description="the last line; left out: to the end")


class FileText(Strict):
    """Lines of a file."""

    path: TreePath
    first: Count = Field(description="number of the first line in `text`, from 1")
    last: Count = Field(description="number of the last line in `text`; 0 of an empty file")
    lines: Count = Field(description="of the whole file")
    text: Annotated[str, Field(max_length=CHARACTERS)]
    cut: bool = Field(
        False, description="whether requested lines are missing: continue after `last`"
    )
    lossy: bool = Field(False, description="whether invalid UTF-8 was replaced by U+FFFD")


class FolderLook(Look):
    """List a folder."""

    path: _Path = ""


class SourceEntry(Strict):
    """A file, a folder, or a symbolic link, in a folder."""

    name: Annotated[str, Field(max_length=1000)]
    kind: Literal["file", "folder", "link", "binary"]
    size: Count = Field(0, description="bytes of a file")
    target: Annotated[str, Field(max_length=5000)] | None = Field(
        None, description="target of a link, as stored"
    )


class FolderList(Strict):
    """The entries of a folder, by name."""

    path: _Path
    entries: Annotated[list[SourceEntry], Field(max_length=ENTRIES)]
    cut: bool = Field(False, description=f"whether there are more than {ENTRIES}")


class SearchLook(Look):
    """Search the lines of all text files of at most 1 MiB."""

    pattern: str = Field(
        min_length=1,
        max_length=1000,
        description="regular expression in RE2's syntax; matched against single lines",
    )
    ignore_case: bool = False
    glob: str | None = Field(
        None,
        min_length=1,
        max_length=500,
        description="only files with such a path: `*` and `?` match within a name, `**` across"
        " folders, `{a,b}` either; without `/` the name alone counts (`*.h`)",
    )
    limit: int = Field(100, ge=1, le=1000, description="lines in the answer")


class SourceLine(Strict):
    """A line of a file."""

    path: TreePath
    line: Count = Field(description="its number, from 1")
    text: Line = Field(description=f"at most {LONGEST_LINE} characters of it")


# Why an answer is incomplete.
Cut = Literal["limit", "time"]


class SearchResult(Strict):
    """Lines that match, by path and line."""

    matches: Annotated[list[SourceLine], Field(max_length=1000)]
    cut: Cut | None = Field(
        None,
        description="why there may be more: `limit` lines were found, or the time limit"
        " was reached",
    )


class SymbolLook(Look):
    """Look up a C symbol: its definitions and uses."""

    name: str = Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    limit: int = Field(100, ge=1, le=1000, description="uses in the answer")


SymbolKind = Literal[
    "function", "macro", "struct", "union", "enum", "typedef", "variable", "enumerator"
]


class Definition(Strict):
    """A definition of a name, found by the style of kernel code, not by a compiler."""

    path: TreePath
    line: Count
    last: Count = Field(description="the line where the definition ends")
    kind: SymbolKind
    text: Line = Field(description="its first line")


class Use(SourceLine):
    """A line that names a symbol."""

    function: Annotated[str, Field(max_length=1000)] | None = Field(
        None, description="the enclosing function: the caller, if it is a call"
    )
    call: bool = Field(description="whether a parenthesis follows: a call, or a macro's use")


class SymbolResult(Strict):
    """Definitions and uses of a symbol. System calls are listed as `sys_NAME`."""

    name: str
    definitions: Annotated[list[Definition], Field(max_length=200)]
    uses: Annotated[list[Use], Field(max_length=1000)] = Field(
        description="calls before others, those near the definition first"
    )
    cut: Cut | None = Field(None, description="as of a search")
