"""Definitions of C symbols, recognised by the kernel's coding style in linear time. Pure.

Unpreprocessed code does not parse as C, so definitions are recognised by layout: they begin in the
first column and end with a brace in the first column. Other layouts are missed. A scheduler runs
this on hostile patches; Universal Ctags would be another program exposed to them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import re2

from kgym.api.source import SymbolKind

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.encoding = re2.Options.Encoding.LATIN1

# A function's head may span lines, up to a `;`, brace or directive. RE2: input is hostile.
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
    """A definition with its byte range in the text."""

    name: bytes
    kind: SymbolKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A definition with its line range, from 1."""

    name: bytes
    kind: SymbolKind
    line: int
    last: int


def is_c(path: str) -> bool:
    """Return whether a file is searched for definitions."""
    return path.endswith((".c", ".h", ".inc"))


def symbols(text: bytes) -> list[Placed]:
    """Return a file's definitions in order."""
    placed: list[Placed] = []
    at, line = 0, 1
    for symbol in _symbols(text):
        line += text.count(b"\n", at, symbol.start)
        at = symbol.start
        last = line + text.count(b"\n", symbol.start, symbol.end)
        placed.append(Placed(symbol.name, symbol.kind, line, last))
    return placed


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
        elif declared := _declared(text, match):
            end = declared.end
            if declared.name:
                yield declared
        at = max(end, start + 1)


def _declared(text: bytes, match: "re2._Match") -> Symbol | None:
    """Return a typedef, function or variable; the name may be empty."""
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
    """Return a variable's name; None if nothing is defined, as in `extern int x;`."""
    words = re.findall(rb"\w+", re.sub(rb"\[[^\]]*\]|=", b"", head))
    while words and _OF_DATA.fullmatch(words[-1]):
        words.pop()
    if len(words) < 2 or words[0] in _NO_VARIABLE:
        return None
    types = sum(word in _KINDS for word in words)
    return words[-1] if len(words) >= 2 + types else None


def _function(head: bytes) -> bytes | None:
    """Return the name before the parameters: before the last parenthesis of no attribute."""
    groups: list[tuple[bytes, int]] = []
    depth = 0
    for match in _GROUP.finditer(head):
        if match[0] == b")":
            depth = max(0, depth - 1)
            continue
        if depth == 0 and match[1]:
            groups.append((match[1], match.end()))
        depth += 1
    named = [group for group in groups if not _ATTRIBUTE.fullmatch(group[0])] or groups[:1]
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
    """Return the end of the body whose brace opens just before `at`."""
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
    """Return the end of a directive with its continuation lines."""
    while (end := text.find(b"\n", at)) >= 0:
        if not text[at:end].rstrip(b"\r").endswith(b"\\"):
            return end
        at = end + 1
    return len(text)


def _typedef(text: bytes, at: int) -> tuple[int, bytes | None]:
    """Return the end of a typedef, and the name that it defines."""
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
