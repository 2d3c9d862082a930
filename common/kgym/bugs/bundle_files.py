"""The files of a bundle: another's, so each is bounded, and none lies outside of its folder."""

import re
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kgym.api.steps import Strict
from kgym.errors import UserError

# Bytes of one file of a bundle, at most.
_MOST_BYTES = 16 << 20
_Model = TypeVar("_Model", bound=Strict)


def read(model: type[_Model], path: Path) -> _Model:
    """Return a TOML file of a form; raise UserError `bad_bundle`, which names what is wrong."""
    try:
        return model.model_validate(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error
    except ValidationError as error:
        raise UserError("bad_bundle", f"{path}: {faults(error)}") from error


def faults(error: ValidationError) -> str:
    """Return each place that is wrong, and what of it: the first twenty."""
    return "; ".join(f"{_where(fault['loc'])}: {fault['msg']}" for fault in error.errors()[:20])


def _where(location: tuple[int | str, ...]) -> str:
    """Return the place in the file: without the tag by which pydantic tells two forms apart."""
    table = [part for part in location if part not in {"own", "use"} or part == location[-1]]
    return ".".join(map(str, table)) or "file"


def place(named: str, folder: Path) -> str:
    """Return a URL as it is, and a path as an absolute one: `../linux` lies beside the bundle."""
    if re.match(r"[^/]*:", named):
        return named
    try:
        return str((folder / Path(named).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("bad_bundle", f"{folder}: kernel: {named}: {error}") from error


def text(folder: Path, name: str) -> str:
    """Return what a file of the bundle holds, as UTF-8; raise UserError `bad_bundle`."""
    path = within(folder, name)
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error


def read_bytes(path: Path) -> bytes:
    """Return what a file holds, 16 MiB at most; raise UserError `bad_bundle`."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError("bad_bundle", f"{path}: more than {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise UserError("bad_bundle", f"{path}: {error}") from error


def within(folder: Path, name: str) -> Path:
    """Return the path of a bundle's file; another's bundle must not name files outside of it."""
    try:
        path = (folder / name).resolve()
        inside = path.is_relative_to(folder.resolve())
        regular = not path.exists() or path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("bad_bundle", f"{folder / name}: {error}") from error
    if not inside:
        raise UserError("bad_bundle", f"{folder / name}: leads out of the bundle's folder; copy it")
    if not regular:
        raise UserError("bad_bundle", f"{path}: is no regular file")
    return path
