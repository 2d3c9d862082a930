"""Diffs in the forms that users have: mailed, saved on Windows, made by other tools. Pure.

A form with only one possible meaning is accepted. Any other is rejected by name: guessing could
change the wrong function, and the verdict would be about another patch.
"""

import re
from contextlib import suppress

from kgym.errors import UserError

# The encoding of lines that are not UTF-8: a character for each byte.
BYTES = "iso-8859-1"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# A colour as terminals get it, and as pagers and editors show it.
_COLOUR = re.compile(r"(?:\x1b|\^\[|ESC)\[[0-9;]{0,20}[mK]")
_COLOURED = re.compile(r"(?m)^(?:\x1b|\^\[|ESC)\[[0-9;]{0,20}[mK](?:diff |--- |@@ )")
_INDENTED = re.compile(r"(?m)^([ \t]+)(?:diff --git |--- \S[^\n]*\n\1\+\+\+ )")
# Git's path prefixes: a/ and b/; c/, i/, o/ and w/ with diff.mnemonicPrefix; 1/ and 2/ with
# --no-index.
_PREFIX = re.compile(r"[abciow12]/")
# Suffixes of backup copies made before an edit.
_COPIES = (".orig", ".old", ".bak", "~")
# First folder of paths in diffs of two whole trees, such as `diff -ru linux-6.1.orig linux-6.1`.
_TREE = re.compile(r"(linux|kernel-|old|new|orig|before|after|vanilla|clean|patched|fixed)[^/]*/")
# What follows a path in a header: a time stamp, or Subversion's words.
_BEHIND = re.compile(
    r"\t.*|\s{1,9}\((?:revision \d+|working copy|nonexistent)\)$|\s{1,9}\d{4}-\d\d-\d\d .*"
)
_UNIFIED_ONLY = "only unified ones are accepted: `diff -u`, or `git diff`"
# Beginnings of lines in texts without a unified diff, what such a text is, and what to do.
_OTHERS = (
    (r"\*{15}[^\n]*\n\*\*\* \d", f"is a context diff; {_UNIFIED_ONLY}"),
    (r"\d+(,\d+)?[acd]\d+(,\d+)?\r?\n[<>] ", f"is a diff without context; {_UNIFIED_ONLY}"),
    (
        r"[>|] ?(diff --git |--- \S|\+\+\+ \S|@@ )",
        "holds a diff only as a quotation in a reply: give the mail that is quoted",
    ),
    (
        r" \S+ +\| +(\d+ [-+]+|Bin)",
        "holds only a summary of a diff: give the diff itself, as `git diff` writes it",
    ),
    (
        r"[^\n]*?(diff --git |@@ -\d|\+\+\+ [ab]/|&lt;|\[-|\{\+)",
        "holds a diff in a form that cannot be read: begin its lines as `git diff` does",
    ),
)


def decode(data: bytes, what: str) -> str:
    """Decode a patch file, called `what` in errors; raise UserError `binary_patch`.

    The encoding is UTF-16 with a byte order mark (as PowerShell writes); or else UTF-8, and ISO
    8859-1 in lines that are not.
    """
    try:
        # By line: an mbox may hold mails in several encodings.
        lines = map(_line, data.splitlines(keepends=True))
        text = data.decode("utf-16") if data.startswith(_UTF16) else "".join(lines)
    except UnicodeDecodeError as error:
        raise UserError("binary_patch", f"{what} is not text: {error}; give a diff") from error
    if "\0" in text:
        raise UserError("binary_patch", f"{what} is not text: it contains NUL bytes; give a diff")
    return text


def _line(line: bytes) -> str:
    with suppress(UnicodeDecodeError):
        return line.decode()
    return line.decode(BYTES)


def plain(text: str) -> str:
    """Remove what programs put around a diff's lines.

    These are a byte order mark, colours, a common indentation, and carriage returns if every line
    ends in CRLF.
    """
    text = text.removeprefix("\ufeff")
    whole = text.count("\r\n")
    text = text.replace("\r\n", "\n") if whole and whole == text.count("\n") else text
    if _COLOURED.search(text):
        text = _COLOUR.sub("", text)
    if match := _INDENTED.search(text):
        lines = text[match.start() :].split("\n")
        if all(line.startswith(match[1]) or not line.strip() for line in lines):
            text = "\n".join(line.removeprefix(match[1]) for line in lines)
    return text


def instead(text: str) -> str:
    """Say what a text without a unified diff holds, and what to do."""
    fits = (what for pattern, what in _OTHERS if re.search(f"(?m)^(?:{pattern})", text))
    return next(fits, "")


def bare(header: str) -> str:
    """Return the path in a file header, without git's prefix and diff's time stamp."""
    path = _BEHIND.sub("", header).strip().strip('"')
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
