"""A kernel tree in use: a private writable overlay of cached, read-only layers.

All programs that read or write the tree run in the sandbox, where the tree is always at the same
path. So nothing can touch the host or the cached layers, and the paths that kbuild wrote down in an
earlier build stay valid.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc
from kgym.host.sandbox import Layer, Overlay, Sandbox, prepare, remove
from kgym.host.sandbox_limits import SandboxLimits
from kgym.source.change_archive import archive
from kgym.source.patching import Change

PLACE = "/kgym/linux"
STEP_SECONDS = 600.0
# Bytes that `read` returns at most; the largest file of a kernel's source has 16 MiB.
MOST_READ = 256 << 20
# Files of the same name that are considered for a file that a patch names at a wrong path.
_MOST_OF_A_NAME = 50

# Copies the regular files among the arguments to /out; prints paths that lead through a symbolic
# link, which a change must not follow.
_COPY_OUT = """
for path; do
    part=$path
    while :; do
        [ -L "$part" ] && { printf '%s\\n' "$path"; continue 2; }
        case $part in */*) part=${part%/*} ;; *) break ;; esac
    done
    [ -f "$path" ] && cp --parents -t /out -- "$path"
done
:
"""
_EXECUTABLE = """
for path; do
    [ ! -L "$path" ] && [ -f "$path" ] && [ -x "$path" ] && printf '%s\\0' "$path"
done
:
"""
# Suffixes of files that are never executable: their modes need no look-up.
_NEVER_RUN = (".c", ".h", ".S", ".rs", ".dts", ".dtsi", ".rst", "Makefile", "Kconfig")
# Not sparse, so that the sandbox's disk limit counts the full size that storage will need.
_COPY_FLAT = """
for path; do
    [ ! -f "$path" ] || cp -L --sparse=never --no-preserve=mode -t /out -- "$path" || exit 1
done
"""


class Tree:
    """A kernel tree whose changes go to `folder`; `lower` are the layers below, topmost first.

    `root` has the programs that work on the tree; by default, the host's are used.
    """

    def __init__(
        self,
        lower: Sequence[Layer],
        folder: Path,
        limits: SandboxLimits | None = None,
        *,
        root: Layer | None = None,
    ) -> None:
        self.overlay = Overlay(tuple(lower), folder).create()
        self._limits = limits
        self._root = root
        self._exchange = folder / "exchange"

    async def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the files that exist; refuse paths behind a symbolic link."""
        files, links = await self.look(paths)
        for path in links:
            raise behind_link(path)
        return files

    async def look(self, paths: Iterable[str]) -> tuple[dict[str, bytes], list[str]]:
        """Return the contents of the files that exist, and the paths behind a symbolic link."""
        out = prepare(self._exchange / str(time.monotonic_ns()))
        wanted = list(paths)
        done = await self.run_on(wanted, "sh", "-c", _COPY_OUT, "sh", out=out)
        copies = {path: out / path for path in wanted if (out / path).is_file()}
        if sum(copy.stat().st_size for copy in copies.values()) > MOST_READ:
            raise UserError(
                "files_too_large", f"{', '.join(wanted[:3])}, … have over {MOST_READ >> 20} MiB"
            )
        contents = {path: copy.read_bytes() for path, copy in copies.items()}
        return contents, done.text.splitlines()

    async def find(self, names: Iterable[str]) -> list[str]:
        """Return the paths of the files with these names, except names that too many files have."""
        # Other names could be patterns of find.
        plain = [name for name in names if re.fullmatch(r"[\w.+-]{1,200}", name, re.ASCII)]
        tests = [word for name in plain for word in ("-o", "-name", name)][1:] or ["-false"]
        argv = ["find", ".", "-type", "f", "(", *tests, ")", "-printf", "%P\\n"]
        paths = sorted((await self.run(argv)).text.splitlines(), key=_name)
        groups = (list(group) for _, group in groupby(paths, _name))
        return [path for group in groups if len(group) <= _MOST_OF_A_NAME for path in group]

    async def with_modes(self, changes: Sequence[Change]) -> list[Change]:
        """Return the changes with the executable bits of files whose mode a patch leaves alone."""
        # A patch that does not mention a file's mode keeps it. Only the tree knows the mode.
        asked = sorted(
            {
                change.mode_of
                for change in changes
                if change.mode_of and not change.mode_of.endswith(_NEVER_RUN)
            }
        )
        if not asked:
            return list(changes)
        done = await self.run_on(asked, "sh", "-c", _EXECUTABLE, "sh")
        executable = set(done.output.decode(errors="surrogateescape").split("\0"))
        return [
            replace(change, executable=change.mode_of in executable) if change.mode_of else change
            for change in changes
        ]

    async def write(self, changes: Sequence[Change]) -> None:
        """Write and remove files; written ones are newer than all objects, so make sees them."""
        changes = await self.with_modes(changes)
        removed = [change.path for change in changes if change.content is None]
        if gone := [*removed, *orphans(changes)]:
            await self.run_on(gone, "rm", "-f", "--")
        argv = ["tar", "-xf", "-", "--no-same-owner", "--unlink-first"]
        try:
            await self.run(argv, stdin=archive(changes))
        except proc.ProgramFailed as error:
            raise UserError(
                "patch_does_not_apply", f"the tree cannot take the changed files: {error.message}"
            ) from error

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = STEP_SECONDS,  # noqa: ASYNC109 - as in Sandbox.run
        stdin: bytes = b"",
        on_line: Callable[[bytes], None] | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        out: Path | None = None,
        most_output: int | None = None,
    ) -> proc.Completed:
        """Run a program in the tree; it may write to the folder `out`, at /out.

        `most_output` raises the limit for a program with much output, of which `on_line` keeps
        little.
        """
        return await self._sandbox(out, most_output).run(
            argv, cwd=PLACE, timeout=timeout, stdin=stdin, on_line=on_line, check=check, env=env
        )

    async def run_on(
        self, paths: Iterable[str], *argv: str, out: Path | None = None
    ) -> proc.Completed:
        """Run a program with these paths as its last arguments: once, or more often for many."""
        stdin = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
        return await self.run(["xargs", "-0r", *argv], stdin=stdin, out=out)

    async def export(self, paths: Iterable[str], folder: Path) -> list[Path]:
        """Copy files out of the tree, flat; return those that exist."""
        out, wanted = prepare(folder), list(paths)
        argv = ["sh", "-c", _COPY_FLAT, "sh", *wanted]
        done = await self._sandbox(out).run(argv, cwd=PLACE, timeout=STEP_SECONDS, check=False)
        done.check()
        copies = [out / Path(path).name for path in wanted]
        return [copy for copy in copies if copy.is_file() and not copy.is_symlink()]

    def with_hosts_programs(self) -> "Tree":
        """Return the same tree for use with the host's programs."""
        return Tree(self.overlay.lower, self.overlay.folder, self._limits)

    def discard_work(self) -> None:
        """Remove everything except the changes, which can then serve as a layer."""
        remove(self.overlay.folder / "work")
        remove(self._exchange)

    def _sandbox(self, out: Path | None = None, most_output: int | None = None) -> Sandbox:
        writable = {} if out is None else {"/out": out}
        limits = self._limits
        if most_output is not None:
            limits = replace(limits or SandboxLimits.of_host(), output=most_output)
        return Sandbox(
            overlays={PLACE: self.overlay}, writable=writable, root=self._root, limits=limits
        )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def orphans(changes: Iterable[Change]) -> list[str]:
    """Return the objects whose sources are removed: make would go on linking them."""
    paths = (change.path for change in changes if change.content is None)
    return [f"{path[:-2]}.o" for path in paths if path.endswith((".c", ".S"))]


def behind_link(path: str) -> UserError:
    """Return the error of a patch that would follow a symbolic link."""
    return UserError("unsafe_patch", f"{path} is, or lies behind, a symbolic link", file=path)
