"""What a compiler says of itself, read: `gcc (Debian 10.2.1-6) 10.2.1 20210110`. Pure.

That is the first line of --version, as syzbot's reports and CONFIG_CC_VERSION_TEXT have it, with or
without the linker's words behind it; or `gcc version 12.2.0 (Debian …)`, as of /proc/version. What
else is in it (dates, a package's version, a commit) is never taken for the version.
"""

import re
from dataclasses import dataclass
from typing import Literal

Family = Literal["gcc", "clang"]

_VERSION = r"(?P<version>[0-9]{1,3}(?:\.[0-9]{1,5}){0,3})(?![0-9.])"
_OURS = r"(?:x86_64(?:-[a-z0-9_]{1,20}){0,3}-)?"
# Who packaged GCC stands in parentheses, and may have some of its own: `(crosstool-NG (x) 1.2)`.
_PACKAGED = r"\((?:[^()]|\([^()]{0,100}\)){1,200}\)"
# Of Clang: `Debian`, `Red Hat`, `Android (7284624, based on r416183b)`.
_VENDOR = r"(?:[A-Za-z]{1,20} ){0,3}(?:\([^()]{1,150}\) )?"
_WORDS = (
    re.compile(rf"{_OURS}(?P<family>gcc)(?:-[0-9.]{{1,8}})? {_PACKAGED} {_VERSION}"),
    re.compile(rf"(?P<family>gcc) version {_VERSION}"),
    re.compile(rf"{_VENDOR}{_OURS}(?P<family>clang) version {_VERSION}"),
)
_BINUTILS = re.compile(r"GNU Binutils[^)]{0,50}\) ([0-9.]{1,20})\b")
_TRIPLET = r"(?P<target>[a-z0-9_]{1,20}(?:-[a-z0-9_.]{1,20}){1,3})"
_TARGETS = (
    re.compile(rf"\A{_TRIPLET}-(?:gcc|clang)(?![a-z0-9])"),
    re.compile(rf"\bTarget: {_TRIPLET}"),
)


@dataclass(frozen=True, slots=True)
class Said:
    """What a compiler says of itself."""

    family: Family
    version: str
    """One to four numbers with dots: `10.2.1`."""
    binutils: str = ""
    """The version of the linker, if its words are there and it is of GNU's binutils."""


def read(words: str) -> Said | None:
    """Return what the words say; None for what no compiler for x86-64 says."""
    said = next(filter(None, (form.match(words) for form in _WORDS)), None)
    if said is None or foreign(words):
        return None
    binutils = _BINUTILS.search(words)
    return Said(
        family="gcc" if said["family"] == "gcc" else "clang",
        version=said["version"],
        binutils=binutils[1] if binutils else "",
    )


def foreign(compiler: str) -> str:
    """Return the target that a name or words tell (`aarch64-linux-gnu`); empty if it is x86-64."""
    found = filter(None, (form.search(compiler) for form in _TARGETS))
    return next((one["target"] for one in found if not one["target"].startswith("x86_64-")), "")
