"""What a reproduce step needs before its first VM boots, and the bundle of it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kgym.api.steps import (
    DEFAULT_SYZKALLER,
    BuildArtifact,
    BuildResult,
    Calibration,
    ReproduceArtifact,
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
from kgym.source.instrument import buffer_size
from kgym.worker.context import StepContext
from kgym_vmmanager.dump import kdump
from kgym_vmmanager.dump.guest_memory import Method
from kgym_vmmanager.dump.hypervisor_dump import Hypervisor
from kgym_vmmanager.dump.kdump import Kdump
from kgym_vmmanager.evidence import crash_path, leaks
from kgym_vmmanager.guest.guest_image import GuestImage, guest_image
from kgym_vmmanager.guest.kernel_modules import modules
from kgym_vmmanager.guest.paths import PROGRAM
from kgym_vmmanager.guest.reproducer_images import initrd, program, source_name
from kgym_vmmanager.reproduce import bundle_archive
from kgym_vmmanager.reproduce.instance_plan import Boots, InstancePlan, RunTime
from kgym_vmmanager.root.image_file import Fetch
from kgym_vmmanager.root.root_disk import root_disk
from kgym_vmmanager.vm.provider import VmHost

_BUILT = (BuildArtifact.VMLINUX, BuildArtifact.CONFIG)
_LARGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Preparation:
    """The plan of a step, and what its bundle holds, by name in it."""

    plan: InstancePlan
    host: VmHost
    files: Mapping[str, Path]


async def prepare(
    run: StepContext,
    cache: Path,
    host: VmHost,
    syzkaller: Path | None,
    fetch: Fetch,
) -> Preparation:
    """Make everything that the VMs boot.

    Raises UserError for a reproducer that cannot be made a program (see `reproducer_images.py`).
    """
    spec, built = run.spec(ReproduceSpec), run.input("build", BuildResult)
    folder = run.folder / "reproduce"
    folder.mkdir()
    sources, made = [], []
    programs = [spec.reproducer, *spec.others]
    binaries = await _syzkallers(run, folder) if spec.syzkaller else syzkallers(syzkaller)
    for number, reproducer in enumerate(programs):
        source = folder / f"source-{number}" / source_name(reproducer, number)
        source.parent.mkdir()
        source.write_text(reproducer.text)
        await run.keep(source)
        sources.append(source)
        made.append(await program(reproducer, source, folder / f"program-{number}", binaries))
    image = await guest_image(cache, run.held)
    disk = await root_disk(run, cache, folder, fetch)
    method = _method(spec, host)
    more = await _capture(run, image, folder)
    own = await modules(run, folder)
    initrds = [
        await initrd(image, {**files, **more}, folder / f"initrd-{number}.cpio", own)
        for number, files in enumerate(made)
    ]
    smoke = None
    if spec.smoke:
        smoke = await initrd(image, {PROGRAM: image.smoke}, folder / "initrd-smoke.cpio", own)
    kernel = folder / "bzImage"
    await run.fetch("build", BuildArtifact.KERNEL, kernel)
    words = _words(spec, built, method)
    plan = InstancePlan(
        folder=folder,
        image=image,
        kernel=kernel,
        initrds=tuple(initrds),
        smoke=smoke,
        shape=spec.vm,
        time=RunTime(spec.time),
        boots=Boots(_boots_before(run, host.accelerator)),
        method=method,
        words=words,
        leaks=leaks.wanted(spec.titles, spec.vm),
        texts=tuple(
            reproducer.text if reproducer.kind == "syz" else None for reproducer in programs
        ),
        detectors=_detectors(spec, built, host, words),
        completed=completed(spec.completed, _ends_before(run, spec.calibration)),
        profiled=spec.evidence and spec.baseline is not None,
        before=work_before(run),
        way=await _way(run, folder) if spec.evidence else {},
        disk=disk,
    )
    executed = {path.stem: files[PROGRAM] for path, files in zip(sources, made, strict=True)}
    files = {
        bundle_archive.KERNEL: kernel,
        **{path.name: path for path in [*initrds, *sources]},
        **executed,
    }
    if disk is not None:
        files[ReproduceArtifact.ROOT] = disk.packed
    return Preparation(plan, host, files)


async def _syzkallers(run: StepContext, folder: Path) -> dict[str, Path]:
    """Fetch syzkaller's programs that steps have built; return their folders, by commit."""
    folders: dict[str, Path] = {}
    for number in range(len(run.spec(ReproduceSpec).syzkaller)):
        name = syzkaller_input(number)
        place = folder / name
        place.mkdir()
        for file in SyzkallerArtifact:
            await run.fetch(name, file, place / file)
            (place / file).chmod(0o755)
        folders[run.input(name, SyzkallerResult).commit] = place
    return {DEFAULT_SYZKALLER: next(iter(folders.values())), **folders}


