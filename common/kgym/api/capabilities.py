"""What a worker has, and what a step needs of it.

A step's needs are computed from its spec when it is submitted. There are few
different ones, so that steps wait in **lanes**, one for each kind and needs.
"""

from pydantic import Field

from kgym.api.steps import DEFAULT_SYZKALLER, Count, Name, Needs, Strict

NO_COMPILER = (
    "a worker has those that its host has installed and those of Debian's suites"
    " (`configs/toolchains.toml`) of which the storage has an image, or which it can make: with"
    " mmdebstrap, and its apt's archive of Debian or another (KGYM_ARCHIVES; old suites need it)"
)
NO_DUMP = (
    "VMs in a cloud can only save their memory by themselves: ask for `kdump` (--dump kdump), or"
    " start a worker with `--provider qemu`"
)
NO_SYZKALLER = (
    "give a worker a folder with syz-execprog and syz-executor, or with such folders named by"
    " commit: `--syzkaller DIR` or KGYM_SYZKALLER (`kgym syzkaller build` fills it); or let the job"
    " build them, by a step of the kind `syzkaller` that the reproduce step names"
)


class Capabilities(Strict):
    """What a worker's host has."""

    architecture: Name = "x86_64"
    compilers: list[Name] = Field([], max_length=10_000)
    """Names of programs, such as `gcc-12`, and of those in toolchain images: `bullseye/gcc-10`."""
    accelerator: Name | None = None
    """What runs its VMs: `kvm`, `tcg`, or a cloud's; None where it has not been tried."""
    cores: Count = 1
    """That cgroups allow it."""
    memory: Count = 0
    """MiB."""
    syzkaller: list[Name] = Field([], max_length=10_000)
    """Commits of which there are syzkaller's binaries, or `default` (see `syzkallers`)."""
    dumps: list[Name] = Field(["hypervisor", "kdump"], max_length=10)
    """The ways in which the memory of its VMs can be saved."""


def lacking(needs: Needs, has: Capabilities | None) -> list[str]:
    """Return what the worker lacks; one that declares no capabilities (None) tries everything."""
    if has is None:
        return []
    missing = []
    if needs.architecture not in {None, has.architecture}:
        missing.append(str(needs.architecture))
    if needs.compiler is not None and not any(
        name in has.compilers for name in (needs.compiler, *needs.compilers)
    ):
        missing.append(needs.compiler)
    if needs.cores > has.cores:
        missing.append(f"{needs.cores} cores")
    if needs.memory > has.memory:
        missing.append(f"{needs.memory} MiB of memory")
    missing += [
        "syzkaller's binaries" + (f" of commit {name}" if name != DEFAULT_SYZKALLER else "")
        for name in needs.syzkaller
        if name not in has.syzkaller
    ]
    if needs.dump is not None and needs.dump not in has.dumps:
        missing.append(f"dumps by `{needs.dump}`")
    return missing
