"""Build the two programs for guests, and the mutator, from syzkaller's source.

The source is as hostile as a patch: its generator runs, and compilers read it. So everything is
built in the sandbox, without network, and Go's modules have to be in the source (`vendor`). The
commands are those of syzkaller's Makefile (targets `descriptions`, `execprog`, `executor`), which
itself would also run Git, and look for compilers of other architectures.
"""

import hashlib
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from kgym.api.steps import GUEST_PROGRAMS, SyzkallerArtifact
from kgym.errors import UserError
from kgym.host import proc
from kgym.host.sandbox import Overlay, Sandbox, prepare
from kgym.host.sandbox_limits import MIB, SandboxLimits
from kgym.worker.context import StepContext

_MUTATOR = Path(__file__).with_name("mutator")
# Version of the build; part of its memo's key.
LAYOUT = f"2 {hashlib.sha256((_MUTATOR / 'mutate.go').read_bytes()).hexdigest()}"
# Bytes of memory; Go needs 2 GiB to compile the descriptions.
MEMORY = 8 << 30
# Time for each command; on two busy cores, the longest takes 150 s.
SECONDS = 3600.0

_TREE, _OUT, _SCRATCH, _OWN = "/syzkaller", "/out", "/scratch", "/own"
# Bytes of a program, which is in each guest's memory.
_LARGEST = 256 * MIB
_DISK = 12 << 30
_SAID = 1500
_NO_VENDOR = "it lacks Go's modules (`vendor`), and there is no network to fetch them"
_HINT = "docker/syzkaller.sh builds commits that need the network or older compilers"
_ENVIRONMENT = {
    "GO111MODULE": "on",
    "GOFLAGS": "-mod=vendor",
    "GOPROXY": "off",
    "GOSUMDB": "off",
    "GOTOOLCHAIN": "local",
    "GOENV": "off",
    "CGO_ENABLED": "0",
    # Not /tmp, which counts as memory.
    "HOME": _SCRATCH,
    "GOCACHE": f"{_SCRATCH}/cache",
    "GOPATH": f"{_SCRATCH}/go",
    "GOTMPDIR": _SCRATCH,
    "TMPDIR": _SCRATCH,
}
# elf(5)
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHH")
_X86_64, _SEGMENT = 62, 56
_PT_INTERP = (3).to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class Compilers:
    """The versions of the compilers."""

    go: str
    compiler: str

    @classmethod
    async def here(cls) -> "Compilers":
        """Return the compilers of this host. Raises UserError `no_go`, `no_compiler`."""
        go = await _version("go", "version", reason="no_go", package="golang-go")
        compiler = await _version("g++", "--version", reason="no_compiler", package="g++")
        return cls(go, compiler)


@dataclass(frozen=True, slots=True)
class Built:
    """The programs; without the mutator, `lacks` says why."""

    files: dict[SyzkallerArtifact, Path]
    lacks: str


async def build(tree: Path, commit: str, folder: Path, run: StepContext) -> Built:
    """Build all programs from the source's tree in the new `folder`; return them.

    Raises UserError `syzkaller_does_not_build`, `sandbox_limit`.
    """
    build = _Build(tree, folder, run.log)
    with run.stage("descriptions"):
        await build.run(["sh", "-c", "[ -f vendor/modules.txt ]"], otherwise=_NO_VENDOR)
        await build.run(["go", "run", "./sys/syz-sysgen"])
    execprog, executor = SyzkallerArtifact.EXECPROG, SyzkallerArtifact.EXECUTOR
    with run.stage("execprog"):
        flags = f"-ldflags=-s -w -X github.com/google/syzkaller/prog.GitRevision={commit}"
        await build.run(["go", "build", flags, "-o", f"{_OUT}/{execprog}", "./tools/syz-execprog"])
    with run.stage("executor"):
        words = ["-m64", "-O2", "-pthread", "-static", "-w", "-s", "-I.", "-Iexecutor/_include"]
        words += ["-DGOOS_linux=1", "-DGOARCH_amd64=1", "-DHOSTGOOS_linux=1"]
        words += [f'-DGIT_REVISION="{commit}"', "-o", f"{_OUT}/{executor}"]
        await build.run(["g++", *words, "executor/executor.cc"])
    files = {name: _checked(build.out / name) for name in GUEST_PROGRAMS}
    lacks, mutator = "", SyzkallerArtifact.MUTATOR
    with run.stage("mutator"):
        try:
            words = ["go", "build", flags, "-o", f"{_OUT}/{mutator}", f"{_OWN}/mutate.go"]
            await build.run(words)
            files[mutator] = _checked(build.out / mutator)
        except UserError as error:  # only variants need it, and other revisions have other APIs
            lacks = error.message
            run.log(f"no mutator: {lacks}")
    return Built(files, lacks)


