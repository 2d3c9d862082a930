"""Comments of C code. Pure."""

import re

# Literals are matched, too, since they may contain comment marks, as in "/*".
_TOKEN = re.compile(
    r"""(?P<kept>"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?)|//[^\n]*|/\*(?:.*?\*/|.*)""",
    re.DOTALL,
)


def without_comments(text: str) -> str:
    """Return the non-empty lines of code without comments."""
    bare = _TOKEN.sub(lambda match: match["kept"] or " ", text)
    return "\n".join(line.rstrip() for line in bare.split("\n") if line.strip())
