"""Bug bundles: a folder that holds everything about one bug.

`bug.toml` names the kernel, the reproducer, the change that brings the bug
back, and the fix. The shipped bundles are `configs/bugs/NAME`; a user's own is
a folder of the same form. docs/own-bug.md describes the format.
"""

from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from kgym.api.agent.nodes import CauseCommit
from kgym.api.steps import (
    Backport,
    BuildSpec,
    GitSource,
    KernelConfig,
    KernelSource,
    PackageSource,
    Patch,
    Reproducer,
    RootImage,
    TarballSource,
    VmShape,
)
from kgym.bugs import bundle_files
from kgym.bugs.bug import Bug
from kgym.bugs.bug_file import (
    BackportTable,
    BugFile,
    CauseTable,
    ChangeTable,
    KernelFile,
    KernelUse,
    ProgramTable,
)
from kgym.bugs.shipped import names as names  # noqa: PLC0414 - for those who load bundles, too
from kgym.bugs.tree_snapshot import snapshot
from kgym.configs import CONFIGS, data_folder, program_folder
from kgym.errors import UserError
from kgym.source import diff_text, patching


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
        raise UserError("bad_bundle", f"{folder}: {bundle_files.faults(error)}") from error
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
    file = bundle_files.read(BugFile, folder / "bug.toml")
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
            _reproducer(table, folder) for table in (file.reproducer, *file.reproducer.others)
        ),
        fix=fix,
        on_request=tuple(_reproducer(table, folder) for table in file.reproducer.on_request),
        cause=_cause(file.cause, folder),
    )


def _cause(table: CauseTable | None, folder: Path) -> CauseCommit | None:
    if table is None:
        return None
    diff = "" if table.patch is None else bundle_files.text(folder, table.patch)
    return CauseCommit(commit=table.commit, title=table.title, functions=table.functions, diff=diff)


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
    return _kernel(bundle_files.read(KernelFile, path), path.parent)


def _build(file: BugFile, folder: Path, configs: Path) -> BuildSpec:
    if isinstance(file.kernel, KernelUse):
        return kernel(file.kernel.use, configs)
    return _kernel(file.kernel, folder)


def _kernel(kernel: KernelFile, folder: Path) -> BuildSpec:
    if kernel.config is not None:
        config = KernelConfig(full=bundle_files.text(folder, kernel.config), modules=kernel.modules)
    else:
        fragments = [bundle_files.text(folder, name) for name in kernel.fragments]
        config = KernelConfig(base=kernel.base, fragments=fragments, modules=kernel.modules)
    return BuildSpec(
        source=_source(kernel, folder),
        config=config,
        compiler=kernel.compiler,
        backports=[_backport(backport, folder) for backport in kernel.backports],
        objects=kernel.objects,
        jobs=kernel.jobs,
        make_seconds=kernel.make_seconds,
    )


def _source(kernel: KernelFile, folder: Path) -> KernelSource:
    if kernel.packages is not None:
        return PackageSource(names=kernel.packages, suite=kernel.suite)
    if kernel.git is not None and kernel.commit is not None:
        return GitSource(url=bundle_files.place(kernel.git, folder), commit=kernel.commit)
    if kernel.tree is not None:
        return snapshot(
            Path(bundle_files.place(kernel.tree, folder)), data_folder().absolute() / "snapshots"
        )
    assert kernel.tarball is not None
    assert kernel.sha256 is not None
    return TarballSource(url=bundle_files.place(kernel.tarball, folder), sha256=kernel.sha256)


def _vm(vm: VmShape, folder: Path) -> VmShape:
    """Return the VM; the path of its root disk lies beside the bundle."""
    root = vm.root
    if not isinstance(root, RootImage) or root.url is None:
        return vm
    root = root.model_copy(update={"url": bundle_files.place(root.url, folder)})
    return vm.model_copy(update={"root": root})


def _reproducer(table: ProgramTable, folder: Path) -> Reproducer:
    text = bundle_files.text(_holder(table, folder), table.file)
    if table.sha256 not in {None, sha256(text.encode()).hexdigest()}:
        message = f"{folder}: {table.file} is not the program with this SHA-256: {table.sha256}"
        raise UserError("bad_bundle", message)
    try:
        return Reproducer(kind=table.kind, text=text, syzkaller=table.syzkaller)
    except ValidationError as error:
        wrong = "; ".join(fault["msg"] for fault in error.errors())
        raise UserError("bad_bundle", f"{folder / table.file}: {wrong}") from error


def _holder(table: ProgramTable, folder: Path) -> Path:
    """Return the folder that has a program: the bundle's; or KGYM_PROGRAMS, if only its hash is."""
    if table.sha256 is None or bundle_files.within(folder, table.file).is_file():
        return folder
    elsewhere = program_folder()
    if elsewhere is None or not bundle_files.within(elsewhere, table.file).is_file():
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
        message = f"{folder}: kernel.backports: {table.name}: {bundle_files.faults(error)}"
        raise UserError("bad_bundle", message) from error


def _change(name: str, table: ChangeTable | BackportTable | None, folder: Path) -> Patch | None:
    if table is None:
        return None
    diff = None
    if table.patch is not None:
        path = bundle_files.within(folder, table.patch)
        diff = diff_text.decode(bundle_files.read_bytes(path), str(path))
    try:
        return Patch(name=name, diff=diff, edits=table.edits)
    except ValidationError as error:
        raise UserError("bad_bundle", f"{folder}: {name}: give `patch` or `edits`") from error
