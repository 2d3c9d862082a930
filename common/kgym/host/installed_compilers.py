"""Compilers installed on this host, with all programs that a kernel build needs."""

import os
import re
import shutil
from pathlib import Path

_NAME = re.compile(r"(gcc|clang)(-[0-9]{1,3})?")
# The programs that `LLVM=1` selects (Documentation/kbuild/llvm.rst).
_LLVM = {
    "CC": "clang",
    "LD": "ld.lld",
    "AR": "llvm-ar",
    "NM": "llvm-nm",
    "STRIP": "llvm-strip",
    "OBJCOPY": "llvm-objcopy",
    "OBJDUMP": "llvm-objdump",
    "READELF": "llvm-readelf",
    "HOSTCC": "clang",
    "HOSTCXX": "clang++",
    "HOSTAR": "llvm-ar",
    "HOSTLD": "ld.lld",
}


def programs(compiler: str) -> dict[str, str]:
    """Return the programs of a compiler such as `gcc-12` or `clang-15`, by kbuild variable."""
    family, dash, number = compiler.partition("-")
    if family == "gcc":
        return {"CC": compiler, "HOSTCC": compiler}
    return {variable: f"{program}{dash}{number}" for variable, program in _LLVM.items()}


def has(compiler: str) -> bool:
    """Return whether this host has all programs of the compiler."""
    return all(map(shutil.which, programs(compiler).values()))


def names() -> list[str]:
    """Return the names of the installed compilers, sorted."""
    programs_in_path = set()
    for folder in os.get_exec_path():
        for pattern in ("gcc*", "clang*"):
            programs_in_path |= {path.name for path in Path(folder).glob(pattern)}
    return sorted(name for name in programs_in_path if _NAME.fullmatch(name) and has(name))
