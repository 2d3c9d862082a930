"""The words that a line must contain so that a regular expression can match it. Pure.

Derived from the expression's text, conservatively: in doubt, no words are needed.
"""

import re

_WORD = re.compile(rb"\w{3,}")
_CLASSES = b"wWdDsSbBAzafrntv"
_MOST_BRANCHES = 20

# For each alternative, parts of words, all of which a match contains.
Words = list[list[bytes]]


def needed(pattern: bytes) -> Words | None:
    """Return the words that each alternative needs; None if a match may contain anything."""
    if b"(?" in pattern.replace(b"(?:", b"") or b"\\Q" in pattern:
        return None
    branches: Words = []
    for branch in _branches(pattern):
        runs = _runs(branch)
        words = [word for run in runs or () for word in _WORD.findall(run)]
        if not words:
            return None
        branches.append(sorted(set(words), key=lambda word: (-len(word), word)))
    return branches if len(branches) <= _MOST_BRANCHES else None


def _branches(pattern: bytes) -> list[bytes]:
    """Return the alternatives of the outermost level."""
    branches, start, at = [], 0, 0
    while at < len(pattern):
        if pattern[at : at + 1] == b"|":
            branches.append(pattern[start:at])
            start = at + 1
        at = _behind(pattern, at)
    return [*branches, pattern[start:]]


def _behind(pattern: bytes, at: int) -> int:
    """Return the end of the item at `at`: a character, an escape, a class, a group."""
    match pattern[at : at + 1]:
        case b"\\":
            return at + 2
        case b"[":
            at += 1 + (pattern[at + 1 : at + 2] == b"^")
            at += pattern[at : at + 1] == b"]"
            while at < len(pattern) and pattern[at : at + 1] != b"]":
                if pattern[at : at + 2] == b"[:":  # [[:alpha:]]
                    end = pattern.find(b":]", at)
                    at = end if end >= 0 else at
                    at += 2 if end >= 0 else 1
                else:
                    at += 2 if pattern[at : at + 1] == b"\\" else 1
            return at + 1
        case b"(":
            at += 1
            while at < len(pattern) and pattern[at : at + 1] != b")":
                at = _behind(pattern, at)
            return at + 1
    return at + 1


def _runs(branch: bytes) -> list[bytes] | None:
    """Return the runs of literal characters; None in doubt."""
    runs, run, at = [], b"", 0
    while at < len(branch):
        end = _behind(branch, at)
        item, behind = branch[at:end], branch[end : end + 1]
        literal = _literal(item)
        if literal is None:
            return None
        if behind in (b"?", b"*", b"{") and behind:
            literal = b""
        if literal:
            run += literal
        if not literal or behind == b"+":
            runs.append(run)
            run = b""
        at = _behind_quantifier(branch, end)
    return [*runs, run]


def _literal(item: bytes) -> bytes | None:
    """Return the character of a literal item; b"" if it matches several; None in doubt."""
    if item[:1] == b"\\":
        if item[1:2] and item[1] in _CLASSES:
            return b""
        return None if item[1:].isalnum() or len(item) < 2 else item[1:]
    return b"" if item[:1] in (b"[", b"(", b".", b"^", b"$") else item


def _behind_quantifier(branch: bytes, at: int) -> int:
    """Return the end of the quantifiers (`*`, `+`, `?`, `{2,3}`) at `at`."""
    while branch[at : at + 1] in (b"*", b"+", b"?", b"{") and at < len(branch):
        end = branch.find(b"}", at) if branch[at : at + 1] == b"{" else at
        at = (end if end >= 0 else len(branch)) + 1
    return at
