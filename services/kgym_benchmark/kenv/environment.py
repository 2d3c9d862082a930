"""One environment: a sandbox with the contents of Live-kBench's containers.

/linux        the kernel with the bug, a Git repository, as a writable overlay
/root         home folder: report.txt, reproducer.txt; task.txt combines both as the agent's task
/KBDr         initialize, run_kernel, agent-config, model-config; output/ gets patch.txt, traj.json

It has no network except the campaign's sockets, no token, and nothing of this machine except its
programs. The agent's output goes to log.txt.
"""

import asyncio
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Self

from kgym.api.steps.kernel import TEXT
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.host.sandbox import Overlay, Sandbox, prepare
from kgym.host.sandbox_limits import LimitExceeded, SandboxLimits
from kgym.host.scratch import scratch
from kgym.source import diff_text
from kgym.source.source_folder import SourceFolder
from kgym_benchmark.kenv import trees
from kgym_benchmark.kenv.door import Door
from kgym_benchmark.kenv.inside import programs
from kgym_benchmark.kenv.protocol import CommitFrom, instructions
from kgym_benchmark.kenv.trees import GIT

# The output files.
PATCH, TRAJECTORY, LOG = "patch.txt", "traj.json", "log.txt"
METADATA, ORACLE = "metadata.json", "oracle-files.txt"
DISK = 8 << 30
LOG_BYTES = 64 << 20
MOST_PATCH = 8 << 20
MOST_TRAJECTORY = 64 << 20
MOST_METADATA = 64 << 10
MODEL_PORT = 8400
# Bytes of a file whose content is part of an environment's digest: an agent may have a gigabyte.
_SMALL = 64 << 10
MODEL_SOCKET = "socket"
_NET, _DOOR, _MODEL = "net", "door", "model"
_DIFF_SECONDS = 600.0
_GITCONFIG = "[safe]\n\tdirectory = *\n[user]\n\tname = agent\n\temail = agent@localhost\n"
_USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:agent:/root:/bin/sh\n"
# Compares files in a repository of ours that borrows the original objects: the agent may have
# manipulated its own repository.
_DIFF = """set -e
(cd /base/.git; cp -r config HEAD info refs index /own/git)
mkdir -p /own/git/objects/info
echo /base/.git/objects >/own/git/objects/info/alternates
export GIT_DIR=/own/git GIT_WORK_TREE=/linux
git config core.bare false
git -c advice.addEmbeddedRepo=false -c core.hooksPath=/dev/null add -A .
git diff --cached --no-color --no-ext-diff --no-textconv --no-renames HEAD >/own/patch
"""


@dataclass(frozen=True, slots=True)
class Given:
    """What an agent gets, and its limits."""

    bug: str
    commit_from: CommitFrom = "parent"
    feedback: bool = False
    oracle_files: tuple[str, ...] | None = None
    """Files that the developers' fix changes; None hides them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders of this machine that it may read, by path in the sandbox."""
    agent_config: Path | None = None
    model_config: Path | None = None
    model_folder: Path | None = None
    """Contains the socket of the model's proxy; None leaves the agent without a model."""
    seconds: float = 7200.0
    limits: SandboxLimits = field(default_factory=SandboxLimits.of_host)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an agent's run; `error` says why it did not finish."""

    seconds: float
    status: int | None = None
    error: str | None = None


