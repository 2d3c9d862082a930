"""Preparation of a reproduce step: everything that its VMs boot, and the bundle of these files."""

import asyncio
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from kgym.api.steps import (
    DEFAULT_SYZKALLER,
    GUEST_PROGRAMS,
    BuildArtifact,
    BuildResult,
    Calibration,
    ReproduceArtifact,
    Reproducer,
    ReproduceResult,
    ReproduceSpec,
    RunEnd,
    SyzkallerArtifact,
    SyzkallerResult,
    Work,
    syzkaller_input,
)
from kgym.bugs import calibration
from kgym.bugs.detectors import Detectors, detectors
from kgym.bugs.run_ends import completed
from kgym.errors import KgymError
from kgym.host.detection import syzkallers
from kgym.source import module_archive
from kgym.source.instrument import buffer_size
from kgym.worker.context import StepContext
from kgym_vmmanager.dump import kdump
from kgym_vmmanager.dump.guest_memory import Method
from kgym_vmmanager.dump.hypervisor_dump import Hypervisor
from kgym_vmmanager.dump.kdump import Kdump
from kgym_vmmanager.evidence import crash_path, leaks
from kgym_vmmanager.guest import cpio
from kgym_vmmanager.guest.cpio import CpioFile
from kgym_vmmanager.guest.guest_image import GuestImage, guest_image
from kgym_vmmanager.guest.paths import PROGRAM
from kgym_vmmanager.guest.reproducer_images import initrd, program, source_name
from kgym_vmmanager.reproduce import bundle_archive
from kgym_vmmanager.reproduce.instance_plan import Boots, InstancePlan, RunTime
from kgym_vmmanager.root.image_file import Fetch
from kgym_vmmanager.root.root_disk import root_disk
from kgym_vmmanager.vm.provider import VmHost

# Files of the build that a whole bundle holds besides the kernel.
_BUILT = (BuildArtifact.VMLINUX, BuildArtifact.CONFIG)
# Bytes from which a part of a bundle is stored once for all jobs.
_LARGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Preparation:
    """The plan of a step, and the files of its bundle by name."""

    plan: InstancePlan
    host: VmHost
    files: Mapping[str, Path]


async def prepare(
    run: StepContext, cache: Path, host: VmHost, syzkaller: Path | None, fetch: Fetch
) -> Preparation:
    """Make everything that the VMs boot.

    Raises UserError for a reproducer that cannot be made a program (see `reproducer_images.py`).
    """
    spec, built = run.spec(ReproduceSpec), run.input("build", BuildResult)
    baseline = run.optional_input("baseline", ReproduceResult)
    folder = run.folder / "reproduce"
    folder.mkdir()

    # Programs first: a reproducer that does not compile fails before anything large is fetched.
    reproducers = [spec.reproducer, *spec.others]
    binaries = await _syzkallers(run, folder) if spec.syzkaller else syzkallers(syzkaller)
    sources, programs = [], []
    for number, reproducer in enumerate(reproducers):
        source = folder / f"source-{number}" / source_name(reproducer, number)
        source.parent.mkdir()
        source.write_text(reproducer.text)
        await run.keep(source)
        sources.append(source)
        programs.append(await program(reproducer, source, folder / f"program-{number}", binaries))

    # What the guests boot: the shared image, a disk if wanted, the kernel with its modules.
    image = await guest_image(cache, run.held)
    disk = await root_disk(run, cache, folder, fetch)
    kernel = folder / "bzImage"
    await run.fetch("build", BuildArtifact.KERNEL, kernel)
    more = await _capture(run, image, folder)
    own = await modules(run, folder)
    initrds = [
        await initrd(image, {**files, **more}, folder / f"initrd-{number}.cpio", own)
        for number, files in enumerate(programs)
    ]
    smoke = None
    if spec.smoke:
        smoke = await initrd(image, {PROGRAM: image.smoke}, folder / "initrd-smoke.cpio", own)

    # How they boot, and what is known of the unpatched kernel.
    finds_leaks = leaks.wanted(spec.titles, spec.vm)
    method = _method(spec, host)
    words = _words(spec, built, method, finds_leaks=finds_leaks)
    wanted = _detectors(spec, built, host, words)
    boots = _boots_before(baseline, host.accelerator)
    ends = _ends_before(baseline, spec.calibration)
    plan = InstancePlan(
        folder=folder,
        image=image,
        kernel=kernel,
        initrds=tuple(initrds),
        smoke=smoke,
        shape=spec.vm,
        time=RunTime(spec.time),
        boots=Boots(boots),
        method=method,
        words=words,
        leaks=finds_leaks,
        texts=tuple(program.text if program.kind == "syz" else None for program in reproducers),
        detectors=wanted,
        completed=completed(spec.completed, ends),
        profiled=spec.evidence and spec.baseline is not None,
        # With variants, missing work does not end the instance: only they show whether the kernel
        # refuses just the reproducer's request.
        before=None if spec.variants else work_before(baseline),
        way=await _way(run, baseline, folder) if spec.evidence else {},
        disk=disk,
        mutator=_mutator(spec.reproducer, binaries),
    )
    executed = {path.stem: files[PROGRAM] for path, files in zip(sources, programs, strict=True)}
    files = {
        bundle_archive.KERNEL: kernel,
        **{path.name: path for path in [*initrds, *sources]},
        **executed,
    }
    if disk is not None:
        files[ReproduceArtifact.ROOT] = disk.packed
    return Preparation(plan, host, files)


