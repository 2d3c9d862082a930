"""Kernel configurations as text: what was asked for, and what kconfig made of it. Pure."""

import re
from collections.abc import Iterable, Sequence

from kgym.api.steps import BuildSpec, DroppedSymbol, DumpMethod, KernelConfig
from kgym.bugs.config_symbols import TITLE
from kgym.errors import UserError

_SET = re.compile(r"^CONFIG_([A-Za-z0-9_]+)=(.*)$")
# Symbols that name files to build into the kernel.
_FILES = ("SYSTEM_TRUSTED_KEYS", "SYSTEM_REVOCATION_KEYS", "EXTRA_FIRMWARE", "INITRAMFS_SOURCE")
_PACKING = frozenset(f"MODULE_COMPRESS_{kind}" for kind in ("GZIP", "XZ", "ZSTD"))
_MODULE = re.compile(r"^CONFIG_([A-Za-z0-9_]+)=m$")
_UNSET = re.compile(r"^# CONFIG_([A-Za-z0-9_]+) is not set$")
# Symbols that kconfig detects from the tools: a request cannot set them.
_OF_TOOLS = re.compile(
    r"(CC|AS|LD)_IS_\w+|CC_(HAS|CAN|NO)_\w+|GCC\d*_NO_\w+|AS_\w+"
    r"|LD_(?!DEAD_CODE_DATA_ELIMINATION$)\w+"
    r"|(PAHOLE|RUSTC|BINDGEN)_\w+|RUST_IS_AVAILABLE|TOOLS_SUPPORT_\w+|\w+_VERSION(_TEXT)?"
)

# VMCOREINFO, without which no tool makes sense of a dump, comes with either of PROC_KCORE and
# KEXEC (kernel/crash_core.c); FW_CFG_SYSFS hands it to QEMU.
# Without CRASH_DUMP, a panic starts no capture kernel since 6.9 (kernel/crash_core.c).
DUMP_SYMBOLS: dict[DumpMethod, tuple[str, ...]] = {
    "hypervisor": ("PROC_KCORE", "FW_CFG_SYSFS"),
    "kdump": ("KEXEC", "CRASH_DUMP", "PROC_KCORE"),
}


def other_version(texts: Sequence[str], release: str) -> str:
    """Return the version in a config's title if it differs from this kernel's; else "".

    kconfig converts such a config: newer symbols get their defaults, removed ones are dropped.
    """
    versions = [title[2] for text in texts if (title := TITLE.search(text))]
    return next((version for version in versions if numbers(version) != numbers(release)), "")


def numbers(version: str) -> list[int]:
    """Return the three numbers of a version such as `6.1.0-rc3` or `6.1`."""
    numbers = [int(digits) for digits in re.findall(r"\d{1,9}", version.partition("-")[0])[:3]]
    return [*numbers, *[0] * (3 - len(numbers))]


def symbols(text: str) -> dict[str, str]:
    """Return the symbols that a `.config` or a fragment sets; `is not set` gives `n`.

    Raise UserError `config_rejected` for a line that is neither a symbol nor a comment nor blank:
    kconfig would ignore it with a warning.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if match := _SET.match(stripped):
            values[match[1]] = match[2].strip()
        elif match := _UNSET.match(stripped):
            values[match[1]] = "n"
        elif stripped and not stripped.startswith("#"):
            raise UserError(
                "config_rejected",
                f"line {number} of the config is not `CONFIG_NAME=value`: {stripped[:100]!r}",
                line=number,
            )
    return values


def merged(fragments: Sequence[str]) -> dict[str, str]:
    """Return the symbols of all fragments; a later one wins."""
    wanted: dict[str, str] = {}
    for fragment in fragments:
        wanted |= symbols(fragment)
    return wanted


def text(wanted: dict[str, str]) -> str:
    """Return the symbols as the lines of a `.config`."""
    lines = (
        f"# CONFIG_{name} is not set" if value == "n" else f"CONFIG_{name}={value}"
        for name, value in wanted.items()
    )
    return "\n".join(lines) + "\n"


def named_files(final: str) -> dict[str, list[str]]:
    """Return the files that a config builds into the kernel, by symbol."""
    got = symbols(final)
    named = {symbol: got.get(symbol, "").strip('"').split() for symbol in _FILES}
    return {symbol: files for symbol, files in named.items() if files}


def modules(config: str) -> list[str]:
    """Return the symbols that are `m` in a `.config`."""
    return [match[1] for line in config.splitlines() if (match := _MODULE.match(line))]


def packs_modules(config: str) -> bool:
    """Return whether a `.config` compresses modules when they are installed."""
    return any(got == "y" for name, got in symbols(config).items() if name in _PACKING)


def built_in(config: str) -> str:
    """Return the `.config` with `y` in place of `m`; kconfig may still reject some."""
    return "".join(
        f"CONFIG_{match[1]}=y\n" if (match := _MODULE.match(line)) else f"{line}\n"
        for line in config.splitlines()
    )


def dropped(wanted: dict[str, str], final: str) -> list[DroppedSymbol]:
    """Return the symbols whose final value is not the one asked for.

    Symbols that kconfig detects from the tools do not count: a config that was made with other
    tools has other values.
    """
    got = symbols(final)
    return [
        DroppedSymbol(symbol=name, wanted=value, got=got.get(name, "n"))
        for name, value in wanted.items()
        if got.get(name, "n") != value and not _OF_TOOLS.fullmatch(name)
    ]


def dumpable(spec: BuildSpec) -> BuildSpec:
    """Return the build with the symbols that its `for_dump` needs."""
    if spec.for_dump is None:
        return spec
    config = with_symbols(spec.config, DUMP_SYMBOLS[spec.for_dump])
    return spec.model_copy(update={"config": config})


def with_symbols(config: KernelConfig, symbols: Iterable[str]) -> KernelConfig:
    """Return the config with these symbols set to `y`, overriding its own values."""
    lines = "".join(f"CONFIG_{name}=y\n" for name in symbols)
    if config.full is not None:
        return config.model_copy(update={"full": f"{config.full.rstrip()}\n{lines}"})
    return config.model_copy(update={"fragments": [*config.fragments, lines]})
