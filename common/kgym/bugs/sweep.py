"""Sweeps: many patches are tried on many bugs, each pair once, even if processes are killed.

For each bug, all patches are checked first (do they apply, do they compile?), and the crash is
shown once. Then each patch that compiles is tried in a job of its own, with the showing job as its
baseline. All jobs belong to one group.

A sweep has no file or table of its own that could be out of date: its memory is the jobs'
idempotency keys, each the hash of the whole request, which names the sweep. The database keeps a
key once, so a sweep that is started again, or twice concurrently, gets the existing jobs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import TypeVar

from kgym.api.jobs import JobRequest, JobView
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import CheckResult, Patch
from kgym.bugs import ended_job
from kgym.bugs.bug import DEFAULT_OPTIONS, REFERENCE, Bug, TrialOptions, patch_tag
from kgym.bugs.conclusion import conclusion, failure, reproduced
from kgym.bugs.ended_job import Began, Submitted
from kgym.bugs.equivalence import BehaviouralEquivalence
from kgym.bugs.sweep_rows import Pair, Row, checked, not_shown, tried
from kgym.client import AsyncClient, Refused
from kgym.errors import UserError
from kgym.source import patching

T = TypeVar("T")
# Patches in one check job: no trial of them starts before the whole job has ended.
PATCHES = 100
# Bytes of the patches of one check job, as JSON; a request may have twice as much.
_BYTES = 8 << 20
# Concurrent check jobs; the options bound the other jobs.
_CHECKS = 8
# Maximum concurrent trials: each has an event stream, and a caller may have 200.
MOST_UNDER_WAY = 150


@dataclass(frozen=True, slots=True)
class Candidate:
    """A patch to try, or why it is invalid; its name is unique for the bug."""

    name: str
    patch: Patch | UserError


@dataclass(frozen=True, slots=True)
class Subject:
    """A bug and the patches to try on it."""

    bug: Bug
    candidates: Sequence[Candidate]
    trial: TrialOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of a sweep."""

    name: str
    """The name of its group of jobs: a sweep with the same name continues with them."""
    accepted: frozenset[str] = frozenset()
    """Reasons of findings that are accepted."""
    under_way: int = 32
    """Concurrent trials, up to MOST_UNDER_WAY."""
    retry: bool = False
    """Run jobs without an answer again."""
    patience: float = ended_job.PATIENCE_SECONDS
    """Seconds for which the scheduler may be away, or may fail to answer for a job."""
    submitted: Submitted | None = None
    """Called with each job that is waited for."""


class Stage(StrEnum):
    """The stage of a patch that has no row yet."""

    CHECK = "check"
    """Its check is queued or running."""
    SHOW = "show"
    """It waits for the job that shows the bug, or for its turn."""
    BUILD = "build"
    REPRODUCE = "reproduce"


@dataclass(frozen=True, slots=True)
class Moved:
    """Patches of a bug that have reached a stage."""

    bug: str
    patches: Sequence[str]
    stage: Stage
    job: int | None = None
    """The job that does it, if it exists already."""


# Called when patches reach a stage, and with the row of each pair once it is known.
Tell = Callable[[Moved | Row], None]


async def sweep(
    client: AsyncClient, subjects: Iterable[Subject], options: SweepOptions, tell: Tell
) -> None:
    """Try all patches; call `tell` with the row of each pair, once, as soon as it is known.

    Errors of one bug or patch are reported in its row. Raises KgymError if the scheduler cannot be
    used. In that case, and on cancellation, running jobs go on, and the same sweep started again
    continues with them.
    """
    whole = _Sweep(client, options, tell)
    await _all(whole.bug(subject) for subject in subjects)


async def kept_job(
    client: AsyncClient,
    request: JobRequest,
    options: SweepOptions,
    answers: Callable[[JobView], bool] = lambda job: job.state is State.SUCCEEDED,
) -> JobView:
    """Return the job of this request in the sweep of this name, once it has ended.

    It is submitted if there is none. A job without an answer runs again if the options say `retry`.
    Raises KgymError if the scheduler refuses it, or cannot be used.
    """
    whole = _Sweep(client, options, lambda _: None)
    return await whole.ended(request, whole.trials, answers=answers)


