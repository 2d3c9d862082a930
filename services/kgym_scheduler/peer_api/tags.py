"""Their tags, a value by key, as ours, one word: `KEY=VALUE`. Pure."""

import re

from kgym.errors import UserError

MOST = 100
_PLAIN = re.compile(r"[\w.:/@-]")
_WRITTEN = re.compile(r"\+([0-9a-f]{2})")


def written(key: str, value: str) -> str:
    """Return the tag; other characters than tags may have stand as `+` and two hex digits.

    Raises UserError `tag_too_long`.
    """
    tag = f"{_escaped(key)}={_escaped(value)}"
    if len(tag) > MOST:
        raise UserError("tag_too_long", f"the tag {key[:40]!r} and its value are too long together")
    return tag


def read(tags: list[str]) -> dict[str, str]:
    """Return the tags that have a key and a value; what is written wrong stands as it is."""
    pairs = (tag.partition("=") for tag in tags)
    return {_plain(key): _plain(value) for key, equals, value in pairs if equals and key}


def _escaped(text: str) -> str:
    return "".join(
        one if _PLAIN.fullmatch(one) else "".join(f"+{byte:02x}" for byte in _bytes(one))
        for one in text
    )


def _bytes(character: str) -> bytes:
    return character.encode(errors="replace")


def _plain(text: str) -> str:
    raw, place = bytearray(), 0
    for found in _WRITTEN.finditer(text):
        raw += _bytes(text[place : found.start()])
        raw.append(int(found[1], 16))
        place = found.end()
    raw += _bytes(text[place:])
    try:
        return raw.decode()
    except UnicodeDecodeError:  # nobody has written it so by this surface
        return text
