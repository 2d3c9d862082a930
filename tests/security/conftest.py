"""A worker under attack: a builder, and whether it still does honest work the same way."""

import asyncio
import difflib
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kgym.api import steps
from kgym.errors import KgymError
from kgym.host import sandbox
from kgym.host.sandbox_limits import SandboxLimits
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.build.build_step import Builder
from kgym_builder.check.check_step import Checker
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.conftest import ANYWHERE, ROOT, attempt

# Far below what the attacks would take if nobody stopped them.
SMALL = SandboxLimits(
    memory=512 << 20, processes=100, disk=64 << 20, files=3000, output=2 << 20, seconds=60
)

HONEST = steps.Patch(
    edits=[steps.Edit(file="kernel/fork.c", original="parent + 1", replacement="parent + 2")]
)

_SCRIPT = "cc -std=gnu11 -o /tmp/attack scripts/attack.c || exit\n"
_RECIPE = "@objcopy -S $< $@"
_HOST_PROGRAM = """
scripts/attack: scripts/attack.c
\t@$(CC) -std=gnu11 -o $@ $<
scripts/attacked: scripts/attack
\t@{run}
arch/x86/boot/bzImage: scripts/attacked
"""


def added(path: str, text: str) -> str:
    """Return the diff that adds a file."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}"


def changed(path: str, original: str, replacement: str) -> str:
    """Return the diff that replaces a text where it first stands in a file of the small tree."""
    old = (ROOT / "tests" / "fakelinux" / path).read_text()
    new = old.replace(original, replacement, 1).splitlines(keepends=True)
    names = (f"a/{path}", f"b/{path}")
    return "".join(difflib.unified_diff(old.splitlines(keepends=True), new, *names))


def hostile(way: str, *names: str, macros: Mapping[str, object] | None = None) -> steps.Patch:
    """Return the patch that makes the attacks in the given way: one of WAYS."""
    planted = {"SECRET": "/", "OUTSIDE": "/x", "PORT": 1, "ABSTRACT": "x", "DAEMON": "61"}
    defines = "".join(
        f"#define {k} {json.dumps(v)}\n" for k, v in (planted | dict(macros or {})).items()
    )
    program = defines + Path(__file__).with_name("attack.c").read_text()
    script = _SCRIPT + "".join(f"/tmp/attack {name} >&2\n" for name in names)
    diff = added("scripts/attack.c", program) + added("scripts/attack.sh", script)
    run = "; ".join(f"scripts/attack {name}" for name in names)
    # Not again in the make that make starts anew each time it has made a file that it includes.
    once = "$(if $(MAKE_RESTARTS),,$(shell sh scripts/attack.sh))"
    file, original, replacement = {
        "a recipe": ("Makefile", _RECIPE, f"@sh scripts/attack.sh\n\t{_RECIPE}"),
        "a shell function": ("Makefile", "VERSION", f"X := {once}\nVERSION"),
        "a host program": ("Makefile", "\n%.o:", _HOST_PROGRAM.format(run=run) + "\n%.o:"),
        "a Kconfig macro": ("Kconfig", "EXTRA\n", "EXTRA\n$(shell,sh scripts/attack.sh)\n"),
    }[way]
    return steps.Patch(diff=diff + changed(file, original, replacement))


# How a patch runs a program at build time.
WAYS = ("a recipe", "a shell function", "a host program", "a Kconfig macro")


@dataclass(frozen=True, slots=True)
class Suffered:
    """What is known after an attack: the build's log, and the error in which the step ended."""

    log: str
    error: KgymError | None