class _Sweep:
    """One sweep in progress."""

    def __init__(self, client: AsyncClient, options: SweepOptions, tell: Tell) -> None:
        self.client = client
        self.options = options
        self.tell = tell
        self.checks = asyncio.Semaphore(_CHECKS)
        self.trials = asyncio.Semaphore(min(options.under_way, MOST_UNDER_WAY))

    async def bug(self, subject: Subject) -> None:
        """Try the patches on a bug, each distinct content once."""
        copies: dict[str, list[Candidate]] = {}
        sizes: dict[str, int] = {}
        for candidate in subject.candidates:
            if isinstance(candidate.patch, UserError):
                pair = Pair(subject.bug.name, candidate.name)
                self.tell(pair.row(Outcome.REFUSED, candidate.patch.message))
            else:
                # Models often write the same patch: trying each copy would prove nothing more.
                content = candidate.patch.model_dump_json(exclude={"name"})
                change = await asyncio.to_thread(_change, candidate.patch, content)
                copies.setdefault(change, []).append(candidate)
                sizes.setdefault(change, len(content))
        run = _BugSweep(self, subject, {ones[0].name: ones for ones in copies.values()})
        parts = list(check_parts((ones[0], sizes[change]) for change, ones in copies.items()))
        if parts:
            await _all([run.show(), *map(run.part, parts)])

    async def ended(
        self,
        request: JobRequest,
        turn: asyncio.Semaphore,
        *,
        answers: Callable[[JobView], bool],
        began: Began = lambda job, step: None,
    ) -> JobView:
        """Return the job of this request once it has ended; submit it if there is none.

        With the option `retry`, a job that had ended without an answer runs again.
        """
        request = request.model_copy(update={"group": self.options.name})
        key = f"sweep-{sha256(request.model_dump_json().encode()).hexdigest()}"
        retry = self.options.retry

        async def once() -> JobView:
            return await ended_job.ended(
                self.client,
                request,
                key,
                patience=self.options.patience,
                restarts=lambda job: retry and not answers(job),
                submitted=self.options.submitted,
                began=began,
            )

        async with turn:
            job = await once()
            # Callers share jobs. Another caller that gave up may have aborted this one meanwhile:
            # whoever still waits for it restarts it, once.
            return await once() if retry and job.state is State.ABORTED else job


