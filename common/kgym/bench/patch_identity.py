"""Which patches are the same change, however their diffs are written. Pure."""

import hashlib

from kgym.api.steps import Patch
from kgym.errors import UserError
from kgym.source import patching
from kgym.source.patching import Read


def identity(diff: str, read: Read) -> str:
    """Return a SHA-256 that two diffs share if they make the same of the tree that `read` reads.

    Of what does not apply, it is that of its text.
    """
    try:
        applied = patching.apply(Patch(diff=diff), read)
    except (UserError, ValueError):  # the latter: longer than a patch may be
        return text_identity(diff)
    digest = hashlib.sha256()
    for one in sorted(applied.changes, key=lambda change: change.path):
        if one.content is not None and one.content == read(one.path) and not one.executable:
            continue
        content = "gone" if one.content is None else hashlib.sha256(one.content).hexdigest()
        digest.update(f"{one.path}\0{content}\0{one.executable}\0{one.mode_of}\n".encode())
    return digest.hexdigest()


def text_identity(diff: str) -> str:
    """Return the SHA-256 of a diff's text, by which it is the same as no other."""
    return hashlib.sha256(diff.encode(errors="replace")).hexdigest()
