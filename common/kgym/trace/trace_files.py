"""Traces in files: our own (`trace.npz`), text of the tracers, `trace.dat`."""

import json
import mmap
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kgym.errors import UserError
from kgym.trace import trace_dat
from kgym.trace.records import Function, Trace
from kgym.trace.tracer_text import TextParser

PIECE = 8 << 20
_HEADERS = (b"# tracer:", b"cpus=")
"""How the texts of tracefs and trace-cmd begin, be there records or not."""


def save(trace: Trace, path: Path) -> None:
    """Write the trace as an uncompressed `.npz`: the columns, and the rest as JSON."""
    about = {
        "functions": trace.functions,
        "tasks": [[pid, name] for pid, name in trace.tasks.items()],
        "lost": trace.lost,
        "notes": trace.notes,
    }
    columns = {name: getattr(trace, name) for name, _ in Trace.COLUMNS}
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, about=text, **columns)


def load(path: Path) -> Trace:
    """Read a trace from any of the files that hold one; raise UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(len(trace_dat.MAGIC))
            file.seek(0)
            if start[:2] == b"PK":
                return _load_own(path)
            if start == trace_dat.MAGIC:
                # It closes with the last array over it.
                return trace_dat.parse(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return _load_text(path, file)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error


def _load_text(path: Path, file: BinaryIO) -> Trace:
    parser = TextParser()
    first = b""
    while piece := file.read(PIECE):
        first = first or piece[:64]
        parser.feed(piece)
    trace = parser.trace()
    if not len(trace) and not first.startswith(_HEADERS):
        raise UserError(
            "bad_trace",
            f"{path} is no trace: it is neither a trace.npz nor a trace.dat, and none of its"
            f" {parser.other} lines is the record of a function",
        )
    return trace


def is_dump(path: Path) -> bool:
    """Return whether the file looks like a memory dump: ELF, makedumpfile's own, or flattened."""
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error
    return start.startswith((b"\x7fELF", b"KDUMP   ", b"DISKDUMP", b"makedumpfile"))


def _load_own(path: Path) -> Trace:
    try:
        with zipfile.ZipFile(path) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("it is compressed")
        with np.load(path, allow_pickle=False) as found:
            about = json.loads(found["about"].tobytes())
            columns = {name: found[name].astype(dtype) for name, dtype in Trace.COLUMNS}
        functions = tuple(Function(file, name) for file, name in about["functions"])
        trace = Trace(
            **columns,
            functions=functions,
            tasks={int(pid): str(name) for pid, name in about["tasks"]},
            lost=int(about["lost"]),
            notes=tuple(about["notes"]),
        )
        _check(trace)
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError("bad_trace", f"{path} is no trace: {error}") from error
    return trace


def _check(trace: Trace) -> None:
    lengths = {len(getattr(trace, name)) for name, _ in Trace.COLUMNS}
    if len(lengths) != 1:
        raise ValueError("its columns have different lengths")
    if len(trace) and not 0 <= trace.function.min() <= trace.function.max() < len(trace.functions):
        raise ValueError("it names a function that it does not list")
