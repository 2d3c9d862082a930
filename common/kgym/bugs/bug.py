"""A bug, and its jobs: what shows it, what tries a fix, what checks patches, what measures it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kgym.api import trusted_tags
from kgym.api.agent.nodes import CauseCommit
from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    DISK_SYMBOLS,
    SYZKALLER_GIT,
    Ahead,
    BuildSpec,
    Calibration,
    CheckSpec,
    GitSource,
    KernelSource,
    Measure,
    Patch,
    Reproducer,
    ReproduceSpec,
    SourceSpec,
    StepRef,
    StepSpec,
    SyzkallerSpec,
    on_disk,
)
from kgym.bugs import calibration
from kgym.bugs.bug_file import BugFile
from kgym.bugs.calibration import Effort
from kgym.errors import UserError

# Which programs show a bug: those in C, syzkaller's, or both in turn.
ProgramKind = Literal["c", "syz", "all"]
# The names of a trial's steps on the kernel with the bug.
BUILD_BEFORE, BEFORE = "build_before", "reproduce_before"
# The names of its steps on the kernel with the fix.
BUILD_AFTER, AFTER = "build_after", "reproduce_after"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How a fix is tried: on `instances` VMs, `time` seconds each; None leaves it to the bundle.

    `known` is what was measured of the bug before, by which the fix has to survive as much as
    `confidence` needs; `validate` looks at the fix and its kernel beyond the crash.
    """

    instances: int | None = None
    time: float | None = None
    known: Calibration | None = None
    validate: bool = False
    confidence: float = calibration.CONFIDENCES[0]


DEFAULT_OPTIONS = TrialOptions()


