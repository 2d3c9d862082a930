"""The source tree as builds see it, for the model's tools and for candidate files."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from pydantic import JsonValue, ValidationError

from kgym.api import faults
from kgym.api.source import FileLook, FolderLook, SearchLook, SymbolLook
from kgym.api.steps import Patch
from kgym.bugs import ended_job
from kgym.bugs.bug import Bug
from kgym.bugs.conclusion import Answer, conclusion, failed
from kgym.client import AsyncClient, Refused
from kgym.errors import InfrastructureError, UserError
from kgym_crashfixer.run_jobs import RunJobs
from kgym_crashfixer.search.work import Seen, Source

# Characters of a candidate file.
_LONGEST_FILE = 4 << 20
# Lines of a file that are read without an explicit range.
_LINES = 400
# Entries of a folder, and lines of a search, in a tool's result.
_LISTED, _MATCHES = 500, 100
# Definitions of a name in a tool's result.
_DEFINITIONS = 3
# Folders whose definitions come last: they are mostly not in the kernel, or of another
# architecture.
_ASIDE = ("tools/", "samples/", "Documentation/", "arch/")
# Functions of a report that are searched for, to find files for the ranking by words.
_SEARCHED = 24
# Files that are ranked by words: reading a whole tree over REST would take too long, and a file
# without any of the report's rare functions would rank last.
_READ = 120
_AT_A_TIME = 8
_WRONG = {"bad_pattern", "binary_file", "file_not_found", "not_a_file", "not_a_folder"}
T = TypeVar("T")
Look = TypeVar("Look")


class NotCandidate(Exception):
    """The file cannot be a candidate file; the message says why."""


class SourceTree:
    """The unpatched tree. A job makes it readable on first use, or in `ready`."""

    def __init__(self, client: AsyncClient, bug: Bug, jobs: RunJobs, patience: float) -> None:
        self._client, self._bug, self._jobs = client, bug, jobs
        self._patience = patience
        self._job: int | None = None
        self._making = asyncio.Lock()

    async def ready(self) -> None:
        """Make the tree readable if it is not yet."""
        await self._ready()

    async def whole(self, path: str, patches: Sequence[Patch] = ()) -> str:
        """Return the text of an editable file; raise NotCandidate otherwise."""
        text, first = "", 1
        while True:
            look = FileLook(path=path, first=first, patches=list(patches))
            try:
                part = await self._asked(self._client.read_source, look)
            except Refused as error:
                if error.reason not in _WRONG:
                    raise
                raise NotCandidate(error.message) from error
            if part.lossy:
                raise NotCandidate(f"{path} is not UTF-8")
            text += part.text
            if len(text) > _LONGEST_FILE:
                raise NotCandidate(f"{path} has more than {_LONGEST_FILE >> 20} MiB")
            if not part.cut:
                return text
            first = part.last + 1

    async def look(self, work: Source) -> Seen:
        """Carry out a tool call; the model's errors become results."""
        patches = [Patch(name="the edits", edits=work.edits)] if work.edits else []
        try:
            if work.tool == "definition":
                return await self._definition(work.arguments, patches)
            return Seen(text=await _TOOLS[work.tool](self, work.arguments, patches))
        except NotCandidate as error:
            return Seen(text=f"error: {error}", succeeded=False)
        except ValidationError as error:
            return Seen(text=f"error: {faults.in_words(error)}", succeeded=False)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            return Seen(text=f"error: {error.message}", succeeded=False)

    async def with_words(self, names: Sequence[str]) -> dict[str, str]:
        """Return the C files that contain most of these function names."""
        holds: Counter[str] = Counter()
        for name in names[:_SEARCHED]:
            look = SearchLook(pattern=rf"\b{name}\b", glob="*.c", limit=1000)
            try:
                result = await self._asked(self._client.search_source, look)
            except Refused as error:
                if error.reason not in _WRONG:
                    raise
                continue
            holds.update({match.path for match in result.matches})
        paths = [path for path, _ in sorted(holds.items(), key=lambda item: (-item[1], item[0]))]
        turn = asyncio.Semaphore(_AT_A_TIME)

        async def read(path: str) -> str | None:
            async with turn:
                try:
                    return await self.whole(path)
                except NotCandidate:
                    return None

        kept = paths[:_READ]
        texts = await asyncio.gather(*map(read, kept))
        return {path: text for path, text in zip(kept, texts, strict=True) if text is not None}

    async def _asked(self, call: Callable[[int, Look], Awaitable[T]], look: Look) -> T:
        job = await self._ready()
        try:
            return await ended_job.patiently(lambda _: call(job, look), self._patience)
        except Refused as error:
            if error.reason not in {"source_not_made", "no_source"}:
                raise
        # Retention has removed the archive meanwhile: make it again, once.
        job = await self._ready(anew=job)
        return await ended_job.patiently(lambda _: call(job, look), self._patience)

    async def _ready(self, anew: int | None = None) -> int:
        """Return the job that made the tree readable; run another after `anew` has expired."""
        async with self._making:
            if self._job is None or self._job == anew:
                does = f"source after {anew}" if anew else "source"
                # One job at a time, under the lock: many looks may come while the source is made.
                job = await self._jobs.answered(does, self._bug.source())
                why = conclusion(job).reason or f"job {job.id} is {job.state}"
                match failed(job):
                    case Answer.USER:
                        raise UserError("no_source", f"the source cannot be read: {why}")
                    case Answer.INFRASTRUCTURE:
                        raise InfrastructureError("no_source", f"the source cannot be read: {why}")
                self._job = job.id
            return self._job

    # --- the tools --------------------------------------------------------------------------

    async def _read_file(self, arguments: Mapping[str, JsonValue], patches: Sequence[Patch]) -> str:
        path, begin, end = arguments.get("path"), arguments.get("start"), arguments.get("end")
        if arguments.get("whole") is True:
            return await self.whole(FileLook.model_validate({"path": path}).path, patches)
        first = begin if begin is not None else 1
        last = end if end is not None else (first + _LINES - 1 if isinstance(first, int) else 1)
        look = FileLook.model_validate(
            {"path": path, "first": first, "last": last, "patches": list(patches)}
        )
        part = await self._asked(self._client.read_source, look)
        head = f"[{part.path}, lines {part.first} to {part.last} of {part.lines}]"
        return f"{head}\n{part.text}"

    async def _list_folder(
        self, arguments: Mapping[str, JsonValue], patches: Sequence[Patch]
    ) -> str:
        look = FolderLook.model_validate(
            {"path": arguments.get("path", ""), "patches": list(patches)}
        )
        folder = await self._asked(self._client.list_source, look)
        lines = [f"{file.name}{'/' * (file.kind == 'folder')}" for file in folder.entries[:_LISTED]]
        if len(folder.entries) > _LISTED or folder.cut:
            lines.append(f"[and more: these are the first {_LISTED}]")
        return "\n".join(lines) or "[the folder is empty]"

    async def _search(self, arguments: Mapping[str, JsonValue], patches: Sequence[Patch]) -> str:
        pattern, glob = arguments.get("pattern"), arguments.get("glob")
        look = SearchLook.model_validate(
            {"pattern": pattern, "glob": glob, "limit": _MATCHES, "patches": list(patches)}
        )
        result = await self._asked(self._client.search_source, look)
        lines = [f"{match.path}:{match.line}: {match.text}" for match in result.matches]
        if result.cut is not None:
            what = f"the first {len(lines)} lines" if result.cut == "limit" else "time ran out"
            lines.append(f"[there may be more: {what}]")
        return "\n".join(lines) or "[no line matches]"

    async def _symbol(self, arguments: Mapping[str, JsonValue], patches: Sequence[Patch]) -> str:
        look = SymbolLook.model_validate(
            {"name": arguments.get("name"), "limit": _MATCHES, "patches": list(patches)}
        )
        symbol = await self._asked(self._client.find_symbol, look)
        lines = [
            f"defined in {at.path}, lines {at.line} to {at.last} ({at.kind}): {at.text}"
            for at in symbol.definitions
        ]
        for use in symbol.uses:
            where = f" in {use.function}()" if use.function else ""
            word = "called" if use.call else "named"
            lines.append(f"{word}{where}, {use.path}:{use.line}: {use.text}")
        if symbol.cut is not None:
            lines.append("[there may be more]")
        return "\n".join(lines) or f"[no definition or use of {symbol.name}]"

    async def _definition(
        self, arguments: Mapping[str, JsonValue], patches: Sequence[Patch]
    ) -> Seen:
        """Return a name's definitions with their text, those of other architectures last."""
        look = SymbolLook.model_validate(
            {"name": arguments.get("name"), "limit": 1, "patches": list(patches)}
        )
        symbol = await self._asked(self._client.find_symbol, look)
        ordered = sorted(symbol.definitions, key=lambda place: place.path.startswith(_ASIDE))
        texts = []
        for place in ordered[:_DEFINITIONS]:
            last = min(place.last, place.line + _LINES - 1)
            lines = FileLook(path=place.path, first=place.line, last=last, patches=list(patches))
            read = await self._asked(self._client.read_source, lines)
            texts.append(
                f"[{place.path}, lines {read.first} to {read.last}, {place.kind}]\n{read.text}"
            )
        if not texts:
            return Seen(text=f"error: {symbol.name} is defined nowhere", succeeded=False)
        others = ", ".join(f"{place.path}:{place.line}" for place in ordered[_DEFINITIONS:])
        if others:
            texts.append(f"[also defined in {others}]")
        paths = list(dict.fromkeys(place.path for place in ordered[:_DEFINITIONS]))
        return Seen(text="\n".join(texts), paths=paths)


_Tool = Callable[[SourceTree, Mapping[str, JsonValue], Sequence[Patch]], Awaitable[str]]
_TOOLS: Mapping[str, _Tool] = {
    "read_file": SourceTree._read_file,
    "list_folder": SourceTree._list_folder,
    "search": SourceTree._search,
    "symbol": SourceTree._symbol,
}
