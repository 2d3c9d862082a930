"""What a worker has, and what a step needs of it.

A step's needs are computed from its spec when it is submitted. There are few
different ones, so that steps wait in **lanes**, one for each kind and needs.
"""

import os
import platform
import re
import shutil
from pathlib import Path

from kgym.steps import Kernel, StepSpec, Strict


class Capabilities(Strict):
    """What a worker's host has."""

    architecture: str = "x86_64"
    compilers: list[str] = []
    accelerator: str | None = None
    cores: int = 1
    memory: int = 0
    """MiB."""


class Needs(Strict):
    """What a step needs of its worker's host; null and 0 need nothing."""

    architecture: str | None = None
    compiler: str | None = None
    cores: int = 0
    memory: int = 0
    """MiB, rounded up to 2^k or 3/2 * 2^k, to keep lanes few."""


def needs(spec: StepSpec) -> Needs:
    """Return what the step needs: all kernels here are built for x86_64."""
    if isinstance(spec, Kernel):
        return Needs(architecture="x86_64", compiler=spec.compiler)
    return Needs(architecture="x86_64", cores=spec.vm.cpus, memory=_class(spec.vm.memory))


def lacking(needs: Needs, has: Capabilities | None) -> list[str]:
    """Return what the worker lacks; one that declares no capabilities (None) tries everything."""
    if has is None:
        return []
    missing = []
    if needs.architecture not in {None, has.architecture}:
        missing.append(str(needs.architecture))
    if needs.compiler is not None and needs.compiler not in has.compilers:
        missing.append(needs.compiler)
    if needs.cores > has.cores:
        missing.append(f"{needs.cores} cores")
    if needs.memory > has.memory:
        missing.append(f"{needs.memory} MiB of memory")
    return missing


def detect(accelerator: str | None = None) -> Capabilities:
    """Return what this host has. Which accelerator works has to be found out by trying."""
    found = set()
    for folder in os.get_exec_path():
        for pattern in ("gcc*", "clang*"):
            found |= {path.name for path in Path(folder).glob(pattern)}
    named = re.compile(r"(gcc|clang)(-[0-9]+)?")
    return Capabilities(
        architecture=platform.machine(),
        compilers=sorted(name for name in found if named.fullmatch(name) and shutil.which(name)),
        accelerator=accelerator,
        cores=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
    )


def _class(memory: int) -> int:
    power = 1 << (memory - 1).bit_length()
    return power * 3 // 4 if memory <= power * 3 // 4 else power