def _method(spec: ReproduceSpec, host: VmHost) -> Method | None:
    match spec.dump:
        case "hypervisor":
            return Hypervisor()
        case "kdump":
            return Kdump(spec.vm.memory, host.capture_command_line())
        case "none":
            return None


def _words(spec: ReproduceSpec, built: BuildResult, method: Method | None) -> str:
    """Return what dumps, traces and leaks add to the kernel's command line."""
    words = [method.words] if method else []
    if built.instrumented:
        words.append(f"trace_buf_size={buffer_size(spec.vm.memory, spec.vm.cpus)}")
    if leaks.wanted(spec.titles, spec.vm):
        words.append(leaks.WORDS)
    return " ".join(words)


async def _way(run: StepContext, folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the functions on the way to the baseline's crash, where this kernel has them."""
    baseline = run.optional_input("baseline", ReproduceResult)
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


def work_before(run: StepContext) -> Work | None:
    """Return what the program did on the unpatched kernel, if that is known."""
    baseline = run.optional_input("baseline", ReproduceResult)
    return baseline.evidence.work if baseline and baseline.evidence else None


def _boots_before(run: StepContext, accelerator: str) -> list[float]:
    """Return how long the kernel with the bug took to boot, where it did so in the same way."""
    baseline = run.optional_input("baseline", ReproduceResult)
    if baseline is None or baseline.accelerator != accelerator:
        return []
    return [instance.boot_seconds for instance in baseline.instances if instance.boot_seconds]


def _detectors(
    spec: ReproduceSpec, built: BuildResult, host: VmHost, words: str
) -> Detectors | None:
    """Return what a kernel without the patches detects, if that is to be tried, and is known."""
    if not spec.evidence or not built.detectors:
        return None
    command_line = host.command_line(spec.vm, words)
    return detectors(built.detectors, command_line, built.controls_lacking)


def _ends_before(run: StepContext, known: Calibration | None) -> list[RunEnd]:
    """Return how runs on the unpatched kernel ended, as far as is known."""
    ends = list(known.ends) if known else []
    if baseline := run.optional_input("baseline", ReproduceResult):
        ends += calibration.ends_of(baseline.instances)
    return ends


async def _capture(run: StepContext, image: GuestImage, folder: Path) -> dict[str, Path]:
    """Return what guests need to load the capture kernel, if the step has one."""
    if run.optional_input("capture", BuildResult) is None:
        return {}
    kernel = folder / "capture-kernel"
    await run.fetch("capture", BuildArtifact.KERNEL, kernel)
    return {kdump.KEXEC: image.kexec, kdump.KERNEL: kernel, kdump.INITRD: image.capture}


async def keep_bundle(run: StepContext, prepared: Preparation) -> None:
    """Keep the bundle that the spec wants, or what only this step knows of it.

    A failure is only told: no verdict needs it.
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
        if name in {bundle_archive.KERNEL, *kept}:  # the build has left the kernel
            continue
        await _keep_part(run, path, name)


async def _keep_part(run: StepContext, path: Path, name: str) -> None:
    # What is large is the same for all patches on a bug: it is stored once.
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
