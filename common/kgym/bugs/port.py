"""Campaigns: publicly fixed bugs are brought back on other kernels, and proven there.

The fix of each bug is reversed, exactly or not at all. If it reverses, the result is compiled, and
the reproducer runs on the kernel with the bug, then on the kernel with the fix. All jobs belong to
one group and are kept like those of sweeps (`kgym.bugs.sweep`): the same campaign again continues.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from kgym.api.jobs import JobRequest, JobView
from kgym.api.source import FileLook
from kgym.api.states import State
from kgym.api.steps import (
    CheckResult,
    Patch,
    PatchCheck,
    PatchOutcome,
    Reproducer,
    ReproduceSpec,
    Strict,
    Verdict,
)
from kgym.bugs import bundle as bugs
from kgym.bugs import ended_job
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.bug_file import BugFile
from kgym.bugs.conclusion import conclusion, in_one_line
from kgym.bugs.fixed_bug import FixedBug
from kgym.bugs.sweep import SweepOptions, check_parts, kept_job
from kgym.bugs.trial_result import TrialResult
from kgym.client import AsyncClient, Refused
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.source import kbuild_symbols, patching

_DOES_NOT_REVERSE = frozenset({"patch_does_not_apply", "empty_patch"})
_NOT_TRIED = {
    PatchOutcome.NOT_BUILT: "not_built",
    PatchOutcome.DOES_NOT_COMPILE: "does_not_compile",
    PatchOutcome.DOES_NOT_APPLY: "does_not_reverse",
    PatchOutcome.REFUSED: "does_not_reverse",
}
# Concurrent requests for source files.
_LOOKS = 8
# Files of a fix whose config symbols are looked up.
_MOST_FILES = 100


class Outcome(StrEnum):
    """The outcome of a bug on a kernel."""

    COMES_BACK = "comes_back"
    """The kernel crashes with the fix reversed, and does not with the fix."""
    NOT_FIXED = "not_fixed"
    """It crashes with the fix too: perhaps another crash."""
    NO_CRASH = "no_crash"
    REVERSES = "reverses"
    """The fix can be reversed; nothing more was asked for."""
    DOES_NOT_REVERSE = "does_not_reverse"
    NOT_BUILT = "not_built"
    """The kernel's config leaves out the files that the fix changes."""
    DOES_NOT_COMPILE = "does_not_compile"
    REFUSED = "refused"
    """The bug's data cannot be used."""
    INCONCLUSIVE = "inconclusive"


class PortRow(Strict):
    """The result of a bug on a kernel."""

    bug: str = Field(description="its id")
    kernel: str
    outcome: Outcome
    title: str | None = Field(None, description="known title of the bug")
    crash: str | None = Field(None, description="title of the crash seen here")
    crashed: int = Field(0, description="of the attempts on the kernel with the bug")
    completed: int = Field(0, description="attempts that count")
    needs: list[str] = Field([], description="config symbols for which the changed files compile")
    fix: str = Field("", description="commit of the public fix")
    reason: str = Field("", description="in one line")
    job: int | None = Field(None, description="that tried it")
    seconds: float = Field(0, description="duration of its builds and runs")


@dataclass(frozen=True, slots=True)
class Subject:
    """A bug and the C program that shows it."""

    bug: FixedBug
    program: Path


@dataclass(frozen=True, slots=True)
class PortOptions:
    """The options of a campaign."""

    sweep: SweepOptions
    """Name, concurrent trials and patience, as for a sweep."""
    attempts: int = 5
    """Runs of the reproducer on the kernel with the bug; the first crash ends them."""
    survivals: int = 2
    """Runs that the kernel with the fix must survive."""
    time: float = 60
    """Seconds of each run."""
    only_reverse: bool = False
    configs: Path = CONFIGS
    """Where the shared kernels are."""


Tell = Callable[[PortRow], None]


async def port(
    client: AsyncClient,
    kernels: Iterable[str],
    subjects: Sequence[Subject],
    options: PortOptions,
    tell: Tell,
) -> None:
    """Bring the bugs back on the kernels; call `tell` with each row as soon as it is known.

    Errors of one bug or kernel are reported in its rows. Raises KgymError if the scheduler cannot
    be used.
    """
    for kernel in kernels:  # sequentially: each needs a full build
        await _Port(client, kernel, options, tell).all(subjects)


