"""Compile objects in a tree, with one start of the sandbox for a batch of them.

The sandbox gets an archive: the changed files at their places, and a script for each job below
/tmp/kgym. It returns an archive with the results.
"""

import io
import os
import re
import shlex
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from kgym.errors import UserError
from kgym.host import proc, sandbox_limits
from kgym.source.patching import Change
from kgym_builder.kbuild.saved_commands import depfile_paths
from kgym_builder.kbuild.working_tree import PLACE, Tree

# Seconds for one object; the kernel's slowest one takes about ten.
OBJECT_SECONDS = 300.0
MAKE_SECONDS = 3600.0
_BATCH = 100
_OBJECT_OUTPUT = 32 << 10
# Bytes of output that are kept; those of a batch stay below the limit of `proc.run`.
_MAKE_OUTPUT = 4 << 20
_WORK = "/tmp/kgym"  # noqa: S108 - the sandbox's own
# Exit status of compile_all.sh.
_NOT_WRITTEN = 90
_RUN = Path(__file__).with_name("compile_all.sh").read_text()
# Prints `WHEN OBJECT SYMBOL INSTRUCTIONS` for each part of the wanted functions of an object;
# `f.isra.0`, `f.cold` and the like are parts of `f`. Objdump gets the range of each part, as there
# is padding between them.
_JOB = Path(__file__).with_name("compile_job.sh").read_text()


@dataclass(frozen=True, slots=True)
class CompileCommands:
    """Commands that run in sequence until one fails, and the objects that they make.

    In `objects`, the instructions of the wanted functions are counted before and after.
    """

    commands: Sequence[Sequence[str]]
    objects: Sequence[str]
    depfile: str | None = None
    seconds: float = OBJECT_SECONDS
    output: int = _OBJECT_OUTPUT


def make_commands(commands: Sequence[Sequence[str]], objects: Sequence[str]) -> CompileCommands:
    """Return a job of make commands."""
    return CompileCommands(commands, objects, None, MAKE_SECONDS, _MAKE_OUTPUT)


# Instructions by object and symbol.
Counts = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of a job. Jobs that were not started have none."""

    status: int
    output: str
    before: Counts
    after: Counts
    dependencies: frozenset[str]

    @property
    def killed(self) -> bool:
        """Whether a limit or an unreadable tree ended the job: neither success nor failure."""
        return self.status in {124, 137} or bool(_EXHAUSTED.search(self.output))

    @property
    def unreadable(self) -> bool:
        """Whether the tree seems unreadable; a patch can print the same, so this proves nothing."""
        return self.status != 0 and bool(_UNREADABLE.search(self.output))


_BLOCK = 512
_REGULAR = b"0"
_NUMBER = re.compile(r"[0-9]{1,9}")
_EXHAUSTED = re.compile(
    r"(?m)^.*(?:(?:Killed|Terminated|File size limit exceeded|CPU time limit exceeded)"
    r" signal terminated program \w+"
    r"|: (?:out of memory .*|virtual memory exhausted.*|Cannot allocate memory"
    r"|No space left on device|Disk quota exceeded|File too large|Input/output error"
    r"|Transport endpoint is not connected|Cannot fork|Resource temporarily unavailable))$"
)
_UNREADABLE = re.compile(r"(?m): (?:Input/output error|Transport endpoint is not connected)$")


@dataclass(frozen=True, slots=True)
class CompileBatch:
    """Jobs on changed files; if `first` fails, the others are skipped."""

    changes: Sequence[Change]
    jobs: Sequence[CompileCommands]
    first: CompileCommands | None = None
    symbols: Sequence[str] = ()


@dataclass(slots=True)
class CompileResults:
    """The results, by the jobs' positions."""

    first: CompileResult | None = None
    jobs: dict[int, CompileResult] = field(default_factory=dict)


