"""The compilers that this host has installed, with all that a kernel's build takes of them."""

import os
import re
import shutil
from pathlib import Path

_NAME = re.compile(r"(gcc|clang)(-[0-9]{1,3})?")
# All that `LLVM=1` stands for (Documentation/kbuild/llvm.rst).
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
    """Return the programs that come with `gcc-12` or `clang-15`, by kbuild's names for them."""
    family, dash, number = compiler.partition("-")
    if family == "gcc":
        return {"CC": compiler, "HOSTCC": compiler}
    return {variable: f"{program}{dash}{number}" for variable, program in _LLVM.items()}


def has(compiler: str) -> bool:
    """Return whether this host has it, with all of its programs."""
    return all(map(shutil.which, programs(compiler).values()))


def names() -> list[str]:
    """Return the names of all that this host has, sorted."""
    found = set()
    for folder in os.get_exec_path():
        for pattern in ("gcc*", "clang*"):
            found |= {path.name for path in Path(folder).glob(pattern)}
    return sorted(name for name in found if _NAME.fullmatch(name) and has(name))