async def _syzkallers(run: StepContext, folder: Path) -> dict[str, Path]:
    """Fetch the syzkaller programs that steps have built; return their folders by commit."""
    # Not from storage by commit: a tarball does not contain its commit's id, so anyone could store
    # other programs under it. A job's own steps show what they were built from.
    folders: dict[str, Path] = {}
    for number in range(len(run.spec(ReproduceSpec).syzkaller)):
        name = syzkaller_input(number)
        place = folder / name
        place.mkdir()
        built = {artifact.name for artifact in run.input_artifacts(name)}
        for file in SyzkallerArtifact:
            if file in built or file in GUEST_PROGRAMS:
                await run.fetch(name, file, place / file)
                (place / file).chmod(0o755)
        folders[run.input(name, SyzkallerResult).commit] = place
    return {DEFAULT_SYZKALLER: next(iter(folders.values())), **folders}


def _mutator(reproducer: Reproducer, binaries: Mapping[str, Path]) -> Path | None:
    """Return the mutator of the syzkaller that runs a program; None if it has none."""
    folder = binaries.get(reproducer.syzkaller or DEFAULT_SYZKALLER)
    if reproducer.kind != "syz" or folder is None:
        return None
    mutator = folder / SyzkallerArtifact.MUTATOR
    return mutator if mutator.is_file() else None


async def _capture(run: StepContext, image: GuestImage, folder: Path) -> dict[str, Path]:
    """Return the files with which guests load the capture kernel, if the step has one."""
    if run.optional_input("capture", BuildResult) is None:
        return {}
    kernel = folder / "capture-kernel"
    await run.fetch("capture", BuildArtifact.KERNEL, kernel)
    return {kdump.KEXEC: image.kexec, kdump.KERNEL: kernel, kdump.INITRD: image.capture}


async def modules(run: StepContext, folder: Path, build: str = "build") -> Path | None:
    """Return the modules of the input `build` as an archive that is unpacked over the guest image.

    None for a kernel without modules. Raises what `module_archive.files` raises, before anything
    is made.
    """
    if BuildArtifact.MODULES not in {artifact.name for artifact in run.input_artifacts(build)}:
        return None
    fetched = folder / BuildArtifact.MODULES
    await run.fetch(build, BuildArtifact.MODULES, fetched)
    return await asyncio.to_thread(_module_archive, fetched, folder / "modules.cpio")


def _module_archive(fetched: Path, path: Path) -> Path:
    files = module_archive.files(fetched)
    made: set[str] = {"lib"}
    with fetched.open("rb") as source, path.open("wb") as sink:
        for module in files:
            parents = [str(folder) for folder in PurePosixPath(module.name).parents][-2::-1]
            new = [cpio.folder(folder) for folder in parents if folder not in made]
            made.update(parents)
            source.seek(module.begin)
            for entry in (*new, cpio.file(module.name, source.read(module.size))):
                sink.writelines(cpio.pack(1, entry))
        sink.write(cpio.archive([]))
    return path


async def plan_with(
    run: StepContext, plan: InstancePlan, build: str, folder: Path, entries: Iterable[CpioFile]
) -> InstancePlan:
    """Return a plan for guests of the input `build` with `entries` added to their image.

    `folder` takes its files. Nothing else runs in these guests: no smoke test, no controls.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    kernel, parts = plan.kernel, [plan.initrds[0]]
    if build != "build":
        kernel = folder / "bzImage"
        await run.fetch(build, BuildArtifact.KERNEL, kernel)
        parts += filter(None, [await modules(run, folder, build)])
    image = folder / "initrd.cpio"
    await asyncio.to_thread(_append, image, parts, cpio.archive(entries))
    return replace(
        plan,
        kernel=kernel,
        initrds=(image,),
        smoke=None,
        texts=(),
        method=None,
        detectors=None,
        profiled=False,
    )


def _append(target: Path, parts: Iterable[Path], last: bytes) -> None:
    with target.open("wb") as sink:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, sink)
        sink.write(last)


def _method(spec: ReproduceSpec, host: VmHost) -> Method | None:
    match spec.dump:
        case "hypervisor":
            return Hypervisor()
        case "kdump":
            return Kdump(spec.vm.memory, host.capture_command_line())
        case "none":
            return None


def _words(
    spec: ReproduceSpec, built: BuildResult, method: Method | None, *, finds_leaks: bool
) -> str:
    """Return what dumps, traces and leaks add to the kernel's command line."""
    words = [method.words] if method else []
    if built.instrumented:
        words.append(f"trace_buf_size={buffer_size(spec.vm.memory, spec.vm.cpus)}")
    if finds_leaks:
        words.append(leaks.WORDS)
    return " ".join(words)


