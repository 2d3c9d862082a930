"""What a kernel has to have for each way of dumping it. Pure."""

from collections.abc import Iterable

from kgym.api.steps import BuildSpec, DumpMethod, KernelConfig

# VMCOREINFO, without which no tool makes sense of a dump, comes with either of PROC_KCORE and
# KEXEC (kernel/crash_core.c); FW_CFG_SYSFS hands it to QEMU.
# Without CRASH_DUMP, a panic starts no capture kernel since 6.9 (kernel/crash_core.c).
SYMBOLS: dict[DumpMethod, tuple[str, ...]] = {
    "hypervisor": ("PROC_KCORE", "FW_CFG_SYSFS"),
    "kdump": ("KEXEC", "CRASH_DUMP", "PROC_KCORE"),
}


def dumpable(spec: BuildSpec) -> BuildSpec:
    """Return the build with what `for_dump` asks of its config."""
    if spec.for_dump is None:
        return spec
    config = with_symbols(spec.config, SYMBOLS[spec.for_dump])
    return spec.model_copy(update={"config": config})


def with_symbols(config: KernelConfig, symbols: Iterable[str]) -> KernelConfig:
    """Return the config with these symbols set to `y`, whatever it says of them."""
    lines = "".join(f"CONFIG_{name}=y\n" for name in symbols)
    if config.full is not None:
        return config.model_copy(update={"full": f"{config.full.rstrip()}\n{lines}"})
    return config.model_copy(update={"fragments": [*config.fragments, lines]})
