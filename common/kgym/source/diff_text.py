"""The text of a diff as people have it: mailed, saved on Windows, made by other tools. Pure.

What can be read in one way only is read so. Where it cannot, the words here say what it is.
"""

import re

from kgym.errors import UserError

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CONTEXT = re.compile(r"(?m)^\*{15}[^\n]*\n\*\*\* \d")
_NORMAL = re.compile(r"(?m)^\d+(,\d+)?[acd]\d+(,\d+)?\r?\n[<>] ")
_HUNK = re.compile(r"(?m)^@@ -\d")
# What git puts before a path: a/ and b/; with diff.mnemonicPrefix c/, i/, o/, w/; else 1/, 2/.
_PREFIX = re.compile(r"[abciow12]/")
# How names of files end that were set aside before an edit.
_COPIES = (".orig", ".old", ".bak", "~")
# Beginnings of paths in diffs of two whole trees, as `diff -ru linux-6.1.orig linux-6.1` gives.
_TREE = re.compile(r"(linux|kernel-|old|new|orig|before|after|vanilla|clean|patched|fixed)[^/]*/")


def decode(data: bytes, what: str) -> str:
    """Return the text of a patch's file, named `what` in errors.

    It is UTF-8, UTF-16 with its mark (as PowerShell writes), or else read as ISO 8859-1: the lines
    that a hunk wants are compared all the same. Raises UserError `binary_patch`.
    """
    try:
        text = data.decode("utf-16" if data.startswith(_UTF16) else "utf-8")
    except UnicodeDecodeError as error:
        if data.startswith(_UTF16):
            raise UserError("binary_patch", f"{what} is no text: {error}") from error
        text = data.decode("iso-8859-1")
    if "\0" in text:
        raise UserError("binary_patch", f"{what} is no text: it holds zero bytes")
    return text


def plain(text: str) -> str:
    """Return the text without a byte order mark, and without CRs if every line ends in CRLF."""
    text = text.removeprefix("\ufeff")
    whole = text.count("\r\n")
    return text.replace("\r\n", "\n") if whole and whole == text.count("\n") else text


def not_unified(text: str) -> str | None:
    """Say what kind of diff this is, and what to do, if it is of another kind than accepted."""
    if _HUNK.search(text):  # words of its description, if anything
        return None
    if _CONTEXT.search(text):
        return "is a context diff; only unified ones are accepted: `diff -u`, or `git diff`"
    if _NORMAL.search(text):
        return "is a diff without context; only unified ones are accepted: `diff -u`, or `git diff`"
    return None


def bare(header: str) -> str:
    """Return the path of a file's header: without git's prefix, and diff's time stamp."""
    path = header.split("\t", maxsplit=1)[0].strip().strip('"')
    return path[2:] if _PREFIX.match(path) else path


def places(old: str, new: str) -> list[str]:
    """Return where in the tree the one file lies that two paths of a diff mean, likeliest first.

    Several, where the diff may be one of the tree or of a folder that it lies in; none, where
    the paths are of two files.
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
    """Tell whether one top folder is named as a copy of the other: `linux.orig`, `linux-new`."""
    one, two = sorted((folder, other.partition("/")[0]), key=len)
    return one != two and two.startswith(one) and not two[len(one)].isalnum()
