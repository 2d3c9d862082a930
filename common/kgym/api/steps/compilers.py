"""Which compiler is meant, and where it can be had: on a host, or in a toolchain image. Pure.

A compiler is asked for by

    gcc, clang, gcc-12          the host's own; or else, with a number, a suite's
    bullseye/gcc-10             a Debian suite's, in its toolchain image
    gcc (Debian 10.2.1-6) …     what a compiler says of itself, as syzbot's reports have it

A name is a demand: that compiler or none. Its own words describe what was used elsewhere: if
nobody has that, the nearest that a worker has serves, and results say so (`substitution`).

Which suites have which compilers is data, `configs/toolchains.toml`.
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
    "a compiler is called `gcc`, `gcc-12`, `clang-15` or `bullseye/gcc-10`, or as it says of itself"
    ' by --version: "gcc (Debian 10.2.1-6) 10.2.1 20210110"'
)
LONGEST = 300
SUBSTITUTION = "which compiler was used instead of the one that was described, if it is another one"


class Suite(Strict):
    """A distribution suite, and the versions of its compilers."""

    archived: bool = False
    """Whether only an archive of old suites has it, whose address a user has to name."""
    binutils: str
    gcc: list[str] = []
    clang: list[str] = []

    def compilers(self) -> Iterator[tuple[Family, str]]:
        """Yield family and version of each compiler."""
        yield from (("gcc", version) for version in self.gcc)
        yield from (("clang", version) for version in self.clang)


class Table(Strict):
    """What can be had: `configs/toolchains.toml`; the newest suite stands last."""

    packages: list[str]
    suites: dict[str, Suite]


@dataclass(frozen=True, slots=True)
class Asked:
    """The compiler that is meant: `version` is dotted numbers, a name's a major one, or none."""

    family: Family
    version: str
    suite: str | None = None
    described: bool = False
    """Whether it was asked for by its own words."""
    binutils: str = ""
    """The version of the linker that the words name, too."""


@dataclass(frozen=True, slots=True)
class ImageCompiler:
    """A compiler of a suite, by its name there (`gcc-10`)."""

    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.suite}/{self.name}"


@cache
def table(path: Path = CONFIGS / "toolchains.toml") -> Table:
    """Return what can be had as toolchain images."""
    return Table.model_validate(tomllib.loads(path.read_text()))


@lru_cache(1000)
def asked(compiler: str) -> Asked:
    """Read what is asked for; raise ValueError for what is no compiler."""
    if named := _NAME.fullmatch(compiler):
        family: Family = "gcc" if named[3] == "gcc" else "clang"
        if named[1] and named[1] not in table().suites:
            known = ", ".join(table().suites)
            raise ValueError(f"there is no suite `{named[1]}`; known are {known}; {_CALLED}")
        if named[1] and compiler not in map(str, images()):
            there = ", ".join(str(one) for one in images() if one.suite == named[1])
            raise ValueError(f"there is no {compiler}; of this suite there are {there}")
        return Asked(family, named[4] or "", named[1])
    if not compiler.isprintable():
        raise ValueError(f"{compiler!r} holds odd characters; {_CALLED}")
    if target := compiler_words.foreign(compiler):
        raise ValueError(
            f"{compiler[:100]!r} is a compiler for {target}, and only x86-64 kernels are built"
            f" here; {_CALLED}"
        )
    if said := compiler_words.read(compiler):
        return Asked(said.family, said.version, described=True, binutils=said.binutils)
    raise ValueError(f"nobody knows the compiler {compiler[:100]!r}; {_CALLED}")


@lru_cache(1000)
def places(compiler: str) -> tuple[str, ...]:
    """Return where it may come from, best first: names of a host's programs, and SUITE/NAME.

    Of a version that several suites have, the one with the binutils that are described comes first,
    or else the newest suite's. What is described may also come from the nearest other version.
    """
    wanted = asked(compiler)
    if wanted.suite:
        return (compiler,)
    if not wanted.version:
        return (wanted.family,)
    name = f"{wanted.family}-{_major(wanted.version)}"
    known = _known(wanted.family)
    if not wanted.described:
        return (name, *(str(one) for one, _ in known if one.name == name))
    near = sorted(known, key=lambda one: (*_distance(wanted, one[1]), _other(wanted, one[0])))
    own = [str(one) for one, _ in near if one.name == name]
    return (*own, name, *(str(one) for one, _ in near if one.name != name))


def needed(compiler: str) -> Needs:
    """Return what a build with this compiler needs: all kernels here are built for x86_64."""
    first, *others = places(compiler)
    return Needs(architecture="x86_64", compiler=first, compilers=others)


def images() -> list[ImageCompiler]:
    """Return all compilers that can be had as toolchain images."""
    found = (one for family in ("gcc", "clang") for one, _ in _known(family))
    return sorted(found, key=str)


def image(place: str) -> ImageCompiler | None:
    """Return the image's compiler that a place is; None for a host's program."""
    suite, slash, name = place.partition("/")
    return ImageCompiler(suite, name) if slash else None


def substitution(compiler: str, version: str, number: str, place: str) -> str:
    """Return what is to be said where another one was used than the words describe; or nothing.

    `version` is what the one that was used says of itself, `number` its dotted number.
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
    """Return how far away a version is; of two as near, a newer one comes first."""
    asked_for, there = _numbers(wanted.version), _numbers(version)
    away = [one - other for one, other in zip(there, asked_for, strict=True)]
    return tuple(part for step in away for part in (abs(step), step < 0))


def _other(wanted: Asked, there: ImageCompiler) -> bool:
    """Whether the suite has other binutils than the words name."""
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
        " `bullseye/gcc-10`: that suite's; or what a compiler says of itself by --version, as in"
        " syzbot's reports: the nearest version is used, and the result names it",
    ),
    AfterValidator(_check),
]
