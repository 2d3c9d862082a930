"""Comments of C code. Pure."""

import re

# Literals are matched, too, since they may contain comment marks, as in "/*".
_TOKEN = re.compile(
    r"""(?P<kept>"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?)|//[^\n]*|/\*(?:.*?\*/|.*)""",
    re.DOTALL,
)

# Comments in syzkaller programs that mention syzkaller; the options of a run, as JSON, stay.
_SYZBOT = re.compile(r"(?m)^# .*(?:syzkaller|goo\.gl).*\n?")


def bare_program(text: str) -> str:
    """Return a reproducer without comments, which may say what the fix does, or link to it."""
    return without_comments(_SYZBOT.sub("", text))


def without_comments(text: str) -> str:
    """Return the non-empty lines of code without comments."""
    bare = _TOKEN.sub(lambda match: match["kept"] or " ", text)
    return "\n".join(line.rstrip() for line in bare.split("\n") if line.strip())
