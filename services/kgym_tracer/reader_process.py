"""Confined processes that read dumps and traces. A dump is as hostile as its guest."""

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
# Bytes of an answer.
MOST_JSON = 64 << 20
# Bytes of writable memory, and of address space, into which dump and vmlinux are mapped.
_LIMITS = (f"--data={6 << 30}", f"--as={64 << 30}")

_IN, _OUT = "/kgym/in", "/kgym/out"


async def look_into(
    source: Path,
    out: Path,
    *,
    vmlinux: Path | None = None,
    report: str | None = None,
    minimize: Minimize | None = None,
) -> Answer:
    """Read a dump or trace; write the results to the new folder `out`.

    The answer's parts name what is unreadable. Raises InfrastructureError if the process fails
    before its first part.
    """
    prepare(out)
    request = Request(
        source=Path(_IN, "0", source.name),
        vmlinux=None if vmlinux is None else Path(_IN, "1", vmlinux.name),
        report=report,
        minimize=minimize,
        out=Path(_OUT),
    )
    given = [path for path in (source, vmlinux) if path is not None]
    with tempfile.TemporaryDirectory(prefix=".kgym-", dir=out.parent) as folder:
        readonly = await asyncio.to_thread(_readable, given, Path(folder))
        stderr = await _run(request, readonly, out)
    return _answer(out, stderr)


async def _run(request: Request, readonly: dict[str, Path], out: Path) -> str:
    """Run the process; return the end of its output."""
    folders = dict.fromkeys(_python_folders())
    box = Sandbox(
        readonly={**{str(folder): folder for folder in folders}, **readonly}, writable={_OUT: out}
    )
    try:
        done = await box.run(
            ["prlimit", *_LIMITS, "--", sys.executable, "-m", "kgym_tracer.dump_reader"],
            timeout=SECONDS,
            stdin=request.model_dump_json().encode(),
            check=False,
            # OpenBLAS reserves memory for each of its threads, which counts against the limit.
            env={"PYTHONPATH": os.pathsep.join(map(str, folders)), "OPENBLAS_NUM_THREADS": "1"},
        )
    except proc.ProgramTimedOut as error:
        return error.message
    return done.text[-1000:]


def _readable(given: list[Path], folder: Path) -> dict[str, Path]:
    """Return folders to mount, by their paths inside the sandbox; copy root-only files to `folder`.

    A sandbox started by root runs as the user nobody, who cannot read dumps that QEMU wrote as
    root.
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


def _answer(out: Path, stderr: str) -> Answer:
    try:
        answer = Answer.model_validate_json(_small(out / ANSWER))
    except (ValidationError, InfrastructureError) as error:
        raise InfrastructureError("tracer_failed", f"the dump reader failed: {stderr}") from error
    for part in answer.parts:
        path = out / part.name
        if part.name not in PARTS or (not part.error and (path.is_symlink() or not path.is_file())):
            raise InfrastructureError(
                "tracer_failed", f"{part.name!r} is not one of the requested files"
            )
    return answer


def _small(path: Path) -> bytes:
    """Read a file from a confined process; it may be a link, a device or huge."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_JSON:
        raise InfrastructureError("tracer_failed", f"{path.name} is not a small regular file")
    return path.read_bytes()


def _python_folders() -> Iterator[Path]:
    """Yield the folders of this Python, its packages and ours, except those in /usr."""
    # The sandbox always shows /usr.
    standard = [sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *site.getsitepackages()]
    ours = [str(Path(module).parents[1]) for module in (kgym.__file__, __file__)]
    for folder in [*standard, *ours]:
        path = Path(folder).resolve()
        if path.is_dir() and not path.is_relative_to("/usr"):
            yield path
