"""Diffs in the forms that users have: mailed, saved on Windows, made by other tools. Pure.

A form with only one possible meaning is accepted. Any other is rejected by name: guessing could
change the wrong function, and the verdict would be about another patch.
"""

import re

from kgym.errors import UserError

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CONTEXT = re.compile(r"(?m)^\*{15}[^\n]*\n\*\*\* \d")
_NORMAL = re.compile(r"(?m)^\d+(,\d+)?[acd]\d+(,\d+)?\r?\n[<>] ")
_HUNK = re.compile(r"(?m)^@@ -\d")
# Git's path prefixes: a/ and b/; c/, i/, o/ and w/ with diff.mnemonicPrefix; 1/ and 2/ with
# --no-index.
_PREFIX = re.compile(r"[abciow12]/")
# Suffixes of backup copies made before an edit.
_COPIES = (".orig", ".old", ".bak", "~")
# First folder of paths in diffs of two whole trees, such as `diff -ru linux-6.1.orig linux-6.1`.
_TREE = re.compile(r"(linux|kernel-|old|new|orig|before|after|vanilla|clean|patched|fixed)[^/]*/")


def decode(data: bytes, what: str) -> str:
    """Decode a patch file, called `what` in errors; raise UserError `binary_patch`.

    The encoding is UTF-8, UTF-16 with a byte order mark (as PowerShell writes), or else ISO 8859-1.
    """
    try:
        text = data.decode("utf-16" if data.startswith(_UTF16) else "utf-8")
    except UnicodeDecodeError as error:
        if data.startswith(_UTF16):
            raise UserError("binary_patch", f"{what} is not text: {error}") from error
        # Old kernel files have Latin-1 names in comments. Hunks compare the same either way.
        text = data.decode("iso-8859-1")
    if "\0" in text:
        raise UserError("binary_patch", f"{what} is not text: it contains NUL bytes")
    return text


def plain(text: str) -> str:
    """Remove a byte order mark, and carriage returns if every line ends in CRLF."""
    text = text.removeprefix("\ufeff")
    whole = text.count("\r\n")
    return text.replace("\r\n", "\n") if whole and whole == text.count("\n") else text


def not_unified(text: str) -> str | None:
    """Describe an unsupported kind of diff and what to do about it; None for a unified diff."""
    # Next to a unified hunk, the other forms can only be part of the commit's message.
    if _HUNK.search(text):
        return None
    if _CONTEXT.search(text):
        return "is a context diff; only unified ones are accepted: `diff -u`, or `git diff`"
    if _NORMAL.search(text):
        return "is a diff without context; only unified ones are accepted: `diff -u`, or `git diff`"
    return None


def bare(header: str) -> str:
    """Return the path in a file header, without git's prefix and diff's time stamp."""
    path = header.split("\t", maxsplit=1)[0].strip().strip('"')
    return path[2:] if _PREFIX.match(path) else path


def places(old: str, new: str) -> list[str]:
    """Return the candidate paths in the tree for the two paths of a file's diff, likeliest first.

    There are several if the diff may have been made in the tree or in its parent folder, and none
    if the paths name two different files.
    """
    old, new = _real(old), _real(new)
    inside, beside = old.partition("/")[2], new.partition("/")[2]
    whole = _TREE.match(old) and _TREE.match(new)
    if inside and inside == beside and (whole or _is_copy(old[: -len(inside) - 1], new)):
        shorter = min(old, new, key=len)
        return [inside, shorter] if whole else [shorter, inside]
    return [new] if old == new else []


def _real(path: str) -> str:
    return next((path.removesuffix(end) for end in _COPIES if path.endswith(end)), path)


def _is_copy(folder: str, other: str) -> bool:
    """Return whether one top folder is named like a copy of the other: `linux.orig`."""
    short, long = sorted((folder, other.partition("/")[0]), key=len)
    return short != long and long.startswith(short) and not long[len(short)].isalnum()
