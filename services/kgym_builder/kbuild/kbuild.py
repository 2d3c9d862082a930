"""Running kbuild: the variables of a reproducible build, its output, its failures."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.steps import DroppedSymbol, KernelConfig
from kgym.errors import InfrastructureError, UserError
from kgym.host import detection, proc
from kgym.host.resources import Host
from kgym.source import diagnostics
from kgym.source.patching import Change
from kgym.worker.context import StepContext
from kgym_builder.kbuild import kconfig
from kgym_builder.kbuild.working_tree import Tree

# Documentation/kbuild/reproducible-builds.rst
_REPRODUCIBLE = (
    "KBUILD_BUILD_TIMESTAMP=1970-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER=kgym",
    "KBUILD_BUILD_HOST=kgym",
    "KBUILD_BUILD_VERSION=1",
)
_OBJECT = re.compile(rb"^ +(?:CC|AS)(?: \[M\])? +(\S+\.o)$")
_SHOWN = 2000
_MOST_MADE = 100_000
"""Bytes of a line that can go into an error or a warning; the file has all of it."""
# Programs that pack the kernel's image: it is unpacked once. At their best levels, which kbuild
# asks for, LZ4 takes 0.9 s of 36 MB instead of 0.06, gzip 3 s, zstd 20 s. kbuild's own options
# are passed over.
_PACKERS = tuple(
    f'{name}=sh -c "exec {words}" packer'
    for name, words in {
        "LZ4": "lz4 -l -1 - -",
        "KGZIP": "gzip -n -f -1",
        "LZMA": "lzma -1",
        "ZSTD": "zstd -1",
    }.items()
)
_OF_THE_PROCESS = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MAKE_TERMOUT"} | {
    *("MAKE_TERMERR", "PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "TZ", "LC_ALL")
}


class TreeUnreadable(InfrastructureError):
    """What lies below the tree may be damaged."""


class DoesNotCompile(UserError):
    """The compiler, the linker or kbuild found faults in the source."""


# What make's last words say of the host, and the error.
_HOST_ERRORS = (
    (
        ("No space left on device", "Disk quota exceeded"),
        (
            InfrastructureError,
            "disk_full",
            "the disk is full; free some space, then restart the job",
        ),
    ),
    (
        (
            "Killed signal terminated program",
            "Cannot allocate memory",
            "virtual memory exhausted",
        ),
        (InfrastructureError, "out_of_memory", "the compiler was killed"),
    ),
    (
        ("Cannot fork", "Resource temporarily unavailable"),
        (InfrastructureError, "no_processes", "the host has no room for more processes"),
    ),
    (
        ("Input/output error", "Transport endpoint is not connected"),
        (
            TreeUnreadable,
            "tree_unreadable",
            "the tree, or the disk that it lies on, cannot be read",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that is installed; `version` is its own words, `number` the dotted number."""

    family: str
    variables: tuple[str, ...]
    version: str
    number: str


async def toolchain(compiler: str) -> Toolchain:
    """Find the compiler `gcc`, `gcc-12`, `clang`, `clang-16`, …; UserError `no_compiler` without.

    Workers that say which compilers they have are never asked for another.
    """
    family, _, suffix = compiler.partition("-")
    try:
        proc.require(compiler)
    except InfrastructureError as error:
        there = ", ".join(detection.detect().compilers) or "none"
        message = f"this builder has no {compiler}; its compilers: {there}"
        raise UserError("no_compiler", message, tool=compiler) from error
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
    made: list[str] = field(default_factory=list)
    """The objects that were compiled, by their paths."""

    def __call__(self, line: bytes) -> None:
        """Take one line."""
        with self.path.open("ab") as file:
            file.write(line + b"\n")
        if match := _OBJECT.match(line):
            self.objects += 1
            self.made.append(match[1][:_SHOWN].decode(errors="replace"))
            del self.made[:-_MOST_MADE]
            self.on_object(self.objects)
        elif not line.startswith(b"  ") or line.lstrip().startswith(b"from "):
            self.tail.append(line[:_SHOWN].decode(errors="replace"))
            del self.tail[:-5000]

    def count(self, run: StepContext, stage: str, total: int | None) -> None:
        """Tell the step's progress by the objects that come from now on."""
        start = self.objects
        run.progress(stage, 0, total, "objects")
        self.on_object = lambda objects: run.progress(stage, objects - start, total, "objects")


def command(tools: Toolchain) -> list[str]:
    """Return how make is called, without its targets."""
    return ["make", f"-j{Host.here().cores}", "ARCH=x86_64", *tools.variables, *_REPRODUCIBLE]


class Kbuild:
    """Make in one tree with one toolchain."""

    def __init__(self, tree: Tree, tools: Toolchain, output: Output) -> None:
        self._tree = tree
        self._output = output
        self._make = [*command(tools), *_PACKERS]

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
        await self._run([*self._make, *targets], f"make {targets[0]}")

    async def make_file(self, makefile: str, goal: str, env: Mapping[str, str]) -> None:
        """Make a goal of another makefile, in place of the tree's; fail as `make` does."""
        argv = ["make", f"-j{Host.here().cores}", "-f", "-", goal]
        await self._run(argv, "make", stdin=makefile.encode(), env=env)

    async def environment(self) -> dict[str, str]:
        """Return the variables that the top Makefile gives to its sub-makes."""
        # The rule is itself part of the environment, so it must not hold the mark.
        rule = "kgym-env: ; @printf '%s-%s:' begin env && env -0"
        done = await self._tree.run([*self._make, "--eval", rule, "kgym-env"])
        _, _, said = done.output.decode(errors="surrogateescape").partition("begin-env:")
        pairs = (pair.partition("=") for pair in said.split("\0") if "=" in pair)
        return {name: value for name, _, value in pairs if name not in _OF_THE_PROCESS}

    async def _run(
        self,
        argv: list[str],
        what: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._output.tail.clear()
        done = await self._tree.run(
            argv, timeout=None, stdin=stdin, on_line=self._output, check=False, env=env
        )
        if done.returncode == 0:
            return
        lines = self._output.tail
        end = "\n".join(lines[-20:])
        for marks, (kind, *words) in _HOST_ERRORS:
            if any(mark in line for line in lines for mark in marks):
                raise kind(*words, output=end)
        errors = [one for one in diagnostics.parse(lines) if one.severity == "error"]
        first = errors[0] if errors else None
        where = f"{first.file}:{first.line}: {first.message}" if first else end
        raise DoesNotCompile(
            "does_not_compile",
            f"{what} failed: {where}",
            diagnostics=[one.model_dump() for one in errors[:100]],
            output=end,
        )

    async def _write(self, name: str, text: str) -> None:
        await self._tree.write([Change(name, text.encode())])
