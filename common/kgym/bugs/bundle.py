"""Bug bundles: a folder that holds everything about one bug.

`bug.toml` names the kernel, the reproducer, the change that brings the bug
back, and the fix. The shipped bundles are `configs/bugs/NAME`; a user's own is
a folder of the same form. docs/own-bug.md describes the format.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from kgym.api import trusted_tags
from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    DISK_SYMBOLS,
    SYZKALLER_GIT,
    Ahead,
    Backport,
    BuildSpec,
    Calibration,
    CheckSpec,
    Compiler,
    CompletedEnd,
    Edit,
    GitSource,
    KernelConfig,
    KernelSource,
    Measure,
    PackageSource,
    Patch,
    Reproducer,
    ReproduceSpec,
    RootImage,
    Sha256,
    SourceSpec,
    StepRef,
    StepSpec,
    Strict,
    SyzkallerSpec,
    TarballSource,
    TreePath,
    VmShape,
    When,
    on_disk,
)
from kgym.bugs import calibration
from kgym.bugs.calibration import Effort
from kgym.bugs.shipped import names as names  # noqa: PLC0414 - for those who load bundles, too
from kgym.bugs.tree_snapshot import snapshot
from kgym.configs import CONFIGS, data_folder, program_folder
from kgym.errors import UserError
from kgym.source import diff_text, patching

ProgramKind = Literal["c", "syz", "all"]
"""Which programs show a bug: those in C, syzkaller's, or both in turn."""
_MOST_BYTES = 16 << 20
"""Bytes of one file of a bundle, at most."""
BUILD_BEFORE, BEFORE = "build_before", "reproduce_before"
"""The names of a trial's steps on the kernel with the bug."""
BUILD_AFTER, AFTER = "build_after", "reproduce_after"
"""The names of its steps on the kernel with the fix."""


class BackportTable(Strict):
    """`[[kernel.backports]]`: a patch file, or edits, that this kernel needs to compile."""

    name: str
    when: When = When()
    patch: str | None = None
    edits: list[Edit] = []


class KernelFile(Strict):
    """`configs/kernels/NAME.toml`, or the `[kernel]` of a bundle; paths lie beside the file."""

    description: str = ""
    packages: list[str] | None = Field(None, min_length=1)
    suite: str | None = Field(None, description="of the packages, if it is not the worker's own")
    git: str | None = Field(None, min_length=1)
    commit: str | None = Field(None, min_length=1)
    tree: str | None = Field(None, min_length=1, description="folder, taken as it is now")
    tarball: str | None = None
    sha256: Sha256 | None = None
    base: Literal["allnoconfig", "tinyconfig", "defconfig"] | None = None
    fragments: list[str] = []
    config: str | None = Field(None, description="file that holds a full .config")
    modules: Literal["load", "builtin"] = "load"
    compiler: Compiler = "gcc"
    backports: list[BackportTable] = []
    objects: int | None = Field(None, gt=0, description="of a full build, for the progress bar")
    jobs: int | None = Field(None, ge=1, le=1024, description="of make, side by side (`-j`)")
    make_seconds: int | None = Field(
        None, ge=1, le=7 * 86400, description="that a run of make may take"
    )

    @model_validator(mode="after")
    def _whole(self) -> "KernelFile":
        sources = [self.packages, self.git, self.tarball, self.tree]
        if sum(one is not None for one in sources) != 1:
            raise ValueError("name one source: `packages`, `git`, `tarball` or `tree`")
        if (self.git is None) != (self.commit is None):
            raise ValueError("`git` and `commit` go together")
        if (self.tarball is None) != (self.sha256 is None):
            raise ValueError("`tarball` and `sha256` go together")
        if self.suite is not None and self.packages is None:
            raise ValueError("`suite` goes with `packages`")
        if (self.base is None) == (self.config is None):
            raise ValueError("give either `base` (with `fragments`) or `config`")
        if self.config is not None and self.fragments:
            raise ValueError("`fragments` go with `base`, not with `config`")
        return self


KernelName = Annotated[str, Field(max_length=100, pattern=r"^[\w.+-]+$")]


class KernelUse(Strict):
    """`[kernel] use = "NAME"`: a shared kernel of `configs/kernels`."""

    use: KernelName


class ProgramTable(Strict):
    """A program: C, or syzkaller's, with the commit of the syzkaller that it was found with.

    With `sha256`, the file may also lie in the folder KGYM_PROGRAMS: datasets of others' programs
    name them so.
    """

    file: str
    sha256: Sha256 | None = None
    kind: Literal["c", "syz"] = "c"
    syzkaller: str | None = None