def _detectors(
    spec: ReproduceSpec, built: BuildResult, host: VmHost, words: str
) -> Detectors | None:
    """Return the detectors of the unpatched kernel; None unless controls are wanted and known."""
    if not spec.evidence or not built.detectors:
        return None
    command_line = host.command_line(spec.vm, words)
    return detectors(built.detectors, command_line, built.controls_lacking)


def _boots_before(baseline: ReproduceResult | None, accelerator: str) -> list[float]:
    """Return how many seconds the unpatched kernel took to boot on this accelerator."""
    if baseline is None or baseline.accelerator != accelerator:
        return []
    return [done.boot_seconds for done in baseline.instances if done.boot_seconds]


def _ends_before(baseline: ReproduceResult | None, known: Calibration | None) -> list[RunEnd]:
    """Return the known ends of runs on the unpatched kernel."""
    ends = list(known.ends) if known else []
    return ends + (calibration.ends_of(baseline.instances) if baseline else [])


def work_before(baseline: ReproduceResult | None) -> Work | None:
    """Return the program's system calls on the unpatched kernel, if they are known."""
    return baseline.evidence.work if baseline and baseline.evidence else None


async def _way(
    run: StepContext, baseline: ReproduceResult | None, folder: Path
) -> dict[str, tuple[int, ...]]:
    """Return the functions of the baseline's crash with their addresses in this kernel."""
    kept = [artifact.name for artifact in run.input_artifacts("baseline")]
    report_name = crash_path.report_of(baseline, kept) if baseline else None
    built = {artifact.name for artifact in run.input_artifacts("build")}
    if report_name is None or BuildArtifact.SYSTEM_MAP not in built:
        return {}
    report, system_map = folder / "baseline.json", folder / BuildArtifact.SYSTEM_MAP
    await run.fetch("baseline", report_name, report)
    await run.fetch("build", BuildArtifact.SYSTEM_MAP, system_map)
    functions = crash_path.functions(json.loads(report.read_text()))
    return crash_path.addresses(system_map.read_text(), functions)


async def keep_bundle(run: StepContext, prepared: Preparation) -> None:
    """Store the bundle that the spec wants, or the parts that only this step has.

    A failure is only logged: no verdict needs the bundle.
    """
    spec = run.spec(ReproduceSpec)
    if spec.bundle == "none":
        return
    folder = prepared.plan.folder / "to-bundle"
    folder.mkdir()
    files = dict(prepared.files)
    try:
        whole = spec.bundle == "whole"
        for artifact in run.input_artifacts("build") if whole else []:
            if artifact.name in _BUILT:
                await run.fetch("build", artifact.name, folder / artifact.name)
                files[artifact.name] = folder / artifact.name
        for name, text in _texts(spec, run.input("build", BuildResult), prepared).items():
            (folder / name).write_text(text)
            files[name] = folder / name
        if spec.bundle == "on_demand":
            await _keep_parts(run, files)
        else:
            await run.keep(await bundle_archive.pack(folder, files))
            if (disk := prepared.plan.disk) is not None:  # later steps start from it
                await _keep_part(run, disk.packed, ReproduceArtifact.ROOT)
    except (KgymError, OSError) as error:
        run.log(f"no bundle: {error}")


async def _keep_parts(run: StepContext, files: Mapping[str, Path]) -> None:
    kept = {artifact.name for artifact in run.artifacts}
    for name, path in files.items():
        if name in {bundle_archive.KERNEL, *kept}:  # the build step has stored the kernel
            continue
        await _keep_part(run, path, name)


async def _keep_part(run: StepContext, path: Path, name: str) -> None:
    # Large parts (initrds, disks) are the same for all patches on a bug: they are stored once.
    size = (await asyncio.to_thread(path.stat)).st_size
    base = await run.storage.put_base(path) if size > _LARGE else None
    await run.keep(path, name, base=base)


def _texts(spec: ReproduceSpec, built: BuildResult, prepared: Preparation) -> dict[str, str]:
    programs = len(prepared.plan.initrds)
    disk = prepared.plan.disk.used if prepared.plan.disk else None
    return {
        ReproduceArtifact.SCRIPT: bundle_archive.script(
            spec.vm, prepared.host.by_hand, programs, disk
        ),
        ReproduceArtifact.ABOUT: bundle_archive.about(
            spec, built, prepared.host.accelerator, spec.titles, disk
        ),
    }