async def compiled(tree: Tree, work: CompileBatch, processes: int) -> CompileResults:
    """Write the changes to the tree and run the jobs, `processes` at a time.

    Raises UserError `patch_does_not_apply` if the tree cannot take a file, and `sandbox_limit`.
    """
    outcome = CompileResults()
    work = replace(work, changes=await tree.with_modes(work.changes))
    places = iter(range(len(work.jobs)))
    batch = list(islice(places, _BATCH))
    first = True
    while first or batch:
        archive = _archive(work, batch, first=first)
        seconds = MAKE_SECONDS + 2 * OBJECT_SECONDS * len(batch)
        argv = ["sh", "-c", _RUN, "sh", str(processes), _WORK]
        try:
            done = await tree.run(argv, timeout=seconds, stdin=archive, check=False)
        except proc.ProgramTimedOut:  # jobs have limits, but a program that make runs can block one
            raise sandbox_limits.exceeded("time", f"{seconds:g} s", "not at its end") from None
        if done.returncode == _NOT_WRITTEN:
            last = done.text.strip().splitlines()[-1:]
            message = f"the tree cannot take the changed files: {''.join(last)}"
            raise UserError("patch_does_not_apply", message)
        results = _results(done.output)
        outcome.first = outcome.first or results.pop("first", None)
        outcome.jobs |= {n: results[str(n)] for n in batch if str(n) in results}
        if outcome.first is not None and outcome.first.status != 0:
            break
        first, batch = False, list(islice(places, _BATCH))
    return outcome


def _archive(work: CompileBatch, places: Sequence[int], *, first: bool) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content, executable in _members(work, places, first=first):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size = len(content)
            member.mode = 0o755 if executable else 0o644
            member.mtime = time.time()  # newer than every object file
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _members(
    work: CompileBatch, places: Sequence[int], *, first: bool
) -> Iterator[tuple[str, bytes, bool]]:
    changes = work.changes if first else ()
    gone = [f"{PLACE}/{change.path}\0" for change in changes if change.content is None]
    yield f"{_WORK}/gone", _encode("".join(gone)), False
    for change in changes:
        if change.content is not None:
            yield f"{PLACE}/{change.path}", change.content, change.executable
    yield f"{_WORK}/job", _JOB.encode(), False
    yield f"{_WORK}/symbols", _lines(work.symbols), False
    yield f"{_WORK}/jobs", _lines(map(str, places)), False
    if first and work.first is not None:
        yield f"{_WORK}/first", b"", False
        yield from _job("first", work.first)
    for place in places:
        yield from _job(str(place), work.jobs[place])


def _job(name: str, job: CompileCommands) -> Iterator[tuple[str, bytes, bool]]:
    script = " &&\n".join(shlex.join(command) for command in job.commands)
    limits = f"{job.seconds:g} {job.output} {job.depfile or ''}"
    for suffix, lines in (("run", [script]), ("objects", job.objects), ("limits", [limits])):
        yield f"{_WORK}/{name}.{suffix}", _lines(lines), False


def _lines(lines: Iterable[str]) -> bytes:
    return _encode("".join(f"{line}\n" for line in lines))


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _results(archive: bytes) -> dict[str, CompileResult]:
    files: dict[str, dict[str, str]] = defaultdict(dict)
    for path, content in _files(archive):
        name, suffix = os.path.splitext(path)
        files[name][suffix] = content[:_MAKE_OUTPUT].decode(errors="replace")
    # A program that make ran can end the sandbox: jobs without a status were not done.
    return {
        name: _done(outputs)
        for name, outputs in files.items()
        if outputs.get(".status", "").strip()
    }


def _files(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Read the regular files of an archive, up to the first oddity (POSIX pax(1), ustar).

    A program that make ran can have written it. `tarfile` would trust its sizes, even those of
    sparse files and compressed archives.
    """
    at = 0
    while at + _BLOCK <= len(archive):
        header, start = archive[at : at + _BLOCK], at + _BLOCK
        name, digits, kind = header[:100].rstrip(b"\0"), header[124:135], header[156:157]
        if kind != _REGULAR or not re.fullmatch(rb"[0-7]+", digits):
            return
        at = start + int(digits, 8)
        if at > len(archive):
            return
        yield name.decode("ascii", "replace"), archive[start:at]
        at += -at % _BLOCK


def _done(files: Mapping[str, str]) -> CompileResult:
    counts: dict[str, dict[tuple[str, str], int]] = {"before": {}, "after": {}}
    for line in files.get(".counts", "").splitlines():
        words = line.split()
        if len(words) == 4 and words[0] in counts and _NUMBER.fullmatch(words[3]):
            when, obj, symbol, number = words
            parts = counts[when]
            parts[obj, symbol] = parts.get((obj, symbol), 0) + int(number)
    status = files[".status"].strip()
    return CompileResult(
        status=int(status) if _NUMBER.fullmatch(status) else 1,
        output=files.get(".out", ""),
        before=counts["before"],
        after=counts["after"],
        dependencies=frozenset(depfile_paths(files.get(".d", ""), PLACE)),
    )
