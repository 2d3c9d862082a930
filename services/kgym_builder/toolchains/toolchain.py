"""A compiler that is there: what it says of itself, and how make is told to use it."""

import os
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kgym.api.steps import compiler_words
from kgym.host import installed_compilers, proc


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler; `version` is its own words, `number` the dotted number."""

    name: str
    """A program of the host (`gcc-12`), or of a suite's image (`bullseye/gcc-10`)."""
    family: str
    variables: tuple[str, ...]
    version: str
    number: str
    image: Path | None = None
    """The image that has it."""
    identity: str = ""
    """Of the image: which packages it has, in which versions."""
    substitution: str = ""
    """What is to be said where another compiler was described than this one."""
    doubt: partial[None] = field(default_factory=lambda: partial(lambda: None), compare=False)
    """Called when the image could not be read: the next who takes it checks it."""

    @property
    def parts(self) -> tuple[str, ...]:
        """What tells it from others; of the host's, name and version are all that is known."""
        identity = (self.identity,) if self.identity else ()
        # Clang's tools were not always the ones named here: no tree of those is taken.
        tools = self.variables if self.family == "clang" else ()
        return (self.name, self.version, *identity, *tools)


def described(name: str, words: str) -> Toolchain:
    """Return a compiler by its name, and by what it says when asked for its version."""
    program = name.rpartition("/")[2]
    family = program.partition("-")[0]
    version = words.splitlines()[0] if words.strip() else "0"
    parsed = compiler_words.read(version)
    if program != name and family == "clang":
        program = "clang"  # an image has one, whose tools have plain names, too
    # Each by its name: `LLVM=-15` means Clang's plain names before Linux 5.18 (e9c281928c24), and
    # nothing before 5.7. Whether Clang assembles (LLVM_IAS) is left to the kernel's version.
    variables = (
        f"{variable}={tool}" for variable, tool in installed_compilers.programs(program).items()
    )
    return Toolchain(name, family, tuple(variables), version, parsed.version if parsed else "0")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a compiler of the host said of itself."""

    program: tuple[str, int, int, int]
    at: float
    words: str


_ASKED: dict[str, _Asked] = {}
# Clang takes 25 ms to say it, and a step asks several times. Behind a wrapper, another may come.
_ASKED_SECONDS = 60.0


async def installed(name: str) -> Toolchain | None:
    """Return a compiler of the host; None if it, or a program that comes with it, is not there."""
    program = shutil.which(name)
    if program is None or not installed_compilers.has(name):
        return None
    state = os.stat(program)
    now = (program, state.st_ino, state.st_mtime_ns, state.st_size)
    asked = _ASKED.get(name)
    if asked is None or asked.program != now or time.monotonic() - asked.at > _ASKED_SECONDS:
        words = (await proc.run([name, "--version"], timeout=30)).text
        asked = _ASKED[name] = _Asked(now, time.monotonic(), words)
    return described(name, asked.words)
