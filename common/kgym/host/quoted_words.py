"""Words of programs and machines that are not trusted, as our messages quote them. Pure."""

import re
from typing import AnyStr

# Characters of a quotation, unless a caller wants another bound.
MOST = 400
_GAP = " … "
# What terminals obey (ECMA-48): a control sequence, a string up to its end, or one character.
_OBEYED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[PX\]^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
# So many characters for each that is shown are looked at: colours take most of some lines.
_ROOM = 64


def quoted(said: AnyStr, most: int = MOST) -> str:
    """Return what was said in one line of printable characters, `most` of them at most.

    Of longer words, the middle is left out. What only terminals obey goes; anything else that
    cannot be printed, or changes the direction of what can, is a `?`.
    """
    if len(said) > 2 * _ROOM * most:
        said = said[: _ROOM * most] + said[-_ROOM * most :]
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    text = " ".join(_OBEYED.sub("", text).split())
    text = "".join(one if one.isprintable() else "?" for one in text)
    if len(text) <= most:
        return text
    left = (most - len(_GAP)) // 2
    return text[:left].rstrip() + _GAP + text[-left:].lstrip()
