"""Parse a compiler's version line: `gcc (Debian 10.2.1-6) 10.2.1 20210110`. Pure.

That is the first line of --version, as in syzbot's reports and CONFIG_CC_VERSION_TEXT, with or
without the linker's version after it; or `gcc version 12.2.0 (Debian …)`, as in /proc/version.
Other parts (dates, a package's version, a commit) are never taken for the version.
"""

import re
from dataclasses import dataclass
from typing import Literal

Family = Literal["gcc", "clang"]

_VERSION = r"(?P<version>[0-9]{1,3}(?:\.[0-9]{1,5}){0,3})(?![0-9.])"
_OURS = r"(?:x86_64(?:-[a-z0-9_]{1,20}){0,3}-)?"
# GCC's packager, in parentheses that may be nested: `(crosstool-NG (x) 1.2)`.
_PACKAGED = r"\((?:[^()]|\([^()]{0,100}\)){1,200}\)"
# Clang's packager: `Debian`, `Red Hat`, `Android (7284624, based on r416183b)`.
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
class VersionLine:
    """A parsed version line of a compiler."""

    family: Family
    version: str
    """One to four numbers with dots: `10.2.1`."""
    binutils: str = ""
    """The version of GNU's linker, if the line names it."""


def read(words: str) -> VersionLine | None:
    """Parse a version line; return None if it is not that of a compiler for x86-64."""
    match = next(filter(None, (form.match(words) for form in _WORDS)), None)
    if match is None or foreign(words):
        return None
    binutils = _BINUTILS.search(words)
    return VersionLine(
        family="gcc" if match["family"] == "gcc" else "clang",
        version=match["version"],
        binutils=binutils[1] if binutils else "",
    )


def foreign(compiler: str) -> str:
    """Return the target in a name or line (`aarch64-linux-gnu`); empty for x86-64."""
    matches = filter(None, (form.search(compiler) for form in _TARGETS))
    targets = (match["target"] for match in matches)
    return next((target for target in targets if not target.startswith("x86_64-")), "")
