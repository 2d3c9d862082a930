"""Objects of a commit in a repository on this host, and the commit's files as an archive.

A commit's files are counted and measured before they are written: with shared folders, a few
objects can stand for more files than any disk holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kgym.errors import InfrastructureError, UserError
from kgym.host.sandbox import Sandbox, prepare
from kgym_builder.kernel_source import git_program
from kgym_builder.kernel_source.git_program import OBJECT_ID, Answer, Suspect
from kgym_builder.kernel_source.source_limits import SourceLimits

ARCHIVE = "source.tar"
LOOK_SECONDS = 300.0
_OUT = "/kgym/out"
# Bytes of a line that names a file: more than the longest path of this host.
_LONGEST = 4000
# Exit statuses of git_missing.sh and git_pack.sh.
_ABSENT, _NO_COMMIT, _MANY, _LARGE, _LONG, _ODD = 3, 4, 5, 6, 7, 8
# Hashes each object: a damaged one may claim to be of any kind. Whether a commit is complete is
# looked up, not recorded, so it stays right after an aborted fetch or a loss of objects.
_MISSING = Path(__file__).with_name("git_missing.sh").read_text()
# Folders count like files. Names that Git itself does not write (its own folder, paths that lead
# elsewhere) are refused, and so are two files of one name. A bare repository has no work tree with
# attributes, so --worktree-attributes keeps Git from reading those of the commit, which could
# change files, leave some out, or be so many that matching takes hours.
_PACK = Path(__file__).with_name("git_pack.sh").read_text()


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a repository; `shown` are its mounts in a sandbox, `inside` its path there."""

    shown: Mapping[str, Path]
    inside: str
    bounds: SourceLimits

    async def missing(self, commit: str) -> list[str] | None:
        """Return the ids of the commit's missing objects; None if its tree is missing.

        Raises UserError `source_not_found` if the id is not that of a commit, `source_too_large`;
        Suspect.
        """
        answer = await self._script("rev-list", _MISSING, commit, self._box)
        if answer.done.returncode == _ABSENT:
            return None
        if answer.done.returncode == _NO_COMMIT:
            raise UserError("source_not_found", f"{commit} is the id of an object, but no commit")
        self._check("rev-list", commit, answer)
        if odd := [line for line in answer.lines if not OBJECT_ID.fullmatch(line)]:
            raise Suspect(f"`git rev-list` of {commit} printed {odd[0][:100]!r}")
        return answer.lines

    async def resolve(self, name: str) -> str | None:
        """Return the id of a commit before another one, such as `ID~2`; None if it is unknown."""
        words = ("rev-parse", "-q", "--verify", "--end-of-options", name)
        answer = await self.ask("rev-parse", git_program.command(*words, folder=self.inside))
        commit = answer.lines[0] if len(answer.lines) == 1 else ""
        return commit if answer.done.returncode == 0 and OBJECT_ID.fullmatch(commit) else None

    async def archive(self, commit: str, out: Path) -> Path:
        """Write the files of a whole commit to the new archive `source.tar` in `out`.

        Raises UserError `source_too_large`, `source_unreadable`, InfrastructureError
        `download_failed`; Suspect.
        """
        writable = {_OUT: prepare(out)}
        box = Sandbox(readonly=self.shown, writable=writable, limits=self.bounds.unpacking())
        answer = await self._script("archive", _PACK, commit, box, self.bounds.unpack_seconds)
        if answer.done.returncode == _ODD:
            name = "".join(answer.lines)[:100]
            message = f"{commit} has a file {name!r} with a name that Git refuses, or two of them"
            raise UserError("source_unreadable", message)
        self._check("archive", commit, answer)
        archive = out / ARCHIVE
        if archive.is_symlink() or not archive.is_file():
            raise InfrastructureError("download_failed", "`git archive` left no archive")
        return archive

    async def ask(self, name: str, argv: list[str], stdin: bytes = b"") -> Answer:
        """Run a read-only command on the repository."""
        return await git_program.ask(name, self._box, argv, LOOK_SECONDS, stdin)

    async def _script(
        self, name: str, script: str, commit: str, box: Sandbox, seconds: float = LOOK_SECONDS
    ) -> Answer:
        argv = ["bash", "-o", "pipefail", "-c", script, "bash"]
        argv += git_program.command(folder=self.inside)
        named = {"COMMIT": commit, "OUT": f"{_OUT}/{ARCHIVE}", "LONGEST": str(_LONGEST)}
        named |= {"MOST": str(self.bounds.files), "BYTES": str(self.bounds.tree)}
        return await git_program.ask(name, box, argv, seconds, b"", commit, **named)

    def _check(self, name: str, commit: str, answer: Answer) -> None:
        bounds = self.bounds
        too_large = {
            _MANY: f"it has more than the {bounds.files} files and folders that are allowed",
            _LARGE: f"its files have more than the {bounds.tree} bytes that are allowed",
        }
        status = answer.done.returncode
        if status in too_large:
            raise UserError("source_too_large", f"{commit} is too large: {too_large[status]}")
        if status == _LONG:
            raise UserError("source_unreadable", f"{commit} has a file with too long a path")
        if status != 0:
            error = git_program.failed(name, commit, answer.done)
            raise error if git_program.blames_host(answer.done) else Suspect(error.message)

    @property
    def _box(self) -> Sandbox:
        return Sandbox(readonly=self.shown, limits=self.bounds.looking())
