"""Configs with which steps would fail: of another architecture, or without a symbol. Pure."""

import re
from collections.abc import Sequence

from kgym.errors import UserError

# Each config sets one of these, or X86_64.
_ARCHITECTURES = (
    *("ALPHA", "ARC", "ARM", "ARM64", "CSKY", "HEXAGON", "IA64", "LOONGARCH", "M68K", "MICROBLAZE"),
    *("MIPS", "NIOS2", "OPENRISC", "PARISC", "PPC", "RISCV", "S390", "SPARC", "SUPERH", "UML"),
    *("X86_32", "XTENSA"),
)
_OTHER = re.compile(rf"(?m)^CONFIG_({'|'.join(_ARCHITECTURES)})=y[ \t]*\r?$")
_OURS = re.compile(r"(?m)^CONFIG_X86_64=y[ \t]*\r?$")
# The title line that kconfig writes: the value of ARCH, and the kernel's version.
TITLE = re.compile(r"(?m)^# Linux/(\w{1,40}) (\d[\w.+~-]{0,99}) Kernel Configuration[ \t]*\r?$")
_X86 = frozenset({"x86", "x86_64"})


def refuse_without(config: str, symbols: Sequence[str]) -> None:
    """Raise UserError `config_lacks` unless all symbols are `y` in a final .config."""
    values = dict(re.findall(r"(?m)^CONFIG_(\w+)=([ym])$", config))
    wrong = {name: value for name in symbols if (value := values.get(name, "n")) != "y"}
    if wrong:
        lacking = ", ".join(f"CONFIG_{name}=y (it is {value})" for name, value in wrong.items())
        message = f"guests that start from a disk need a kernel with {lacking}"
        raise UserError("config_lacks", message)


def check_architecture(texts: Sequence[str]) -> None:
    """Raise UserError `wrong_architecture` unless the config, or all fragments, are for x86_64.

    kconfig would ignore unknown symbols, and the result would be another kernel.
    """
    for text in texts:
        if foreign := _OTHER.search(text):
            raise _wrong_architecture(f"CONFIG_{foreign[1]}=y", symbol=foreign[1])
        title = TITLE.search(text)
        if title and title[1] not in _X86 and not _OURS.search(text):
            raise _wrong_architecture(f"it begins with `{title[0].strip()}`")


def _wrong_architecture(why: str, **details: str) -> UserError:
    return UserError(
        "wrong_architecture",
        f"the config is for another architecture ({why}), but kernels are built for x86_64 here:"
        " use one for x86_64 (on syzbot, of an amd64 manager)",
        **details,
    )
