"""Reading dumps and traces in confined processes, one for each."""

import asyncio
import os
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

import kgym
from kgym.api.steps import MinimalTrace
from kgym.errors import InfrastructureError
from kgym.host import proc
from kgym.host.sandbox import Sandbox, prepare
from kgym_tracer.reader_request import ANSWER, MINIMAL, PARTS, Answer, Minimize, Request

SECONDS = 600.0
# Bytes of an answer that are read.
MOST_JSON = 64 << 20
# Memory that is written to (bytes); address space, in which dump and vmlinux are mapped.
_LIMITS = (f"--data={6 << 30}", f"--as={64 << 30}")

_IN, _OUT = "/kgym/in", "/kgym/out"


async def look_into(
    source: Path,
    out: Path,
    *,
    vmlinux: Path | None = None,
    report: str | None = None,
    minimize: Minimize | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Read a dump or a trace; leave what is found in the new folder `out`.

    What could not be read is told in the answer's parts. Raises
    InfrastructureError if the process as a whole fails before its first part.
    """
    prepare(out)
    request = Request(
        source=Path(_IN, "0", source.name),
        vmlinux=None if vmlinux is None else Path(_IN, "1", vmlinux.name),
        report=report,
        minimize=minimize,
        out=Path(_OUT),
    )
    given = [one for one in (source, vmlinux) if one is not None]
    with tempfile.TemporaryDirectory(prefix=".kgym-", dir=out.parent) as folder:
        readonly = await asyncio.to_thread(_readable, given, Path(folder))
        said = await _run(request, readonly, out, seconds)
    return _answer(out, said)


async def _run(request: Request, readonly: dict[str, Path], out: Path, seconds: float) -> str:
    """Let the process do what is asked; return the end of what it said."""
    folders = dict.fromkeys(_python_folders())
    box = Sandbox(
        readonly={**{str(folder): folder for folder in folders}, **readonly},
        writable={_OUT: out},
    )
    try:
        done = await box.run(
            ["prlimit", *_LIMITS, "--", sys.executable, "-m", "kgym_tracer.dump_reader"],
            timeout=seconds,
            stdin=request.model_dump_json().encode(),
            check=False,
            env={"PYTHONPATH": os.pathsep.join(map(str, folders)), "OPENBLAS_NUM_THREADS": "1"},
        )
    except proc.ProgramTimedOut as error:
        return error.message
    return done.text[-1000:]


def _readable(given: list[Path], folder: Path) -> dict[str, Path]:
    """Return, by their places inside, the folders in which nobody can read the files.

    Started by root, the process runs as another user: what only root may read, as
    the dumps that QEMU writes, is copied.
    """
    shown = {}
    for number, path in enumerate(given):
        parent = path.parent.resolve()
        open_to_all = path.stat().st_mode & 0o004 and parent.stat().st_mode & 0o005 == 0o005
        if os.geteuid() == 0 and not open_to_all:
            parent = folder / str(number)
            parent.mkdir()
            shutil.copyfile(path, parent / path.name)
            (parent / path.name).chmod(0o644)
            parent.chmod(0o755)
        shown[f"{_IN}/{number}"] = parent
    return shown


def minimal_trace(out: Path) -> MinimalTrace:
    """Return the minimal trace that `look_into` left."""
    try:
        return MinimalTrace.model_validate_json(_small(out / MINIMAL))
    except ValidationError as error:
        raise InfrastructureError("tracer_failed", f"no minimal trace: {error}") from error


def _answer(out: Path, said: str) -> Answer:
    try:
        answer = Answer.model_validate_json(_small(out / ANSWER))
    except (ValidationError, InfrastructureError) as error:
        raise InfrastructureError("tracer_failed", f"nothing was found out: {said}") from error
    for part in answer.parts:
        path = out / part.name
        if part.name not in PARTS or (not part.error and (path.is_symlink() or not path.is_file())):
            raise InfrastructureError(
                "tracer_failed", f"{part.name!r} is none of the files asked for"
            )
    return answer


def _small(path: Path) -> bytes:
    """Read a file that a confined process wrote, which may be hostile."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_JSON:
        raise InfrastructureError("tracer_failed", f"{path.name} is no small file")
    return path.read_bytes()


def _python_folders() -> Iterator[Path]:
    """Yield the folders that this Python, its packages and ours live in, but for /usr."""
    found = [sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *site.getsitepackages()]
    ours = [str(Path(module).parents[1]) for module in (kgym.__file__, __file__)]
    for one in [*found, *ours]:
        path = Path(one).resolve()
        if path.is_dir() and not path.is_relative_to("/usr"):
            yield path