class _Build:
    """One build: its commands write to `folder`, an overlay on the source's tree."""

    def __init__(self, tree: Path, folder: Path, log: Callable[[str], None]) -> None:
        usual = SandboxLimits.of_host()
        limits = replace(
            usual, memory=min(MEMORY, usual.memory), disk=_DISK, output=16 * MIB, seconds=SECONDS
        )
        self.out = prepare(folder / "out")
        self._log = log
        self._box = Sandbox(
            writable={_OUT: self.out, _SCRATCH: prepare(folder / "scratch")},
            readonly={_OWN: _MUTATOR},
            overlays={_TREE: Overlay((tree,), folder / "tree").create()},
            limits=limits,
        )

    async def run(self, argv: Sequence[str], *, otherwise: str = "") -> None:
        """Run a command; if it fails, `otherwise` is the reason for the error."""
        done = await self._box.run(argv, cwd=_TREE, env=_ENVIRONMENT, check=False)
        if done.returncode == 0:
            return
        output = done.text.strip()
        self._log(output[-20_000:])
        why = otherwise or f"`{' '.join(argv[:2])} … {argv[-1]}` fails: {_telling(output)}"
        raise _refusal(why)


def _telling(text: str) -> str:
    """Return the most telling part of a compiler's output."""
    errors = [line for line in text.splitlines() if re.search(r"error:|\.go:\d+|^go: ", line)]
    return " / ".join(errors[:5])[:_SAID] or text[-_SAID:] or "it printed nothing"


def _checked(program: Path) -> Path:
    """Return the program; raise UserError unless it can run in a guest, which has no libraries."""
    if not _is_file(program):
        raise _refusal(f"it does not produce {program.name}")
    if (size := program.stat().st_size) > _LARGEST:
        raise _refusal(f"its {program.name} has {size} bytes, {_LARGEST} allowed")
    with program.open("rb") as file:
        if not is_static(file):
            raise _refusal(f"its {program.name} is not a static program for x86_64")
    program.chmod(0o755)  # whatever the build left
    return program


def is_static(file: IO[bytes]) -> bool:
    """Return whether the file is a complete ELF program for x86_64 without a loader.

    Its headers may contain anything, so nothing outside of the file is read.
    """
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return False
    magic, bits, order, _, machine, _, _, table, _, _, _, size, count = _HEADER.unpack(head)
    if (magic, bits, order, machine, size) != (b"\x7fELF", 2, 1, _X86_64, _SEGMENT):
        return False
    if not count or table + count * _SEGMENT > file.seek(0, os.SEEK_END):
        return False
    file.seek(table)
    segments = (file.read(_SEGMENT) for _ in range(count))
    return all(not segment.startswith(_PT_INTERP) for segment in segments)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)  # a link would be followed on this host
    except OSError:
        return False


async def _version(program: str, argument: str, *, reason: str, package: str) -> str:
    if shutil.which(program) is None:
        message = f"this builder has no {program} to build syzkaller with: install {package}"
        raise UserError(reason, f"{message}; {_HINT}", tool=program)
    done = await proc.run([program, argument], timeout=30)
    return done.text.splitlines()[0]


def _refusal(why: str) -> UserError:
    return UserError(
        "syzkaller_does_not_build", f"syzkaller's source does not build: {why}; {_HINT}"
    )
