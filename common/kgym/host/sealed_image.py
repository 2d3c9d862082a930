"""Whether a file is still the one whose SHA-256 was noted: computed once, then known by its status.

Where the file was changed, copied or replaced since, its SHA-256 is computed again.
"""

import hashlib
import json
from pathlib import Path


def matches(image: Path, sha256: str, *, thorough: bool, seal: Path | None = None) -> bool:
    """Whether the file is right; `thorough` reads it whatever was found before.

    What was found is noted at `seal`: by default beside the file's folder, as that is checked, too.
    Raises OSError or ValueError where the file or the note cannot be read.
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