class ReproducerTable(ProgramTable):
    """`[reproducer]`: the program, and how long a patched kernel must survive it.

    `[[reproducer.others]]` are further programs; the instances take all in turn. Those of
    `[[reproducer.on_request]]` show the bug as well, and run only where they are asked for.
    """

    time: float = Field(120, gt=0, le=86400, description="seconds")
    instances: int = Field(2, ge=1, le=1000)
    completed: list[CompletedEnd] = Field([], description="how a run ends that did its work")
    others: list[ProgramTable] = []
    on_request: list[ProgramTable] = []


class ChangeTable(Strict):
    """`[regress]` and `[fix]`: a patch file, or edits."""

    patch: str | None = None
    edits: list[Edit] = []


class OnKernel(Strict):
    """`[on."linux-5.10"]`: what is otherwise on another kernel than the bundle's own."""

    title: str | None = Field(None, min_length=1)
    alt_titles: list[str] | None = None
    files: list[TreePath] | None = None
    regress: ChangeTable | None = None
    fix: ChangeTable | None = None


class BugFile(Strict):
    """`bug.toml`: all that is known of a bug (docs/own-bug.md)."""

    title: str = Field(min_length=1)
    alt_titles: list[str] = []
    kind: str = Field("", alias="class")
    summary: str = ""
    references: list[str] = []
    files: list[TreePath] = []
    kernel: Annotated[
        Annotated[KernelUse, Tag("use")] | Annotated[KernelFile, Tag("own")],
        Discriminator(lambda table: "use" if isinstance(table, dict) and "use" in table else "own"),
    ]
    reproducer: ReproducerTable
    vm: VmShape = VmShape()
    regress: ChangeTable | None = None
    fix: ChangeTable | None = None
    on: dict[KernelName, OnKernel] = Field({}, max_length=100)

    def with_kernel(self, kernel: str) -> "BugFile":
        """Return the file as it is on a shared kernel in place of its own one."""
        other = self.on.get(kernel, OnKernel())
        said = {name: getattr(other, name) for name in other.model_fields_set}
        if "regress" in said:  # the fix of another kernel does not undo it
            said = {"fix": None} | said
        return self.model_copy(update={"kernel": KernelUse(use=kernel), **said})


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

    def run_by(self, kind: ProgramKind) -> "Bug":
        """Return the bug as all of its programs of this kind show it, those on request, too.

        Raises UserError `no_such_program` where there is none.
        """
        every = (*self.reproducers, *self.on_request)
        chosen = tuple(one for one in every if kind in {one.kind, "all"})
        if not chosen:
            there = ", ".join(sorted({one.kind for one in every}))
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
        """The titles under which the crash is known: the first is the bug's own."""
        return [self.file.title, *self.file.alt_titles]

    def _job(self, steps: list[StepSpec], *, measured: bool = False) -> JobRequest:
        tags = [f"bug={self.name}", *([self.calibration_tag] if measured else [])]
        runs = any(isinstance(one, ReproduceSpec) for one in steps)
        return JobRequest(steps=[*(self._syzkallers if runs else ()), *steps], tags=tags)

    @property
    def _syzkallers(self) -> tuple[SyzkallerSpec, ...]:
        """The steps that build syzkaller's programs, or find them: for each commit that is named.

        First in a job: what cannot be built is told before a kernel is. Programs that name no
        commit are run by the worker's own, so where there is one, all are.
        """
        named = [one.syzkaller for one in self.reproducers if one.kind == "syz"]
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
            syzkaller=[StepRef(step=one.name or 0) for one in self._syzkallers],
            titles=self.titles,
            vm=self.file.vm,
            instances=self.file.reproducer.instances,
            time=self.file.reproducer.time,
            completed=self.file.reproducer.completed,
        )


def load(name: str, configs: Path = CONFIGS) -> Bug:
    """Load a bundle by its name, or by the path of its folder.

    `NAME@KERNEL` is the bug on a shared kernel of `configs/kernels` in place of its own one.
    Raise UserError `no_such_bug`, `no_such_kernel`, `ambiguous_bug` or `bad_bundle`; the last
    one's message names the file and each place in it that is wrong.
    """
    bug_name, kernel = named(name)
    folder = _folder(bug_name, configs)
    if kernel is not None and kernel not in kernels(configs):
        shared = ", ".join(kernels(configs))
        raise UserError("no_such_kernel", f"there is no kernel `{kernel}`; there are: {shared}")
    try:
        bug = _load(folder, configs, kernel)
        bug.job(bug.fix)  # what a job cannot hold is refused here, before a job waits in the queue
    except ValidationError as error:
        raise UserError("bad_bundle", f"{folder}: {_faults(error)}") from error
    return bug


