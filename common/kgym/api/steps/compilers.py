"""Selection of a compiler, on a host or in a toolchain image. Pure.

A compiler is requested as

    gcc, clang, gcc-12          the host's own; with a number, also a suite's
    bullseye/gcc-10             a Debian suite's, in its toolchain image
    gcc (Debian 10.2.1-6) …     a compiler's version line, as in syzbot's reports

A name selects that compiler or none. A version line describes a compiler used elsewhere: if no
worker has it, the nearest version is used, and results name it (`substitution`).

The compilers of each suite are listed in `configs/toolchains.toml`.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from kgym.api.steps import compiler_words
from kgym.api.steps.base import Needs, Strict
from kgym.api.steps.compiler_words import Family
from kgym.configs import CONFIGS

_NAME = re.compile(r"(?:([a-z]{3,20})/)?((gcc|clang)(?:-([0-9]{1,3}))?)")
_CALLED = (
    "give a compiler as `gcc`, `gcc-12`, `clang-15` or `bullseye/gcc-10`, or as its own version"
    ' line: "gcc (Debian 10.2.1-6) 10.2.1 20210110"'
)
LONGEST = 300
SUBSTITUTION = "the compiler that was used instead of the described one, if it is another"


class Suite(Strict):
    """A distribution suite, and the versions of its compilers."""

    archived: bool = False
    """Whether it is only in an archive of old suites, whose address a user has to set."""
    binutils: str
    gcc: list[str] = []
    clang: list[str] = []

    def compilers(self) -> Iterator[tuple[Family, str]]:
        """Yield family and version of each compiler."""
        yield from (("gcc", version) for version in self.gcc)
        yield from (("clang", version) for version in self.clang)


class Table(Strict):
    """The content of `configs/toolchains.toml`; the newest suite is the last."""

    packages: list[str]
    suites: dict[str, Suite]


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested compiler: `version` is in dotted numbers; of a name, the major one or none."""

    family: Family
    version: str
    suite: str | None = None
    described: bool = False
    """Whether it was requested by a version line."""
    binutils: str = ""
    """The version of the linker that the line names."""


@dataclass(frozen=True, slots=True)
class ImageCompiler:
    """A compiler of a suite, by its name there (`gcc-10`)."""

    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.suite}/{self.name}"


@cache
def table(path: Path = CONFIGS / "toolchains.toml") -> Table:
    """Return the table of available suites and compilers."""
    return Table.model_validate(tomllib.loads(path.read_text()))


@lru_cache(1000)
def asked(compiler: str) -> Asked:
    """Parse a request; raise ValueError if it is not a compiler."""
    if named := _NAME.fullmatch(compiler):
        family: Family = "gcc" if named[3] == "gcc" else "clang"
        if named[1] and named[1] not in table().suites:
            known = ", ".join(table().suites)
            raise ValueError(f"there is no suite `{named[1]}`; known are {known}; {_CALLED}")
        if named[1] and compiler not in map(str, images()):
            there = ", ".join(str(image) for image in images() if image.suite == named[1])
            raise ValueError(f"there is no {compiler}; of this suite there are {there}")
        return Asked(family, named[4] or "", named[1])
    if not compiler.isprintable():
        raise ValueError(f"{compiler!r} contains unprintable characters; {_CALLED}")
    if target := compiler_words.foreign(compiler):
        raise ValueError(
            f"{compiler[:100]!r} is a compiler for {target}, and only x86-64 kernels are"
            f" built; {_CALLED}"
        )
    if line := compiler_words.read(compiler):
        return Asked(line.family, line.version, described=True, binutils=line.binutils)
    raise ValueError(f"unknown compiler {compiler[:100]!r}; {_CALLED}")


@lru_cache(1000)
def places(compiler: str) -> tuple[str, ...]:
    """Return possible sources, best first: names of a host's programs, and SUITE/NAME.

    If several suites have a version, the suite with the described binutils comes first, else the
    newest. For a version line, other versions follow, the nearest first.
    """
    wanted = asked(compiler)
    if wanted.suite:
        return (compiler,)
    # Just `gcc` or `clang` means whatever the host has, so no image of a suite can stand in.
    if not wanted.version:
        return (wanted.family,)
    name = f"{wanted.family}-{_major(wanted.version)}"
    known = _known(wanted.family)
    if not wanted.described:
        return (name, *(str(image) for image, _ in known if image.name == name))
    near = sorted(known, key=lambda pair: (*_distance(wanted, pair[1]), _other(wanted, pair[0])))
    # A described compiler was built by its distribution: that suite's image comes before the host's
    # compiler of the same major version, which another distribution may have built.
    own = [str(image) for image, _ in near if image.name == name]
    return (*own, name, *(str(image) for image, _ in near if image.name != name))


def needed(compiler: str) -> Needs:
    """Return the needs of a build with this compiler; all kernels are built for x86_64."""
    first, *others = places(compiler)
    return Needs(architecture="x86_64", compiler=first, compilers=others)


def images() -> list[ImageCompiler]:
    """Return all compilers of toolchain images."""
    known = (image for family in ("gcc", "clang") for image, _ in _known(family))
    return sorted(known, key=str)


def image(place: str) -> ImageCompiler | None:
    """Return the image's compiler for a source; None for a host's program."""
    suite, slash, name = place.partition("/")
    return ImageCompiler(suite, name) if slash else None


def substitution(compiler: str, version: str, number: str, place: str) -> str:
    """Return the notice that another compiler was used than described, or an empty text.

    `version` is the version line of the used one, `number` its dotted number.
    """
    wanted = asked(compiler)
    if not wanted.described or _numbers(wanted.version) == _numbers(number):
        return ""
    same = _major(wanted.version) == _major(number)
    kind = "the same major version" if same else "the nearest that this worker has"
    return f"{place} ({version}) instead of {compiler}: {kind}"[: LONGEST * 3]


def _known(family: Family | str) -> list[tuple[ImageCompiler, str]]:
    """Return the images' compilers of a family with their versions, the newest suite's first."""
    return [
        (ImageCompiler(name, f"{family}-{_major(version)}"), version)
        for name, suite in reversed(table().suites.items())
        for of, version in suite.compilers()
        if of == family
    ]


def _distance(wanted: Asked, version: str) -> tuple[int, ...]:
    """Return a sort key for nearness; of two equally near versions, the newer is first."""
    asked_for, there = _numbers(wanted.version), _numbers(version)
    away = [here - wanted_part for here, wanted_part in zip(there, asked_for, strict=True)]
    return tuple(part for step in away for part in (abs(step), step < 0))


def _other(wanted: Asked, there: ImageCompiler) -> bool:
    """Return whether the suite has other binutils than described."""
    return bool(wanted.binutils) and table().suites[there.suite].binutils != wanted.binutils


def _numbers(version: str) -> tuple[int, int, int]:
    parts = [int(part) for part in version.split(".") if part][:3]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return major, minor, patch


def _major(version: str) -> str:
    return version.partition(".")[0]


def _check(compiler: str) -> str:
    asked(compiler)
    return compiler


Compiler = Annotated[
    str,
    Field(
        max_length=LONGEST,
        description="`gcc`, `gcc-12`, `clang-15`: the host's own, or a Debian suite's;"
        " `bullseye/gcc-10`: that suite's; or a compiler's version line, as in syzbot's reports:"
        " the nearest version is used, and the result names it",
    ),
    AfterValidator(_check),
]
