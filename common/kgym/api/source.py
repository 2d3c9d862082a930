"""The source of a kernel over REST: what is asked of the tree that a step's build sees, and told.

All answers are bounded, and say where they were cut.
"""

from typing import Annotated, Literal

from pydantic import Field

from kgym.api.steps import Count, Line, Patch, Strict, TreePath
from kgym.api.steps.base import StepNumber

# Of a file, in one answer.
LINES, CHARACTERS = 100_000, 1 << 20
# Of a folder, in one answer.
ENTRIES = 5000
# Characters of a line that a search shows.
LONGEST_LINE = 1000

_Path = Annotated[str, Field(max_length=1000, description="path in the tree; `` is its top")]
_LineNumber = Annotated[int, Field(ge=1, lt=1 << 31)]


class Look(Strict):
    """Which tree is meant: that of a job's step, with patches on top of it."""

    step: StepNumber | None = Field(
        None,
        description="a step of kind source, build or check: its tree, with its own patches (of a"
        " check: its base); left out: the first such step",
    )
    patches: list[Patch] = Field(
        [], max_length=100, description="further patches, one after the other, for this look alone"
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
        False, description="whether lines that were asked for are left out: go on behind `last`"
    )
    lossy: bool = Field(False, description="whether bytes that are no UTF-8 are shown as U+FFFD")


class FolderLook(Look):
    """List a folder."""

    path: _Path = ""


class SourceEntry(Strict):
    """A file, a folder, or a symbolic link, in a folder."""

    name: Annotated[str, Field(max_length=1000)]
    kind: Literal["file", "folder", "link", "binary"]
    size: Count = Field(0, description="bytes of a file")
    target: Annotated[str, Field(max_length=5000)] | None = Field(
        None, description="of a link: where it leads, as it says"
    )


class FolderList(Strict):
    """What is in a folder, by name."""

    path: _Path
    entries: Annotated[list[SourceEntry], Field(max_length=ENTRIES)]
    cut: bool = Field(False, description=f"whether there are more than {ENTRIES}")


class SearchLook(Look):
    """Search the lines of all text files of at most 1 MiB."""

    pattern: str = Field(
        min_length=1,
        max_length=1000,
        description="regular expression, as RE2 reads them; matched against each line alone",
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


# Why an answer is not the whole one.
Cut = Literal["limit", "time"]


class SearchResult(Strict):
    """Lines that match, by path and line."""

    matches: Annotated[list[SourceLine], Field(max_length=1000)]
    cut: Cut | None = Field(
        None, description="why there may be more: `limit` lines were found, or the time was over"
    )


class SymbolLook(Look):
    """Look up a name of C: where it is defined, where it is used."""

    name: str = Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    limit: int = Field(100, ge=1, le=1000, description="uses in the answer")


SymbolKind = Literal[
    "function", "macro", "struct", "union", "enum", "typedef", "variable", "enumerator"
]


class Definition(Strict):
    """Where a name is defined, found by the form of kernel code, not by a compiler."""

    path: TreePath
    line: Count
    last: Count = Field(description="the line where the definition ends")
    kind: SymbolKind
    text: Line = Field(description="its first line")


class Use(SourceLine):
    """A line that names a symbol."""

    function: Annotated[str, Field(max_length=1000)] | None = Field(
        None, description="the function that the line stands in: the caller, if it is a call"
    )
    call: bool = Field(description="whether a parenthesis follows: a call, or a macro's use")


class SymbolResult(Strict):
    """What is known of a name; a system call goes by `sys_NAME`."""

    name: str
    definitions: Annotated[list[Definition], Field(max_length=200)]
    uses: Annotated[list[Use], Field(max_length=1000)] = Field(
        description="calls before others, those near the definition first"
    )
    cut: Cut | None = Field(None, description="as of a search")