def named(name: str) -> tuple[str, str | None]:
    """Return the bug that `NAME@KERNEL` names, or its folder, and the kernel; None is its own."""
    bug_name, at, kernel = name.rpartition("@")
    if not at or "/" in kernel or _holds_bundle(Path(name)):
        return name, None
    return bug_name, kernel


def is_shipped(name: str, configs: Path = CONFIGS) -> bool:
    """Tell whether a name is that of a shipped bug, on whichever kernel; others name folders."""
    return named(name)[0] in names(configs)


def _folder(name: str, configs: Path) -> Path:
    shipped, own = configs / "bugs" / name, Path(name)
    is_own = _holds_bundle(own)
    if name not in names(configs):
        if is_own:
            return own
        raise UserError(
            "no_such_bug",
            f"there is no bug `{name}`, nor a folder of that name with a bug.toml;"
            f" shipped are: {', '.join(names(configs))}",
        )
    if is_own and not own.samefile(shipped):
        raise UserError(
            "ambiguous_bug",
            f"`{name}` is a shipped bug, and a folder here: write ./{name} for the folder,"
            f" {shipped} for the shipped one",
        )
    return shipped


def _holds_bundle(folder: Path) -> bool:
    try:
        return (folder / "bug.toml").is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _load(folder: Path, configs: Path, kernel: str | None) -> Bug:
    file = _read(BugFile, folder / "bug.toml")
    if kernel is not None:
        file = file.with_kernel(kernel)
    file = file.model_copy(update={"vm": _vm(file.vm, folder)})
    build = _build(file, folder, configs)
    regress = _change("regress", file.regress, folder)
    if regress is not None:
        build = build.model_copy(update={"patches": [regress]})
    fix = _change("fix", file.fix, folder)
    if fix is None and regress is not None:
        fix = patching.reverse(regress).model_copy(update={"name": "fix"})
    name = folder.resolve().name
    return Bug(
        name=name if kernel is None else f"{name}@{kernel}",
        file=file,
        build=build,
        reproducers=tuple(
            _reproducer(one, folder) for one in (file.reproducer, *file.reproducer.others)
        ),
        fix=fix,
        on_request=tuple(_reproducer(one, folder) for one in file.reproducer.on_request),
    )


_Model = TypeVar("_Model", bound=Strict)