class Victim:
    """A worker's builder, what it keeps in its folder, and what it shares with other workers."""

    def __init__(self, folder: Path, build: steps.BuildSpec) -> None:
        self.folder = folder
        self.build = build
        # The hashes of honest work before any attack.
        self.kernels: list[str] = []

    async def builds(
        self, *patches: steps.Patch, limits: SandboxLimits = SMALL, cache: str = "cache"
    ) -> tuple[Suffered, str]:
        """Build with the patches; return also the hash of vmlinux, if there is one."""
        spec = self.build.model_copy(update={"patches": list(patches)})
        suite, run = self._attempt(spec, limits, cache)
        error = None
        try:
            with run.held:
                result = await Builder(suite)(run)
            assert not result.memoised
            assert result.tree_cached or not self.kernels
        except KgymError as caught:
            error = caught
        artifacts = {artifact.name: artifact for artifact in run.artifacts}
        text = ""
        if log := artifacts.get("build.log"):
            text = (self.folder / "storage" / log.key).read_text(errors="replace")
        sandbox.remove(run.folder)  # as the worker does
        assert not run.folder.exists()
        return Suffered(text, error), artifacts["vmlinux"].sha256 if "vmlinux" in artifacts else ""

    async def suffers(self, patch: steps.Patch, limits: SandboxLimits = SMALL) -> Suffered:
        """Build with a hostile patch."""
        return (await self.builds(patch, limits=limits))[0]

    async def works(self) -> list[str]:
        """Return the hashes of an unpatched kernel, and of a patched one of another worker."""
        if not self.kernels:
            await self.builds()
        await LocalStorage(self.folder / "storage").remove("memo")  # all is to be done anew
        other = "cache of another worker"
        (_, unpatched), (_, patched) = await asyncio.gather(
            self.builds(), self.builds(HONEST, cache=other)
        )
        sandbox.remove(self.folder / other)
        return [unpatched, patched]

    async def check(
        self, *patches: steps.Patch, base: Sequence[steps.Patch] = (), limits: SandboxLimits = SMALL
    ) -> list[steps.PatchCheck]:
        """Check the patches, in one step; nothing is answered from what was found out before."""
        kernel = self.build.model_dump(include=set(steps.Kernel.model_fields))
        kernel["cache"] = "fresh"
        spec = steps.CheckSpec(**kernel, base=list(base), patches=list(patches))
        suite, run = self._attempt(spec, limits, "cache")
        try:
            with run.held:
                return (await Checker(suite, self.folder / "cache")(run)).patches
        finally:
            sandbox.remove(run.folder)
            assert not run.folder.exists()

    def _attempt(
        self, spec: steps.StepSpec, limits: SandboxLimits, cache: str
    ) -> tuple[SuiteCache, StepContext]:
        backports = ROOT / "configs" / "backports"
        suite = SuiteCache(self.folder / cache, backports, limits, origins=ANYWHERE)
        return suite, attempt(self.folder, spec)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, fake_source: steps.TarballSource) -> Victim:
    """The worker that all attacks of a file hit, one after the other."""
    config = steps.KernelConfig(base="allnoconfig", fragments=["CONFIG_BASE=y\n"])
    build = steps.BuildSpec(source=fake_source, config=config)
    return Victim(tmp_path_factory.mktemp("worker"), build)


@pytest.fixture
async def victim(worker: Victim) -> AsyncIterator[Victim]:
    """A worker that has to do the same honest work after an attack as before it."""
    if not worker.kernels:
        worker.kernels = await worker.works()
        assert len({*worker.kernels, ""}) == 3
    yield worker
    assert await worker.works() == worker.kernels


@dataclass(frozen=True, slots=True)
class Planted:
    """What waits on the worker's host for an intruder."""

    words: str
    outside: Path
    listeners: tuple[socket.socket, ...]
    macros: dict[str, object]

    def visited(self) -> bool:
        """Tell whether somebody connected."""
        for listener in self.listeners:
            try:
                listener.accept()
            except BlockingIOError:
                continue
            return True
        return False


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    words = f"secret-{os.getpid()}-{os.urandom(8).hex()}"
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    secret = home / ".netrc"
    secret.write_text(words)
    monkeypatch.setenv("KGYM_TOKEN", words)
    monkeypatch.setenv("HOME", str(home))
    outside = home / "pwned"
    name = f"kgym-{words[-8:]}"
    with (
        secret.open() as file,
        socket.create_server(("127.0.0.1", 0)) as internet,
        socket.socket(socket.AF_UNIX) as local,
    ):
        os.set_inheritable(file.fileno(), True)
        local.bind(f"\0{name}")
        local.listen()
        for listener in (internet, local):
            listener.setblocking(False)
        macros: dict[str, object] = {
            "SECRET": str(secret),
            "OUTSIDE": str(outside),
            "PORT": internet.getsockname()[1],
            "ABSTRACT": name,
        }
        yield Planted(words, outside, (internet, local), macros)
