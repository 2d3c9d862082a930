"""Tools with which models read a kernel's source: the same for CrashFixer and for MCP clients."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Protocol, TypeVar

from pydantic import Field

from kgym.api.source import FileLook, FileText, FolderLook, SearchLook, SourceLine, SymbolLook
from kgym.api.steps import Patch
from kgym.bugs.kernel_run_text import MOST, bounded, quoted
from kgym.client import AsyncClient

# Lines of a file in one answer, as the description of `read_file` says.
LINES = 400
# Definitions that one answer shows.
_DEFINITIONS = 3
# Folders whose definitions come last: they are mostly not in the kernel, or of another
# architecture.
_ASIDE = ("tools/", "samples/", "Documentation/", "arch/")
# Files that are in no kernel for the VMs: of other architectures, of the boot loader, tools.
OTHER_PROGRAMS = re.compile(
    r"arch/(?!x86/)|arch/x86/(?:boot|purgatory|realmode|um)/|(?:tools|samples|scripts|Documentation)/"
)
T = TypeVar("T")
Look = TypeVar("Look")
_Path = Annotated[str, Field(description="path in the kernel's source tree")]
_Limit = Annotated[int, Field(ge=1, le=1000)]
_LineNumber = Annotated[int, Field(ge=1, lt=1 << 31)]


class Asker(Protocol):
    """Callable that reads a bug's tree by a client's call, which gets the job with the tree."""

    async def __call__(self, call: Callable[[int, Look], Awaitable[T]], look: Look, /) -> T:
        """Return the call's answer."""


class SourceTools:
    """Tools that read the source of a bug, with patches on top of it.

    Models see the names, parameters and docstrings of the methods in `tools`. They raise
    ValidationError for bad arguments, and Refused for what does not exist.
    """

    def __init__(self, client: AsyncClient, ask: Asker, patches: Sequence[Patch] = ()) -> None:
        self._client, self._ask, self._patches = client, ask, list(patches)
        # Files of the definitions that were shown.
        self.paths: list[str] = []
        self.tools = (
            *(self.read_file, self.list_folder, self.search),
            *(self.symbol, self.definition),
        )

    async def read_file(
        self, path: _Path, start: _LineNumber = 1, end: _LineNumber | None = None
    ) -> str:
        """Return numbered lines of a file of the kernel's source, at most 400 at a time."""
        most = start + LINES - 1
        look = FileLook(path=path, first=start, last=min(end or most, most), patches=self._patches)
        part = await self._ask(self._client.read_source, look)
        return f"{path}: lines {part.first} to {part.last} of {part.lines}\n{_numbered(part)}"

    async def list_folder(self, path: _Path = "") -> str:
        """List a folder of the kernel's source; the top of the tree if no path is given."""
        look = FolderLook(path=path, patches=self._patches)
        folder = await self._ask(self._client.list_source, look)
        names = [f"{entry.name}{'/' * (entry.kind == 'folder')}" for entry in folder.entries]
        return bounded("\n".join(names) or "the folder is empty", MOST)

    async def search(
        self,
        pattern: Annotated[
            str, Field(description="a regular expression (RE2), matched line by line")
        ],
        glob: Annotated[
            str | None, Field(description="only files whose path matches, e.g. `net/**/*.c`")
        ] = None,
        limit: _Limit = 50,
    ) -> str:
        """Search the kernel's source."""
        look = SearchLook(pattern=pattern, glob=glob, limit=limit, patches=self._patches)
        result = await self._ask(self._client.search_source, look)
        more = f"; there may be more: {result.cut}" if result.cut else ""
        return f"{len(result.matches)} lines{more}\n{_matches(result.matches)}"

    async def symbol(self, name: str, limit: _Limit = 50) -> str:
        """Return where a function, type, macro or variable is defined and used."""
        look = SymbolLook(name=name, limit=limit, patches=self._patches)
        symbol = await self._ask(self._client.find_symbol, look)
        defined = [
            f"{at.path}:{at.line}-{at.last}: {at.kind}: {at.text}" for at in symbol.definitions
        ]
        more = "; there may be more" if symbol.cut else ""
        parts = [f"{len(defined)} definitions, {len(symbol.uses)} uses{more}"]
        parts += [quoted("matches", "\n".join(defined), MOST // 2)] if defined else []
        parts += [_matches(symbol.uses)] if symbol.uses else []
        return "\n".join(parts)

    async def definition(self, name: str) -> str:
        """Return the text of a function, struct, union, enum, type or macro."""
        look = SymbolLook(name=name, limit=1, patches=self._patches)
        symbol = await self._ask(self._client.find_symbol, look)
        ordered = sorted(symbol.definitions, key=lambda place: place.path.startswith(_ASIDE))
        texts = []
        for place in ordered[:_DEFINITIONS]:
            read = await self.read_file(place.path, place.line, place.last)
            texts.append(f"{place.kind} in {read}")
            self.paths += [place.path] if place.path not in self.paths else []
        others = ", ".join(f"{place.path}:{place.line}" for place in ordered[_DEFINITIONS:])
        texts += [f"also defined in {others}"] if others else []
        return "\n".join(texts) or f"{name} is defined nowhere"

    async def files_of(self, function: str) -> list[str]:
        """Return the files of this kernel that define a function or macro."""
        look = SymbolLook(name=function, limit=1, patches=self._patches)
        symbol = await self._ask(self._client.find_symbol, look)
        paths = [at.path for at in symbol.definitions if at.kind in {"function", "macro"}]
        return [path for path in dict.fromkeys(paths) if not OTHER_PROGRAMS.match(path)]


def _numbered(part: FileText) -> str:
    # Not str.splitlines, which splits at the form feeds in kernel sources.
    lines = enumerate(part.text.removesuffix("\n").split("\n"), part.first)
    return quoted("file", "\n".join(f"{number}\t{line}" for number, line in lines), 4 * MOST)


def _matches(lines: Sequence[SourceLine]) -> str:
    text = "\n".join(f"{line.path}:{line.line}: {line.text}" for line in lines)
    return quoted("matches", text, MOST)
