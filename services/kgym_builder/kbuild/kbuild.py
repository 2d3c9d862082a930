"""Run kbuild: variables of a reproducible build, its output, its failures."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.steps import DroppedSymbol, KernelConfig
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc
from kgym.host.resources import Host
from kgym.source import diagnostics, module_archive
from kgym.source.patching import Change
from kgym.worker.context import StepContext
from kgym_builder.kbuild import kconfig
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.toolchains.toolchain import Toolchain

# Documentation/kbuild/reproducible-builds.rst
_REPRODUCIBLE = (
    "KBUILD_BUILD_TIMESTAMP=1970-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER=kgym",
    "KBUILD_BUILD_HOST=kgym",
    "KBUILD_BUILD_VERSION=1",
)
_BTF = "DEBUG_INFO_BTF"
_PAHOLE = "pahole"
# Programs on which the config depends, besides the compiler's.
CONFIGURING = (_PAHOLE,)
_OBJECT = re.compile(rb"^ +(?:CC|AS)(?: \[M\])? +(\S+\.o)$")
# The lines with which linking and packing the kernel begin.
_LATE_STAGES = {
    "link": re.compile(rb"^ +LD +(?:\.tmp_)?vmlinux"),
    "image": re.compile(rb"^ +[A-Z0-9]+ +arch/x86/boot/"),
}
_INSIDE = re.compile(r"(?!\.\.?/)[\w.+-]{1,200}(/(?!\.\.?/)[\w.+-]{1,200}){0,20}")
_NO_RULE = re.compile(r"^make(?:\[\d+\])?: \*\*\* (No rule to make target .*)$")
# Bytes of a line that are kept for errors and warnings; the file has the whole line.
_SHOWN = 2000
# Paths of compiled objects that are kept.
_MOST_MADE = 100_000
# Programs that compress the kernel's image, which is unpacked only once: at their fastest levels.
# kbuild asks for the best levels, with which LZ4 takes 0.9 s for 36 MB instead of 0.06, gzip 3 s,
# zstd 20 s. kbuild's own options are dropped.
_PACKERS = tuple(
    f'{name}=sh -c "exec {words}" packer'
    for name, words in {
        "LZ4": "lz4 -l -1 - -",
        "KGZIP": "gzip -n -f -1",
        "LZMA": "lzma -1",
        "ZSTD": "zstd -1",
    }.items()
)
# The tree's installed modules, in an archive that is equal for equal modules.
MODULES = ".kgym-modules.tar"
_STAGE = ".kgym-modules"
# Modules stay uncompressed, as guests' loaders know few formats. Kernels before 5.13 read the first
# variable.
_NOT_PACKED = tuple(f"CONFIG_MODULE_COMPRESS{kind}=" for kind in ("", "_GZIP", "_XZ", "_ZSTD"))
_NO_INDEX = 9
_PACK_MODULES = f"""set -e
for one in "$1"/lib/modules/*; do
    found=$(find "$one" -name '*.ko' -o -name '*.ko.*' | head -n 1)
    [ -z "$found" ] || [ -f "$one/{module_archive.INDEX}" ] || exit {_NO_INDEX}
done
rm -f "$1"/lib/modules/*/build "$1"/lib/modules/*/source
tar --format=ustar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \\
    -C "$1" -cf "$2" lib/modules
rm -rf "$1"
"""
_OF_THE_PROCESS = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MAKE_TERMOUT"} | {
    *("MAKE_TERMERR", "PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "TZ", "LC_ALL")
}


class TreeUnreadable(InfrastructureError):
    """The tree could not be read: its image, or the disk, may be damaged."""


class DoesNotCompile(UserError):
    """The compiler, the linker or kbuild rejects the source."""


# Messages at the end of make's output that blame the host, with the error to raise.
_HOST_ERRORS = (
    (
        ("No space left on device", "Disk quota exceeded"),
        *(InfrastructureError, "disk_full"),
        "the disk is full; free some space, then restart the job",
    ),
    (
        (
            # A batch system that ends a worker's job sends SIGTERM to its compilers, too.
            *("Killed signal terminated program", "Terminated signal terminated program"),
            *("Cannot allocate memory", "virtual memory exhausted"),
        ),
        *(InfrastructureError, "out_of_memory", "the compiler was killed"),
    ),
    (
        ("Cannot fork", "Resource temporarily unavailable"),
        *(InfrastructureError, "no_processes", "the host has no room for more processes"),
    ),
    (
        ("Input/output error", "Transport endpoint is not connected"),
        *(TreeUnreadable, "tree_unreadable"),
        "the tree, or the disk that it lies on, cannot be read",
    ),
)


def kernel_version(makefile: str) -> str:
    """Return the version, such as `6.1.192`, from the text of the top Makefile."""
    numbers = dict(
        re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) *:?= *(\d+)", makefile, re.MULTILINE)
    )
    return ".".join(numbers.get(name, "0") for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL"))


@dataclass(frozen=True, slots=True)
class Configured:
    """How kconfig changed a config."""

    dropped: list[DroppedSymbol]
    """Symbols whose final value is not the one asked for."""
    built_in: list[str]
    """Symbols that were turned from `m` into `y`."""


@dataclass(slots=True)
class Output:
    """Receives make's output line by line: writes it to a file and counts objects."""

    path: Path
    objects: int = 0
    on_object: Callable[[int], None] = lambda _: None
    tail: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    """Paths of the compiled objects."""
    begun: dict[str, float] = field(default_factory=dict)
    """When linking and packing began, by the monotonic clock."""

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
        else:
            self._notice_stage(line)

    def late_stages(self) -> dict[str, float]:
        """Return the seconds of linking and of packing; make has just ended."""
        ends = [*list(self.begun.values())[1:], time.monotonic()]
        spans = zip(self.begun.items(), ends, strict=False)
        return {name: round(end - begin, 3) for (name, begin), end in spans}

    def _notice_stage(self, line: bytes) -> None:
        # Parts of the image are also made before the link: only what follows it counts.
        missing = next((name for name in _LATE_STAGES if name not in self.begun), None)
        if missing and _LATE_STAGES[missing].match(line):
            self.begun[missing] = time.monotonic()

    def count(self, run: StepContext, stage: str, total: int | None) -> None:
        """Report the step's progress by the number of objects compiled from now on."""
        start = self.objects
        run.progress(stage, 0, total, "objects")
        self.on_object = lambda objects: run.progress(stage, objects - start, total, "objects")


@dataclass(frozen=True, slots=True)
class MakeBounds:
    """Limits of a run of make: parallel jobs, at most one per core, and seconds.

    None means all cores, and the sandbox's own time limit.
    """

    jobs: int | None = None
    seconds: float | None = None

    @property
    def option(self) -> str:
        """The option for make."""
        cores = Host.here().cores
        return f"-j{min(self.jobs or cores, cores)}"


ALL = MakeBounds()


def command(tools: Toolchain, bounds: MakeBounds = ALL) -> list[str]:
    """Return the command line of make, without targets."""
    return ["make", bounds.option, "ARCH=x86_64", *tools.variables, *_REPRODUCIBLE]


class Kbuild:
    """Make in one tree with one toolchain."""

    def __init__(
        self, tree: Tree, tools: Toolchain, output: Output, bounds: MakeBounds = ALL
    ) -> None:
        self._tree = tree
        self._output = output
        self._bounds = bounds
        self._make = [*command(tools, bounds), *_PACKERS]

    async def configure(self, config: KernelConfig) -> "Configured":
        """Write the final `.config`; return how kconfig changed what was asked for."""
        if config.full is not None:
            wanted, lines = kconfig.symbols(config.full), config.full
        else:
            wanted = kconfig.merged(config.fragments)
            lines = kconfig.text(wanted)
        if config.base == "allnoconfig":
            # KCONFIG_ALLCONFIG sets the fragments' symbols and `n` for all others. So symbols that
            # no fragment mentions stay `n`, whatever their defaults.
            await self._write(".kgym.config", lines)
            await self.make("allnoconfig", "KCONFIG_ALLCONFIG=.kgym.config")
        else:
            base = ""
            if config.base is not None:
                await self.make(config.base)
                base = await self._config()
            await self._write(".config", base + lines)
            await self.make("olddefconfig")
        final = await self._config()
        # Only now, as these depend on kconfig's answers.
        if impossible := await self._impossible(final):
            await self._write(".config", final + kconfig.text(impossible))
            await self.make("olddefconfig")
        built_in = await self._build_in() if config.modules == "builtin" else []
        dropped = kconfig.dropped(wanted, await self._config())
        dropped = [
            symbol for symbol in dropped if symbol.got != "y" or symbol.symbol not in built_in
        ]
        return Configured(dropped, built_in)

    async def _build_in(self) -> list[str]:
        """Turn `m` into `y` where kconfig allows it; return those symbols."""
        before = set(kconfig.modules(config := await self._config()))
        modules = before
        while modules:  # a symbol that is `y` now may allow others to be `y`
            await self._write(".config", kconfig.built_in(config))
            await self.make("olddefconfig")
            left = set(kconfig.modules(config := await self._config()))
            if left >= modules:
                break
            modules = left
        return sorted(name for name in before if f"\nCONFIG_{name}=y\n" in f"\n{config}")

    async def _config(self) -> str:
        final = (await self._tree.read([".config"])).get(".config")
        if final is None:
            raise UserError("config_rejected", "kconfig left no .config")
        return final.decode(errors="replace")

    async def _impossible(self, final: str) -> dict[str, str]:
        """Return symbols that would make a build fail at its end, with values that do not.

        Distributions' configs name their signing keys, which the source lacks; no crash depends
        on them. BTF needs pahole after everything is compiled, and few versions' Kconfig checks
        for it.
        """
        changed = dict.fromkeys(await self._absent(final), '""')
        if f"\nCONFIG_{_BTF}=y\n" in final and not await self._has(_PAHOLE):
            changed[_BTF] = "n"
        return changed

    async def _has(self, program: str) -> bool:
        argv = ["sh", "-c", 'command -v "$1"', "sh", program]
        return (await self._tree.run(argv, check=False)).returncode == 0

    async def _absent(self, final: str) -> list[str]:
        """Return the symbols that name a file missing from the tree."""
        named = kconfig.named_files(final)
        files = {file for group in named.values() for file in group}
        inside = [file for file in files if _INSIDE.fullmatch(file)]
        there, _ = await self._tree.look(inside) if inside else ({}, [])
        return [symbol for symbol, group in named.items() if not there.keys() >= set(group)]

    async def kernel(self, config: str) -> None:
        """Make the kernel for this final `.config`, and pack its modules, if any, as MODULES.

        Raises what `make` raises, and InfrastructureError `no_modules_dep`.
        """
        if not kconfig.modules(config):
            await self.make("bzImage")
            return
        await self.make("bzImage", "modules")
        await self._tree.run(["rm", "-rf", _STAGE, MODULES])
        # Stripped: with debug information, a distribution's modules take gigabytes.
        how = (f"INSTALL_MOD_PATH={_STAGE}", "INSTALL_MOD_STRIP=1", *_NOT_PACKED)
        await self.make("modules_install", *how)
        pack = ["sh", "-c", _PACK_MODULES, "sh", _STAGE, MODULES]
        done = await self._tree.run(pack, check=False)
        if done.returncode == _NO_INDEX:  # make only warns without depmod, but nothing would load
            raise module_archive.without_index("lib/modules")
        done.check()

    async def make(self, *targets: str) -> None:
        """Make targets; raise DoesNotCompile with the diagnostics."""
        await self._run([*self._make, *targets], f"make {targets[0]}")

    async def make_file(self, makefile: str, goal: str, env: Mapping[str, str]) -> None:
        """Make a goal of this makefile instead of the tree's; raise what `make` raises."""
        argv = ["make", self._bounds.option, "-f", "-", goal]
        await self._run(argv, "make", stdin=makefile.encode(), env=env)

    async def environment(self) -> dict[str, str]:
        """Return the variables that the top Makefile exports to its sub-makes."""
        # The rule itself shows up in the environment, so it must not contain the mark.
        rule = "kgym-env: ; @printf '%s-%s:' begin env && env -0"
        done = await self._tree.run([*self._make, "--eval", rule, "kgym-env"])
        _, _, printed = done.output.decode(errors="surrogateescape").partition("begin-env:")
        pairs = (pair.partition("=") for pair in printed.split("\0") if "=" in pair)
        return {name: value for name, _, value in pairs if name not in _OF_THE_PROCESS}

    async def _run(
        self, argv: list[str], what: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> None:
        self._output.tail.clear()
        try:
            done = await self._tree.run(
                argv,
                timeout=self._bounds.seconds,
                stdin=stdin,
                on_line=self._output,
                check=False,
                env=env,
            )
        except proc.ProgramTimedOut as error:
            raise UserError(
                "make_too_slow",
                f"{what} took over {self._bounds.seconds:g} s, the limit that `make_seconds` sets;"
                " raise it, or leave it out",
            ) from error
        if done.returncode == 0:
            return
        lines = self._output.tail
        end = "\n".join(lines[-20:])
        for marks, kind, *words in _HOST_ERRORS:
            if any(mark in line for line in lines for mark in marks):
                raise kind(*words, output=end)
        errors = [error for error in diagnostics.parse(lines) if error.severity == "error"]
        first = errors[0] if errors else None
        where = (
            f"{first.file}:{first.line}: {first.message}" if first else _missing_rule(lines) or end
        )
        raise DoesNotCompile(
            "does_not_compile",
            f"{what} failed: {where}",
            diagnostics=[error.model_dump() for error in errors[:100]],
            output=end,
        )

    async def _write(self, name: str, text: str) -> None:
        await self._tree.write([Change(name, text.encode())])


def _missing_rule(lines: list[str]) -> str | None:
    """Return make's message about a missing rule, which may precede pages of warnings."""
    return next((match[1] for line in lines if (match := _NO_RULE.match(line))), None)