def bug_on(subject: Subject, kernel: str, options: PortOptions) -> Bug:
    """Return a bug on a shared kernel with its fix reversed; raise UserError for invalid data."""
    try:
        program = Reproducer(kind="c", text=subject.program.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("bad_fixed_bug", f"{subject.program}: {error}") from error
    return ported(subject.bug, program, kernel, options.attempts, options.time, options.configs)


def ported(
    public: FixedBug,
    program: Reproducer,
    kernel: str,
    instances: int,
    seconds: float,
    configs: Path = CONFIGS,
) -> Bug:
    """Return a bug on a shared kernel with its fix reversed and this program as its reproducer.

    Raises UserError for invalid data.
    """
    regress = public.regress()
    # kmemleak is built in but off by default: campaign kernels serve all kinds of bugs.
    append = append_for(public.title)
    fields = {
        "title": public.title,
        "files": patching.files(regress),
        "kernel": {"use": kernel},
        "reproducer": {"file": "repro.c", "time": seconds, "instances": instances},
        "vm": {"append": append} if append else {},
    }
    file = BugFile.model_validate(fields)
    build = bugs.kernel(kernel, configs).model_copy(update={"patches": [regress]})
    return Bug(f"{public.id[:12]}@{kernel}", file, build, (program,), public.fix)


def append_for(title: str) -> str:
    """Return the kernel parameters without which a bug of this title would not be reported."""
    return "kmemleak=on" if title.startswith("memory leak") else ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A bug in progress."""

    subject: Subject
    kernel: str
    bug: Bug
    needs: tuple[str, ...] = ()

    def row(self, outcome: Outcome, reason: str | None = None, **facts: object) -> PortRow:
        """Return its row with this outcome."""
        known = {"needs": list(self.needs), **facts}
        return _row(self.subject, self.kernel, outcome, reason, **known)


class _Port:
    """All bugs on one kernel."""

    def __init__(self, client: AsyncClient, kernel: str, options: PortOptions, tell: Tell) -> None:
        self.client = client
        self.kernel = kernel
        self.options = options
        self.tell = tell
        self.looks = asyncio.Semaphore(_LOOKS)
        self.makefiles: dict[str, asyncio.Task[str]] = {}

    async def all(self, subjects: Sequence[Subject]) -> None:
        """Try all bugs and report their rows."""
        known = []
        for subject in subjects:
            try:
                bug = bug_on(subject, self.kernel, self.options)
                known.append(_Known(subject, self.kernel, bug))
            except (UserError, ValueError) as error:
                self.tell(_row(subject, self.kernel, Outcome.REFUSED, str(error)))
        if not known:
            return
        job = await self._job(_base(known[0].bug).source())
        if isinstance(job, str) or job.state is not State.SUCCEEDED:
            why = job if isinstance(job, str) else f"job {job.id}: {conclusion(job).reason}"
            self._all(known, Outcome.INCONCLUSIVE, f"there is no source: {why}")
            return
        # Reversal is tried over REST first, so that nothing is compiled for fixes that do not fit.
        looked = await asyncio.gather(*(self._reversed(job.id, bug) for bug in known))
        left = [bug for bug in looked if bug is not None]
        if self.options.only_reverse:
            self._all(left, Outcome.REVERSES)
        else:
            sized = ((bug, len(_regress(bug).model_dump_json())) for bug in left)
            await asyncio.gather(*map(self._checked, check_parts(sized)))

    async def _reversed(self, source: int, known: _Known) -> _Known | None:
        """Return the bug with the symbols it needs, or report its row if it does not reverse."""
        try:
            async with self.looks:
                look = FileLook(path="Makefile", last=1, patches=known.bug.build.patches)
                await self.client.read_source(source, look)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            unlike = error.reason in _DOES_NOT_REVERSE
            outcome = Outcome.DOES_NOT_REVERSE if unlike else Outcome.REFUSED
            self.tell(known.row(outcome, error.message))
            return None
        return replace(known, needs=await self._needs(source, known.bug.file.files))

    async def _needs(self, source: int, files: Sequence[str]) -> tuple[str, ...]:
        """Return the config symbols on which the Makefiles build these files."""
        needs: set[str] = set()
        for file in files[:_MOST_FILES]:
            for folder, item in kbuild_symbols.places(file):
                if folder not in self.makefiles:
                    self.makefiles[folder] = asyncio.create_task(self._makefile(source, folder))
                needs |= kbuild_symbols.conditions(await self.makefiles[folder], item)
        return tuple(sorted(needs))

    async def _makefile(self, source: int, folder: str) -> str:
        """Return a folder's Makefile; empty if it has none."""
        for name in kbuild_symbols.MAKEFILES:
            try:
                async with self.looks:
                    look = FileLook(path=f"{folder}/{name}")
                    return (await self.client.read_source(source, look)).text
            except Refused as error:
                if not ended_job.concerns_one_request(error):
                    raise
        return ""

    async def _checked(self, left: Sequence[_Known]) -> None:
        """Compile the reversed fixes, and try the bugs whose reversed fix compiles."""
        patches = list(map(_regress, left))
        job = await self._job(_base(left[0].bug).check(patches))
        result = None if isinstance(job, str) else job.steps[0].result
        if isinstance(job, str) or not isinstance(result, CheckResult):
            why = job if isinstance(job, str) else f"job {job.id}: {conclusion(job).reason}"
            self._all(left, Outcome.INCONCLUSIVE, f"not checked: {why}")
            return
        trials = []
        for known, checked in zip(left, result.patches, strict=True):
            if checked.outcome in _NOT_TRIED:
                outcome = Outcome(_NOT_TRIED[checked.outcome])
                self.tell(known.row(outcome, _why(known, checked)))
            else:
                trials.append(self._tried(known))
        await asyncio.gather(*trials)

    async def _tried(self, known: _Known) -> None:
        """Run the reproducer on the kernel with the bug, then on the kernel with the fix."""
        trial = TrialOptions(instances=self.options.survivals, time=self.options.time)
        request = known.bug.job(known.bug.fix, trial)
        # Any crash counts: another kernel version may give it another title. That the fix stops it
        # proves that it is the bug.
        steps = [
            step.model_copy(update={"titles": []}) if isinstance(step, ReproduceSpec) else step
            for step in request.steps
        ]
        job = await self._job(request.model_copy(update={"steps": steps}))
        row = known.row(Outcome.INCONCLUSIVE, job) if isinstance(job, str) else _tried(known, job)
        self.tell(row)

    async def _job(self, request: JobRequest) -> JobView | str:
        """Return the campaign's job of this request once it has ended, or why it was refused."""
        try:
            return await kept_job(self.client, request, self.options.sweep)
        except Refused as error:
            if not ended_job.concerns_one_request(error):
                raise
            return error.message

    def _all(self, left: Iterable[_Known], outcome: Outcome, reason: str | None = None) -> None:
        for known in left:
            self.tell(known.row(outcome, reason))


def _regress(known: _Known) -> Patch:
    """Return the reversed fix."""
    (patch,) = known.bug.build.patches
    return patch


def _base(bug: Bug) -> Bug:
    """Return the bug on its unpatched kernel."""
    return replace(bug, name="campaign", build=bug.build.model_copy(update={"patches": []}))


def _tried(known: _Known, job: JobView) -> PortRow:
    """Return the row of a bug whose trial has ended."""
    result = TrialResult.of(known.bug.name, job)
    before, after = result.before, result.after
    facts: dict[str, object] = {
        "crash": before.title,
        "crashed": before.crashed,
        "completed": before.completed,
        "job": job.id,
        "seconds": result.seconds["total"],
    }
    if before.verdict == Verdict.NO_CRASH:
        return known.row(Outcome.NO_CRASH, before.reason, **facts)
    if before.verdict != Verdict.SAME_CRASH or after is None:
        return known.row(Outcome.INCONCLUSIVE, before.reason, **facts)
    if result.resolved:
        return known.row(Outcome.COMES_BACK, after.reason, **facts)
    why = "; ".join(obstacle.message for obstacle in result.obstacles) or after.reason
    crashes = after.verdict in {Verdict.SAME_CRASH, Verdict.OTHER_CRASH}
    return known.row(Outcome.NOT_FIXED if crashes else Outcome.INCONCLUSIVE, why, **facts)


def _why(known: _Known, checked: PatchCheck) -> str:
    if checked.outcome is PatchOutcome.NOT_BUILT:
        named = ", ".join(f"CONFIG_{name}" for name in known.needs) or "nothing that is known"
        return f"the kernel's config leaves the files out; they need {named}"
    return checked.reason


def _row(
    subject: Subject, kernel: str, outcome: Outcome, reason: str | None, **facts: object
) -> PortRow:
    commits = subject.bug.commits
    known = {
        "bug": subject.bug.id,
        "kernel": kernel,
        "outcome": outcome,
        "title": subject.bug.title,
        "fix": commits[0].hash if commits else "",
        "reason": in_one_line(reason or ""),
    }
    return PortRow.model_validate({**known, **facts})