class Environment:
    """Context manager: an environment in `folder`, which must be new."""

    def __init__(self, folder: Path, tree: SourceFolder, door: Door, given: Given) -> None:
        self._folder = folder
        self._tree = tree
        self._door = door
        self._given = given
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            await asyncio.to_thread(self._prepare)
            # A Unix socket's path has at most 107 bytes (`sun_path`), so it is not in `folder`.
            net = stack.enter_context(scratch("kenv")) / _NET
            net.mkdir()
            net.chmod(0o755)
            self._net = net
            await stack.enter_async_context(self._door.on_socket(net / _DOOR))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await asyncio.to_thread(sandbox.remove, self._folder)

    async def run(self, command: Sequence[str], log: Path) -> Ended:
        """Initialize the environment and run an agent to its end; its output goes to `log`."""
        begun = asyncio.get_running_loop().time()
        status, error = None, None
        with log.open("ab") as file:
            try:
                done = await self._sandbox().run(
                    ["/KBDr/start", *command],
                    cwd=trees.PLACE,
                    env=self._variables(),
                    timeout=self._given.seconds,
                    on_line=_Log(file).add,
                    check=False,
                )
                status = done.returncode
                error = f"exit status {status}" if status else None
            except LimitExceeded as exceeded:
                error = exceeded.message
            except proc.ProgramTimedOut:
                error = f"it did not end within {self._given.seconds:g} s"
        return Ended(round(asyncio.get_running_loop().time() - begun, 3), status, error)

    async def patch(self) -> str:
        """Return the patch: the agent's patch.txt, or else the changes in the tree.

        Raises UserError `patch_too_large`, or as `kgym.source.diff_text` does.
        """
        own = _taken(self._output / PATCH, MOST_PATCH)
        if own is None or not own.strip():
            own = await self._changes()
        if len(own) > MOST_PATCH:
            raise UserError("patch_too_large", f"the agent's patch has over {MOST_PATCH >> 20} MiB")
        text = diff_text.decode(own, "the agent's patch")
        if len(text) > TEXT:
            raise UserError("patch_too_large", f"the agent's patch has over {TEXT} characters")
        return text

    def trajectory(self) -> bytes | None:
        """Return the agent's traj.json, if it wrote one."""
        return _taken(self._output / TRAJECTORY, MOST_TRAJECTORY)

    def digest(self, command: Sequence[str]) -> str:
        """Return a SHA-256 of what an agent finds: equal for equal environments."""
        given, case = self._given, self._door.case
        # A commit is a digest of all its files.
        commit = (self._tree.folder / ".git/refs/heads/master").read_text()
        calls = 0 if self._door.run is None else self._door.most_calls
        variables = {**self._variables(), "KENV_RUN": ""}
        ours = Path(str(programs.__file__)).read_text()
        texts = [commit, case.report, case.task, instructions(calls), ours]
        configs = [_listed(path) for path in (given.agent_config, given.model_config) if path]
        folders = {inside: _listed(folder) for inside, folder in given.folders.items()}
        parts = [texts, variables, configs, folders, list(map(str, _hidden())), list(command)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def metadata(self) -> bytes | None:
        """Return the agent's metadata.json, if it wrote one."""
        return _taken(self._output / METADATA, MOST_METADATA)

    @property
    def _output(self) -> Path:
        return self._folder / "KBDr" / "output"

    async def _changes(self) -> bytes:
        own = prepare(self._folder / "own")
        prepare(own / "git")
        box = Sandbox(
            readonly={"/base": self._tree.folder},
            overlays={trees.PLACE: self._overlay},
            writable={"/own": own},
            limits=self._limits,
        )
        await box.run(["sh", "-c", _DIFF], cwd=trees.PLACE, env=GIT, timeout=_DIFF_SECONDS)
        return _taken(own / "patch", MOST_PATCH + 1) or b""

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True)
        self._overlay = Overlay((self._tree.folder,), self._folder / "linux").create()
        home = prepare(self._folder / "root")
        (home / ".gitconfig").write_text(_GITCONFIG)
        self._etc()
        kbdr = self._folder / "KBDr"
        kbdr.mkdir()
        for name in (_NET, _MODEL):
            (kbdr / name).mkdir()
        prepare(kbdr / "output")
        if self._given.oracle_files is not None:
            lines = "".join(f"{file}\n" for file in self._given.oracle_files)
            (kbdr / ORACLE).write_text(lines)
        for name in programs.PROGRAMS:
            shutil.copy(str(programs.__file__), kbdr / name)
            (kbdr / name).chmod(0o755)
        for name, path in (
            ("agent-config", self._given.agent_config),
            ("model-config", self._given.model_config),
        ):
            if path is not None:
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, kbdr / name)

    def _etc(self) -> None:
        """Create the files of /etc that programs need: users, groups, hosts, alternatives."""
        etc = self._folder / "etc"
        (etc / "alternatives").mkdir(parents=True)
        (etc / "passwd").write_text(_USERS)
        (etc / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        (self._folder / "nothing").mkdir()

    @property
    def _limits(self) -> SandboxLimits:
        given = self._given
        disk = min(given.limits.disk, DISK)
        return replace(given.limits, disk=disk, output=LOG_BYTES, seconds=given.seconds)

    def _sandbox(self) -> Sandbox:
        own = self._folder
        readonly = {
            "/etc": own / "etc",
            **_if_there("/etc/alternatives"),
            # Empty folders in place of those that could contain a fix.
            **{str(path): own / "nothing" for path in _hidden()},
            "/KBDr": own / "KBDr",
            f"/KBDr/{_NET}": self._net,
            **self._given.folders,
        }
        if self._given.model_folder is not None:
            readonly[f"/KBDr/{_MODEL}"] = self._given.model_folder
        return Sandbox(
            readonly=readonly,
            writable={"/KBDr/output": self._output, "/root": own / "root"},
            overlays={trees.PLACE: self._overlay},
            limits=self._limits,
        )

    def _variables(self) -> dict[str, str]:
        given = self._given
        bridge = {}
        if given.model_folder is not None:
            bridge["KENV_MODEL_BRIDGE"] = f"{MODEL_PORT}:/KBDr/{_MODEL}/{MODEL_SOCKET}"
        # The campaign's variables come last, so that an adapter cannot replace them.
        return {
            "HOME": "/root",
            **given.environment,
            "KENV_SYZBOT_BUG_ID": given.bug,
            "KENV_COMMIT_FROM": given.commit_from,
            "KENV_STATEFUL_EDIT": "true" if given.feedback else "false",
            "KENV_ORACLE_MODE": "false" if given.oracle_files is None else "true",
            "KENV_KGYM_ENDPOINT": f"unix:/KBDr/{_NET}/{_DOOR}",
            **bridge,
        }


class _Log:
    """Writer of lines to a file; the sandbox's limit on output ends the agent."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, line: bytes) -> None:
        self._file.write(line + b"\n")


def _hidden() -> list[Path]:
    """Return folders below /usr that may contain a fix: of kernels, and our own bundles."""
    # Sources, binaries, symbols; a package's changelog lists the titles of all fixes.
    kernels = ("src", "lib/modules", "lib/debug", "share/doc")
    named = (*(Path("/usr", name) for name in kernels), CONFIGS.resolve())
    return [path for path in named if path.is_relative_to("/usr") and path.is_dir()]


def _listed(place: Path) -> list[list[object]]:
    """Return paths and sizes of the files of a folder, with the digests of small ones."""
    paths = sorted(path for path in (place, *place.rglob("*")) if path.is_file())
    return [[str(path.relative_to(place)), path.stat().st_size, _digest(path)] for path in paths]


def _digest(path: Path) -> str:
    if path.stat().st_size > _SMALL:
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _if_there(folder: str) -> dict[str, Path]:
    return {folder: Path(folder)} if Path(folder).is_dir() else {}


def _taken(path: Path, most: int) -> bytes | None:
    """Return a file written by the agent; None if it is missing, not regular, or too large."""
    # O_NOFOLLOW and O_NONBLOCK: the agent may have made a link to a file of this machine, or a pipe
    # that would block the campaign.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = file.read(most + 1)
    return data if len(data) <= most else None
