"""A bug and its jobs: show the bug, try a fix, check patches, calibrate."""

import re
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

# Variants of a trial: a minute on two emulated cores.
_VARIANTS = 15_000
# Reproducers to run: those in C, syzkaller programs, or both in turn.
ProgramKind = Literal["c", "syz", "all"]
# Names of a trial's steps on the kernel with the bug.
BUILD_BEFORE, BEFORE = "build_before", "reproduce_before"
# Names of its steps on the kernel with the fix.
BUILD_AFTER, AFTER = "build_after", "reproduce_after"
# Names of the steps on the kernel with the known fix, with which the tried fix is compared.
BUILD_REFERENCE, REFERENCE = "build_reference", "reproduce_reference"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How a fix is tried: on `instances` VMs, `time` seconds each; None means the bundle's values.

    `known` is an earlier calibration, from which the number of runs for `confidence` is computed.
    `validate` also checks the fix and its kernel beyond the crash (checkpatch, a smoke test).
    `variants` also runs programs close to the reproducer; `learned` is the job that has learned
    which of them are quiet on the unpatched kernel. `compare_fix` also compares their results with
    those on the kernel with the known fix; `learned` has run them there, too.
    """

    instances: int | None = None
    time: float | None = None
    known: Calibration | None = None
    validate: bool = False
    confidence: float = calibration.CONFIDENCES[0]
    variants: bool = False
    learned: int | None = None
    compare_fix: bool = False


DEFAULT_OPTIONS = TrialOptions()
_UNTAGGED = re.compile(r"[^\w.:=/@+-]")


def patch_tag(name: str) -> str:
    """Return the tag of jobs that try a patch of this name."""
    # Names, like paths, differ at their ends: keep the end.
    return f"patch={_UNTAGGED.sub('_', name)[-90:]}"


@dataclass(frozen=True, slots=True)
class Bug:
    """A bundle, read and checked. `fix` is None if neither a fix nor a regression is known."""

    name: str
    file: BugFile
    build: BuildSpec
    reproducers: tuple[Reproducer, ...]
    fix: Patch | None
    on_request: tuple[Reproducer, ...] = ()
    any_crash: bool = False
    """Whether any crash of its programs counts, under any title."""
    cause: CauseCommit | None = None
    """The commit that introduced it, if known."""
    mboxes: tuple[str, ...] = ()
    """Mails on it, for agents that are not being measured."""

    def on_source(self, source: KernelSource) -> "Bug":
        """Return the same bug on another source, without the patch that brings it back."""
        build = self.build.model_copy(update={"source": source, "patches": []})
        return replace(self, build=build, fix=None)

    def run_by(self, kind: ProgramKind) -> "Bug":
        """Return the bug with all its programs of this kind, including those on request.

        Raises UserError `no_such_program` if there are none.
        """
        every = (*self.reproducers, *self.on_request)
        chosen = tuple(program for program in every if kind in {program.kind, "all"})
        if not chosen:
            there = ", ".join(sorted({program.kind for program in every}))
            message = f"{self.name} has no reproducer of the kind `{kind}`; there are: {there}"
            raise UserError("no_such_program", message)
        return replace(self, reproducers=chosen, on_request=())

    def built_by(self, compiler: str | None) -> "Bug":
        """Return the same bug on a kernel built by this compiler; None changes nothing."""
        if compiler is None:
            return self
        return replace(self, build=self.build.model_copy(update={"compiler": compiler}))

    def job(self, fix: Patch | None, trial: TrialOptions = DEFAULT_OPTIONS) -> JobRequest:
        """Return the job that shows the bug and, given a fix, tries it.

        Steps: build and reproduce with the bug; then, given a fix, build and reproduce with it,
        collecting evidence for its verdict. If the first reproduce step has no verdict, the fix is
        not tried. A bug without enough calibration is measured in the first reproduce step, and the
        last step derives from that how many runs the fix has to survive.
        """
        measured = fix is not None and self.is_measured(trial)
        before = self._before(trial, tried=fix is not None, measured=measured)
        steps: list[StepSpec] = [self._build(fix), before]
        if fix is not None:
            steps += [*self._reference(trial), *self._after(fix, None, trial)]
        return self._job(steps, fix, measured=measured or bool(before.variants))

    def shown(self, trial: TrialOptions = DEFAULT_OPTIONS) -> JobRequest:
        """Return the job that shows the bug once, as the baseline of any number of `trial` jobs."""
        measured = self.is_measured(trial)
        before = self._before(trial, tried=True, measured=measured)
        steps: list[StepSpec] = [self._build(), before, *self._reference(trial)]
        return self._job(steps, measured=measured or bool(before.variants))

    def trial(self, fix: Patch, shown: int, trial: TrialOptions = DEFAULT_OPTIONS) -> JobRequest:
        """Return the job that tries a fix, with the succeeded job `shown` as its baseline.

        Steps: build and reproduce with the fix, as in `job`.
        """
        return self._job(self._after(fix, shown, trial))

    def check(self, patches: Sequence[Patch], **how: Any) -> JobRequest:
        """Return the job that checks which of up to 1,000 patches apply and compile, each alone.

        `how` holds further fields of its `CheckSpec`.
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
        """Return the job whose number gives read access to the buggy source (`kgym.api.source`).

        It compiles nothing: the first job for a source takes a minute or two, later ones a moment.
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
        """Return the job that measures how often and how soon the bug shows; no run is cut short.

        Steps: build and reproduce with the bug. The job is found again by its `calibration_tag`.
        """
        # Stopping at the first crash would make the bug look more frequent than it is.
        measure = {"instances": runs, "stop_at_first_crash": False, "bundle": "none"}
        measure |= {"time": time} if time else {}
        steps: list[StepSpec] = [self._build(), self._reproduce().model_copy(update=measure)]
        return self._job(steps, measured=True)

    def sighting(self, calibrated: int, effort: Effort) -> JobRequest:
        """Return the job that tests whether this kernel has the bug that job `calibrated` measured.

        Steps: build and reproduce, with evidence that a quiet kernel would have reported the bug.
        """
        # Without evidence, the commit that added a detector would be taken for the cause.
        how: dict[str, object] = {"instances": effort.instances, "time": effort.time}
        how |= {"baseline": StepRef(job=calibrated, step=BEFORE)}
        how |= {"evidence": True, "bundle": "none"}
        return self._job([self._build(), self._reproduce().model_copy(update=how)])

    def effort(self, trial: TrialOptions) -> Effort | None:
        """Return how much a fix has to survive, from earlier calibrations.

        None if there are too few runs, or if it would take too long
        (`kgym.bugs.calibration.planned`).
        """
        own = self.file.reproducer
        return calibration.planned(trial.known, trial.confidence, own.instances, own.time)

    def is_measured(self, trial: TrialOptions) -> bool:
        """Return whether a trial measures the bug: no effort is set, and too few runs are known."""
        if trial.instances or trial.time or self.effort(trial):
            return False
        return trial.known is None or trial.known.runs < calibration.ENOUGH_RUNS

    def compares(self, trial: TrialOptions) -> bool:
        """Return whether a trial compares variants with those on the kernel with the known fix."""
        return trial.variants and trial.compare_fix and self.fix is not None

    def on_root(self, root: Literal["initramfs", "disk"]) -> "Bug":
        """Return the same bug with this root file system for its guests."""
        vm = self.file.vm.model_copy(update={"root": root})
        return replace(self, file=self.file.model_copy(update={"vm": vm}))

    @property
    def calibration_tag(self) -> str:
        """The tag of calibrations that are valid for this kernel, these programs and this VM."""
        programs = self.reproducers
        return trusted_tags.calibration(self.build, programs, self.file.vm, self._syzkallers)

    @property
    def reference_tag(self) -> str:
        """The tag of jobs that ran the variants of this bug on the kernel with its known fix."""
        assert self.fix is not None
        return trusted_tags.reference(self.calibration_tag, self._fixed(self.fix))

    @property
    def titles(self) -> list[str]:
        """The known titles of the crash, the bug's own first; empty if any crash counts."""
        return [] if self.any_crash else [self.file.title, *self.file.alt_titles]

    @property
    def history(self) -> GitSource | None:
        """The repository, and the last commit of the history that agents may read, if any."""
        if self.file.history is not None:
            return self.file.history
        # If a patch brings the bug back, the history of the source contains the fix.
        source = self.build.source
        return source if isinstance(source, GitSource) and not self.build.patches else None

    def _job(
        self, steps: list[StepSpec], fix: Patch | None = None, *, measured: bool = False
    ) -> JobRequest:
        tags = [f"bug={self.name}", *([self.calibration_tag] if measured else [])]
        tags += [patch_tag(fix.name)] if fix is not None else []
        if any(step.name == REFERENCE for step in steps):
            tags.append(self.reference_tag)
        runs = any(isinstance(step, ReproduceSpec) for step in steps)
        return JobRequest(steps=[*(self._syzkallers if runs else ()), *steps], tags=tags)

    @property
    def _syzkallers(self) -> tuple[SyzkallerSpec, ...]:
        """The steps that provide syzkaller's executables, one for each commit that is named."""
        # They come first in a job, so that an unbuildable syzkaller fails before a kernel is built.
        # Programs without a commit run with the worker's own; if there is one, all programs do.
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

    def _before(self, trial: TrialOptions, *, tried: bool, measured: bool = False) -> ReproduceSpec:
        """Return the step that shows the bug; `tried` says whether a fix is tried after it."""
        # `required`: without a verdict on the bug, a result of the fix would mean nothing, so the
        # step fails with `no_verdict` and the fix is not built.
        more: dict[str, object] = {"evidence": tried, "required": tried}
        more |= {"measure": Measure() if measured else None}
        # Once a bug's quiet variants are learned, they serve all its trials.
        learns = tried and trial.variants and trial.learned is None
        more |= {"variants": _VARIANTS if learns else 0}
        return self._reproduce().model_copy(update=more)

    def _after(self, fix: Patch, shown: int | None, trial: TrialOptions) -> list[StepSpec]:
        """Return the steps that try a fix; job `shown` has shown the bug, or else this one."""
        patched: dict[str, object] = {"name": BUILD_AFTER, "checkpatch": trial.validate}
        patched |= {"review": [fix.name], "files": self.file.files}
        patched |= {"kernel_tests": trial.variants}
        after: dict[str, object] = {"name": AFTER, "build": StepRef(step=BUILD_AFTER)}
        after |= {"baseline": StepRef(job=shown, step=BEFORE), "required": False}
        unpatched = StepRef(job=shown, step=BUILD_BEFORE)
        after |= {
            "unpatched": unpatched if trial.variants else None,
            "variants": _VARIANTS if trial.variants else 0,
        }
        if trial.variants and trial.learned is not None:
            after |= {"learned": StepRef(job=trial.learned, step=BEFORE)}
        if self.compares(trial):
            after |= {"reference": StepRef(job=trial.learned or shown, step=REFERENCE)}
        after |= {"calibration": trial.known, "smoke": trial.validate}
        # The number of runs is not known yet: the step chooses it when it begins, from what the
        # first reproduce step has measured.
        after |= {"confidence": trial.confidence} if self.is_measured(trial) else {}
        chosen = self.effort(trial)
        after |= {"instances": chosen.instances, "time": chosen.time} if chosen else {}
        after |= {"instances": trial.instances} if trial.instances else {}
        after |= {"time": trial.time} if trial.time else {}
        before = self._before(trial, tried=True)
        return [self._fixed(fix).model_copy(update=patched), before.model_copy(update=after)]

    def _reference(self, trial: TrialOptions) -> list[StepSpec]:
        """Return the steps that run the variants on the kernel with the known fix, if needed."""
        if self.fix is None or not self.compares(trial) or trial.learned is not None:
            return []
        how: dict[str, object] = {"name": REFERENCE, "build": StepRef(step=BUILD_REFERENCE)}
        # One instance: the known fix is not on trial.
        how |= {"learned": StepRef(step=BEFORE), "variants": _VARIANTS, "instances": 1}
        build = self._fixed(self.fix).model_copy(update={"name": BUILD_REFERENCE})
        return [build, self._reproduce().model_copy(update=how)]

    def _fixed(self, fix: Patch) -> BuildSpec:
        """Return the build with a fix."""
        return self.build.model_copy(update={"patches": [*self.build.patches, fix]})

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
