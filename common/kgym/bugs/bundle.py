"""Bug bundles: a folder that holds everything about one bug.

`bug.toml` names the kernel, the reproducer, the change that brings the bug
back, and the fix. The shipped bundles are `configs/bugs/NAME`; a user's own is
a folder of the same form. docs/own-bug.md describes the format.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kgym.api.agent.nodes import CauseCommit
from kgym.api.faults import faults_of, refused_at
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
    Strict,
    TarballSource,
    VmShape,
)
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
from kgym.toml_text import parse_toml

# Maximum bytes of one file of a bundle.
_MOST_BYTES = 16 << 20
# Characters of all mails: they are read in the process of a service, in about a second.
_MOST_MAILS = 4 << 20
_Model = TypeVar("_Model", bound=Strict)


def load(name: str, configs: Path = CONFIGS, *, untrusted: bool = False, mails: bool = True) -> Bug:
    """Load a bundle by its name, or by the path of its folder.

    `NAME@KERNEL` is the bug on a shared kernel of `configs/kernels` in place of its own. An
    `untrusted` bundle, which a caller elsewhere sent, may name no source on this machine. Without
    `mails`, those of [discussion] are not read, and need not be there.
    Raises UserError `no_such_bug`, `no_such_kernel`, `ambiguous_bug` or `bad_bundle`, which names
    the file and each wrong field.
    """
    bug_name, kernel = named(name)
    folder = _folder(bug_name, configs)
    if kernel is not None:
        refuse_unknown_kernel(kernel, configs)
    try:
        bug = _load(folder, configs, kernel, untrusted=untrusted)
        if mails and bug.file.discussion is not None:
            bug = replace(bug, mboxes=_mboxes(bug.file.discussion.mails, folder))
        bug.job(bug.fix)  # fails here, before queueing, if a field exceeds the limits of a job
    except ValidationError as error:
        raise UserError("bad_bundle", f"{folder}: {_faults(error)}") from error
    return bug


def refuse_unknown_kernel(kernel: str, configs: Path = CONFIGS) -> None:
    """Raise UserError `no_such_kernel` unless this is the name of a shared kernel."""
    if kernel not in (shared := kernels(configs)):
        known = ", ".join(shared)
        raise UserError("no_such_kernel", f"there is no kernel `{kernel}`; there are: {known}")


def named(name: str) -> tuple[str, str | None]:
    """Split `NAME@KERNEL` into bug (name or folder) and shared kernel; None is the bug's own."""
    bug_name, at, kernel = name.rpartition("@")
    if not at or "/" in kernel or _holds_bundle(Path(name)):
        return name, None
    return bug_name, kernel


def is_shipped(name: str) -> bool:
    """Return whether a name is that of a shipped bug, on any kernel; other names are folders."""
    return named(name)[0] in names()


def _folder(name: str, configs: Path) -> Path:
    shipped, own = configs / "bugs" / name, Path(name)
    is_own = _holds_bundle(own)
    # A shipped bug comes first, whatever the current folder contains.
    if name not in names(configs):
        if is_own:
            return own
        raise UserError(
            "no_such_bug",
            f"there is no bug `{name}`, nor a folder of that name with a bug.toml;"
            f" shipped are: {', '.join(names(configs))}",
        )
    # Either could be the wrong one, and a trial takes an hour: ask rather than guess.
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


def _load(folder: Path, configs: Path, kernel: str | None, *, untrusted: bool) -> Bug:
    file = _read_toml(BugFile, folder, "bug.toml")
    if untrusted:
        _refuse_local_sources(file)
    if kernel is not None:
        file = file.with_kernel(kernel)
    file = file.model_copy(update={"vm": _vm(file.vm, folder)})
    if (history := file.history) is not None:
        history = history.model_copy(update={"url": _place(history.url, folder)})
        file = file.model_copy(update={"history": history})
    build = _build(file, folder, configs)
    regress = _change("regress", file.regress, folder)
    if regress is not None:
        build = build.model_copy(update={"patches": [regress]})
    fix = _change("fix", file.fix, folder)
    # The change that brings a bug back is often its fix reversed, which need not be written twice.
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


def _mboxes(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    mboxes: list[str] = []
    for name in names:
        # Mails have various encodings. Bytes that are not UTF-8 are replaced; the charset that a
        # mail's header names is applied to its encoded parts.
        mboxes.append(_read_bytes(_within(folder, name)).decode(errors="replace"))
        if sum(map(len, mboxes)) > _MOST_MAILS:
            most = f"more than {_MOST_MAILS >> 20} MiB of mails"
            raise UserError("bad_bundle", f"{folder}: discussion.mails: {most}")
    return tuple(mboxes)


def _cause(table: CauseTable | None, folder: Path) -> CauseCommit | None:
    if table is None:
        return None
    diff = "" if table.patch is None else _text(folder, table.patch)
    return CauseCommit(commit=table.commit, title=table.title, functions=table.functions, diff=diff)


def kernels(configs: Path = CONFIGS) -> list[str]:
    """Return the names of the shared kernels that bugs can be tried on, sorted."""
    # The capture kernel only saves memory dumps; bugs are not tried on it.
    paths = (configs / "kernels").glob("*.toml")
    return sorted(path.stem for path in paths if path.stem != "capture")


def kernel(name: str, configs: Path = CONFIGS) -> BuildSpec:
    """Return the build of a shared kernel of `configs/kernels`; raise UserError `bad_bundle`."""
    path = configs / "kernels" / f"{name}.toml"
    if not path.is_file():
        raise UserError("bad_bundle", f"kernel.use: there is no {path}")
    return _kernel(_read_toml(KernelFile, path.parent, path.name), path.parent)


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
        backports=[_backport(backport, folder) for backport in kernel.backports],
        objects=kernel.objects,
        jobs=kernel.jobs,
        make_seconds=kernel.make_seconds,
    )


