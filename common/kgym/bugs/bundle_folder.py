"""Writing bundles: a folder appears whole, and replaces an existing one."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kgym.errors import file_errors


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write a bundle of these files, given by name; raise UserError `cannot_write`."""
    with file_errors(folder, "cannot_write"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as part:
            made = Path(part) / "bundle"
            made.mkdir()
            for name, text in files.items():
                (made / name).write_text(text, newline="")
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)


def toml(value: str | list[str]) -> str:
    """Return a value in TOML. Its strings are those of JSON, except that DEL must be escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
