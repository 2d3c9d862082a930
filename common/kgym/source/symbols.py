"""Where the names of C are defined, found by the form of kernel code in linear time. Pure.

The preprocessor's branches and macros make no C of it: definitions begin at the margin, and end
with a brace at the margin. What has another form is not found.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import re2

from kgym.api.source import SymbolKind

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.encoding = re2.Options.Encoding.LATIN1

# A head goes on over several lines, as far as it holds no `;`, brace or directive.
_DEFINITION = re2.compile(
    rb"(?m)^(?:"
    rb"#[ \t]*define[ \t]+(?P<macro>\w+)"
    rb"|(?P<typedef>typedef)\b"
    rb"|(?:static[ \t]+|const[ \t]+)*(?P<kind>struct|union|enum)[ \t]+(?P<tag>\w+)[ \t]*\n?\{"
    rb"|(?P<function>[A-Za-z_][\w \t*]*\n?[\w \t*]*\([^;{}#]*\)[^;{}=()#]*)\{"
    rb"|(?P<variable>[A-Za-z_][\w \t*]*[ \t*]\w+[ \t]*(?:\[[^\]\n;{}]*\])*"
    rb"[ \t]*(?:__\w+[ \t]*)*(?:=|;))"
    rb")",
    _OPTIONS,
)
_GROUP = re.compile(rb"\b(\w+)[ \t\n]*\(|[()]")
_ATTRIBUTE = re.compile(rb"__\w+|noinline_for_stack|asm|if|while|for|switch|return|sizeof")
_SYSCALL = re.compile(rb"(COMPAT_)?SYSCALL(?:32|64)?_DEFINE\d")
_MACRO = re.compile(rb"[A-Z][A-Z0-9_]+")
_TYPEDEF_NAME = re.compile(rb"\(\s*\*\s*(\w+)\s*\)\s*\(|(\w+)\s*(?:\[[^\]]*\]\s*)*$")
_ENUMERATOR = re.compile(rb"^[ \t]+([A-Za-z_]\w*)[ \t]*(?:[,=}/]|$)", re.MULTILINE)
_OF_DATA = re.compile(  # include/linux/init.h, include/linux/cache.h, include/linux/compiler*.h
    rb"__(mem)?(init|exit)(data|const)(_or_module)?|__refdata|__read_mostly|__ro_after_init"
    rb"|__(maybe_|always_)?unused|__used|__weak|__visible|__rcu|__percpu|__bss\w*|_+cacheline\w*"
    rb"|__page_aligned_(data|bss)|__latent_entropy"
)
_NO_VARIABLE = {b"return", b"goto", b"else", b"extern", b"typedef"}


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition: its name, and the bytes that it takes in the text."""

    name: bytes
    kind: SymbolKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A definition, by its lines, from 1."""

    name: bytes
    kind: SymbolKind
    line: int
    last: int


def is_c(path: str) -> bool:
    """Tell whether definitions are looked for in such a file."""
    return path.endswith((".c", ".h", ".inc"))


def symbols(text: bytes) -> list[Placed]:
    """Return what a file defines, in its order."""
    found: list[Placed] = []
    at, line = 0, 1
    for one in _symbols(text):
        line += text.count(b"\n", at, one.start)
        at = one.start
        last = line + text.count(b"\n", one.start, one.end)
        found.append(Placed(one.name, one.kind, line, last))
    return found


def _symbols(text: bytes) -> Iterator[Symbol]:
    at = 0
    while match := _DEFINITION.search(text, at):
        start, end = match.start(), match.end()
        if match[b"macro"] is not None:
            end = _directive_end(text, end)
            yield Symbol(match[b"macro"], "macro", start, end)
        elif match[b"tag"] is not None:
            end = _body_end(text, end)
            kind = _KINDS[match[b"kind"]]
            yield Symbol(match[b"tag"], kind, start, end)
            if kind == "enum":
                yield from _enumerators(text, match.end(), end)
        elif found := _declared(text, match):
            end = found.end
            if found.name:
                yield found
        at = max(end, start + 1)


def _declared(text: bytes, match: "re2._Match") -> Symbol | None:
    """Return a typedef, function or variable; its name may be empty."""
    start, end = match.start(), match.end()
    if match[b"typedef"] is not None:
        end, name = _typedef(text, end)
        return Symbol(name or b"", "typedef", start, end)
    if (head := match[b"function"]) is not None:
        return Symbol(_function(head) or b"", "function", start, _body_end(text, end))
    if (name := _variable(match[b"variable"])) is None:
        return None
    if text[end - 1 : end] == b"=":
        end = _value_end(text, end)
    return Symbol(name, "variable", start, end)


_KINDS: dict[bytes, SymbolKind] = {b"struct": "struct", b"union": "union", b"enum": "enum"}


def _variable(head: bytes) -> bytes | None:
    """Return its name; None of what defines none, such as `extern int x;` or `struct x;`."""
    words = re.findall(rb"\w+", re.sub(rb"\[[^\]]*\]|=", b"", head))
    while words and _OF_DATA.fullmatch(words[-1]):
        words.pop()
    if len(words) < 2 or words[0] in _NO_VARIABLE:
        return None
    types = sum(word in _KINDS for word in words)
    return words[-1] if len(words) >= 2 + types else None


def _function(head: bytes) -> bytes | None:
    """Return the name that stands before the parameters: the last parenthesis but attributes'."""
    found: list[tuple[bytes, int]] = []
    depth = 0
    for match in _GROUP.finditer(head):
        if match[0] == b")":
            depth = max(0, depth - 1)
            continue
        if depth == 0 and match[1]:
            found.append((match[1], match.end()))
        depth += 1
    named = [one for one in found if not _ATTRIBUTE.fullmatch(one[0])] or found[:1]
    if not named:
        return None
    name, after = named[-1]
    if not _MACRO.fullmatch(name):
        return name
    argument = re.match(rb"\s*(\w+)\s*[,)]", head[after:])
    if argument is None:
        return name
    if syscall := _SYSCALL.fullmatch(name):
        return b"compat_" * bool(syscall[1]) + b"sys_" + argument[1]
    return argument[1]


