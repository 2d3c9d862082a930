"""Output of untrusted programs and machines, made safe to quote in messages. Pure."""

import re
from typing import AnyStr

# Default length of a quotation in characters.
MOST = 400
_GAP = " … "
# Escape sequences of terminals (ECMA-48): a control sequence, a control string, or one character.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[PX\]^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
# Characters read for each one that is shown: some lines consist mostly of colour codes.
_ROOM = 64


def quoted(output: AnyStr, most: int = MOST) -> str:
    """Return the output as one line of at most `most` printable characters.

    The middle of longer output is left out. Escape sequences of terminals are removed; other
    characters that cannot be printed, or change the direction of text, become `?`.
    """
    if len(output) > 2 * _ROOM * most:
        output = output[: _ROOM * most] + output[-_ROOM * most :]
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    text = " ".join(_ESCAPES.sub("", text).split())
    text = "".join(char if char.isprintable() else "?" for char in text)
    if len(text) <= most:
        return text
    left = (most - len(_GAP)) // 2
    return text[:left].rstrip() + _GAP + text[-left:].lstrip()
