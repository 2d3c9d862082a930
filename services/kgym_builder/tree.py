"""A kernel tree in use: a private writable overlay of cached, read-only layers.

Everything that reads or writes the tree runs in the sandbox, at one fixed path
inside it, so that neither the host nor the cached layers can be touched and
kbuild finds the paths it wrote down in an earlier build.
"""

import io
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kgym import proc
from kgym.errors import InfrastructureError, UserError
from kgym.patch import Change
from kgym.sandbox import Overlay, Sandbox, prepare, remove

PLACE = "/kgym/linux"
MAKE_SECONDS = 4 * 3600.0
STEP_SECONDS = 600.0

# Copies the regular files among the arguments to /out; prints those that are
# reached through a symbolic link, which a change must not follow.
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


class Tree:
    """A kernel tree whose changes go to `folder`; `lower` are the layers below, topmost first."""

    def __init__(self, lower: Sequence[Path], folder: Path) -> None:
        self.overlay = Overlay(tuple(lower), folder).create()
        self._exchange = folder / "exchange"

    async def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the content of the files that exist; refuse one behind a symbolic link."""
        out = prepare(self._exchange / str(time.monotonic_ns()))
        wanted = list(paths)
        sandbox = Sandbox(overlays={PLACE: self.overlay}, writable={"/out": out})
        argv = ["sh", "-c", _COPY_OUT, "sh", *wanted]
        done = await sandbox.run(argv, cwd=PLACE, timeout=STEP_SECONDS)
        if links := done.text.split():
            raise UserError(
                "unsafe_patch", f"{links[0]} is, or lies behind, a symbolic link", file=links[0]
            )
        return {path: (out / path).read_bytes() for path in wanted if (out / path).is_file()}

    async def write(self, changes: Sequence[Change]) -> None:
        """Write and remove files; what is written is newer than every object file."""
        sandbox = Sandbox(overlays={PLACE: self.overlay})
        gone = [change.path for change in changes if change.content is None]
        if gone:
            await sandbox.run(["rm", "-f", "--", *gone], cwd=PLACE, timeout=STEP_SECONDS)
        await sandbox.run(
            ["tar", "-xf", "-", "-C", PLACE, "--no-same-owner", "--unlink-first"],
            stdin=_archive(changes),
            timeout=STEP_SECONDS,
        )

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = STEP_SECONDS,  # noqa: ASYNC109 - as in proc.run
        on_line: Callable[[bytes], None] | None = None,
        check: bool = True,
    ) -> proc.Completed:
        """Run a program in the tree."""
        sandbox = Sandbox(overlays={PLACE: self.overlay})
        return await sandbox.run(argv, cwd=PLACE, timeout=timeout, on_line=on_line, check=check)

    async def export(self, paths: Iterable[str], folder: Path) -> list[Path]:
        """Copy files out of the tree, flat; return those that exist."""
        out = prepare(folder)
        sandbox = Sandbox(overlays={PLACE: self.overlay}, writable={"/out": out})
        found = []
        for path in paths:
            argv = ["cp", "-L", "--no-preserve=mode", "-t", "/out", "--", path]
            done = await sandbox.run(argv, cwd=PLACE, timeout=STEP_SECONDS, check=False)
            copy = out / Path(path).name
            if done.returncode == 0 and copy.is_file() and not copy.is_symlink():
                found.append(copy)
            elif "No space left" in done.text:
                raise InfrastructureError("disk_full", f"cannot copy {path}: the disk is full")
        return found

    def discard_work(self) -> None:
        """Remove all but the changes, which can then serve as a layer."""
        remove(self.overlay.folder / "work")
        remove(self._exchange)


def _archive(changes: Sequence[Change]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for change in changes:
            if change.content is None:
                continue
            member = tarfile.TarInfo(change.path)
            member.size = len(change.content)
            member.mode = 0o755 if change.executable else 0o644
            member.mtime = time.time()
            archive.addfile(member, io.BytesIO(change.content))
    return buffer.getvalue()
