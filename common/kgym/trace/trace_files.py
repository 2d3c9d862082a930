"""Files of traces: our own format (`trace.npz`), and text of the tracers."""

import json
import struct
import tokenize
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic_core import from_json

from kgym.errors import UserError, file_errors
from kgym.trace.records import Array, Function, Trace
from kgym.trace.tracer_text import TextParser

PIECE = 8 << 20
# Maximum bytes of a mapped trace's metadata: functions, tasks, notes.
MOST_ABOUT = 8 << 20
_RECORDS = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
# The beginning of trace-cmd's binary files.
_TRACE_DAT = b"\x17\x08\x44tracing"
# The beginnings of texts of tracefs and trace-cmd, even without records.
_HEADERS = (b"# tracer:", b"cpus=")


def save(trace: Trace, path: Path) -> None:
    """Write the trace as `.npz`: the columns, and the metadata as JSON."""
    # Uncompressed, so that `mapped` can leave the columns on disk.
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
    """Read a trace in any supported format; raise UserError `bad_trace`, `cannot_read`."""
    with file_errors(path, "cannot_read"), path.open("rb") as file:
        start = file.read(len(_TRACE_DAT))
        file.seek(0)
        if start[:2] == b"PK":
            return mapped(file, path)
        if start == _TRACE_DAT:
            raise UserError(
                "bad_trace", f"{path} is a binary trace.dat; convert it: trace-cmd report -i {path}"
            )
        return _load_text(path, file)


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
            f"{path} is not a trace: it is not a trace.npz, and none of its"
            f" {parser.other} lines is the record of a function",
        )
    return trace


def is_dump(path: Path) -> bool:
    """Return whether the file looks like a memory dump: ELF, makedumpfile's own, or flattened."""
    with file_errors(path, "cannot_read"), path.open("rb") as file:
        start = file.read(16)
    return start.startswith((b"\x7fELF", b"KDUMP   ", b"DISKDUMP", b"makedumpfile"))


def mapped(file: BinaryIO, name: object = "this") -> Trace:
    """Return the trace of an open `trace.npz`, with memory-mapped columns.

    The file is untrusted: its metadata is limited to MOST_ABOUT bytes, and its records must be in
    order of time. Raises UserError `bad_trace`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            _uncompressed(archive)
            offsets = {member.filename: member.header_offset for member in archive.infolist()}
        columns = {
            name: _column(file, offsets[f"{name}.npy"], kind) for name, kind in Trace.COLUMNS
        }
        about = _column(file, offsets["about.npy"], np.uint8)
        if len(about) > MOST_ABOUT:
            raise ValueError("it lists too many functions")
        trace = _trace(columns, about.tobytes())
        # Pages find a moment by binary search. Checked in parts, which stay out of memory.
        for start in range(0, len(trace), _RECORDS):
            part = trace.time[start : start + _RECORDS + 1]
            if (part[1:] < part[:-1]).any():
                raise ValueError("its records are not in order of time")
    except _NO_TRACE as error:
        raise UserError("bad_trace", f"{name} is not a trace: {error}") from error
    return trace


# NumPy parses the header of a column as Python's source, which can fail in all of these ways.
_NO_TRACE = (
    ValueError,
    LookupError,
    TypeError,
    MemoryError,
    tokenize.TokenError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
)


def _column(file: BinaryIO, header: int, kind: type[np.generic]) -> Array:
    """Map the array of the archive member with its local header at this offset."""
    file.seek(header)
    # The directory of a forged archive can point anywhere: check the member's own header.
    magic, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if magic != b"PK\3\4":
        raise ValueError("a member is not at the offset given in the archive's directory")
    file.seek(name + extra, 1)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("a column is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if len(shape) != 1 or dtype != np.dtype(kind):
        raise ValueError("a column has another shape or type")
    if not shape[0]:
        return np.empty(0, kind)
    return np.asarray(np.memmap(file, dtype, "r", file.tell(), shape))


def _uncompressed(archive: zipfile.ZipFile) -> None:
    # A compressed member could expand to any size, and cannot be mapped.
    if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
        raise ValueError("it is compressed")


def _trace(columns: dict[str, Array], header: bytes) -> Trace:
    # Unlike `json`, it refuses surrogates, which no page and no terminal could print.
    about = from_json(header)
    trace = Trace(
        **columns,
        functions=tuple(
            Function(None if file is None else str(file), str(name))
            for file, name in about["functions"]
        ),
        tasks={int(pid): str(name) for pid, name in about["tasks"]},
        lost=int(about["lost"]),
        notes=tuple(about["notes"]),
    )
    _check(trace)
    return trace


def _check(trace: Trace) -> None:
    lengths = {len(getattr(trace, name)) for name, _ in Trace.COLUMNS}
    if len(lengths) != 1:
        raise ValueError("its columns have different lengths")
    if len(trace) and not 0 <= trace.function.min() <= trace.function.max() < len(trace.functions):
        raise ValueError("it names a function that it does not list")
