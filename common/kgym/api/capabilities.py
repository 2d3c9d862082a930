"""Capabilities of workers, and needs of steps.

A step's needs are computed from its spec when it is submitted. Few combinations occur, so steps
are queued in **lanes**, one for each kind and needs.
"""

from pydantic import Field

from kgym.api.steps import DEFAULT_SYZKALLER, Count, Name, Needs, Strict

NO_COMPILER = (
    "a worker has the compilers installed on its host, and those of Debian's suites"
    " (`configs/toolchains.toml`) whose images are in the storage, or can be made: with"
    " mmdebstrap, and apt's Debian archive or another (KGYM_ARCHIVES; old suites need it)"
)
NO_DUMP = (
    "VMs in a cloud can save their memory only with `kdump`: use --dump kdump, or start a worker"
    " with `--provider qemu`"
)
NO_SYZKALLER = (
    "start a worker with a folder of syz-execprog and syz-executor, or of such folders named by"
    " commit: `--syzkaller DIR` or KGYM_SYZKALLER (`kgym syzkaller build` fills it); or let the job"
    " build them, with a `syzkaller` step that the reproduce step names"
)


class Capabilities(Strict):
    """Capabilities of a worker's host."""

    architecture: Name = "x86_64"
    compilers: list[Name] = Field([], max_length=10_000)
    """Programs such as `gcc-12`, and compilers in toolchain images: `bullseye/gcc-10`."""
    accelerator: Name | None = None
    """What runs its VMs: `kvm`, `tcg`, or a cloud's; None if not detected."""
    cores: Count = 1
    """As limited by cgroups."""
    memory: Count = 0
    """MiB."""
    syzkaller: list[Name] = Field([], max_length=10_000)
    """Commits of available syzkaller binaries, or `default` (see `syzkallers`)."""
    dumps: list[Name] = Field(["hypervisor", "kdump"], max_length=10)
    """Methods of saving the memory of its VMs."""


def lacking(needs: Needs, has: Capabilities | None) -> list[str]:
    """Return the needs that a worker does not meet; none if it has declared no capabilities."""
    if has is None:
        return []
    missing = []
    if needs.architecture not in {None, has.architecture}:
        missing.append(str(needs.architecture))
    # One of the alternatives is enough. Errors name the compiler as the job requested it.
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
