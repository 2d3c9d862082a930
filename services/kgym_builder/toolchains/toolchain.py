"""A compiler that is there: what it says of itself, and how make is told to use it."""

import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kgym.api.steps import compiler_words
from kgym.host import proc


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
        return (self.name, self.version, *((self.identity,) if self.identity else ()))


def described(name: str, words: str) -> Toolchain:
    """Return a compiler by its name, and by what it says when asked for its version."""
    program = name.rpartition("/")[2]
    family, _, suffix = program.partition("-")
    version = words.splitlines()[0] if words.strip() else "0"
    said = compiler_words.read(version)
    if family == "gcc":
        variables: tuple[str, ...] = (f"CC={program}", f"HOSTCC={program}")
    elif program == name and suffix:
        variables = (f"LLVM=-{suffix}",)  # understood since Linux 5.18 (e9c281928c24)
    else:
        variables = ("LLVM=1",)  # an image has one Clang, whose tools have plain names, too
    return Toolchain(name, family, variables, version, said.version if said else "0")


async def installed(name: str) -> Toolchain | None:
    """Return a compiler of the host; None if there is none of this name."""
    if shutil.which(name) is None:
        return None
    return described(name, (await proc.run([name, "--version"], timeout=30)).text)