@dataclass(frozen=True, slots=True)
class Bug:
    """A bundle, read and checked. `fix` is None only where nothing tells what it would be."""

    name: str
    file: BugFile
    build: BuildSpec
    reproducers: tuple[Reproducer, ...]
    fix: Patch | None
    on_request: tuple[Reproducer, ...] = ()
    any_crash: bool = False
    """Whether any crash of its programs will do, under whatever title."""
    cause: CauseCommit | None = None
    """The commit that brought it in, where that is known."""

    def on_source(self, source: KernelSource) -> "Bug":
        """Return the same bug on another source, as that is: without what brings it back."""
        build = self.build.model_copy(update={"source": source, "patches": []})
        return replace(self, build=build, fix=None)

    def run_by(self, kind: ProgramKind) -> "Bug":
        """Return the bug as all of its programs of this kind show it, those on request, too.

        Raises UserError `no_such_program` where there is none.
        """
        every = (*self.reproducers, *self.on_request)
        chosen = tuple(program for program in every if kind in {program.kind, "all"})
        if not chosen:
            there = ", ".join(sorted({program.kind for program in every}))
            message = f"{self.name} has no reproducer of the kind `{kind}`; there are: {there}"
            raise UserError("no_such_program", message)
        return replace(self, reproducers=chosen, on_request=())

    def built_by(self, compiler: str | None) -> "Bug":
        """Return the same bug, on a kernel that another compiler builds; None changes nothing."""
        if compiler is None:
            return self
        return replace(self, build=self.build.model_copy(update={"compiler": compiler}))

    def job(self, fix: Patch | None, trial: TrialOptions = DEFAULT_OPTIONS) -> JobRequest:
        """Return the job that shows the bug and, with a fix, tries it.

        Steps: build and reproduce with the bug; then, given a fix, build and
        reproduce with it, with evidence of what its verdict rests on. The fix is not
        tried where it does not show what the kernel does without it. A bug of which too little
        is known is measured on the way, and the last step chooses by that what the fix has to
        survive.
        """
        measured = fix is not None and self.is_measured(trial)
        before = self._before(tried=fix is not None, measured=measured)
        steps: list[StepSpec] = [self._build(fix), before]
        if fix is not None:
            steps += self._after(fix, StepRef(step=BEFORE), trial)
        return self._job(steps, measured=measured)

    def shown(self, trial: TrialOptions = DEFAULT_OPTIONS) -> JobRequest:
        """Return the job that shows the bug once, for any number of `trial` jobs to rest on."""
        measured = self.is_measured(trial)
        before = self._before(tried=True, measured=measured)
        return self._job([self._build(), before], measured=measured)

    def trial(self, fix: Patch, shown: int, trial: TrialOptions = DEFAULT_OPTIONS) -> JobRequest:
        """Return the job that tries a fix where job `shown`, which has succeeded, showed the bug.

        Steps: build and reproduce with the fix, as in `job`.
        """
        return self._job(self._after(fix, StepRef(job=shown, step=BEFORE), trial))

    def check(self, patches: Sequence[Patch], **how: Any) -> JobRequest:
        """Return the job that says which of up to 1,000 patches apply and compile, each alone.

        `how` are further fields of its `CheckSpec`.
        """
        build = self.build
        spec = CheckSpec(
            source=build.source,
            config=build.config,
            compiler=build.compiler,
            backports=build.backports,
            base=build.patches,
            patches=list(patches),
            **how,
        )
        return self._job([spec])

    def source(self) -> JobRequest:
        """Return the job by whose number the source with the bug can be read (`kgym.api.source`).

        It compiles nothing: the first one for a source takes a minute or two, others a moment.
        """
        build = self.build
        spec = SourceSpec(
            source=build.source,
            compiler=build.compiler,
            backports=build.backports,
            patches=build.patches,
        )
        return self._job([spec])

    def calibration(self, runs: int, time: float | None = None) -> JobRequest:
        """Return the job that measures how often and how soon the bug shows: all runs end.

        Steps: build and reproduce with the bug. Its tag `calibration_tag` finds it again.
        """
        measure = {"instances": runs, "stop_at_first_crash": False, "bundle": "none"}
        measure |= {"time": time} if time else {}
        steps: list[StepSpec] = [self._build(), self._reproduce().model_copy(update=measure)]
        return self._job(steps, measured=True)

    def sighting(self, calibrated: int, effort: Effort) -> JobRequest:
        """Return the job that says whether this kernel has the bug too, as job `calibrated` saw it.

        Steps: build and reproduce, with evidence that a kernel which keeps quiet could have told.
        """
        how: dict[str, object] = {"instances": effort.instances, "time": effort.time}
        how |= {"baseline": StepRef(job=calibrated, step=BEFORE)}
        how |= {"evidence": True, "bundle": "none"}
        return self._job([self._build(), self._reproduce().model_copy(update=how)])

    def effort(self, trial: TrialOptions) -> Effort | None:
        """Return what a fix shall survive by what is known of the bug; None if that is too little.

        Nor is it known where it would take too long (`kgym.bugs.calibration.planned`).
        """
        own = self.file.reproducer
        return calibration.planned(trial.known, trial.confidence, own.instances, own.time)

    def is_measured(self, trial: TrialOptions) -> bool:
        """Tell whether trials measure the bug: it is not known, and no numbers are given."""
        if trial.instances or trial.time or self.effort(trial):
            return False
        return trial.known is None or trial.known.runs < calibration.ENOUGH_RUNS

    def on_root(self, root: Literal["initramfs", "disk"]) -> "Bug":
        """Return the same bug, of which the guests have this root file system."""
        vm = self.file.vm.model_copy(update={"root": root})
        return replace(self, file=self.file.model_copy(update={"vm": vm}))

    @property
    def calibration_tag(self) -> str:
        """The tag of calibrations that hold for this bug as it is: kernel, programs, VM."""
        programs = self.reproducers
        return trusted_tags.calibration(self.build, programs, self.file.vm, self._syzkallers)

    @property
    def titles(self) -> list[str]:
        """The titles under which the crash is known: the first is the bug's own; none if any do."""
        return [] if self.any_crash else [self.file.title, *self.file.alt_titles]

    def _job(self, steps: list[StepSpec], *, measured: bool = False) -> JobRequest:
        tags = [f"bug={self.name}", *([self.calibration_tag] if measured else [])]
        runs = any(isinstance(step, ReproduceSpec) for step in steps)
        return JobRequest(steps=[*(self._syzkallers if runs else ()), *steps], tags=tags)

    @property
    def _syzkallers(self) -> tuple[SyzkallerSpec, ...]:
        """The steps that build syzkaller's programs, or find them: for each commit that is named.

        First in a job: what cannot be built is told before a kernel is. Programs that name no
        commit are run by the worker's own, so where there is one, all are.
        """
        named = [
            reproducer.syzkaller for reproducer in self.reproducers if reproducer.kind == "syz"
        ]
        if None in named:
            return ()
        return tuple(
            SyzkallerSpec(
                name=f"syzkaller_{number}", source=GitSource(url=SYZKALLER_GIT, commit=commit)
            )
            for number, commit in enumerate(dict.fromkeys(filter(None, named)))
        )

    def _before(self, *, tried: bool, measured: bool = False) -> ReproduceSpec:
        """Return the step that shows the bug; `tried` says whether a fix is, after it."""
        more = {"evidence": tried, "required": tried, "measure": Measure() if measured else None}
        return self._reproduce().model_copy(update=more)

    def _after(self, fix: Patch, baseline: StepRef, trial: TrialOptions) -> list[StepSpec]:
        """Return the steps that try a fix."""
        patched: dict[str, object] = {"patches": [*self.build.patches, fix]}
        patched |= {"name": BUILD_AFTER, "review": [fix.name], "files": self.file.files}
        patched |= {"checkpatch": trial.validate}
        after: dict[str, object] = {"name": AFTER, "build": StepRef(step=BUILD_AFTER)}
        after |= {"baseline": baseline, "required": False}
        after |= {"calibration": trial.known, "smoke": trial.validate}
        after |= {"confidence": trial.confidence} if self.is_measured(trial) else {}
        chosen = self.effort(trial)
        after |= {"instances": chosen.instances, "time": chosen.time} if chosen else {}
        after |= {"instances": trial.instances} if trial.instances else {}
        after |= {"time": trial.time} if trial.time else {}
        before = self._before(tried=True)
        return [self.build.model_copy(update=patched), before.model_copy(update=after)]

    def _build(self, fix: Patch | None = None) -> BuildSpec:
        ahead = Ahead(
            patches=[fix] if fix else [],
            programs=list(self.reproducers),
            symbols=list(DISK_SYMBOLS) if on_disk(self.file.vm.root) else [],
        )
        return self.build.model_copy(update={"name": BUILD_BEFORE, "ahead": ahead})

    def _reproduce(self) -> ReproduceSpec:
        first, *others = self.reproducers
        return ReproduceSpec(
            name=BEFORE,
            build=StepRef(step=BUILD_BEFORE),
            reproducer=first,
            others=others,
            syzkaller=[StepRef(step=step.name or 0) for step in self._syzkallers],
            titles=self.titles,
            vm=self.file.vm,
            instances=self.file.reproducer.instances,
            time=self.file.reproducer.time,
            completed=self.file.reproducer.completed,
        )
