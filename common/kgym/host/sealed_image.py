"""Verification of a file against its SHA-256, cached by the file's status.

The SHA-256 is computed again after the file was changed, copied or replaced.
"""

import hashlib
import json
from pathlib import Path


def matches(image: Path, sha256: str, *, thorough: bool, seal: Path | None = None) -> bool:
    """Return whether the file has this SHA-256; with `thorough`, always read the file.

    The status of a verified file is stored at `seal`: by default beside the file's folder, since
    the folder's content is fingerprinted (`folder_cache.py`).
    Raises OSError or ValueError if the file or the seal cannot be read.
    """
    seal = seal or image.parent.parent / f".{image.parent.name}.seal"
    status = image.stat()
    now = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    if not thorough and seal.exists() and json.loads(seal.read_text()) == now:
        return True
    with image.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            return False
    seal.write_text(json.dumps(now))
    return True
