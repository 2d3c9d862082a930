"""Conversion between kGymSuite's tags, pairs of key and value, and our tags `KEY=VALUE`. Pure."""

import re
from collections.abc import Iterable, Sequence

from kgym.errors import UserError

MOST = 100
_PLAIN = re.compile(r"[\w.:/@-]")
_WRITTEN = re.compile(r"\+([0-9a-f]{2})")


def written(key: str, value: str) -> str:
    """Return a pair as our tag; bytes that our tags cannot have become `+` and two hex digits.

    Raises UserError `tag_too_long`.
    """
    tag = f"{_escaped(key)}={_escaped(value)}"
    if len(tag) > MOST:
        raise UserError("tag_too_long", f"the tag {key[:40]!r} and its value are too long together")
    return tag


def read(tags: list[str]) -> dict[str, str]:
    """Return the pairs in tags of the form `KEY=VALUE`; a malformed escape stays unchanged."""
    pairs = (tag.partition("=") for tag in tags)
    return {_plain(key): _plain(value) for key, equals, value in pairs if equals and key}


def value(tags: Iterable[str], key: str) -> str | None:
    """Return the value of the first tag with this key, as it is; None if there is none."""
    begin = f"{key}="
    return next((tag[len(begin) :] for tag in tags if tag.startswith(begin)), None)


def bug_and_patch(tags: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the values of a job's tags `bug=` and `patch=`; None for a missing tag."""
    return value(tags, "bug"), value(tags, "patch")


def as_written(tag: str) -> str:
    """Return a tag as its submitter wrote it, with escaped characters decoded."""
    for key, value in read([tag]).items():
        # In tags from other services, a plus sign may be meant literally: they are not decoded.
        if f"{key}{value}".isprintable() and f"{_escaped(key)}={_escaped(value)}" == tag:
            return f"{key}={value}"
    return tag


def _escaped(text: str) -> str:
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"+{byte:02x}" for byte in _bytes(char))
        for char in text
    )


def _bytes(character: str) -> bytes:
    return character.encode(errors="replace")


def _plain(text: str) -> str:
    raw, place = bytearray(), 0
    for match in _WRITTEN.finditer(text):
        raw += _bytes(text[place : match.start()])
        raw.append(int(match[1], 16))
        place = match.end()
    raw += _bytes(text[place:])
    try:
        return raw.decode()
    except UnicodeDecodeError:  # not an escape of `written`
        return text