class _BugSweep:
    """The patches on one bug, each distinct content once."""

    def __init__(
        self, whole: _Sweep, subject: Subject, copies: Mapping[str, Sequence[Candidate]]
    ) -> None:
        self.whole = whole
        self.subject = subject
        self.bug = subject.bug
        # Candidates of equal content, by the name of the first, which is the one that is tried.
        self.copies = copies
        # The job that shows the bug, or why there is none.
        self.shown: asyncio.Future[JobView | str] = asyncio.get_running_loop().create_future()
        self.showing = asyncio.Lock()

    async def show(self) -> None:
        """Show the crash."""
        try:
            request, turn = self.bug.shown(self.subject.trial), self.whole.trials
            self.shown.set_result(await self.whole.ended(request, turn, answers=_shows))
        except Refused as error:
            self.shown.set_result(f"the bug cannot be shown: {_own(error).message}")

    async def part(self, candidates: Sequence[Candidate]) -> None:
        """Check a part of the patches, then try those that compile."""
        names = [candidate.name for candidate in candidates]
        patches = [
            candidate.patch for candidate in candidates if isinstance(candidate.patch, Patch)
        ]
        pairs = [Pair(self.bug.name, name) for name in names]
        self._moved(names, Stage.CHECK)
        try:
            job = await self.whole.ended(
                self.bug.check(patches),
                self.whole.checks,
                answers=lambda job: isinstance(job.steps[0].result, CheckResult),
                began=lambda job, _: self._moved(names, Stage.CHECK, job.id),
            )
        except Refused as error:
            for pair in pairs:
                self._end(pair.row(Outcome.REFUSED, _own(error).message))
            return
        pairs = [pair.knowing(checked_by=job.id) for pair in pairs]
        result = job.steps[0].result
        if not isinstance(result, CheckResult):
            reason = f"not checked (job {job.id}): {conclusion(job).reason}"
            for pair in pairs:
                self._end(pair.row(Outcome.INCONCLUSIVE, reason))
            return
        known = map(checked, pairs, result.patches)
        trials = []
        for outcome, patch in zip(known, patches, strict=True):
            if isinstance(outcome, Row):
                self._end(outcome)
            else:
                trials.append(self.trial(outcome, patch))
        await _all(trials)

    async def trial(self, pair: Pair, patch: Patch) -> None:
        """Try a patch that compiles, if the bug shows without it."""
        self._moved([pair.patch], Stage.SHOW)
        # Shielded: the future is shared by all patches on the bug.
        shown = await asyncio.shield(self.shown)
        if isinstance(shown, str):
            self._end(pair.row(Outcome.INCONCLUSIVE, shown))
            return
        if (problem := not_shown(shown)) is not None:
            self._end(pair.knowing(shown_by=shown.id).row(Outcome.INCONCLUSIVE, problem))
            return
        try:
            # A bad reference: retention has removed the artifacts of the job that showed the bug.
            try:
                row = await self._row(pair, patch, shown)
            except Refused as error:
                if error.reason != "bad_reference":
                    raise
                row = await self._row(pair, patch, await self._shown_again(shown))
        except Refused as error:
            row = pair.row(Outcome.INCONCLUSIVE, _own(error).message)
        self._end(row)

    async def _row(self, pair: Pair, patch: Patch, shown: JobView) -> Row:
        """Try a patch and return its row."""
        pair, trial = pair.knowing(shown_by=shown.id), self.subject.trial
        needs = self.bug.compares(trial) and trial.learned is None
        if needs and reproduced(shown.step(REFERENCE)) is None:
            # If the known fix cannot be built, patches can be tried all the same.
            why = f"the known fix was not run (job {shown.id}): {failure(shown)}"
            pair = pair.knowing(behavioural_equivalence=BehaviouralEquivalence(missing=why))
            trial = replace(trial, compare_fix=False)
        request = self.bug.trial(patch, shown.id, trial)
        request = request.model_copy(update={"tags": [*request.tags, patch_tag(pair.patch)]})

        def row(job: JobView) -> Row:
            return tried(pair, job, self.whole.options.accepted)

        def began(job: JobView, step: int) -> None:
            self._moved([pair.patch], Stage.REPRODUCE if step else Stage.BUILD, job.id)

        def answers(job: JobView) -> bool:
            return row(job).outcome is not Outcome.INCONCLUSIVE

        return row(await self.whole.ended(request, self.whole.trials, answers=answers, began=began))

    async def _shown_again(self, job: JobView) -> JobView:
        """Restart the showing job, whose artifacts retention has removed, unless that was done."""
        async with self.showing:
            whole = self.whole
            patience = whole.options.patience
            return await ended_job.shown_again(whole.client, job.id, patience=patience)

    def _moved(self, patches: Sequence[str], stage: Stage, job: int | None = None) -> None:
        named = [candidate.name for patch in patches for candidate in self.copies[patch]]
        self.whole.tell(Moved(self.bug.name, named, stage, job))

    def _end(self, row: Row) -> None:
        """Report the row of the patch that was tried, and those of its copies."""
        first, *others = self.copies[row.patch]
        self.whole.tell(row)
        for copy in others:
            same = {"patch": copy.name, "same_as": first.name, "seconds": 0.0}
            self.whole.tell(row.model_copy(update=same))


def _change(patch: Patch, content: str) -> str:
    try:
        return patching.identity(patch)
    except UserError:  # what cannot be read is checked, so that its row has the reason
        return content


def _shows(job: JobView) -> bool:
    return not_shown(job) is None


def _own(error: Refused) -> Refused:
    """Return the error if it concerns one request; raise it if the scheduler cannot be used."""
    if not ended_job.concerns_one_request(error):
        raise error
    return error


def check_parts(sized: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Split items, given with the bytes of their patches as JSON, into parts for check jobs."""
    part: list[T] = []
    size = 0
    for item, more in sized:
        if part and (len(part) == PATCHES or size + more > _BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part


async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all coroutines concurrently; cancel the rest on an error, and raise the first one."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                group.create_task(coroutine)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
