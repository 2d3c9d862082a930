"""The platform of a run, over the scheduler's REST interface."""

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Collection, Sequence

from kgym import tasks
from kgym.api.agent.nodes import CauseCommit, Crash
from kgym.api.agent.strategy import Escalate, Strategy, Tool
from kgym.bugs import tracing_job
from kgym.bugs.bug import Bug
from kgym.bugs.crash_tools import brief_program
from kgym.client import AsyncClient
from kgym.errors import UserError
from kgym_crashfixer import context, localisation
from kgym_crashfixer.context import Cut, Near
from kgym_crashfixer.platform_protocol import BEGIN, Begun, Submitted
from kgym_crashfixer.run_jobs import Options, RunJobs, Shown
from kgym_crashfixer.search.work import Check, PlatformWork, Question, Result, Source, Trace, Try
from kgym_crashfixer.source import NotCandidate, SourceTree

# Tokens of a model's window that a run uses by default: larger prompts cost more.
WINDOW = 200_000
# Candidate files that are taken from a report, a cause or a search by words.
_FILES = 5
# Characters of the causing commit's diff in a prompt.
_CAUSE = 20_000
_FILE_OF_DIFF = re.compile(r"^(?=diff --git )", re.MULTILINE)


class SchedulerPlatform:
    """The work of one run (`platform_protocol.Platform`), as jobs of a scheduler.

    Args:
        client: Client of the scheduler, closed by the caller.
        bug: The bug.
        strategy: The search strategy: source of candidate files, how they are cut, tracing.
        key: Key of the run, a part of its jobs' idempotency keys.
        group: Group of the run's jobs.
        submitted: Called with each job.
        files: Candidate files that the caller names.
        window: Tokens of a question and its answer; files may take half of them.
    """

    def __init__(
        self,
        client: AsyncClient,
        bug: Bug,
        strategy: Strategy,
        *,
        key: str,
        group: str,
        submitted: Submitted,
        files: Sequence[str] = (),
        window: int = WINDOW,
    ) -> None:
        options = Options(key=key, group=group)
        self._bug, self._strategy = bug, strategy
        self._submitted, self._showing = submitted, asyncio.Event()
        self._jobs = RunJobs(client, bug, options, self._on_submitted)
        self._tree = SourceTree(client, bug, self._jobs, options.patience)
        # Half of the window is left for reports, traces, lessons and the answer.
        self._files, self._room = tuple(files), window // 2
        self._shown: Shown | None = None

    async def begin(self) -> Begun:
        """Show the crash, and locate candidate files."""
        async with self._reading_source():
            shown = await self._jobs.show(BEGIN)
        notes: list[str] = []
        paths = await self._candidates(shown, notes)
        texts = await self._texts(paths, notes)
        trace = [path for path in texts if path.endswith(".c")]
        trace = trace if wants_trace(self._strategy) else []
        if trace and (why := tracing_job.untraceable(self._bug.build)) is not None:
            notes.append(f"the crash cannot be traced: {why}; the prompts have no trace")
            trace = []
        crash = shown.crash
        notes += (f"cut to the model's window: {text}" for text in self._cut(texts, crash).left_out)
        cause = _shortened(self._bug.cause, texts)
        begun = Begun(
            crash=crash, files=texts, notes=notes, trace=trace, job=shown.job, cause=cause
        )
        more = {"program": brief_program(self._bug), "discussion": bool(self._bug.mboxes)}
        begun = begun.model_copy(update=more)
        await self.resume(begun)
        return begun

    async def resume(self, begun: Begun) -> None:
        """Continue with the result of an earlier `begin`."""
        if begun.job is None:
            raise UserError("no_job", "no job has shown the bug: start another run")
        traced = tuple(path for path in begun.files if path.endswith(".c"))
        self._shown = Shown(begun.job, begun.crash, traced)
        self._tree.shown_by = begun.job

    async def do(self, name: str, work: PlatformWork) -> Result:
        """Carry out a piece of a search's work."""
        match work:
            case Check():
                return await self._jobs.check(name, work)
            case Source():
                return await self._tree.look(work)
            case Trace():
                return await self._jobs.trace(name, work)
            case Try():
                if self._shown is None:
                    raise UserError("no_job", "no job has shown the bug: call begin, or resume")
                return await self._jobs.run(name, work, self._shown)

    def fitted(self, question: Question) -> Question:
        """Return the question with its files cut to the model's window."""
        files, values = question.values.get("files"), question.values
        if not isinstance(files, dict) or self._strategy.context == "files":
            return question
        cut = _cut(
            tuple(files.items()),
            str(values.get("report", "")),
            values.get("trace"),
            str(values.get("changed", "")),
            (*values.get("names", ()), *context.functions_named_in(values)),
            self._room,
            self._strategy.context == "stack",
        )
        return question.model_copy(update={"values": {**values, "files": cut.files}})

    # --- the beginning ----------------------------------------------------------------------

    async def _on_submitted(self, name: str, job: int) -> None:
        await self._submitted(name, job)
        if name == BEGIN:
            self._showing.set()

    @contextlib.asynccontextmanager
    async def _reading_source(self) -> AsyncIterator[None]:
        """Make the source readable while the bug is shown: both may take minutes."""
        # The bug's job is submitted first, so that a worker with both kinds of work builds first.

        async def made() -> None:
            await self._showing.wait()
            await self._tree.ready()

        making = asyncio.create_task(made())
        try:
            yield
            await making
        finally:
            await tasks.end([making])

    async def _candidates(self, shown: Shown, notes: list[str]) -> list[str]:
        """Return the files that a fix may have to change, the most likely first."""
        crash = shown.crash
        if self._files:
            return list(dict.fromkeys(self._files))
        match self._strategy.localisation:
            case "given":
                raise UserError("no_files", "this strategy takes the files that you name: --files")
            case "fix":
                return localisation.of_fix(self._bug)
            case "report" | "cause":
                names = localisation.functions(crash.report)
                defined = await self._tree.defined(names)
                # A function may also be defined in files that this config leaves out.
                paths = {path for named in defined.values() for path in named}
                built = await self._jobs.compiled(shown.job, paths)
                defined = {
                    name: [path for path in named if path in built]
                    for name, named in defined.items()
                }
                located = localisation.of_report(crash.report, defined)
                changed = self._changed_by_cause(notes)
                if located or changed:
                    # The report first: a causing commit may have touched many files.
                    likely = self._likely(located, notes) if located else []
                    return list(dict.fromkeys([*likely, *changed]))
                notes.append("the crash report names no file: files were found by words")
        names = localisation.rare_functions(crash.report)
        documents = await self._tree.with_words(names)
        query = f"{crash.title}\n{crash.report}"
        return self._likely(localisation.by_words(query, documents), notes)

    def _changed_by_cause(self, notes: list[str]) -> list[str]:
        """Return the files of the causing commit, if the strategy uses them."""
        if self._strategy.localisation != "cause":
            return []
        if self._bug.cause is None:
            notes.append(
                "the bug does not name the commit that introduced it: the report alone is used"
            )
            return []
        paths = localisation.of_cause(self._bug.cause)
        if len(paths) > _FILES:
            notes.append(
                f"the commit that introduced the bug changes {len(paths)} files: {_FILES} are used"
            )
        return paths[:_FILES]

    @staticmethod
    def _likely(located: Sequence[str], notes: list[str]) -> list[str]:
        if not located:
            raise UserError(
                "no_files", "the files that a fix may change are unknown: name some with --files"
            )
        if len(located) > _FILES:
            others = ", ".join(located[_FILES:])
            notes.append(f"less likely files are not used: {others}")
        return list(located[:_FILES])

    async def _texts(self, paths: Sequence[str], notes: list[str]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for path in paths:
            try:
                texts[path] = await self._tree.whole(path)
            except NotCandidate as error:
                notes.append(f"{path} is skipped: {error}")
        if not texts:
            raise UserError("no_files", f"none of the files can be changed: {'; '.join(notes)}")
        return texts

    def _cut(self, files: dict[str, str], crash: Crash) -> Cut:
        if self._strategy.context != "functions":  # `stack` omits code on purpose: no note
            return Cut(files, ())
        shown = tuple(files.items())
        return _cut(shown, crash.report, crash.trace, "", (), self._room, False)


@functools.lru_cache(maxsize=128)
def _cut(
    files: tuple[tuple[str, str], ...],
    report: str,
    trace: str | None,
    changed: str,
    names: tuple[str, ...],
    most: int,
    only: bool,
) -> Cut:
    return context.cut(dict(files), Near.of(report, trace, changed, names), most, only=only)


def _shortened(cause: CauseCommit | None, files: Collection[str]) -> CauseCommit | None:
    """Shorten the commit's diff to what a prompt can afford, the given files first."""
    if cause is None or len(cause.diff) <= _CAUSE:
        return cause
    parts = _FILE_OF_DIFF.split(cause.diff)
    near = [part for part in parts if any(f"+++ b/{path}" in part for path in files)]
    diff = "".join([*near, *(part for part in parts if part not in near)])
    more = f"\n[{len(diff) - _CAUSE} characters more]\n"
    return cause.model_copy(update={"diff": diff[:_CAUSE] + more})


def wants_trace(strategy: Strategy) -> bool:
    """Return whether a strategy's prompts show the calls before a crash."""
    match strategy:
        case Escalate(phases=phases):
            return any(wants_trace(phase.strategy) for phase in phases)
        case Tool(trace=trace):
            return trace
        case _:
            return strategy.cycle.trace
