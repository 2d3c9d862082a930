"""The source tree as builds see it, for the model's tools and for candidate files."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from pydantic import ValidationError, validate_call

from kgym.api import faults
from kgym.api.jobs import JobRequest, JobView
from kgym.api.source import FileLook, SearchLook
from kgym.api.steps import Patch
from kgym.bugs import ended_job
from kgym.bugs.bug import Bug
from kgym.bugs.conclusion import Answer, conclusion, failed
from kgym.bugs.crash_tools import BugWork, CrashTools
from kgym.bugs.debug_tools import DebugTools
from kgym.bugs.discussion_tools import DiscussionTools
from kgym.bugs.history_tools import HistoryTools
from kgym.bugs.kernel_run import Change
from kgym.bugs.source_tools import OTHER_PROGRAMS, Look, SourceTools, T
from kgym.client import AsyncClient, Refused
from kgym.errors import InfrastructureError, UserError
from kgym_crashfixer.run_jobs import RunJobs
from kgym_crashfixer.search.work import Seen, Source
from kgym_crashfixer.vmlinux import Vmlinux

# Characters of a candidate file.
_LONGEST_FILE = 4 << 20
# Functions of a report that are searched for, to find files for the ranking by words.
_SEARCHED = 24
# Files that are ranked by words: reading a whole tree over REST would take too long, and a file
# without any of the report's rare functions would rank last.
_READ = 120
_AT_A_TIME = 8
# Functions that are looked up: two stacks and a half.
_LOOKED_UP = 80
_WRONG = {"bad_pattern", "binary_file", "file_not_found", "not_a_file", "not_a_folder"}


class NotCandidate(Exception):
    """The file cannot be a candidate file; the message says why."""


class SourceTree:
    """The unpatched tree. A job makes it readable on first use, or in `ready`."""

    def __init__(self, client: AsyncClient, bug: Bug, jobs: RunJobs, patience: float) -> None:
        self._client, self._bug, self._jobs = client, bug, jobs
        self._patience = patience
        # Shared by the whole run, since it reads the mails only once.
        self._discussion = DiscussionTools(bug)
        # The job that showed the bug, once known.
        self.shown_by: int | None = None
        self._job: int | None = None
        self._making = asyncio.Lock()

    async def ready(self, anew: int | None = None) -> int:
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
        source = SourceTools(self._client, self._asked, patches)

        async def change() -> Change:
            return work.edits

        vmlinux = Vmlinux(self._client, self._shown)
        own = BugWork(self._client, self._bug, self._shown, self._ended, change, vmlinux)
        groups = (CrashTools(own), HistoryTools(own), DebugTools(own, source), source)
        by_name: dict[str, Callable[..., Awaitable[str]]] = {
            tool.__name__: tool for group in (self._discussion, *groups) for tool in group.tools
        }
        try:
            if work.tool == "whole":
                path = FileLook.model_validate(work.arguments).path
                return Seen(text=await self.whole(path, patches))
            text = await validate_call(by_name[work.tool])(**work.arguments)
            return Seen(text=text, paths=source.paths)
        except ValidationError as error:
            return Seen(text=f"error: {faults.in_words(error)}", succeeded=False)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            return Seen(text=f"error: {error.message}", succeeded=False)
        except (NotCandidate, UserError) as error:
            return Seen(text=f"error: {error}", succeeded=False)

    async def defined(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the files of this kernel that define functions, by name; skip unknown ones."""
        turn, source = asyncio.Semaphore(_AT_A_TIME), SourceTools(self._client, self._asked)

        async def places(name: str) -> list[str]:
            async with turn:
                try:
                    return await source.files_of(name)
                except (ValidationError, Refused) as error:
                    if isinstance(error, Refused) and not ended_job.concerns_one_request(error):
                        raise
                    return []

        looked = names[:_LOOKED_UP]
        return dict(zip(looked, await asyncio.gather(*map(places, looked)), strict=True))

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
            holds.update({m.path for m in result.matches if not OTHER_PROGRAMS.match(m.path)})
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

    async def _shown(self) -> JobView:
        """Return the job that showed the bug."""
        if self.shown_by is None:
            raise UserError("no_job", "no job has shown the bug: call begin, or resume")
        return await self._client.job(self.shown_by)

    async def _ended(self, request: JobRequest) -> JobView:
        """Return the job of a tool's request, once it has ended."""
        digest = sha256(request.model_dump_json().encode()).hexdigest()[:32]
        return await self._jobs.answered(f"tool {digest}", request)

    async def _asked(self, call: Callable[[int, Look], Awaitable[T]], look: Look) -> T:
        job = await self.ready()
        try:
            return await ended_job.patiently(lambda _: call(job, look), self._patience)
        except Refused as error:
            if error.reason not in {"source_not_made", "no_source"}:
                raise
        # Retention has removed the archive meanwhile: make it again, once.
        job = await self.ready(anew=job)
        return await ended_job.patiently(lambda _: call(job, look), self._patience)