def _body_end(text: bytes, at: int) -> int:
    """Return where the braces close that have opened just before `at`."""
    line = text.find(b"\n", at)
    line = len(text) if line < 0 else line
    if b"}" in text[at:line]:
        return line
    end = text.find(b"\n}", at)
    return len(text) if end < 0 else end + 2


def _value_end(text: bytes, at: int) -> int:
    line = text.find(b"\n", at)
    line = len(text) if line < 0 else line
    if text[at:line].rstrip().endswith((b"{", b"=")):
        end = text.find(b"\n}", at)
        return len(text) if end < 0 else end + 2
    return line


def _directive_end(text: bytes, at: int) -> int:
    """Return where a directive ends, behind its continued lines."""
    while (end := text.find(b"\n", at)) >= 0:
        if not text[at:end].rstrip(b"\r").endswith(b"\\"):
            return end
        at = end + 1
    return len(text)


def _typedef(text: bytes, at: int) -> tuple[int, bytes | None]:
    """Return where a typedef ends, and the name that it gives."""
    semicolon, start = text.find(b";", at), at
    brace = text.find(b"{", at, max(at, semicolon))
    if brace >= 0:
        start = _closing(text, brace + 1)
        semicolon = text.find(b";", start)
    if semicolon < 0:
        return len(text), None
    match = _TYPEDEF_NAME.search(text[start : min(semicolon, start + 2000)].rstrip())
    return semicolon, (match[1] or match[2]) if match else None


def _closing(text: bytes, at: int) -> int:
    end = text.find(b"\n}", at)
    line = text.find(b"\n", at)
    brace = text.find(b"}", at, line if line >= 0 else len(text))
    if brace >= 0:
        return brace + 1
    return len(text) if end < 0 else end + 2


def _enumerators(text: bytes, start: int, end: int) -> Iterator[Symbol]:
    for match in _ENUMERATOR.finditer(text, start, end):
        yield Symbol(match[1], "enumerator", match.start(1), match.end(1))