def _refuse_local_sources(file: BugFile) -> None:
    """Raise UserError `bad_bundle` if a field is a path that `_place` would resolve."""
    named = {}
    if isinstance(file.kernel, KernelFile):
        named = file.kernel.model_dump(include={"tree", "git", "tarball"}, exclude_none=True)
    if isinstance(file.vm.root, RootImage) and file.vm.root.url is not None:
        named["root.url"] = file.vm.root.url
    if file.history is not None:
        named["history.url"] = file.history.url
    for field, place in named.items():
        # A `tree` is always a local folder. Git and curl also accept schemes of local files.
        if field == "tree" or not place.startswith("https://"):
            raise UserError(
                "bad_bundle",
                f"bug.toml: {field}: {place[:200]} is on the sender's machine; name a source with"
                " https://",
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
    """Return the VM with the path of its root disk, relative to the bundle, made absolute."""
    root = vm.root
    if not isinstance(root, RootImage) or root.url is None:
        return vm
    root = root.model_copy(update={"url": _place(root.url, folder)})
    return vm.model_copy(update={"root": root})


def _reproducer(table: ProgramTable, folder: Path) -> Reproducer:
    text = _text(_holder(table, folder), table.file)
    # With a wrong program, the bundle's calibration and title would be of another bug.
    if table.sha256 not in {None, sha256(text.encode()).hexdigest()}:
        message = f"{folder}: {table.file} is not the program with this SHA-256: {table.sha256}"
        raise UserError("bad_bundle", message)
    with refused_at(str(folder / table.file), "bad_bundle"):
        return Reproducer(kind=table.kind, text=text, syzkaller=table.syzkaller)


def _holder(table: ProgramTable, folder: Path) -> Path:
    """Return the folder of a program: the bundle's, or KGYM_PROGRAMS if it is named by hash."""
    if table.sha256 is None or _within(folder, table.file).is_file():
        return folder
    elsewhere = program_folder()
    if elsewhere is None or not _within(elsewhere, table.file).is_file():
        raise UserError(
            "no_program",
            f"{folder}: the program {table.file} is not part of the bundle: fetch it (`references`"
            " in bug.toml name its source) into a folder, and set KGYM_PROGRAMS to that folder",
        )
    return elsewhere


def _backport(table: BackportTable, folder: Path) -> Backport:
    patch = _change(f"backport {table.name}", table, folder)
    assert patch is not None
    with refused_at(f"{folder}: kernel.backports: {table.name}", "bad_bundle"):
        return Backport(name=table.name, when=table.when, diff=patch.diff, edits=patch.edits)


def _change(name: str, table: ChangeTable | BackportTable | None, folder: Path) -> Patch | None:
    if table is None:
        return None
    diff = None
    if table.patch is not None:
        path = _within(folder, table.patch)
        diff = diff_text.decode(_read_bytes(path), str(path))
    with refused_at(f"{folder}: {name}: give `patch` or `edits`", "bad_bundle"):
        return Patch(name=name, diff=diff, edits=table.edits)


# --- files of a bundle, which is untrusted: sizes are bounded, paths stay in its folder ----------


def _read_toml(model: type[_Model], folder: Path, name: str) -> _Model:
    """Read a TOML file into a model; raise UserError `bad_bundle` naming the wrong fields."""
    try:
        return model.model_validate(parse_toml(_text(folder, name)))
    except ValidationError as error:
        raise UserError("bad_bundle", f"{folder / name}: {_faults(error, model)}") from error
    except ValueError as error:
        raise UserError("bad_bundle", f"{folder / name}: {error}") from error


def _faults(error: ValidationError, model: type[BaseModel] = BugFile) -> str:
    """Return the first twenty wrong fields, with the reason for each."""
    faults = faults_of(error, model, 20)
    return "; ".join(f"{_where(place)}: {message}" for place, message in faults)


def _where(location: tuple[int | str, ...]) -> str:
    """Return the field's path in the file, without the tag of pydantic's discriminated union."""
    table = [part for part in location if part not in {"own", "use"} or part == location[-1]]
    return ".".join(map(str, table))[:200] or "file"


def _place(named: str, folder: Path) -> str:
    """Return a URL unchanged, or a path relative to the bundle (`../linux`) as an absolute one."""
    if re.match(r"[^/]*:", named):
        return named
    try:
        return str((folder / Path(named).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("bad_bundle", f"{folder}: kernel: {named}: {error}") from error


def _text(folder: Path, name: str) -> str:
    """Return a UTF-8 file of the bundle; raise UserError `bad_bundle`."""
    path = _within(folder, name)
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file of at most 16 MiB; raise UserError `bad_bundle`."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError("bad_bundle", f"{path}: more than {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error


def _within(folder: Path, name: str) -> Path:
    """Return the path of a bundle's file.

    Raises UserError `bad_bundle` for a path that leads out of the folder: a job would carry the
    private files that an untrusted bundle names.
    """
    try:
        path = (folder / name).resolve()
        inside = path.is_relative_to(folder.resolve())
        regular = not path.exists() or path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("bad_bundle", f"{folder / name}: {error}") from error
    if not inside:
        raise UserError("bad_bundle", f"{folder / name}: leads out of the bundle's folder; copy it")
    if not regular:
        raise UserError("bad_bundle", f"{path}: not a regular file")
    return path
