"""TOML from outside, with limits that hold before it is parsed."""

import re
import tomllib
from typing import Any

_MOST_BYTES = 256 << 10
# Maximum depth of nested brackets, and parts of a dotted key.
_MOST_PARTS = 20
# An unterminated string extends to the end of the text or line, where tomllib stops, too. So no
# token is searched for twice, and nothing that tomllib reads as a key is taken for a string here.
_TOKEN = re.compile(
    r"""
    \"{3} (?: [^"\\]++ | \\.?+ | "(?!"") )*+ "{0,5}+
    | '{3} (?: [^']++ | '(?!'') )*+ '{0,5}+
    | " (?: [^"\\\n]++ | \\.?+ )*+ "?+
    | ' [^'\n]*+ '?+
    | \# [^\n]*+
    | [][{}.=,\n]
    """,
    re.VERBOSE | re.DOTALL,
)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table; raise ValueError if it is not TOML, too long, or nested too deeply."""
    # tomllib takes quadratic time for the dotted key `a.a.a…`, and recurses into brackets.
    if len(text.encode(errors="surrogatepass")) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES >> 10} KiB of TOML")
    nested = dots = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                nested, dots = nested + 1, 0
            case "]" | "}":
                nested -= 1
            case ".":
                dots += 1
            case "=" | "," | "\n":
                dots = 0
        if max(nested, dots) > _MOST_PARTS:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(
                f"line {line}: more than {_MOST_PARTS} nested brackets or dots of a key"
            )
    return tomllib.loads(text)
