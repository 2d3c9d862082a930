"""A patch that is given as a file."""

from pathlib import Path

from pydantic import ValidationError

from kgym.api.steps import Patch
from kgym.errors import UserError
from kgym.source import diff_text
from kgym_cli import compressed_files

LARGEST_PATCH = 64 << 20
"""Bytes that are read of one; the model refuses those that are too large for a job."""


def patch_file(path: Path) -> Patch:
    """Read a unified diff from a file, in whatever encoding it is, compressed or not.

    `-` is standard input.
    """
    name = compressed_files.name(path).encode(errors="replace").decode()[:200]
    try:
        return Patch(
            name=name, diff=diff_text.decode(compressed_files.read(path, LARGEST_PATCH), str(path))
        )
    except ValidationError as error:
        raise UserError("patch_too_large", f"{path}: {error.errors()[0]['msg']}") from error
