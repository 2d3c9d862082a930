"""An available compiler: its version, and make's variables that select it."""

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
    """A compiler; `version` is the line that it prints, `number` the dotted number in it."""

    name: str
    """A program of the host (`gcc-12`), or of a suite's image (`bullseye/gcc-10`)."""
    family: str
    variables: tuple[str, ...]
    version: str
    number: str
    image: Path | None = None
    """The image that has it."""
    identity: str = ""
    """Identity of the image: its packages and their versions."""
    substitution: str = ""
    """Note if this compiler is a substitute for the one that was described."""
    doubt: partial[None] = field(default_factory=lambda: partial(lambda: None), compare=False)
    """Call it after a read error: the next step that takes the image verifies it."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The compiler's identity; for a compiler of the host, only its name and version."""
        identity = (self.identity,) if self.identity else ()
        # Earlier versions used other tools with Clang: their trees must not be taken.
        tools = self.variables if self.family == "clang" else ()
        return (self.name, self.version, *identity, *tools)


def described(name: str, words: str) -> Toolchain:
    """Return the compiler with this name and this output of `--version`."""
    program = name.rpartition("/")[2]
    family = program.partition("-")[0]
    version = words.splitlines()[0] if words.strip() else "0"
    parsed = compiler_words.read(version)
    if program != name and family == "clang":
        program = "clang"  # an image has one Clang, whose tools also have plain names
    # Each tool by name: before Linux 5.18 (e9c281928c24), `LLVM=-15` means Clang's plain names, and
    # before 5.7 nothing. Whether Clang assembles (LLVM_IAS) is left to the kernel's default.
    variables = (
        f"{variable}={tool}" for variable, tool in installed_compilers.programs(program).items()
    )
    return Toolchain(name, family, tuple(variables), version, parsed.version if parsed else "0")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The version output of a compiler of the host."""

    program: tuple[str, int, int, int]
    at: float
    words: str


_ASKED: dict[str, _Asked] = {}
# Clang takes 25 ms to answer, and a step asks several times. Answers expire, as a program may be a
# wrapper whose compiler changes.
_ASKED_SECONDS = 60.0


async def installed(name: str) -> Toolchain | None:
    """Return a compiler of the host; None if it or one of its tools is missing."""
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