def _read(model: type[_Model], path: Path) -> _Model:
    try:
        return model.model_validate(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error
    except ValidationError as error:
        raise UserError("bad_bundle", f"{path}: {_faults(error)}") from error


def _faults(error: ValidationError) -> str:
    return "; ".join(f"{_where(one['loc'])}: {one['msg']}" for one in error.errors()[:20])


def _where(location: tuple[int | str, ...]) -> str:
    """Return the place in the file: without the tag by which pydantic tells two forms apart."""
    table = [part for part in location if part not in {"own", "use"} or part == location[-1]]
    return ".".join(map(str, table)) or "file"


def kernels(configs: Path = CONFIGS) -> list[str]:
    """Return the names of the shared kernels that bugs can be tried on, sorted."""
    return sorted(
        path.stem for path in (configs / "kernels").glob("*.toml") if path.stem != "capture"
    )


def kernel(name: str, configs: Path = CONFIGS) -> BuildSpec:
    """Return the build of a shared kernel of `configs/kernels`; raise UserError `bad_bundle`."""
    path = configs / "kernels" / f"{name}.toml"
    if not path.is_file():
        raise UserError("bad_bundle", f"kernel.use: there is no {path}")
    return _kernel(_read(KernelFile, path), path.parent)


def _build(file: BugFile, folder: Path, configs: Path) -> BuildSpec:
    if isinstance(file.kernel, KernelUse):
        return kernel(file.kernel.use, configs)
    return _kernel(file.kernel, folder)


def _kernel(kernel: KernelFile, folder: Path) -> BuildSpec:
    if kernel.config is not None:
        config = KernelConfig(full=_text(folder, kernel.config), modules=kernel.modules)
    else:
        fragments = [_text(folder, name) for name in kernel.fragments]
        config = KernelConfig(base=kernel.base, fragments=fragments, modules=kernel.modules)
    return BuildSpec(
        source=_source(kernel, folder),
        config=config,
        compiler=kernel.compiler,
        backports=[_backport(one, folder) for one in kernel.backports],
        objects=kernel.objects,
        jobs=kernel.jobs,
        make_seconds=kernel.make_seconds,
    )


def _source(kernel: KernelFile, folder: Path) -> KernelSource:
    if kernel.packages is not None:
        return PackageSource(names=kernel.packages, suite=kernel.suite)
    if kernel.git is not None and kernel.commit is not None:
        return GitSource(url=_place(kernel.git, folder), commit=kernel.commit)
    if kernel.tree is not None:
        return snapshot(Path(_place(kernel.tree, folder)), data_folder().absolute() / "snapshots")
    assert kernel.tarball is not None
    assert kernel.sha256 is not None
    return TarballSource(url=_place(kernel.tarball, folder), sha256=kernel.sha256)


def _vm(vm: VmShape, folder: Path) -> VmShape:
    """Return the VM; the path of its root disk lies beside the bundle."""
    root = vm.root
    if not isinstance(root, RootImage) or root.url is None:
        return vm
    root = root.model_copy(update={"url": _place(root.url, folder)})
    return vm.model_copy(update={"root": root})


def _place(named: str, folder: Path) -> str:
    """Return a URL as it is, and a path as an absolute one: `../linux` lies beside the bundle."""
    if re.match(r"[^/]*:", named):
        return named
    try:
        return str((folder / Path(named).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("bad_bundle", f"{folder}: kernel: {named}: {error}") from error


def _reproducer(table: ProgramTable, folder: Path) -> Reproducer:
    text = _text(_holder(table, folder), table.file)
    if table.sha256 not in {None, sha256(text.encode()).hexdigest()}:
        message = f"{folder}: {table.file} is not the program with this SHA-256: {table.sha256}"
        raise UserError("bad_bundle", message)
    try:
        return Reproducer(kind=table.kind, text=text, syzkaller=table.syzkaller)
    except ValidationError as error:
        wrong = "; ".join(one["msg"] for one in error.errors())
        raise UserError("bad_bundle", f"{folder / table.file}: {wrong}") from error


def _holder(table: ProgramTable, folder: Path) -> Path:
    """Return the folder that has a program: the bundle's; or KGYM_PROGRAMS, if only its hash is."""
    if table.sha256 is None or _within(folder, table.file).is_file():
        return folder
    elsewhere = program_folder()
    if elsewhere is None or not _within(elsewhere, table.file).is_file():
        raise UserError(
            "no_program",
            f"{folder}: the program {table.file} is not part of the bundle: get it (`references`"
            " in bug.toml says whose it is), and name the folder that has it with KGYM_PROGRAMS",
        )
    return elsewhere


def _backport(table: BackportTable, folder: Path) -> Backport:
    patch = _change(f"backport {table.name}", table, folder)
    assert patch is not None
    try:
        return Backport(name=table.name, when=table.when, diff=patch.diff, edits=patch.edits)
    except ValidationError as error:
        message = f"{folder}: kernel.backports: {table.name}: {_faults(error)}"
        raise UserError("bad_bundle", message) from error


def _change(name: str, table: ChangeTable | BackportTable | None, folder: Path) -> Patch | None:
    if table is None:
        return None
    diff = None
    if table.patch is not None:
        path = _within(folder, table.patch)
        diff = diff_text.decode(_bytes(path), str(path))
    try:
        return Patch(name=name, diff=diff, edits=table.edits)
    except ValidationError as error:
        raise UserError("bad_bundle", f"{folder}: {name}: give `patch` or `edits`") from error


def _text(folder: Path, name: str) -> str:
    path = _within(folder, name)
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError("bad_bundle", f"{path}: more than {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error


def _within(folder: Path, name: str) -> Path:
    """Return the path of a bundle's file; another's bundle must not name files outside of it."""
    try:
        path = (folder / name).resolve()
        inside = path.is_relative_to(folder.resolve())
        regular = not path.exists() or path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("bad_bundle", f"{folder / name}: {error}") from error
    if not inside:
        raise UserError("bad_bundle", f"{folder / name}: leads out of the bundle's folder; copy it")
    if not regular:
        raise UserError("bad_bundle", f"{path}: is no regular file")
    return path
