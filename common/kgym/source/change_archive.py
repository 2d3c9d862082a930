"""Changed files as a tar archive, which a sandbox unpacks over a tree."""

import io
import tarfile
import time
from collections.abc import Sequence

from kgym.source.patching import Change


def archive(changes: Sequence[Change]) -> bytes:
    """Return a tar archive of the files that these changes write; removals are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for change in changes:
            if change.content is None:
                continue
            member = tarfile.TarInfo(change.path)
            member.size = len(change.content)
            member.mode = 0o755 if change.executable else 0o644
            # make rebuilds only what is newer than its objects.
            member.mtime = time.time()
            file.addfile(member, io.BytesIO(change.content))
    return buffer.getvalue()
