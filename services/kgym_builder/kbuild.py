"""Driving kbuild: the variables of a reproducible build, its output, its failures."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kgym import diagnostics, proc
from kgym.errors import InfrastructureError, UserError
from kgym.patch import Change
from kgym.steps import DroppedSymbol, KernelConfig
from kgym_builder import kconfig
from kgym_builder.tree import MAKE_SECONDS, Tree

# Documentation/kbuild/reproducible-builds.rst
_REPRODUCIBLE = (
    "KBUILD_BUILD_TIMESTAMP=1970-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER=kgym",
    "KBUILD_BUILD_HOST=kgym",
    "KBUILD_BUILD_VERSION=1",
)
_OBJECT = re.compile(rb"^ +(?:CC|AS)(?: \[M\])? +(\S+\.o)$")
_FULL = ("No space left on device", "Disk quota exceeded")
_KILLED = ("Killed signal terminated program", "Cannot allocate memory", "virtual memory exhausted")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that is installed; `version` is its own words, `number` the dotted number."""

    family: str
    variables: tuple[str, ...]
    version: str
    number: str


async def toolchain(compiler: str) -> Toolchain:
    """Find the compiler `gcc`, `gcc-12`, `clang`, `clang-16`, …"""
    family, _, suffix = compiler.partition("-")
    try:
        proc.require(compiler)
    except InfrastructureError as error:
        raise InfrastructureError(
            "missing_tool", f"this builder has no {compiler}", tool=compiler
        ) from error
    version = (await proc.run([compiler, "--version"], timeout=30)).text.splitlines()[0]
    number = re.search(r"\d+(\.\d+)+", version.rsplit(")", 1)[-1]) or re.search(r"\d+", version)
    if family == "gcc":
        variables: tuple[str, ...] = (f"CC={compiler}", f"HOSTCC={compiler}")
    else:
        variables = (f"LLVM=-{suffix}" if suffix else "LLVM=1",)
    return Toolchain(family, variables, version, number[0] if number else "0")


def kernel_version(makefile: str) -> str:
    """Return the version, as `6.1.192`, that the first lines of the top Makefile state."""
    found = dict(re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) *:?= *(\d+)", makefile, re.MULTILINE))
    return ".".join(found.get(name, "0") for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL"))


@dataclass(slots=True)
class Output:
    """The output of make as it comes: kept in a file, objects counted."""

    path: Path
    objects: int = 0
    on_object: Callable[[int], None] = lambda _: None
    tail: list[str] = field(default_factory=list)

    def __call__(self, line: bytes) -> None:
        """Take one line."""
        with self.path.open("ab") as file:
            file.write(line + b"\n")
        if _OBJECT.match(line):
            self.objects += 1
            self.on_object(self.objects)
        elif not line.startswith(b"  "):
            self.tail.append(line.decode(errors="replace"))
            del self.tail[:-5000]


def command(tools: Toolchain) -> list[str]:
    """Return how make is called, without its targets."""
    return ["make", f"-j{os.cpu_count() or 1}", "ARCH=x86_64", *tools.variables, *_REPRODUCIBLE]


class Kbuild:
    """Make in one tree with one toolchain."""

    def __init__(self, tree: Tree, tools: Toolchain, output: Output) -> None:
        self._tree = tree
        self._output = output
        self._make = command(tools)

    async def configure(self, config: KernelConfig) -> list[DroppedSymbol]:
        """Write `.config`; return the symbols that kconfig did not take as asked."""
        if config.full is not None:
            wanted = kconfig.symbols(config.full)
            await self._write(".config", config.full)
            await self.make("olddefconfig")
        elif config.base == "allnoconfig":
            # KCONFIG_ALLCONFIG gives the fragments' values first, `n` to the rest.
            wanted = kconfig.merged(config.fragments)
            await self._write(".kgym.config", kconfig.text(wanted))
            await self.make("allnoconfig", "KCONFIG_ALLCONFIG=.kgym.config")
        else:
            wanted = kconfig.merged(config.fragments)
            await self.make(str(config.base))
            base = (await self._tree.read([".config"]))[".config"].decode(errors="replace")
            await self._write(".config", base + kconfig.text(wanted))
            await self.make("olddefconfig")
        final = (await self._tree.read([".config"])).get(".config")
        if final is None:
            raise UserError("config_rejected", "kconfig left no .config")
        return kconfig.dropped(wanted, final.decode(errors="replace"))

    async def make(self, *targets: str) -> None:
        """Make targets; raise UserError `does_not_compile` with the diagnostics."""
        self._output.tail.clear()
        done = await self._tree.run(
            [*self._make, *targets], timeout=MAKE_SECONDS, on_line=self._output, check=False
        )
        if done.returncode == 0:
            return
        lines = self._output.tail
        end = "\n".join(lines[-20:])
        if any(mark in line for line in lines for mark in _FULL):
            raise InfrastructureError(
                "disk_full", "the disk is full; free some space, then restart the job"
            )
        if any(mark in line for line in lines for mark in _KILLED):
            raise InfrastructureError("out_of_memory", f"the compiler was killed:\n{end}")
        errors = [one for one in diagnostics.parse(lines) if one.severity == "error"]
        first = errors[0] if errors else None
        where = f"{first.file}:{first.line}: {first.message}" if first else end
        raise UserError(
            "does_not_compile",
            f"make {targets[0]} failed: {where}",
            diagnostics=[one.model_dump() for one in errors[:100]],
            output=end,
        )

    async def _write(self, name: str, text: str) -> None:
        await self._tree.write([Change(name, text.encode())])
